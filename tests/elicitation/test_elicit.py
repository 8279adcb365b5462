"""Whole runs on tiny models: identities, controls, resuming, files."""

import dataclasses
import json
import math

import numpy as np
import pandas as pd
import pytest
from tiny_models import EXAMPLES

import uds_lens as ul
from uds_lens._storage import sealed
from uds_lens.elicitation import ICL, ElicitationResults, ElicitOptions, depth_correlation, elicit
from uds_lens.errors import (
    ConfigError,
    DataError,
    ModelError,
    ResultFormatError,
    StorageError,
    UdsLensWarning,
)
from uds_lens.results import RunOptions

ROWS = [dataclasses.replace(row, subject=f"subject {number % 3}") for number, row in enumerate(EXAMPLES)]
OPTIONS = ElicitOptions(samples=3, temperature=1.0, max_new_tokens=5)
RUN = RunOptions(device="cpu", progress=False)
AUDITS = ("plain", "cloze", "start")


@pytest.fixture(scope="module")
def asked(trio):
    paths = trio("llama")
    return elicit(
        paths.unlearned, ROWS, retain=paths.retain, full=paths.full, audits=AUDITS, options=OPTIONS, run=RUN
    )


def test_retain_is_not_beyond_itself_and_full_has_all_of_the_power(trio):
    paths = trio("llama")
    for model, wanted in ((paths.retain, 0.0), (paths.full, None)):
        found = elicit(
            model, ROWS, retain=paths.retain, full=paths.full, audits=AUDITS, options=OPTIONS, run=RUN
        )
        table = found.summary()
        if wanted is not None:
            assert (table["beyond_retain"] == 0).all()
            assert ((table["beyond_low"] < 0) & (table["beyond_high"] > 0)).all(), "few subjects that agree"
        else:
            assert (table["beyond_retain"] == table["power"]).all()
            for key in found.scores:
                assert found.scores[("full", *key[1:])] == found.scores[("unlearned", *key[1:])]


def test_every_model_gets_the_same_prompts_and_budget(asked):
    for audit in AUDITS:
        for decoding in OPTIONS.decodings:
            parts = [asked.part(role, audit, decoding) for role in ("full", "retain", "unlearned")]
            assert len({tuple(said.prompt for said in part.said) for part in parts}) == 1
            assert {len(said.texts) for part in parts for said in part.said} == {
                3 if decoding == "sampled" else 1
            }
    assert asked.part("full", "plain", "sampled").prefilled == asked.part("full", "plain").prefilled


def test_tables_hang_together(asked):
    table = asked.summary().set_index(["audit", "decoding", "statistic"])
    texts = asked.samples_frame()
    per_example = asked.to_frame()
    greedy = per_example[(per_example["audit"] == "cloze") & (per_example["decoding"] == "greedy")]
    means = greedy.groupby("model")["mean"].mean()
    row = table.loc["cloze", "greedy", "mean"]
    assert row["unlearned"] == pytest.approx(means["unlearned"])
    assert row["beyond_retain"] == pytest.approx(means["unlearned"] - means["retain"])
    plain = table.loc["plain", "greedy", "mean"]
    assert row["added"] == pytest.approx(row["beyond_retain"] - plain["beyond_retain"])
    assert plain["added"] == 0
    budget = asked.budget_frame().set_index(["model", "audit", "k"])
    assert budget.loc[("full", "plain", 1), "best_of_k"] == pytest.approx(
        np.nanmean(asked.mean("full", "plain", "sampled"))
    )
    assert budget.loc[("full", "plain", 3), "best_of_k"] == pytest.approx(
        np.nanmean(asked.best("full", "plain", "sampled"))
    )
    any_audit = table.loc["any audit", "sampled", "best"]
    best = np.max([asked.best("retain", audit, "sampled") for audit in AUDITS], axis=0)
    assert any_audit["retain"] == pytest.approx(np.nanmean(best))
    assert len(texts) == 3 * len(AUDITS) * len(asked.part("full", "plain").said) * 4
    assert set(asked.ledger()["injects"]) == {"nothing", "answer prefix", "format"}


