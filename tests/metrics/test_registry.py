"""The registry: names, parts, needs, the settings' ranges, and metrics of a user's own."""

import json
import subprocess
import sys

import pytest

from uds_lens import metrics as m
from uds_lens.errors import ConfigError
from uds_lens.metrics._catalogue import all_needs, resolve
from uds_lens.metrics._declaration import MetricSpec, add_metric

from .conftest import ask

TWENTY_TWO = [
    *("es", "em", "prob", "paraprob", "truth_ratio", "rouge", "para_rouge", "jailbreak_rouge"),
    *("mia_loss", "mia_zlib", "mia_min_k", "mia_min_kpp"),
    *("s_mia_loss", "s_mia_zlib", "s_mia_min_k", "s_mia_min_kpp"),
    *("cka", "fisher_masked_0.0001", "fisher_masked_0.001", "fisher_masked_0.01", "logit_lens", "uds"),
]


def test_the_published_metrics_by_their_published_names(shared_dir):
    published = json.loads((shared_dir / "data" / "published" / "meta_eval.json").read_text())["metrics"]
    assert {row["key"] for row in published} == set(TWENTY_TWO)


def test_all_are_there_once_after_their_parts_and_without_torch_whatever_came_first():
    code = (
        "import sys, uds_lens; import uds_lens.metrics._definitions.aggregates; m = uds_lens.metrics.METRICS; "
        "print(*m); "
        "assert not {'torch', 'numpy', 'pandas', 'transformers'} & set(sys.modules)"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    order = list(m.METRICS)
    assert printed.split() == order and order[:22] == TWENTY_TWO
    for name, spec in m.METRICS.items():
        assert all(order.index(used) < order.index(name) for used in spec.uses)
        assert spec.passes or spec.uses
    assert len({spec.label for spec in m.METRICS.values()}) == len(m.METRICS)


def test_needs_and_the_table():
    assert m.METRICS["es"].needs == ("output",)
    assert all_needs(m.METRICS["s_mia_loss"]) == ["output", "retain"]
    assert m.METRICS["uds"].needs == ("internal", "retain", "full")
    assert all_needs(m.METRICS["overall"]) == ["output", "retain", "full"]
    frame = m.metrics_frame().set_index("name")
    assert list(frame.index) == list(m.METRICS)
    assert frame.loc["uds", "direction"] == "erasure" and frame.loc["es", "direction"] == "knowledge"
    assert frame.loc["truth_ratio", "data"] == "forget/paraphrased, forget/perturbed"
    assert (frame["low"].drop(["privleak", "probe_selectivity"]) == 0).all()
    assert frame.loc["mia_gradnorm", "needs"] == "internal" and frame.loc["linear_probe", "data"] == "forget/endings"


def test_names_bring_their_parts():
    parts = ["es", "em", "paraprob", "truth_ratio", "memorization"]
    assert [spec.name for spec in resolve(["memorization"])] == parts
    assert [spec.name for spec in resolve(["uds", "es"])] == ["es", "uds"]
    assert "uds" not in {spec.name for spec in resolve(["privacy"])}
    assert "uds" in {spec.name for spec in resolve(["privacy_uds"])}
    with pytest.raises(ConfigError, match=r"no metric 'bleu'\. The \d+ metrics \(METRICS\) are es, em"):
        resolve(["bleu"])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"min_k": 1.01}, "min_k must be a number > 0 and <= 1; got 1.01"),
        ({"tau": "x"}, "tau must be a number >= 0; got 'x'"),
        ({"tau": float("inf")}, "tau must be a number"),
        ({"max_new_tokens": 1.5}, "max_new_tokens must be a whole number >= 1; got 1.5"),
        ({"fisher_memory_gb": float("nan")}, "fisher_memory_gb must be a number > 0"),
        ({"strict_es": "False"}, "strict_es must be True or False; got 'False'"),
        ({"fluency": 3}, "fluency must be"),
        ({"taw": 1}, "did you mean 'tau'"),
        ({"system_prompt": "Hello.", "protocol": "raw"}, "apply only to chat prompts"),
        ({"generation_rows": 0}, "generation_rows"),
        ({"dtype": "int8"}, "must be one of"),
    ],
)
def test_options_are_checked(unchecked, options, said):
    with pytest.raises(ConfigError, match=said):
        m.MetricOptions(**options)


