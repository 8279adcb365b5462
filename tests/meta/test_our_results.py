"""Saved metrics, audits and CSV files as tables of models."""

import math
from dataclasses import replace

import pandas as pd
import pytest
from altered_results import metric_results
from synthetic_audits import record, synthetic_audit

from uds_lens.errors import DataError, ResultFormatError
from uds_lens.meta import (
    ModelTable,
    ScoreParts,
    Tables,
    directions,
    faithfulness,
    join_audits,
    join_methods,
    rank,
    read_audits,
    read_csv,
    read_metrics,
    robustness,
)
from uds_lens.meta._tables import conditions_in
from uds_lens.metrics import METRICS, MetricValue
from uds_lens.metrics._results import metrics_by_model
from uds_lens.report._dashboard import page_of
from uds_lens.report._dashboard_tables import gather
from uds_lens.results import AuditConfig, TransplantEvidence
from uds_lens.results._comparing import why_not_comparable
from uds_lens.results._conditions import mixed
from uds_lens.unlearning import NPOConfig, RMUConfig
from uds_lens.unlearning._record import dated, write_record

EMPTY = pd.DataFrame(columns=["model", "metric", "reason"])


def results(name, **values):
    def value(key, number):
        spec = METRICS[key]
        own = {"reason": "not measured" if math.isnan(number) else None, "ids": (*"ab",), "per_example": (number,) * 2}
        return MetricValue(name=key, label=spec.label, group=spec.group, value=number, **spec.meaning._asdict(), **own)

    metrics = {key: value(key, number) for key, number in values.items()}
    return replace(metric_results(synthetic_audit()), metrics=metrics, models={"model": record(name, "0" * 32, 4)})


def texts(column):
    """Texts of a column, None where there is none."""
    return [None if pd.isna(value) else value for value in column]


def test_values_per_example_name_their_subjects():
    one = results("ckpt/npo", es=0.2, em=0.3)
    one.metrics["es"] = replace(one.metrics["es"], subjects=("Ada", None))
    rows = read_metrics([one], examples=True).examples
    assert rows["metric"].tolist() == ["es", "es", "em", "em"] and rows["example_id"].tolist() == [*"abab"]
    assert texts(rows["subject"]) == ["Ada", None, None, None]
    audit = synthetic_audit()
    about = read_audits([audit], examples=True).examples["subject"]
    assert about.tolist() == [example.subject for example in audit.examples]


def test_metrics_from_memory_and_from_files(tmp_path):
    one, other = results("runs/npo/last", es=0.2, uds=0.7), results("runs/rmu/last", es=math.nan, uds=0.4)
    other.save(tmp_path / "rmu.json")
    table = read_metrics([one, tmp_path / "rmu.json"], examples=True)
    assert table.frame["model"].tolist() == ["npo/last", "rmu/last"]
    assert table.frame["uds"].tolist() == [0.7, 0.4]
    assert table.reasons.to_numpy().tolist() == [["rmu/last", "es", "not measured"]]
    assert directions(table.frame) == {"es": "knowledge", "uds": "erasure"}
    assert len(table.examples) == 8 and set(table.examples["model"]) == {"npo/last", "rmu/last"}
    assert read_metrics(tmp_path).frame["model"].tolist() == ["rmu/last"]
    assert read_metrics([one, one]).frame["model"].tolist() == ["npo/last", "npo/last (2)"]
    assert read_metrics([one, one], names=["a", "b"]).frame["model"].tolist() == ["a", "b"]
    with pytest.raises(DataError, match="2 different names"):
        read_metrics([one, other], names=["a", "a"])
    (tmp_path / "bad.json").write_text('{"format": "other", "version": 1}')
    with pytest.raises(ResultFormatError, match=r"bad\.json"):
        read_metrics(tmp_path)


