"""Comparisons: disturbed values are found by what disturbed them, ranges count as ranges, reasons are said."""

import json
import math

import pytest
from study.conftest import Fake

import uds_lens as ul
from uds_lens import published, study
from uds_lens._cli import main
from uds_lens.errors import DataError
from uds_lens.published import beside, compare, find, models, values
from uds_lens.report._dashboard import page_of
from uds_lens.report._dashboard_tables import gather
from uds_lens.study._folder import Row
from uds_lens.study._measuring import Measured
from uds_lens.study._plan import as_mapping

from .test_released import FULL, MODEL, RECORDS


class Known(Fake):
    """Measures nothing: says what was published, and what `disturbed` adds to it."""

    def __init__(self, group="tofu-1b", disturbed=(), pools=0.5):
        table = values()
        table = table[table["group"] == group].set_index(["model", "metric"])["published"]
        self.published, self.disturbed, self.pools = table.to_dict(), dict(disturbed), pools
        super().__init__()

    def measure(self, model, state, weights, items):
        names = ["uds" if item == "audit" else item for item in items]
        rows = [
            Row(metric=name, value=self.value(model, name), reason="-", n=3, seconds=0.1, item=item)
            for name, item in zip(names, items, strict=True)
        ]
        return Measured(tuple(rows), f"weights of {model.model_id}")

    def value(self, model, name):
        if model.role == "pool":
            return self.pools + 0.1 * model.knows + 0.001 * len(model.model_id)
        return self.published.get((model.model_id, name), math.nan) + self.disturbed.get((model.model_id, name), 0.0)


def measured(out, toy_tofu, chosen=None, *, metrics=("uds", "es", "utility_rel"), runner=None, **given):
    chosen = models(method="npo") if chosen is None else chosen
    made = published.plan(chosen, metrics=metrics, data=toy_tofu, **given)
    study.run(made, out, runner=runner or Known())
    return out


def test_disturbed_values_are_found_by_the_amount(tmp_path, toy_tofu):
    amounts = {
        ("npo_lr5e5_b01_a5_ep10", "uds"): 0.0321,
        ("npo_lr1e5_b01_a1_ep5", "uds"): -0.2,
        ("retain", "es"): 0.013,
        ("npo_lr2e5_b01_a2_ep5", "es"): 0.0007,
    }
    found = compare(measured(tmp_path / "s", toy_tofu, runner=Known(disturbed=amounts)))
    frame = found.frame.set_index(["model", "metric"])
    assert len(frame) == 20 * 3
    assert frame["difference"].abs().gt(1e-12).sum() == len(amounts)
    for key, amount in amounts.items():
        assert frame.loc[key, "difference"] == pytest.approx(amount, abs=1e-12)
    assert {key for key in frame.index if frame.loc[key, "verdict"] == "differs"} == set(amounts) - {
        ("npo_lr2e5_b01_a2_ep5", "es")
    }
    assert not found.agrees and "57 agree, 3 differ" in str(found)
    told = found.by_metric.set_index("metric")
    assert told.loc["uds", "largest_model"] == "npo_lr1e5_b01_a1_ep5"
    assert told.loc["uds", "largest_difference"] == pytest.approx(-0.2)
    assert told.loc["utility_rel", "spearman"] == pytest.approx(1.0) and told.loc["uds", "spearman"] < 1
    assert "state after the final norm" in frame.loc[("npo_lr1e5_b01_a1_ep5", "uds"), "expect"]
    assert compare(tmp_path / "s", margins={"uds": 1.0}).by_metric.set_index("metric").loc["uds", "differ"] == 0


def test_ranges_count_as_ranges(tmp_path, toy_tofu):
    inside = {("retain99", "uds"): 0.0004, ("full", "uds"): -0.0004}
    of_3b = compare(
        measured(tmp_path / "3b", toy_tofu, models(group="tofu-3b"), metrics=["uds"], runner=Known("tofu-3b", inside))
    ).frame.set_index("model")
    assert (of_3b["beyond"] == 0).all() and (of_3b["verdict"] == "agrees").all()
    assert "printed with 3 decimals" in of_3b.loc["retain99", "expect"]
    capped = values()[values()["kind"] == "capped"]["model"].tolist()
    name = next(name for name in capped if name not in ("full", "retain"))
    disturbed = {(name, "utility_rel"): 0.05, ("full", "uds"): 0.002, ("retain", "uds"): -0.1}
    run = measured(tmp_path / "1b", toy_tofu, [find(name)], runner=Known(disturbed=disturbed))
    frame = compare(run).frame.set_index(["model", "metric"])
    assert (frame.loc[(name, "utility_rel"), "beyond"], frame.loc[(name, "utility_rel"), "kind"]) == (0, "capped")
    assert frame.loc[("full", "uds"), "verdict"] == "agrees"
    told = frame.loc[(name, "utility_rel"), "expect"]
    assert told.startswith("capped; capped at 1 in the released file"), "a known problem is said where values agree too"
    assert frame.loc[("retain", "uds"), "verdict"] == "differs"