@pytest.fixture
def first_token():
    """A metric as a user declares it in a notebook."""

    @m.metric(
        name="first_token",
        label="First token",
        meaning=m.Meaning("knowledge", zero="never known", one="always known"),
        passes=m.needs_answers("forget"),
    )
    def first_token(evidence):
        hits = evidence.answers("forget").hits
        return m.mean_outcome(evidence.ids("forget"), [float(each[0]) for each in hits])

    yield first_token
    m.withdraw_metric("first_token")


def test_a_custom_metric_is_measured_listed_saved_and_loaded(first_token, trio, data, tmp_path):
    assert list(m.METRICS)[-1] == "first_token"
    assert m.metrics_frame().set_index("name").loc["first_token", "group"] == "custom"
    found = ask(trio("llama").full, data, ["first_token", "em"])
    assert 0 <= found["first_token"].value <= 1
    assert found.total.forwards == found["em"].cost.forwards
    found.save(tmp_path / "m.json")
    spec = m.METRICS["first_token"]
    m.withdraw_metric("first_token")
    try:
        loaded = m.MetricResults.load(tmp_path / "m.json")
        assert loaded["first_token"] == found["first_token"]
        assert "first_token" not in m.METRICS
    finally:
        add_metric(spec)


def test_a_metric_reads_what_it_declares_whatever_else_is_measured(trio, data):
    full = trio("llama").full
    for said, reads in (
        ("reads Pass.role='model', kind='answers', what='forget'", lambda e: e.answers("forget")),
        ("kind='generations'", lambda e: e.generations("forget")),
        (r"reads the value of 'em': declare uses=", lambda e: e.value("em")),
    ):
        m.metric(name="hasty", label="Hasty", meaning=m.Meaning("knowledge", "no", "yes"))(reads)
        for names in (["hasty"], ["hasty", "em", "rouge"]):
            with pytest.raises(ConfigError, match=said):
                ask(full, data, names)
        m.withdraw_metric("hasty")


def test_a_notebooks_cell_may_run_twice_but_names_are_not_taken(first_token):
    same = {"label": "L", "meaning": m.Meaning("utility", "bad", "good", low=-1.0, high=2.0)}
    m.metric(name="first_token", **same)(first_token)
    spec = m.METRICS["first_token"]
    assert (spec.label, spec.meaning.low, spec.meaning.high) == ("L", -1.0, 2.0)
    for function, name, more, said in (
        (len, "first_token", {}, r"'first_token' already exists.*withdraw_metric\('first_token'\)"),
        (first_token, "es", {}, "metric 'es' already exists, declared by uds_lens"),
        (first_token, "My metric", {}, "metric name 'My metric' is invalid: use lower-case"),
        (first_token, "sum", {"uses": ["nothing"]}, "metric 'sum' uses 'nothing', which does not exist"),
    ):
        with pytest.raises(ConfigError, match=said):
            m.metric(name=name, **same, **more)(function)
    add_metric(MetricSpec(name="sum", group="custom", score=len, uses=("first_token",), **same))
    with pytest.raises(ConfigError, match="'sum' uses 'first_token': withdraw 'sum' first"):
        m.withdraw_metric("first_token")
    m.withdraw_metric("sum")
    for name in ("es", "sum"):
        with pytest.raises(ConfigError, match="is not a custom metric"):
            m.withdraw_metric(name)
    with pytest.raises(TypeError):
        m.METRICS["x"] = m.METRICS["es"]