def test_audits_beside_metrics(tmp_path):
    checkpoint = "user/unlearn_tofu_forget10_NPO"
    first = synthetic_audit(seed=1, name=checkpoint, erased=0.4)
    second = synthetic_audit(seed=2, name="ckpt/rmu", erased=0.9)
    first.save(tmp_path / "audits" / "one")
    second.save(tmp_path / "audits" / "two")
    audits = read_audits(tmp_path / "audits", examples=True)
    assert audits.frame["uds"].tolist() == [first.uds, second.uds]
    assert audits.frame["uds_low"].tolist() == [first.uds_interval.low, second.uds_interval.low]
    assert read_audits(tmp_path / "audits" / "one").frame["checkpoint"].tolist() == [checkpoint]
    frame = pd.DataFrame({"model": ["runs/tofu_forget10_NPO", "gd"], "es": [0.1, 0.2]})
    examples = pd.DataFrame({"model": ["gd"], "metric": ["es"], "example_id": ["0"], "value": [0.2]})
    runs = ModelTable(frame=frame, reasons=EMPTY, source="runs", examples=examples)
    joined = join_audits(runs, audits)
    assert joined.frame["uds"].tolist() == pytest.approx([first.uds, math.nan], nan_ok=True)
    assert joined.reasons[["model", "metric"]].to_numpy().tolist() == [["gd", "uds"]]
    assert set(joined.examples["model"]) == {"gd", "runs/tofu_forget10_NPO"}
    paired = join_audits(runs, audits, pairs={"gd": "rmu"})
    assert paired.frame["uds"].tolist() == [first.uds, second.uds] and not len(paired.reasons)
    with pytest.raises(DataError, match="pairs names the audit 'nobody'"):
        join_audits(runs, audits, pairs={"gd": "nobody"})
    with pytest.raises(DataError, match="no audit matches any model"):
        join_audits(ModelTable(frame=frame.iloc[1:], reasons=EMPTY, source="runs"), audits)
    with pytest.raises(ResultFormatError, match="no saved audit"):
        read_audits(tmp_path / "nothing")


def test_host_depth_comes_along_and_a_model_without_a_transplant_has_none():
    first, second = synthetic_audit(seed=1, name="ckpt/npo"), synthetic_audit(seed=2, name="ckpt/rmu")
    assert "hidden" not in read_audits([first, second]).frame
    first = replace(first, transplant=TransplantEvidence(host_depth=0.25, hidden_low=0.125, hidden=0.5))
    audits = read_audits([first, second])
    assert audits.notes == ()
    frame = pd.DataFrame({"model": ["runs/rmu", "runs/npo"], "es": [0.1, 0.2]})
    joined = join_audits(ModelTable(frame=frame, reasons=EMPTY, source="runs"), audits).frame
    assert joined["host_depth"].tolist() == pytest.approx([math.nan, 0.25], nan_ok=True)
    assert joined["hidden"].tolist() == pytest.approx([math.nan, 0.5], nan_ok=True)
    assert joined["output_depth"].tolist() == pytest.approx([second.output_depth, first.output_depth], nan_ok=True)


def other_options(result, **options):
    return replace(result, options=replace(result.options, **options))