def test_what_was_measured_differently_is_said(tmp_path, toy_tofu):
    name = "npo_lr1e5_b01_a1_ep5"
    amount = {(name, "es"): 0.1, (name, "uds"): 0.1, ("retain", "es"): math.nan}
    made = as_mapping(published.plan([find(name)], data=toy_tofu, limit=3))
    del made["measure"]["prompts"]
    made["measure"]["options"] = {"dtype": "float32"}
    made["measure"]["audit"] = {"protocol": "raw"}
    study.run(made, tmp_path / "s", runner=Known(disturbed=amount))
    frame = compare(tmp_path / "s").frame.set_index(["model", "metric"])
    for metric, words in (
        ("es", "prompts: no system turn, 26 Jul 2024 here, paper_scores there; dtype: float32 here, bfloat16 there"),
        ("uds", "dtype: float32 here, bfloat16 there; last layer: the residual stream here"),
    ):
        row = frame.loc[(name, metric)]
        assert row["verdict"] == "differs as expected" and words in row["expect"]
        assert "measured on a sample of the questions" in row["expect"]
    assert frame.loc[("retain", "es"), ["verdict", "expect"]].tolist() == ["no value", "-"]


def test_other_references_tau_and_questions_are_said(tmp_path, toy_tofu):
    name = "npo_lr1e5_b01_a1_ep5"
    made = as_mapping(published.plan([find(name)], data=toy_tofu))
    made["retain"] = find("retain95").hub_id
    made["measure"]["audit"]["tau"] = 0.1
    study.run(made, tmp_path / "s", runner=Known(disturbed={(name, "uds"): 0.5, (name, "es"): 0.5}))
    frame = compare(tmp_path / "s").frame.set_index(["model", "metric"])
    assert frame.loc[(name, "es"), "verdict"] == "differs", "ES needs neither retain nor tau"
    row = frame.loc[(name, "uds")]
    assert row["verdict"] == "differs as expected"
    assert f"retain: {made['retain']} here, {find('retain').hub_id} there; tau: 0.1 here, 0.05 there" in row["expect"]
    place = tmp_path / "released"
    place.mkdir()
    (place / "results.json").write_text(json.dumps(RECORDS))
    summary = {"source_model_id": MODEL, "full_model": "me/full", "retain_model": find("retain").hub_id}
    (place / "summary.json").write_text(json.dumps({**summary, "delta_threshold": 0.04}))
    (row,) = compare(place).frame.to_dict("records")
    assert f"full: me/full here, {FULL} there; tau: 0.04 here" in row["expect"] and "retain:" not in row["expect"]


@pytest.mark.filterwarnings("ignore::uds_lens.errors.UdsLensWarning")
def test_pools_are_compared_by_their_faithfulness(tmp_path, toy_tofu):
    metrics = ["es", "em"]
    some = compare(measured(tmp_path / "some", toy_tofu, models(role="pool")[27:33], metrics=metrics)).of_pools
    assert set(some["verdict"]) == {"incomplete"} and set(some["n"]) == {6}
    run = measured(tmp_path / "all", toy_tofu, models(role="pool"), metrics=metrics)
    pools = compare(run).of_pools.set_index(["metric", "quantity"])
    assert pools.loc[("es", "auc"), "measured"] == 1.0 and pools.loc[("es", "auc"), "verdict"] == "differs"
    assert pools.loc[("es", "auc"), "beyond"] == pytest.approx(1 - 0.8915)
    assert pools.loc[("em", "mean_n"), "n"] == pools.loc[("em", "mean_n"), "of"] == 60


def test_perturbed_models_without_utility_have_no_robustness_to_compare(tmp_path, toy_tofu):
    chosen = [*models(role="pool")[27:33], *models(method="npo")]
    run = measured(tmp_path / "s", toy_tofu, chosen, metrics=["es", "em"], perturb=True)
    with pytest.warns(ul.errors.UdsLensWarning, match="Q and R are not compared"):
        pools = compare(run).of_pools
    assert set(pools["quantity"]) == {"auc", "mean_p", "mean_n"}


def test_reads_what_others_have(tmp_path):
    place = tmp_path / "released" / "0412_101500_tf_npo_layer"
    place.mkdir(parents=True)
    (place / "results.json").write_text(json.dumps(RECORDS))
    (place / "summary.json").write_text(json.dumps({"source_model_id": MODEL, "full_model": FULL, "dtype": "bfloat16"}))
    found = compare(tmp_path / "released")
    (row,) = found.frame.to_dict("records")
    assert found.measured_by == "released script" and row["model"] == "npo_lr2e5_b01_a1_ep5"
    assert row["verdict"] == "differs as expected" and "sample of the questions" in row["expect"]
    task = tmp_path / "saves" / "eval" / MODEL.split("/")[1].removeprefix("unlearn_")
    task.mkdir(parents=True)
    (task / "TOFU_SUMMARY.json").write_text(json.dumps({"extraction_strength": 0.1, "model_utility": 0.5}))
    found = compare(tmp_path / "saves")
    frame = found.frame.set_index("metric")
    assert found.measured_by == "Open-Unlearning" and frame.loc["es", "measured"] == 0.1
    assert "prompts: open_unlearning here, paper_scores there" in frame.loc["es", "expect"]


