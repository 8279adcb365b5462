"""The linear probe: against ridge regression in closed form, on planted states, and where it has no value."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from metrics.conftest import SHORT, ask
from tiny_models import load_plain

from uds_lens import metrics as m
from uds_lens.metrics._declaration import Evidence, Undefined
from uds_lens.metrics._definitions.linear_probe import linear_probe, probe_selectivity, probe_wins

N, D = 60, 16
SUBJECTS = [f"subject {number % 6}" for number in range(N)]


def planted(strength, *, own=0.0, seed=0):
    """States of pairs: noise, a direction of truth that subjects share, and one that each subject has by itself."""
    random = np.random.default_rng(seed)
    states, shared = random.normal(size=(N, 2, D)), random.normal(size=D)
    each = {subject: random.normal(size=D) for subject in sorted(set(SUBJECTS))}
    for pair, subject in zip(states, SUBJECTS, strict=True):
        pair += np.outer([1, -1], strength * shared + own * each[subject])
    return states


def labellings(n):
    labels = np.random.default_rng(1).choice([-1, 1], size=(N, n))
    labels[:, 0] = 1
    return labels


def test_wins_are_those_of_ridge_regression_in_closed_form():
    states, labels = planted(0.3), labellings(3)
    wins = probe_wins(states, SUBJECTS, labels)
    for held_out in sorted(set(SUBJECTS)):
        test = np.array([subject == held_out for subject in SUBJECTS])
        train = states[~test].transpose(1, 0, 2).reshape(-1, D)
        x = (train - train.mean(0)) / train.std(0)
        for number, label in enumerate(labels.T):
            weights = np.linalg.solve(x.T @ x + D * np.eye(D), x.T @ np.concatenate([label[~test], -label[~test]]))
            scores = (states[test] - train.mean(0)) / train.std(0) @ weights
            expected = (scores[:, 0] - scores[:, 1]) * label[test] > 0
            assert wins[test, number].tolist() == expected.tolist()


def test_it_finds_what_subjects_share_and_nothing_that_each_has_by_itself():
    means = {
        name: probe_wins(states, SUBJECTS, labellings(20)).mean(0)
        for name, states in (("shared", planted(1.0)), ("own", planted(0.0, own=1.0)), ("none", np.ones((N, 2, D))))
    }
    assert means["shared"][0] > 0.95 and abs(means["own"][0] - 0.5) < 0.3
    assert means["shared"][1:].mean() == pytest.approx(0.5, abs=0.1)
    assert (means["none"] == 0.5).all()


class Planted(Evidence):
    """Measurements of models whose layers are given as pairs of states."""

    spec = None

    def __init__(self, lost=(), subjects=SUBJECTS, **layers):
        self.layers, kept = layers, [n for n in range(2 * N) if n not in lost]
        self.rows = [SimpleNamespace(id=str(n // 2), subject=subjects[n // 2]) for n in kept]
        self.kept = kept

    def state_examples(self, answers=""):
        return self.rows

    def n_layers(self):
        return len(self.layers["full"])

    def stacked_states(self, role, layer, *, answers="", first=False):
        return torch.from_numpy(self.layers[role][layer].reshape(2 * N, D)[self.kept])


def test_0_as_full_and_1_as_retain_in_the_layers_that_tell_them_apart():
    knows, ignorant = planted(1.0), planted(0.0, seed=1)
    models = {"full": [ignorant, knows, knows], "retain": [ignorant, ignorant, knows]}
    as_full, as_retain = (linear_probe(Planted(model=models[role], **models)) for role in ("full", "retain"))
    assert (as_full.value, as_retain.value) == (0.0, 1.0)
    details = as_full.details
    assert [math.isnan(value) for value in details["erasure"]] == [True, False, True]
    assert details["full"][1] > 0.95 and abs(details["retain"][1] - 0.5) < 0.25
    assert (details["n_pairs"], details["n_subjects"]) == (N, 6)
    assert details["controls"]["full"] == pytest.approx([0.5] * 3, abs=0.1)
    some = linear_probe(Planted(model=[ignorant, planted(0.15), knows], **models))
    assert 0 < some.value < 1
    assert some.value == pytest.approx(
        (some.details["full"][1] - some.details["model"][1]) / (some.details["full"][1] - some.details["retain"][1])
    )


def test_where_it_has_no_value():
    ignorant = planted(0.0, seed=1)
    alike = linear_probe(Planted(full=[planted(1.0)], retain=[planted(1.0)], model=[ignorant]))
    assert math.isnan(alike.value) and alike.reason.startswith("no layer of full separates true from wrong answers")
    four = [f"subject {number % 4}" for number in range(N)]
    layers = {role: [ignorant] for role in ("full", "retain", "model")}
    with pytest.raises(Undefined, match="needs at least 5 subjects with wrong answers; there are 4"):
        linear_probe(Planted(subjects=four, **layers))
    assert linear_probe(Planted(lost=(3, 8), **layers)).details["n_pairs"] == N - 2
    unnamed = linear_probe(Planted(subjects=[None] * N, **layers))
    assert unnamed.details["n_subjects"] == N


def test_selectivity_needs_no_reference_and_is_0_by_chance():
    knows, ignorant = planted(1.0), planted(0.0, seed=1)
    found = probe_selectivity(Planted(full=[ignorant, knows], model=[ignorant, knows]))
    wins = [probe_wins(states, SUBJECTS, labellings(1)).mean() for states in (ignorant, knows)]
    assert found.details["accuracy"] == pytest.approx(wins)
    lead = np.array(wins) - found.details["controls"]
    assert found.value == pytest.approx(2 * lead.mean())
    assert 2 * lead[1] > 0.8 and abs(2 * lead[0]) < 0.5
    useless = probe_selectivity(Planted(full=[ignorant], model=[np.ones((N, 2, D))]))
    assert useless.value == 0.0


@pytest.mark.parametrize("protocol", ["raw", "chat"])
def test_states_are_those_at_the_last_token_of_each_answer(trio, data, protocol):
    folder = trio("llama").full
    options = m.MetricOptions(protocol=protocol, max_new_tokens=SHORT.max_new_tokens)
    passes, seen = m.needs_states("model", answers="forget/endings"), {}

    @m.metric(name="endings", label="Endings", meaning=m.Meaning("knowledge", "no", "yes"), passes=passes)
    def endings(evidence):
        seen["states"] = evidence.stacked_states("model", 2, answers="forget/endings", first=True)
        seen["rows"] = evidence.state_examples("forget/endings")
        return m.Outcome(0.0)

    try:
        ask(folder, data, ["endings"], options=options)
    finally:
        m.withdraw_metric("endings")
    plain, tokenizer = load_plain(folder)
    answers = [text for e in data.forget for text in (e.answer, e.perturbed_answers[0])]
    assert [row.prefix for row in seen["rows"]] == answers and len(seen["states"]) == len(answers)
    for row, state in zip(seen["rows"], seen["states"], strict=True):
        text = f"Question: {row.question}\nAnswer: {row.prefix}"
        if protocol == "chat":
            text = f"<bos>{options.chat_date} <user> {row.question}\nReply: {row.prefix}"
        with torch.no_grad():
            ids = torch.tensor([tokenizer(text, add_special_tokens=protocol == "raw")["input_ids"]])
            wanted = plain(ids, output_hidden_states=True).hidden_states[3][0, -1]
        assert state.tolist() == pytest.approx(wanted.double().tolist(), abs=1e-4)


def test_without_perturbed_answers_it_says_so(trio, data):
    models = trio("llama")
    rows = [{"question": e.question, "answer": e.answer} for e in data.forget]
    found = ask(models.full, rows, ["linear_probe"], full=models.full, retain=models.retain)
    assert found.reasons == {"linear_probe": "no example of the forget set has a perturbed answer"}


def test_selectivity_of_a_model_alone(trio, data):
    model = trio("llama").full
    found = ask(model, data, ["probe_selectivity"])["probe_selectivity"]
    accuracy, controls = (np.array(found.details[name]) for name in ("accuracy", "controls"))
    assert len(accuracy) == len(controls) == load_plain(model)[0].config.num_hidden_layers
    assert found.value == pytest.approx(2 * (accuracy - controls).mean())
