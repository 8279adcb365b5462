"""Weaker controls than retain, and cautions about probes without power."""

import dataclasses
import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from results.conftest import made
from scipy import stats
from tiny_models import EXAMPLES

from uds_lens.elicitation import ElicitationResults, ElicitData, elicit
from uds_lens.elicitation._results import unpaired
from uds_lens.errors import DataError
from uds_lens.generation import rouge_l_recall
from uds_lens.results import TransplantEvidence, contrast, verdict

from .conftest import GREEDY, OPTIONS, ROWS, RUN

ASKED = [dataclasses.replace(row, type=None) for row in ROWS[:6]]


@pytest.fixture(scope="module")
def alone(opened):
    data = ElicitData(forget=ASKED, holdout=EXAMPLES[6:8])
    return elicit(opened("llama", "unlearned"), data, probes=["plain", "cloze"], options=OPTIONS, run=RUN)


def test_texts_are_scored_against_the_references_of_other_subjects(alone):
    frame = alone.control_frame().set_index(["probe", "decoding", "statistic"])
    own, others = [], []
    for row, response in enumerate(alone.part("unlearned", "plain").responses):
        own += rouge_l_recall([ASKED[row].answer], response.texts)
        strange = [r.answer for r in ASKED if r.subject != ASKED[row].subject]
        others.append(np.mean(rouge_l_recall(strange, [response.texts[0]] * len(strange))))
    found = frame.loc["plain", "greedy", "mean"]
    assert found["unlearned"] == pytest.approx(np.mean(own))
    assert found["others"] == pytest.approx(np.mean(others))
    assert found["beyond_others"] == pytest.approx(np.mean(own) - np.mean(others))
    assert found["others_low"] <= found["beyond_others"] <= found["others_high"] and found["n"] == 6
    assert set(frame.loc["cloze"].index) == {("greedy", "mean"), ("sampled", "mean"), ("sampled", "best")}


def test_references_are_of_the_same_type_where_there_are_types(opened):
    rows = [dataclasses.replace(row, type="ab"[number % 2]) for number, row in enumerate(ASKED)]
    found = elicit(opened("llama", "unlearned"), rows, probes=["plain"], options=GREEDY, run=RUN)
    others = []
    for row, response in zip(rows, found.part("unlearned", "plain").responses, strict=True):
        alike = [r.answer for r in rows if r.subject != row.subject and r.type == row.type]
        others.append(np.mean(rouge_l_recall(alike, [response.texts[0]] * len(alike))))
    assert found.control_frame()["others"][0] == pytest.approx(np.mean(others))


def test_holdout_questions_are_asked_of_the_unlearned_model_in_the_same_ways(alone, opened, tmp_path):
    by_itself = elicit(opened("llama", "unlearned"), EXAMPLES[6:8], probes=["plain", "cloze"], options=OPTIONS, run=RUN)
    for probe in ("plain", "cloze"):
        parts = alone.part("holdout", probe, "sampled"), by_itself.part("unlearned", probe, "sampled")
        assert len({tuple(response.texts for response in part.responses) for part in parts}) == 1
    frame = alone.control_frame()
    row = frame[(frame["probe"] == "cloze") & (frame["statistic"] == "best")].iloc[0]
    away = np.nanmean(by_itself.best("unlearned", "cloze", "sampled"))
    assert row["holdout"] == pytest.approx(away)
    assert row["beyond_holdout"] == pytest.approx(row["unlearned"] - away)
    assert "holdout" not in alone.summary().columns
    assert set(alone.samples_frame()["model"]) == {"unlearned", "holdout"}
    alone.save(tmp_path / "saved")
    again = ElicitationResults.load(tmp_path / "saved")
    assert again.holdout == alone.holdout and again.control_frame().equals(frame)


def test_without_retain_the_warning_names_what_there_is(alone):
    assert alone.warnings[0].startswith("No retain model") and "no model learned" in alone.warnings[0]
    assert not any(sentence.startswith("Only 0 subjects") for sentence in alone.warnings)


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
    same = unpaired(np.ones(4), np.arange(4), np.zeros(4), np.arange(4))
    assert same.value == 1.0 and np.isnan(same.interval).all(), "nothing is known of others"


def test_probes_with_little_power_or_subjects_that_differ_alike_are_reported(asked):
    row = {"decoding": "greedy", "statistic": "mean", "retain": 0.1, "caution": "", "p_holm": 0.01}
    row |= {"n_subjects": 20, "effective_subjects": 20.0}
    table = pd.DataFrame(
        [
            {**row, "probe": "aoa", "full": 0.18, "share_reason": None},
            {**row, "probe": "icl", "full": 0.10, "share_reason": "no power: as retain"},
            {**row, "probe": "plain", "full": 0.98, "share_reason": None, "caution": "All alike."},
            {**row, "probe": "cloze", "full": 0.98, "share_reason": None, "caution": "All alike.", "p_holm": 0.3},
        ]
    )
    results = dataclasses.replace(asked)
    vars(results)["_summary"] = table
    assert [sentence.split(" (")[0] for sentence in results.warnings] == ["aoa", "icl", "plain"]
    assert "little power here: even full scores only 0.18 (retain 0.10)" in results.warnings[0]
    assert "no power here" in results.warnings[1]
    assert results.warnings[2] == "plain (greedy, mean): all alike."