def test_references_of_open_unlearning_are_compared_of_the_published_split_alone(tmp_path):
    base = "tofu_Llama-3.2-1B-Instruct"
    for folder, es in (
        (f"unlearn/{base}_forget10_NPO_lr2e-05_beta0.1_alpha1_epoch10/evals", 0.1),
        (f"eval/{base}_full/evals_forget10", 0.7),
        (f"eval/{base}_full/evals_forget05", 0.9),
        (f"eval/{base}_retain90", 0.06),
        (f"unlearn/{base}_forget10_RMU_x/checkpoint-40", 0.5),
    ):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "TOFU_SUMMARY.json").write_text(json.dumps({"extraction_strength": es}))
    found = compare(tmp_path)
    assert found.frame[found.frame["metric"] == "es"].set_index("model")["measured"].to_dict() == {
        "npo_lr2e5_b01_a1_ep10": 0.1,
        "full": 0.7,
        "retain": 0.06,
    }
    assert sum("full/evals_forget05" in name for name in found.unknown) == 1
    assert set(compare(tmp_path / "eval").frame["model"]) == {"full", "retain"}, "references alone"


def test_a_model_found_twice_is_refused(tmp_path, toy_tofu):
    task = "tofu_Llama-3.2-1B-Instruct_forget10_NPO_lr2e-05_beta0.1_alpha1_epoch10"
    for place in ("unlearn", "eval"):
        (tmp_path / place / task).mkdir(parents=True)
        (tmp_path / place / task / "TOFU_SUMMARY.json").write_text('{"extraction_strength": 0.1}')
    with pytest.raises(DataError, match=f"es of npo_lr2e5_b01_a1_ep10 2 times, as 'eval/{task}' and 'unlearn/{task}'"):
        compare(tmp_path)
    made = as_mapping(published.plan([find("npo_lr2e5_b01_a1_ep10")], metrics=["es"], data=toy_tofu))
    made["model"].append({**made["model"][0], "name": "again"})
    study.run(made, tmp_path / "s", runner=Known())
    with pytest.raises(DataError, match="2 times, as 'again' and 'npo_lr2e5_b01_a1_ep10'"):
        beside(tmp_path / "s")


def test_what_is_no_run_or_of_nobody(tmp_path):
    with pytest.raises(DataError, match="no run at"):
        compare(tmp_path)
    plan = {"name": "x", "full": "toy:full", "retain": "toy:retain", "data": {"forget": "toy:forget", "limit": 2}}
    study.run({**plan, "measure": {"metrics": ["es"]}}, tmp_path / "s", runner=Known())
    with pytest.raises(DataError, match=r"holds no value of a published model \(full, retain\)"):
        compare(tmp_path / "s")


def test_the_figure_counts_what_agrees(tmp_path, toy_tofu):
    found = compare(measured(tmp_path / "s", toy_tofu, runner=Known(disturbed={("retain", "es"): 0.5})))
    assert sum(len(trace.x) for trace in found.plot().data if trace.name == "agrees") == 59


PARTS = ["uds", "es", "em", "paraprob", "truth_ratio", "s_mia_loss", "s_mia_zlib", "s_mia_min_k", "s_mia_min_kpp"]


def test_rank_and_dashboard_take_a_run_beside_the_published_values(tmp_path, toy_tofu, capsys, words_only):
    better = {(model.name, "uds"): 0.05 for model in models(method="npo")}
    run = measured(tmp_path / "s", toy_tofu, metrics=[*PARTS, "utility_rel"], runner=Known(disturbed=better))
    table = beside(run)
    assert len(table.frame) == 168 and table.frame["method"].nunique() == 9 and len(table.references) == 4
    ranked = ul.meta.rank(table.frame).set_index("method")
    assert ranked.loc["npo (measured)", "model"] == ranked.loc["npo", "model"] + " (measured)"
    assert ranked.loc["npo (measured)", "depth"] == pytest.approx(ranked.loc["npo", "depth"] + 0.05)
    assert ranked.loc["npo (measured)", "memorization"] == pytest.approx(ranked.loc["npo", "memorization"])
    for table, code, told in (("published", 0, "npo (measured)"), (run, 1, "pass 'published' as the table")):
        with pytest.raises(SystemExit) as done:
            main(["rank", str(table), "--measured", str(run), "--resamples", "0"])
        out, err = capsys.readouterr()
        assert (done.value.code or 0, told in out + err) == (code, True), err
    page = page_of(gather(beside(run), options=ul.report.DashboardOptions(n_resamples=0)))
    assert "npo (measured)" in page and "full (measured)" in page