@pytest.mark.parametrize(
    ("change", "condition"),
    [
        ({"config": AuditConfig(n_bootstrap=200, tau=0.1)}, "tau"),
        ({"config": AuditConfig(n_bootstrap=200, site="mlp_out")}, "site"),
        ({"config": AuditConfig(n_bootstrap=200, stand_in="base")}, "stand_in"),
        ({"provenance": {"ids_hash": "1" * 32}}, "questions"),
        ({"models": "full"}, "full"),
        ({"models": "retain"}, "retain"),
    ],
)
def test_audits_that_compare_refuses_share_no_column_without_a_word(change, condition):
    """One rule for `compare`, tables, ranks and judged metrics."""
    one, other = synthetic_audit(seed=1, name="ckpt/npo"), synthetic_audit(seed=2, name="ckpt/rmu")
    alike = read_audits([one, other])
    assert alike.notes == () and why_not_comparable(one, other) is None
    if isinstance(role := change.get("models"), str):
        change = {"models": other.models | {role: record(role, "9" * 32, 6)}}
    other = replace(other, **change)
    if condition != "questions":  # a paired comparison takes those that both have
        assert why_not_comparable(one, other) is not None
    table = read_audits([one, other])
    assert len(table.notes) == 1 and f"audit's {condition} (" in table.notes[0]
    frame = pd.DataFrame(
        {"model": ["npo", "rmu"], "method": ["npo", "rmu"], "x": [0.2, 0.4], "utility_rel": [1.0, 1.0]}
    )
    models = ModelTable(frame=frame, reasons=EMPTY, source="here")
    parts = ScoreParts(memorization=("x",), membership=("x",), direction={"x": "knowledge", "uds": "erasure"})
    assert len(rank(join_audits(models, alike).frame, parts=parts)) == 2
    joined = join_audits(models, table)
    assert joined.notes == table.notes
    with pytest.raises(DataError, match=f"not comparable: audit's {condition} "):
        rank(joined.frame, parts=parts)
    with pytest.raises(DataError, match="not comparable"):
        page_of(gather(joined))
    pools = pd.concat([table.frame] * 3).assign(knows=[True, False] * 3)
    with pytest.raises(DataError, match="not comparable"):
        faithfulness(pools, metrics=["uds"])
    with pytest.raises(DataError, match="not comparable"):
        robustness(Tables(before=alike.frame.iloc[:1], quantised=table.frame.iloc[1:]), direction={"uds": "erasure"})


def test_metrics_with_other_options_or_examples_are_marked(tmp_path):
    one, other = results("ckpt/npo", es=0.2), results("ckpt/rmu", es=0.3)
    assert read_metrics([one, other]).notes == ()
    assert "conditions" not in metrics_by_model({"npo": one, "rmu": other})
    fast = other_options(other, generation_rows=1)
    assert read_metrics([one, fast]).notes == ()  # speed alone
    cases = {
        "max_new_tokens": other_options(other, max_new_tokens=7),
        "cka_scope": other_options(other, cka_scope="answers"),
        "para_rouge": other_options(other, para_rouge="questions"),
        "repetition_penalty": other_options(other, repetition_penalty=1.1),
        "rouge_words": other_options(other, rouge_words="unicode"),
        "examples of forget": replace(other, provenance=other.provenance | {"data_hash": "other"}),
        "questions": replace(other, provenance=other.provenance | {"ids_hash": "other"}),
        "retain": replace(other, models=other.models | {"retain": record("r", "2" * 32, 4)}),
    }
    asked = one.provenance | {"data_hash": "same", "ids_hash": "same"}
    with_retain = replace(one, models=one.models | {"retain": record("r", "1" * 32, 4)}, provenance=asked)
    for condition, changed in cases.items():
        table = read_metrics([with_retain, changed])
        assert len(table.notes) == 1 and condition in table.notes[0], condition
        marked = metrics_by_model({"npo": with_retain, "rmu": changed})["conditions"]
        assert all(condition in text for text in marked) and "dtype" not in marked[0]
        frame = table.frame.assign(method=["a", "b"], utility_rel=1.0)
        with pytest.raises(DataError, match="not comparable"):
            rank(frame, parts=ScoreParts(memorization=("es",), membership=("es",), depth="es"))
    table.frame.to_csv(tmp_path / "models.csv", index=False)
    assert mixed(zip("ab", conditions_in(read_csv(tmp_path / "models.csv").frame), strict=True)) is not None


