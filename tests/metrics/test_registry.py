import pytest

from uds_lens.errors import ConfigError
from uds_lens.metrics import METRICS, MetricOptions, all_needs, metrics_frame, resolve

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
    assert [spec.name for spec in resolve(["memorization"])] == [
        "es",
        "em",
        "paraprob",
        "truth_ratio",
        "memorization",
    ]
    assert [spec.name for spec in resolve(["uds", "es"])] == ["es", "uds"]
    assert "uds" not in {spec.name for spec in resolve(["privacy"])}
    assert "uds" in {spec.name for spec in resolve(["privacy"], uds_in_privacy=True)}
    with pytest.raises(ConfigError, match=r"no metric 'bleu'; there are es, em"):
        resolve(["bleu"])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"min_k": 0.0}, "min_k"),
        ({"max_new_tokens": 0}, "max_new_tokens"),
        ({"generation_rows": 0}, "generation_rows"),
        ({"tau": -0.1}, "tau"),
        ({"fisher_memory_gb": 0.0}, "fisher_memory_gb"),
    ],
)
def test_options_are_checked(options, said):
    with pytest.raises(ConfigError, match=said):
        MetricOptions(**options)


@pytest.mark.parametrize("options", [{"protocol": "plain"}, {"dtype": "int8"}])
def test_words_are_checked(options, monkeypatch):
    """Without the run-time type checker of the tests the library's own message is met."""
    import jaxtyping

    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(ConfigError, match="must be one of"):
        MetricOptions(**options)