def test_a_row_and_its_winner(asked):
    row = ROWS[0]
    frame = asked.texts(row.id)
    assert len(frame) == len(AUDITS) * 4 and set(frame["example_id"]) == {row.id}
    assert asked.winner(row.id).recall == frame["recall"].max()
    with pytest.raises(DataError, match="no example"):
        asked.texts("nobody")


def test_random_models_have_no_power_and_the_tables_say_so(asked):
    table = asked.summary()
    weak = table[table["share"].isna()]
    assert len(weak) and weak["share_reason"].str.startswith("no power").all()
    assert any("no power here" in sentence for sentence in asked.warnings)
    assert any("subjects" in sentence for sentence in asked.warnings)


def test_without_retain_nothing_is_evidence(trio):
    paths = trio("llama")
    found = elicit(
        paths.unlearned,
        ROWS[:2],
        audits=["plain"],
        options=ElicitOptions(samples=0, max_new_tokens=3),
        run=RUN,
    )
    row = found.summary().iloc[0]
    assert math.isnan(row["beyond_retain"]) and row["share_reason"] == "no retain and full model"
    assert found.warnings[0].startswith("No retain model")


def test_rows_an_audit_cannot_ask_are_told(trio):
    paths = trio("llama")
    rows = [dataclasses.replace(ROWS[0], subject=None), *ROWS[1:]]
    found = elicit(
        paths.unlearned,
        rows,
        retain=paths.retain,
        audits=["plain", ICL(shots=1)],
        options=ElicitOptions(samples=0, max_new_tokens=3),
        run=RUN,
    )
    (_, record) = found.audits
    assert record.skipped[0] == (
        rows[0].id,
        "the row has no subject: fill `subject`, or use ICL(source='retain')",
    )
    assert math.isnan(found.mean("unlearned", record.name)[0])
    assert not math.isnan(found.mean("unlearned", "plain")[0])


def test_shots_come_from_rows_that_a_limit_leaves_out(trio):
    asked = elicit(
        trio("llama").unlearned,
        ROWS,
        audits=["icl"],
        holdout_examples=ROWS,
        limit=3,
        options=ElicitOptions(samples=0, max_new_tokens=1),
        run=RUN,
    )
    assert len(asked.examples) == len(asked.holdout) == 3
    assert len({example.subject for example in asked.examples}) == 3  # none has another row among those asked
    (record,) = asked.audits
    assert record.skipped == ()
    for role in ("unlearned", "holdout"):
        for said in asked.part(role, "icl").said:
            own = asked.examples[said.row]
            others = [row for row in ROWS if row.subject == own.subject and row is not own]
            assert any(row.question in said.prompt for row in others)


def test_what_is_finished_is_not_asked_again(trio, tmp_path, monkeypatch):
    from uds_lens.elicitation import _probes as audits

    paths = trio("llama")
    calls = []
    real = audits.sample_continuations
    monkeypatch.setattr(audits, "sample_continuations", lambda *a, **k: calls.append(1) or real(*a, **k))

    def ask(rows=ROWS[:2], **more):
        calls.clear()
        return elicit(
            paths.unlearned,
            rows,
            retain=paths.retain,
            audits=["plain"],
            options=dataclasses.replace(OPTIONS, **more),
            run=RUN,
            out=tmp_path,
        )

    first = ask()
    assert len(calls) == 4
    again = ask()
    assert not calls and again.summary().equals(first.summary())
    ask(temperature=1.5)
    assert len(calls) == 2  # greedy texts do not depend on it
    ask([dataclasses.replace(ROWS[0], answer="Another answer."), ROWS[1]])
    assert len(calls) == 4  # references are part of what is kept
    broken = sorted((tmp_path / "parts").iterdir())[0]
    broken.write_bytes(broken.read_bytes()[:100])
    assert ask().summary().equals(first.summary()) and len(calls) <= 1