def test_a_subject_with_half_of_the_rows_does_not_count_as_one_of_many(asked):
    """Ten subjects, of which one has 9 of 18 rows, are 18^2 / (9^2 + 9) = 3.6 of equal size."""
    rows = [dataclasses.replace(asked.examples[0], id=str(i), subject=f"{max(0, i - 8)}") for i in range(18)]
    table = dict.fromkeys(("unlearned", "retain", "full"), np.linspace(0.0, 1.0, 18))
    results = dataclasses.replace(asked, examples=rows)
    vars(results)["_statistics"] = {("plain", "greedy", "mean"): table}
    assert results.summary()["n_subjects"].tolist() == [10]
    assert results.summary()["effective_subjects"].tolist() == pytest.approx([3.6])
    assert "Only 10 subjects, which count as 3.6 since some have more" in results.warnings[-1]


def test_equal_rows_of_a_sample_leave_room_for_those_not_asked(asked):
    """36 of 400 rows, all alike: others may be of another kind, as in the interval."""
    rows = [dataclasses.replace(asked.examples[0], id=str(i), subject=f"{i}") for i in range(36)]
    sample = {"limit": 36, "of": 400, "sample": "random", "seed": 0}
    results = dataclasses.replace(asked, examples=rows, provenance={**asked.provenance, "sample": sample})
    vars(results)["_statistics"] = {("plain", "greedy", "mean"): {"unlearned": np.ones(36), "retain": np.zeros(36)}}
    (row,) = results.summary().itertuples()
    assert row.beyond_retain == 1.0 and 0.02 < row.beyond_sample_error < 0.1


@pytest.mark.parametrize(("beyond", "word"), [(0.6, "undecided"), (0.0, "erased as far as tested")])
def test_a_verdict_takes_what_probes_bring_back_beyond_retain(asked, beyond, word):
    """Twelve rows of six subjects: one probe brings back `beyond` more than in retain, the other one nothing."""
    rows = [dataclasses.replace(asked.examples[0], id=str(i), subject=f"{i // 2}") for i in range(12)]
    retain, wobble = np.full(12, 0.2), np.repeat(np.linspace(-0.05, 0.05, 6), 2)
    results = dataclasses.replace(asked, examples=rows)
    vars(results)["_statistics"] = {
        ("plain", "greedy", "mean"): {"unlearned": retain - 0.1, "retain": retain},
        ("cloze", "greedy", "mean"): {"unlearned": retain + beyond + wobble, "retain": retain - 0.1},
    }
    evidence = results.evidence()
    best = np.fmax(retain - 0.1, retain + beyond + wobble) - retain
    low = contrast(best, np.repeat(np.arange(6), 2), seed=OPTIONS.seed, bounds=(-1.0, 1.0)).interval.low
    assert evidence == (pytest.approx(low), 0.0) and math.isnan(results.evidence("sampled").low)
    audit = made([[1.0, 1.0]] * 40, [[0.95, 0.95]] * 40)
    found = TransplantEvidence(host_depth=0.95, hidden_low=-0.1)
    said = verdict(audit, transplant=found, elicitation=evidence)
    assert said.word == word and "elicitation" in said.tested
    assert "Elicitation brings back at least 0.5" in said.why or not beyond
    assert "elicitation" in verdict(audit, transplant=found, elicitation=results.evidence("sampled")).not_tested


def test_with_one_subject_nothing_is_said_of_power(asked):
    one = dataclasses.replace(asked, examples=[dataclasses.replace(row, subject="Ada") for row in asked.examples])
    assert set(one.share["share_reason"].str.partition(":")[0]) == {"one subject"}
    assert not any("no power" in sentence for sentence in one.warnings)
    assert one.warnings[-1].startswith("Only 1 subject: there are no intervals")


def test_only_what_full_answers_right_is_kept_where_asked(asked, tmp_path):
    """As Chen et al. do; every score of a kept row stays what it was."""
    right = (1, 3)

    def told(part):
        if (part.role, part.probe, part.decoding) != ("full", "plain", "greedy"):
            return part
        texts = [(r.reference if r.row in right else "zzz",) for r in part.responses]
        told = (replace(r, texts=text) for r, text in zip(part.responses, texts, strict=True))
        return replace(part, responses=tuple(told))

    whole = replace(asked, parts=tuple(map(told, asked.parts)))
    kept = whole.known_to_full()
    assert [row.id for row in kept.examples] == [whole.examples[row].id for row in right]
    for role, probe, decoding in whole.scores:
        expected = whole.recall(role, probe, decoding)[list(right)]
        np.testing.assert_array_equal(kept.recall(role, probe, decoding), expected)
    assert kept.summary().set_index(["probe", "decoding", "statistic"]).loc[("plain", "greedy", "mean"), "full"] == 1.0
    assert any(f"Only the 2 of {len(whole.examples)} questions" in sentence for sentence in kept.warnings)
    kept.save(tmp_path / "kept")
    assert type(kept).load(tmp_path / "kept").warnings == kept.warnings
    with pytest.raises(DataError, match="full answers no question"):
        whole.known_to_full(probe="start", least=1.0)
