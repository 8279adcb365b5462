"""What stands in for retain where there is none, and what readers are told of audits without power."""

import dataclasses
import json

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from tiny_models import EXAMPLES

from uds_lens._storage import sealed
from uds_lens.elicitation import ElicitationResults, ElicitOptions, elicit
from uds_lens.elicitation._results import unpaired
from uds_lens.errors import ResultFormatError
from uds_lens.generation import rouge_l_recall
from uds_lens.results import RunOptions

ROWS = [
    dataclasses.replace(row, subject=f"subject {number % 3}", type=None)
    for number, row in enumerate(EXAMPLES[:6])
]
OPTIONS = ElicitOptions(samples=2, temperature=1.0, max_new_tokens=6)
RUN = RunOptions(device="cpu", progress=False)


@pytest.fixture(scope="module")
def alone(trio):
    paths = trio("llama")
    return elicit(
        paths.unlearned,
        ROWS,
        audits=["plain", "cloze"],
        holdout_examples=EXAMPLES[6:9],
        options=OPTIONS,
        run=RUN,
    )


def test_texts_are_held_against_the_references_of_other_subjects(alone):
    frame = alone.control_frame().set_index(["audit", "decoding", "statistic"])
    own, others = [], []
    for row, said in enumerate(alone.part("unlearned", "plain").said):
        own += rouge_l_recall([ROWS[row].answer], said.texts)
        strange = [r.answer for r in ROWS if r.subject != ROWS[row].subject]
        others.append(np.mean(rouge_l_recall(strange, [said.texts[0]] * len(strange))))
    found = frame.loc["plain", "greedy", "mean"]
    assert found["unlearned"] == pytest.approx(np.mean(own))
    assert found["others"] == pytest.approx(np.mean(others))
    assert found["beyond_others"] == pytest.approx(np.mean(own) - np.mean(others))
    assert found["others_low"] <= found["beyond_others"] <= found["others_high"] and found["n"] == 6
    assert set(frame.loc["cloze"].index) == {("greedy", "mean"), ("sampled", "mean"), ("sampled", "best")}


def test_references_are_of_the_same_type_where_there_are_types(trio):
    rows = [dataclasses.replace(row, type="ab"[number % 2]) for number, row in enumerate(ROWS)]
    found = elicit(
        trio("llama").unlearned,
        rows,
        audits=["plain"],
        options=ElicitOptions(samples=0, max_new_tokens=4),
        run=RUN,
    )
    others = []
    for row, said in zip(rows, found.part("unlearned", "plain").said, strict=True):
        alike = [r.answer for r in rows if r.subject != row.subject and r.type == row.type]
        others.append(np.mean(rouge_l_recall(alike, [said.texts[0]] * len(alike))))
    assert found.control_frame()["others"][0] == pytest.approx(np.mean(others))


def test_holdout_questions_are_asked_of_the_unlearned_model_in_the_same_ways(alone, trio, tmp_path):
    by_itself = elicit(
        trio("llama").unlearned, EXAMPLES[6:9], audits=["plain", "cloze"], options=OPTIONS, run=RUN
    )
    for audit in ("plain", "cloze"):
        assert [s.texts for s in alone.part("holdout", audit, "sampled").said] == [
            s.texts for s in by_itself.part("unlearned", audit, "sampled").said
        ]
    frame = alone.control_frame()
    row = frame[(frame["audit"] == "cloze") & (frame["statistic"] == "best")].iloc[0]
    away = np.nanmean(by_itself.best("unlearned", "cloze", "sampled"))
    assert row["holdout"] == pytest.approx(away)
    assert row["beyond_holdout"] == pytest.approx(row["unlearned"] - away)
    assert "holdout" not in alone.summary().columns
    assert set(alone.samples_frame()["model"]) == {"unlearned", "holdout"}
    alone.save(tmp_path / "saved")
    again = ElicitationResults.load(tmp_path / "saved")
    assert again.holdout == alone.holdout and again.control_frame().equals(frame)
    manifest = json.loads((tmp_path / "saved" / "manifest.json").read_text())
    manifest["models"]["holdout"] = manifest["models"]["unlearned"]
    del manifest["sha256"]
    (tmp_path / "saved" / "manifest.json").write_bytes(sealed(manifest))
    with pytest.raises(ResultFormatError, match="fit together"):
        ElicitationResults.load(tmp_path / "saved")


def test_without_retain_the_warning_names_what_there_is(alone):
    assert alone.warnings[0].startswith("No retain model") and "nobody learnt" in alone.warnings[0]
    assert not any(sentence.startswith("0 subjects") for sentence in alone.warnings)


def test_a_difference_of_two_sets_is_welchs():
    random = np.random.default_rng(1)
    one, other = random.normal(0.4, 0.1, 9), random.normal(0.1, 0.3, 14)
    found = unpaired(one, np.arange(9), other, np.arange(14))
    wanted = stats.ttest_ind(one, other, equal_var=False).confidence_interval()
    assert found.value == pytest.approx(one.mean() - other.mean())
    assert tuple(found.interval) == pytest.approx(tuple(wanted))
    clustered = unpaired(np.repeat(one, 4), np.repeat(np.arange(9), 4), other, np.arange(14))
    assert tuple(clustered.interval) == pytest.approx(tuple(wanted))  # four copies are no four draws
    assert np.isnan(unpaired(one, np.zeros(9, int), other, np.arange(14)).interval.low)


def test_audits_under_which_full_itself_says_little_are_told(trio, monkeypatch):
    from uds_lens.elicitation import _results as elicitation_cautions

    row = {"decoding": "greedy", "statistic": "mean", "retain": 0.1, "n_subjects": 20}
    table = pd.DataFrame(
        [
            {**row, "audit": "aoa", "full": 0.18, "share_reason": None},
            {**row, "audit": "icl", "full": 0.10, "share_reason": "no power: as retain"},
            {**row, "audit": "plain", "full": 0.98, "share_reason": None},
        ]
    )
    monkeypatch.setattr(elicitation_cautions, "summary_frame", lambda results: table)
    paths, options = trio("llama"), ElicitOptions(samples=0, max_new_tokens=1)
    told = elicit(
        paths.unlearned,
        ROWS[:1],
        retain=paths.retain,
        full=paths.full,
        audits=["plain"],
        options=options,
        run=RUN,
    ).warnings
    assert [sentence.split(" (")[0] for sentence in told] == ["aoa", "icl"]
    assert "little power here: full, which knows, scores 0.18" in told[0] and "no power here" in told[1]


def test_sides_that_do_not_vary_have_no_interval():
    found = unpaired(np.ones(4), np.arange(4), np.zeros(4), np.arange(4))
    assert found.value == 1.0 and np.isnan(found.interval).all(), "nothing is known of others"