def test_saved_and_read_again(asked, tmp_path):
    asked.save(tmp_path / "saved")
    again = ElicitationResults.load(tmp_path / "saved")
    assert again.summary().equals(asked.summary()) and again.to_frame().equals(asked.to_frame())
    assert again.options == asked.options and again.audits == asked.audits
    (tmp_path / "saved" / "inner").mkdir()
    for name in ("notes.txt", "inner/report.html", "part-x.parquet"):
        (tmp_path / "saved" / name).write_text("mine")
    (tmp_path / "saved" / "part-099.parquet").write_text("of an earlier result with more parts")
    asked.save(tmp_path / "saved")
    for name in ("notes.txt", "inner/report.html", "part-x.parquet"):
        assert (tmp_path / "saved" / name).read_text() == "mine"
    assert not (tmp_path / "saved" / "part-099.parquet").exists()
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "notes.txt").write_text("mine")
    with pytest.raises(ResultFormatError, match="choose another directory"):
        asked.save(tmp_path / "foreign")
    file = tmp_path / "saved" / "part-000.parquet"
    file.write_bytes(file.read_bytes() + b"x")
    with pytest.raises(ResultFormatError, match="altered"):
        ElicitationResults.load(tmp_path / "saved")


@pytest.mark.parametrize("content", ["", "[]", '{"format": "uds_lens.ElicitationResults"}', "{" * 2000])
def test_a_broken_manifest_is_refused(asked, tmp_path, content):
    asked.save(tmp_path / "saved")
    (tmp_path / "saved" / "manifest.json").write_text(content)
    with pytest.raises(ResultFormatError):
        ElicitationResults.load(tmp_path / "saved")


def of_no_text(manifest):
    manifest["audits"][0]["opening"] = 1.5


def skipped_without_a_reason(manifest):
    manifest["audits"][0]["skipped"] = [["a"]]


def without_a_part(manifest):
    del manifest["files"]["part-003.parquet"]


@pytest.mark.parametrize("alter", [of_no_text, skipped_without_a_reason, without_a_part])
def test_a_manifest_that_was_sealed_again_must_still_fit(asked, tmp_path, alter):
    asked.save(tmp_path / "saved")
    place = tmp_path / "saved" / "manifest.json"
    manifest = json.loads(place.read_text())
    del manifest["sha256"]
    alter(manifest)
    place.write_bytes(sealed(manifest))
    with pytest.raises(ResultFormatError):
        ElicitationResults.load(tmp_path / "saved")


def test_depth_beside_elicitation(asked, trio):

    paths = trio("llama")
    audit = ul.DepthAudit.run(paths.full, paths.retain, paths.unlearned, ROWS, options=RUN)
    frame = asked.with_depth(audit)
    (score,) = audit.examples_frame().loc[lambda rows: rows["example_id"] == ROWS[1].id, "uds"]
    (row,) = (
        frame[(frame["example_id"] == ROWS[1].id) & (frame["audit"] == "cloze")]
        .query("decoding == 'sampled'")
        .itertuples()
    )
    assert row.uds == score or math.isnan(score)
    assert row.beyond_retain == pytest.approx(
        asked.mean("unlearned", "cloze", "sampled")[1] - asked.mean("retain", "cloze", "sampled")[1]
    )
    other = ul.DepthAudit.run(paths.full, paths.retain, paths.retain, ROWS, options=RUN)
    with pytest.raises(DataError, match="other weights"):
        asked.with_depth(other)


def test_correlation_with_depth_is_spearmans():
    from scipy.stats import kurtosis, spearmanr, t

    random = np.random.default_rng(0)
    frame = pd.DataFrame({"uds": random.random(40).round(1), "beyond_retain": random.random(40).round(1)})
    frame["audit"], frame["decoding"], frame["subject"] = "cloze", "greedy", np.arange(40) // 4
    found = depth_correlation(frame, audit="cloze")
    assert found.rho == pytest.approx(spearmanr(frame["uds"], frame["beyond_retain"]).statistic)
    assert found.interval.low < found.rho < found.interval.high and found.n == 40
    constant = depth_correlation(frame.assign(uds=0.5), audit="cloze")
    assert math.isnan(constant.rho)
    without = [
        np.arctanh(
            spearmanr(*frame.loc[frame["subject"] != j, ["uds", "beyond_retain"]].to_numpy().T).statistic
        )
        for j in range(10)
    ]
    freedom = min(9, 20 / (kurtosis(without, fisher=False) - 1))
    reach = t.ppf(0.975, freedom) * np.std(without) * math.sqrt(9)
    assert found.interval == pytest.approx(
        np.tanh([np.arctanh(found.rho) - reach, np.arctanh(found.rho) + reach])
    )