def test_csv(tmp_path):
    file = tmp_path / "models.csv"
    file.write_text("model,method,knows,es,uds\n01,npo,True,0.1,\n02,rmu,False,,0.5\n", encoding="utf-8-sig")
    table = read_csv(file)
    assert table.frame["model"].tolist() == ["01", "02"] and table.frame["knows"].tolist() == [True, False]
    assert sorted(table.reasons[["model", "metric"]].to_numpy().tolist()) == [["01", "uds"], ["02", "es"]]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a CSV table"),
        (b"model,es\n", "at least one row"),
        (b"name,es\na,1\n", "column 'model'"),
        (b"model,es\na,1\na,2\n", "row 2"),
        (b"model,es\na,1\nb,1,2\n", "not a CSV table"),
        (b"\xff\xfe\x00", "not a CSV table"),
    ],
)
def test_files_that_are_no_table(tmp_path, content, message):
    (tmp_path / "models.csv").write_bytes(content)
    with pytest.raises(DataError, match=message) as error:
        read_csv(tmp_path / "models.csv")
    assert len(str(error.value)) < 500


def recorded(directory, config, fingerprint):
    """A directory with the record of an unlearned model."""
    directory.mkdir(parents=True)
    empty = {"protocol": "raw", "key": "", "depends_on": {}, "parent": {}, "data": {}, "lora": None, "options": {}}
    trained = {"fingerprint": fingerprint, "steps": 1, "resumed_from_step": None, "device": "cpu"}
    record = {**dated(config), **empty, **trained, "loss_curve": (), "seconds": 1.0}
    write_record(record, directory / "unlearning.json")
    return str(directory)


def test_the_method_comes_from_the_record_or_a_name_and_is_never_guessed(tmp_path):
    npo = recorded(tmp_path / "mine", NPOConfig(learning_rate=2e-5, epochs=3), "0" * 32)
    other = recorded(tmp_path / "other", RMUConfig(), "1" * 32)
    hub = "open-unlearning/unlearn_tofu_Llama-3.2-1B-Instruct_forget10_AltPO_lr5e-05_beta0.1_alpha1_epoch5"
    names = (npo, other, hub, "runs/rmu_lr2e-05_layer10_scale10_epoch5", "forget10_study/npo")
    frame = read_metrics([results(name, es=0.1) for name in names]).frame
    assert texts(frame["method"]) == ["npo", None, "altpo", "rmu", None], "other weights than the record's"
    configs = ["lr2e-05_beta0.1_alpha1_epoch3", None, "lr5e-05_beta0.1_alpha1_epoch5"]
    assert texts(frame["config"])[:3] == configs
    assert frame["lr"].tolist() == pytest.approx([2e-5, math.nan, 5e-5, 2e-5, math.nan], nan_ok=True)
    assert frame["epochs"].tolist() == pytest.approx([3, math.nan, 5, 5, math.nan], nan_ok=True)
    file = tmp_path / "npo_lr1e-05_beta0.1_alpha1_epoch10.json"
    results("model", es=0.2).save(file)
    assert read_metrics(file).frame["method"].tolist() == ["npo"]
    (tmp_path / "mine" / "unlearning.json").write_text("{}")
    with pytest.raises(ResultFormatError, match=r"unlearning\.json"):
        read_metrics([results(npo, es=0.1)])


def test_a_table_sets_the_method_of_models(tmp_path):
    table = read_metrics([results("ckpt/a", es=0.1), results("ckpt/npo_lr1e-05_epoch10", es=0.2)])
    (tmp_path / "methods.csv").write_text("model,method,epochs\na,rmu,5\n")
    frame = join_methods(table, tmp_path / "methods.csv").frame
    assert frame["method"].tolist() == ["rmu", "npo"] and frame["epochs"].tolist() == [5, 10]
    assert texts(join_methods(table, {"npo_lr1e-05_epoch10": "mine"}).frame["method"]) == [None, "mine"]
    with pytest.raises(DataError, match="methods names 'b', which is not in the table; it has a, npo_lr"):
        join_methods(table, {"b": "rmu"})
    (tmp_path / "methods.csv").write_text("model,how\na,rmu\n")
    with pytest.raises(DataError, match="needs the columns 'model' and 'method'; it has model, how"):
        join_methods(table, tmp_path / "methods.csv")
