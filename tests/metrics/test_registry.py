import subprocess
import sys

import pytest

from uds_lens.errors import ConfigError
from uds_lens.metrics import (
    METRICS,
    Meaning,
    MetricOptions,
    MetricResults,
    all_needs,
    evaluate,
    mean_outcome,
    metric,
    metrics_frame,
    needs_answers,
    resolve,
    withdraw_metric,
)

from .conftest import RUN

TWENTY_TWO = [
    *("es", "em", "prob", "paraprob", "truth_ratio", "rouge", "para_rouge", "jailbreak_rouge"),
    *("mia_loss", "mia_zlib", "mia_min_k", "mia_min_kpp"),
    *("s_mia_loss", "s_mia_zlib", "s_mia_min_k", "s_mia_min_kpp"),
    *("cka", "fisher_masked_0.0001", "fisher_masked_0.001", "fisher_masked_0.01", "logit_lens", "uds"),
]


def test_the_published_metrics_by_their_published_names(shared_dir):
    import json

    published = json.loads((shared_dir / "data" / "published" / "meta_eval.json").read_text())["metrics"]
    assert {row["key"] for row in published} == set(TWENTY_TWO)
    for row in published:
        assert row["key"] in METRICS


def test_all_are_there_once_and_after_what_they_are_made_of():
    assert set(TWENTY_TWO) <= set(METRICS)
    order = list(METRICS)
    for name, spec in METRICS.items():
        assert all(order.index(used) < order.index(name) for used in spec.uses)
        assert spec.passes or spec.uses
        assert len({spec.label for spec in METRICS.values()}) == len(METRICS)


def test_needs():
    assert METRICS["es"].needs == ("output",)
    assert all_needs(METRICS["s_mia_loss"]) == ["output", "retain"]
    assert METRICS["uds"].needs == ("internal", "retain", "full")
    assert all_needs(METRICS["overall"]) == ["output", "retain", "full"]


def test_the_table():
    frame = metrics_frame().set_index("name")
    assert list(frame.index) == list(METRICS)
    assert frame.loc["uds", "direction"] == "erasure"
    assert frame.loc["es", "direction"] == "knowledge"
    assert frame.loc["truth_ratio", "data"] == "forget/paraphrased, forget/perturbed"
    assert (frame["low"] == 0).all()


def test_names_bring_their_parts():
    parts = ["es", "em", "paraprob", "truth_ratio", "memorization"]
    assert [spec.name for spec in resolve(["memorization"])] == parts
    assert [spec.name for spec in resolve(["uds", "es"])] == ["es", "uds"]
    assert "uds" not in {spec.name for spec in resolve(["privacy"])}
    assert "uds" in {spec.name for spec in resolve(["privacy"], options=MetricOptions(uds_in_privacy=True))}
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
        ({"uds_in_privacy": "False"}, "uds_in_privacy must be True or False; got 'False'"),
        ({"jailbreak_prefix": None}, "jailbreak_prefix must be a text"),
        ({"fluency": 3}, "fluency must be"),
        ({"taw": 1}, "did you mean 'tau'"),
        ({"system_prompt": "Hello.", "protocol": "raw"}, "belong to chat prompts"),
        ({"generation_rows": 0}, "generation_rows"),
        ({"protocol": "plain"}, "must be one of"),
        ({"dtype": "int8"}, "must be one of"),
    ],
)
def test_options_are_checked(unchecked, options, said):
    with pytest.raises(ConfigError, match=said):
        MetricOptions(**options)


@pytest.fixture
def first_token():
    """A metric as a user declares it in a notebook."""

    @metric(
        name="first_token",
        label="First token",
        meaning=Meaning("knowledge", zero="never known", one="always known"),
        passes=needs_answers("forget"),
    )
    def first_token(evidence):
        hits = evidence.answers("forget").hits
        return mean_outcome(evidence.ids("forget"), [float(each[0]) for each in hits])

    yield first_token
    withdraw_metric("first_token")


def test_a_metric_of_ones_own_is_measured_listed_saved_and_loaded(first_token, trio, data, tmp_path):
    assert list(METRICS)[-1] == "first_token"
    assert metrics_frame().set_index("name").loc["first_token", "group"] == "custom"
    found = evaluate(trio("llama").full, data, metrics=["first_token", "em"], run=RUN)
    assert 0 <= found["first_token"].value <= 1
    assert found.total.forwards == found["em"].cost.forwards
    found.save(tmp_path / "m.json")
    withdraw_metric("first_token")
    try:
        loaded = MetricResults.load(tmp_path / "m.json")
        assert loaded["first_token"] == found["first_token"]
        assert "first_token" not in METRICS
    finally:
        again = metric(name="first_token", label="again", meaning=Meaning("knowledge", "no", "yes"))
        again(first_token)


def test_a_notebooks_cell_may_run_twice_but_names_are_not_taken(first_token):
    same = {"label": "L", "meaning": Meaning("utility", "bad", "good")}
    metric(name="first_token", **same)(first_token)
    assert METRICS["first_token"].label == "L"
    with pytest.raises(ConfigError, match=r"'first_token' already exists.*withdraw_metric\('first_token'\)"):
        metric(name="first_token", **same)(lambda evidence: None)
    with pytest.raises(ConfigError, match="metric 'es' already exists, declared by uds_lens"):
        metric(name="es", **same)(first_token)
    with pytest.raises(ConfigError, match="metric name 'My metric' is invalid: use lower-case"):
        metric(name="My metric", **same)(first_token)
    with pytest.raises(ConfigError, match="metric 'sum' uses 'nothing', which does not exist"):
        metric(name="sum", uses=["nothing"], **same)(first_token)
    metric(name="sum", uses=["first_token"], **same)(lambda evidence: None)
    with pytest.raises(ConfigError, match="'sum' uses 'first_token': withdraw that first"):
        withdraw_metric("first_token")
    withdraw_metric("sum")
    for name in ("es", "sum"):
        with pytest.raises(ConfigError, match="is not a custom metric"):
            withdraw_metric(name)
    with pytest.raises(TypeError):
        METRICS["x"] = METRICS["es"]


def test_the_registry_is_read_without_torch_and_in_its_order_whatever_came_first():
    code = (
        "import sys, uds_lens; import uds_lens.metrics._definitions.overall; m = uds_lens.metrics.METRICS; print(*m); "
        "assert not {'torch', 'numpy', 'pandas', 'transformers'} & set(sys.modules)"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert told.split() == list(METRICS)
    assert told.split()[:20] == TWENTY_TWO[:20]