def test_a_correlation_that_rests_on_one_subject_has_no_interval():
    frame = pd.DataFrame({"uds": np.arange(12) / 12, "beyond_retain": [0.0] * 9 + [1.0, 0.0, 1.0]})
    frame["audit"], frame["decoding"], frame["subject"] = "cloze", "greedy", [f"s{i // 3}" for i in range(12)]
    found = depth_correlation(frame, audit="cloze")
    assert found.rho > 0 and all(map(math.isnan, found.interval))
    perfect = depth_correlation(frame.assign(beyond_retain=1 - frame["uds"]), audit="cloze")
    assert perfect.rho == -1 and all(map(math.isnan, perfect.interval))


def test_long_runs_are_announced_and_run(trio):
    """The time is a guess: a study would have counted the refusal as a failure."""
    paths, options = trio("llama"), ElicitOptions(samples=0, max_new_tokens=2, max_hours=1e-12)
    with pytest.warns(UdsLensWarning, match=r"may take about .* hours .*a guess.*max_hours=1e-12"):
        found = elicit(paths.unlearned, ROWS, audits=["plain"], options=options, run=RUN)
    assert found.part("unlearned", "plain").said


@pytest.mark.parametrize(
    ("audits", "message"),
    [
        ("every", "preset"),
        ([], "no audits"),
        (["plain", "plain"], "two audits"),
        (["hypnosis"], "no audit"),
        (3, "a list of names"),
        (None, "a list of names"),
        ([3], "audit objects"),
    ],
)
def test_audits_that_are_none(trio, audits, message, unchecked):
    with pytest.raises(ConfigError, match=message):
        elicit(trio("llama").full, ROWS, audits=audits, options=OPTIONS, run=RUN)


@pytest.mark.parametrize(
    "wrong",
    [
        {"samples": -1},
        {"temperature": 0.0},
        {"top_k": 0},
        {"leak_threshold": 1.5},
        {"max_hours": float("inf")},
        {"temperature": 10**400},
        {"samples": 1.5},
        {"seed": "x" * 5000},
        {"sample": 3},
    ],
)
def test_options_out_of_range(wrong, unchecked):
    with pytest.raises(ConfigError) as refused:
        ElicitOptions(**wrong)
    assert len(str(refused.value)) < 500


def test_options_come_back_from_their_record():
    assert ElicitOptions.from_dict(json.loads(json.dumps(OPTIONS.to_dict()))) == OPTIONS
    with pytest.raises(ConfigError, match="no setting 'sample'"):
        ElicitOptions.from_dict({"sample": 3})


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"options": {}}, ConfigError, "options must be ElicitOptions; got dict"),
        ({"run": {"device": "cpu"}}, ConfigError, "run must be RunOptions; got dict"),
        ({"model": None}, ModelError, "cannot open NoneType"),
    ],
)
def test_arguments_of_another_kind(trio, given, error, message, unchecked):
    asked = {
        "model": trio("llama").full,
        "examples": ROWS,
        "audits": ["plain"],
        "options": OPTIONS,
        "run": RUN,
    }
    with pytest.raises(error, match=message):
        elicit(**asked | given)


def test_a_place_that_cannot_be_written_is_told_before_anything_is_asked(trio, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "uds_lens.elicitation._run.read_checkpoint_info", lambda *_, **__: pytest.fail("late")
    )
    (tmp_path / "file").write_text("mine")
    with pytest.raises(StorageError, match="is a file"):
        elicit(trio("llama").full, ROWS, audits=["plain"], options=OPTIONS, run=RUN, out=tmp_path / "file")
