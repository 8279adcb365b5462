"""Names, configurations, and the paper's grid."""

import json
from collections import Counter

import pytest
from hypothesis import given, strategies as st

from uds_lens.errors import ConfigError
from uds_lens.unlearning import METHODS, NPOConfig, RMUConfig, UNDIALConfig, config_name, grid, make_config, parse_name


def test_the_paper_has_150_runs_with_distinct_names() -> None:
    runs = list(grid("paper"))
    names = [config_name(run) for run in runs]
    assert len(set(names)) == len(runs) == 150
    assert [parse_name(name) for name in names] == runs
    expected = dict.fromkeys(("graddiff", "idknll", "npo", "idkdpo", "altpo", "rmu", "undial"), 18)
    assert Counter(run.method for run in runs) == {**expected, "simnpo": 24}
    assert {run.n_alternates for run in runs if run.method == "altpo"} == {1}
    assert {run.reduction for run in runs if run.method in ("rmu", "undial")} == {"open_unlearning"}
    with pytest.raises(ConfigError, match="the only grid is 'paper'"):
        next(grid("table8"))


def test_the_grid_is_that_of_the_published_table(shared_dir) -> None:
    rows = json.loads((shared_dir / "data" / "published" / "method_results.json").read_text())["models"]
    published = Counter((r["method"], f"{r['lr']:.0e}", r["alpha"], r["epoch"]) for r in rows if not r["is_reference"])
    ours: Counter = Counter()
    for run in grid("paper"):
        alpha = None if run.method == "rmu" else run.alpha
        ours[(run.method, f"{run.learning_rate:.0e}", alpha, f"ep{run.epochs}")] += 1
    assert ours == published


@pytest.mark.parametrize(
    ("config", "name"),
    [
        (NPOConfig(learning_rate=2e-5), "npo_lr2e-05_beta0.1_alpha1_epoch10"),
        (UNDIALConfig(learning_rate=3e-4, alpha=2.0), "undial_lr3e-04_beta10_alpha2_epoch10"),
        (RMUConfig(layer=15, epochs=5), "rmu_lr1e-05_alpha1_layer15_scale10_epoch5"),
        (NPOConfig(protocol="chat", seed=7), "npo_lr1e-05_beta0.1_alpha1_epoch10_protocolchat_seed7"),
        (
            NPOConfig(system_prompt="Be kind_ly: 100 %.", chat_date="10 Apr 2025"),
            "npo_lr1e-05_beta0.1_alpha1_epoch10_systempromptBe%20kind%5Fly%3A%20100%20%25._chatdate10%20Apr%202025",
        ),
        (make_config("simnpo"), "simnpo_lr1e-05_beta4.5_alpha1_delta1_gamma0.125_epoch10"),
        (make_config("ga", {"schedule": "constant_with_warmup"}), "ga_lr1e-05_epoch10_scheduleconstant-with-warmup"),
    ],
)
def test_names(config, name: str) -> None:
    assert config_name(config) == name
    assert parse_name(name) == config


numbers = st.floats(min_value=1e-9, max_value=1e9, allow_nan=False)


@given(method=st.sampled_from(sorted(METHODS)), rate=numbers, decay=numbers, epochs=st.integers(6, 999))
def test_every_name_reads_back(method: str, rate: float, decay: float, epochs: int) -> None:
    config = make_config(method, {"learning_rate": rate, "weight_decay": decay, "epochs": epochs})
    assert parse_name(config_name(config)) == config


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nop_lr1e-05", "does not start with an unlearning method"),
        ("npo_lr1e-05_delta1", "cannot read 'delta1'"),
        ("npo_lr", "cannot read 'lr'"),
        ("npo_lr1e-05_lr2e-05", "cannot read 'lr2e-05'"),
        ("npo_lrfast", "learning_rate must be a number; got 'fast'"),
    ],
)
def test_names_that_are_none(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_name(name)
