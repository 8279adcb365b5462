"""Results that an earlier run left: kept for the same question, measured again for another."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import uds_lens as ul
from uds_lens.audit._resume import Question, audit_many
from uds_lens.errors import ConfigError, UdsLensWarning

RUN = ul.RunOptions(device="cpu", engine="wavefront")


@pytest.fixture
def asked(sweep: Path) -> Question:
    examples = ul.load_examples(sweep / "forget.json")
    return Question(str(sweep / "full"), str(sweep / "retain"), examples, ul.AuditConfig(), RUN)


def found(asked: Question, sweep: Path, unlearned: str = "unlearned") -> tuple[bool, bool]:
    """Whether the baseline and the audit that are there serve."""
    baseline = asked.baseline_at(sweep / "out" / "baseline")
    audit = asked.audit_at(sweep / "out" / "unlearned", str(sweep / unlearned))
    return baseline is not None, audit is not None


def test_the_same_question(asked: Question, sweep: Path, tmp_path: Path) -> None:
    assert found(asked, sweep) == (True, True)
    assert found(replace(asked, options=replace(RUN, token_budget=64)), sweep) == (True, True)
    assert asked.audit_at(sweep / "out" / "unlearned", str(sweep / "unlearned")).n_measured > 0
    copy = shutil.copytree(sweep / "full", tmp_path / "copy")  # the same weights are the same model
    assert found(replace(asked, full=str(copy)), sweep) == (True, True)


@pytest.mark.parametrize("changes", [{"tau": 0.1}, {"n_bootstrap": 100}])
def test_settings_that_are_applied_afterwards_leave_the_baseline(asked: Question, sweep: Path, changes: dict) -> None:
    other = replace(asked, config=ul.AuditConfig(**changes))
    assert found(other, sweep) == (True, False)
    assert other.other_baseline_at(sweep / "out" / "baseline") is None
    kept = other.baseline_at(sweep / "out" / "baseline").config
    assert replace(kept, protocol="auto") == other.config  # the prompts that were found are kept


@pytest.mark.parametrize(
    "change",
    [
        lambda asked: {"config": ul.AuditConfig(site="mlp_out")},
        lambda asked: {"examples": asked.examples[:-1]},
        lambda asked: {"examples": [*asked.examples[:-1], replace(asked.examples[-1], type="other")]},
        lambda asked: {"full": asked.retain, "retain": asked.full},
        lambda asked: {"retain": asked.retain.replace("retain", "unlearned")},
    ],
    ids=["site", "fewer examples", "another type", "swapped", "another retain"],
)
def test_another_question(asked: Question, sweep: Path, change) -> None:
    other = replace(asked, **change(asked), _fingerprints={})
    assert found(other, sweep) == (False, False)
    with pytest.raises(ConfigError, match=r"baseline' holds stage 1 of other (settings|examples|models)"):
        audit_many(other, {}, sweep / "out")


@pytest.mark.parametrize("longer", ["examples", "control"])
def test_the_first_rows_of_a_file_that_has_grown_are_another_sample(asked: Question, sweep: Path, longer: str) -> None:
    """The same rows are measured, but before they were all there were: nothing withheld their verdict."""
    rows, config = asked.examples, ul.AuditConfig(limit=2, sample="first")
    before = replace(asked, config=config, **{"examples": rows[:2], "control": rows[4:6], longer: rows[:4][-2:]})
    before = replace(before, **({"examples": rows[:2]} if longer == "control" else {}))
    audit = ul.DepthAudit.run(before.full, before.retain, before.full, before.examples, **before.how)
    assert before._difference(audit, {"unlearned": before.full}) is None
    now = replace(before, **{longer: [*getattr(before, longer), rows[7]]})
    other = "control facts" if longer == "control" else "examples or prompts"
    assert now._difference(audit, {"unlearned": before.full}) == other


def test_another_model_and_release(asked: Question, sweep: Path, tmp_path: Path, monkeypatch) -> None:
    assert found(asked, sweep, unlearned="full") == (True, False)
    assert asked.audit_at(tmp_path / "nowhere", str(sweep / "unlearned")) is None  # and nothing is told
    monkeypatch.setattr("uds_lens.audit._resume.versions", lambda: {"uds_lens": "0.0.0"})
    assert found(asked, sweep) == (False, False)


def test_results_that_are_not_whole(asked: Question, sweep: Path, tmp_path: Path) -> None:
    out = shutil.copytree(sweep / "out", tmp_path / "out")
    for name, spoiled in (("baseline", "tensors.safetensors"), ("unlearned", "manifest.json")):
        (out / name / spoiled).write_bytes(b"")
    with pytest.warns(UdsLensWarning, match="cannot be read, so it is measured again: ") as told:
        assert found(asked, tmp_path) == (False, False)
    assert all(name in str(each.message) for name, each in zip(("baseline", "unlearned"), told, strict=True))
