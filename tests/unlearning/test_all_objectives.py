"""Objectives on a real model: every weight of every method matters, references are constants."""

from dataclasses import replace

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.unlearning.conftest import EXTRA
from uds_lens.data import answer_sequences
from uds_lens.errors import ConfigError
from uds_lens.unlearning import METHODS, answer_log_probs, make_config
from uds_lens.unlearning._passes import FrozenModel, Passes, pad_sequences, sequence_log_probs, states_after
from uds_lens.unlearning._registry import objective_named


@pytest.fixture(scope="module")
def passes(tiny) -> Passes:
    """A model that has moved a little from where it started, and one batch."""
    tokenizer = AutoTokenizer.from_pretrained(tiny.full)
    model = AutoModelForCausalLM.from_pretrained(tiny.full)
    frozen = FrozenModel(model)
    texts = {
        "forget": [(row.question, row.answer) for row in tiny.forget],
        "winner": [(row.question, "I do not know.") for row in tiny.forget],
        "retain": [(row.question, row.answer) for row in tiny.retain[:4]],
    }
    batch = {}
    for side, pairs in texts.items():
        rows = answer_sequences(tokenizer, pairs)
        batch[side] = pad_sequences(rows, pad_token_id=2)
        batch[side]["reference"] = torch.tensor(answer_log_probs(model, rows, pad_token_id=2, batch_size=3))
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.02 * torch.randn_like(parameter)
    return Passes(model, batch, frozen=frozen)


@pytest.mark.parametrize("method", sorted(METHODS))
def test_every_weight_matters_and_gradients_reach_the_model_alone(method: str, passes: Passes) -> None:
    config = make_config(method, EXTRA.get(method))
    terms = objective_named(method).terms
    with torch.no_grad():
        start = terms(config, passes).total.item()
        for name in {"alpha", "beta", "delta", "gamma"} & set(config.to_dict()):
            changed = replace(config, **{name: getattr(config, name) * 1.5})
            assert terms(changed, passes).total.item() != pytest.approx(start, rel=1e-7), name
    passes._model.zero_grad()
    terms(config, passes).total.backward()
    assert any(p.grad is not None and p.grad.abs().sum() > 0 for p in passes._model.parameters())
    assert all(p.grad is None for p in passes._frozen._model.parameters())


def test_reference_is_the_sum_over_the_answer(passes: Passes) -> None:
    frozen = sequence_log_probs(passes.frozen_logits("forget"), passes.labels("forget"))
    torch.testing.assert_close(passes.reference("forget"), frozen, atol=1e-4, rtol=1e-4)


def test_states_are_those_of_transformers(passes: Passes) -> None:
    inputs = {name: passes.batch["forget"][name] for name in ("input_ids", "attention_mask")}
    with torch.no_grad():
        hidden = passes._model(**inputs, output_hidden_states=True).hidden_states
        found = states_after(passes._model, [1, 2], inputs)
        torch.testing.assert_close(torch.stack(found), torch.stack(hidden[2:4]))


def test_what_an_objective_lacks_is_named(passes: Passes) -> None:
    bare = Passes(passes._model, passes.batch)
    with pytest.raises(ConfigError, match=r"needs=\('frozen',\)"):
        objective_named("kl").terms(make_config("kl"), bare)
