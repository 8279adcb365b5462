"""What several metrics, answers or examples need alike is run once: counted in tokens, and with the same numbers."""

from dataclasses import replace

import pytest
import torch
from tiny_models import EXAMPLES, load_plain
from transformers import Qwen3NextConfig, Qwen3NextForCausalLM
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

import uds_lens as ul
from uds_lens.data import TokenSequence, answer_sequences, encode
from uds_lens.elicitation._gcg import SharedBeginning
from uds_lens.generation import may_share_prompts
from uds_lens.metrics import (
    _fisher as block_gradients,
)
from uds_lens.metrics import (
    _fisher as token_gradients,
)
from uds_lens.metrics import (
    _passes as measuring,
)
from uds_lens.metrics import (
    diagonal_fisher,
    evaluate,
    score_answers,
)
from uds_lens.models import open_model

from .conftest import RUN, SHORT

ANSWERS = (
    "She was born in Port Vel.",
    "In the harbour.",
    "Port Vel",
    "It was a ship, and a long one at that.",
)
PAIRS = [(example.question, answer) for example in EXAMPLES[:3] for answer in ANSWERS]


@pytest.fixture
def token_layers(monkeypatch):
    """Tokens that entered each block of a Llama, padding included; every call's shape."""
    shapes = []
    plain = LlamaDecoderLayer.forward

    def counting(self, hidden_states, *args, **kwargs):
        shapes.append(tuple(hidden_states.shape[:2]))
        return plain(self, hidden_states, *args, **kwargs)

    counting.__module__ = plain.__module__
    monkeypatch.setattr(LlamaDecoderLayer, "forward", counting)
    return shapes


def total(shapes):
    return sum(rows * columns for rows, columns in shapes)


def tokenised(model, pairs=PAIRS):
    return [each.scored for each in answer_sequences(model.tokenizer, pairs)]


def test_a_question_runs_once_for_all_its_answers(llama, token_layers):
    model = llama()
    rows = tokenised(model, PAIRS[:4])
    score_answers(model, rows, show=False)
    prompt = rows[0].scored[0] + 1
    behind = [len(row.ids) - prompt for row in rows]
    assert total(token_layers) / model.n_layers == prompt + len(rows) * max(behind)
    token_layers.clear()
    score_answers(model, rows[:1], show=False)
    assert total(token_layers) / model.n_layers == len(rows[0].ids)


@pytest.mark.parametrize("family", ["llama", "gemma2", "mistral", "gpt2", "mixtral"])
@pytest.mark.parametrize("token_budget", [4096, 40])
def test_answers_behind_one_question_are_scored_as_alone(opened, family, token_budget):
    """Sliding windows of 8 tokens reach from the answers into the question."""
    model = opened(family)
    rows = tokenised(model)
    together = score_answers(model, rows, token_budget=token_budget, show=False)
    for i, row in enumerate(rows):
        alone = score_answers(model, [row], show=False)
        assert torch.allclose(together.logprobs[i], alone.logprobs[0], atol=2e-5)
        assert torch.allclose(together.standardised[i], alone.standardised[0], atol=1e-3)
        assert together.first_choices[i].tolist() == alone.first_choices[0].tolist()
        assert together.hits[i].tolist() == alone.hits[0].tolist()


def test_a_long_prompt_is_not_repeated_for_many_answers_at_once(llama, token_layers):
    """64 tokens of budget: at most 256 in keys and values, and a prompt alone has a hundred."""
    prompt = (1, *range(10, 110))
    rows = [
        TokenSequence(ids=(*prompt, 5), targets=(5, n), scored=(100, 101), patched=()) for n in range(6, 12)
    ]
    found = score_answers(llama(), rows, token_budget=64, show=False)
    assert set(token_layers) == {(1, 101), (2, 1)}
    assert len({round(float(each[0]), 4) for each in found.logprobs}) == 1


def test_an_answer_that_is_only_its_end(llama):
    longer = tokenised(llama(), [("Who?", "Ada Veylin.")])[0]
    prompt = longer.ids[: longer.scored[0] + 1]
    end = TokenSequence(ids=prompt, targets=(2,), scored=(len(prompt) - 1,), patched=())
    rows = [end, longer]
    together = score_answers(llama(), rows, show=False)
    alone = score_answers(llama(), rows[:1], show=False)
    assert together.logprobs[0].tolist() == pytest.approx(alone.logprobs[0].tolist(), abs=1e-5)


def test_hooks_of_the_caller_see_whole_sequences(trio):
    with open_model(trio("llama").full, device="cpu") as model:
        rows = tokenised(model, PAIRS[:4])
        seen = []
        handle = model.hf.model.layers[1].register_forward_hook(
            lambda module, args, output: seen.append(output.shape[1])
        )
        score_answers(model, rows, token_budget=1, show=False)
        handle.remove()
    assert sorted(seen) == sorted(len(row.ids) for row in rows)


def test_sets_with_the_same_questions_run_together(trio, data, token_layers):
    """Prompt, paraphrases and wrong answers: no question runs a second time."""
    options = {"metrics": ["prob", "truth_ratio"], "options": SHORT, "run": RUN}
    evaluate(trio("llama").full, data.limited(1), **options)
    n_layers = 4
    one = data.limited(1).forget[0]
    _, tokenizer = load_plain(trio("llama").full)
    answers = [one.answer, *one.paraphrased_answers, *one.perturbed_answers]
    rows = [each.scored for each in answer_sequences(tokenizer, [(one.question, each) for each in answers])]
    prompt = rows[0].scored[0] + 1
    assert [shape for shape in token_layers if shape[1] == prompt] == [(1, prompt)] * n_layers
    assert all(columns <= max(len(row.ids) for row in rows) - prompt for rows_, columns in token_layers[4:])


def test_joint_sets_share_the_cost_by_their_tokens(trio, data):
    found = evaluate(
        trio("llama").full, data, metrics=["prob", "paraprob", "truth_ratio"], options=SHORT, run=RUN
    )
    assert found.total.seconds == pytest.approx(
        found["prob"].cost.seconds + found["truth_ratio"].cost.seconds
    )
    assert 0 < found["paraprob"].cost.seconds < found["truth_ratio"].cost.seconds


def test_references_that_were_scored_begin_the_generations(trio, data, monkeypatch):
    told = {}

    def watched(model, questions, *, start, known, **options):
        told[bool(start)] = known
        return ["text"] * len(questions)

    monkeypatch.setattr(measuring, "generate_answers", watched)
    options = {"options": SHORT, "run": RUN}
    evaluate(trio("llama").full, data, metrics=["rouge", "jailbreak_rouge"], **options)
    assert told == {False: None, True: None}
    evaluate(trio("llama").full, data, metrics=["es", "rouge", "jailbreak_rouge"], **options)
    assert told[True] is None
    with open_model(trio("llama").full, device="cpu") as model:
        rows = tokenised(model, [(example.question, example.answer) for example in data.forget])
        scores = score_answers(model, rows, show=False)
    for known, row, choices in zip(told[False], rows, scores.first_choices, strict=True):
        assert known.prompt == row.ids[: row.scored[0] + 1]
        n = len(known.tokens)
        assert known.tokens == tuple(choices[:n].tolist())
        assert known.tokens[:-1] == row.targets[: n - 1]


def test_the_texts_do_not_depend_on_it(trio, data):
    options = {"options": replace(SHORT, max_new_tokens=12), "run": RUN}
    alone = evaluate(trio("llama").full, data, metrics=["rouge"], **options)
    beside = evaluate(trio("llama").full, data, metrics=["es", "rouge"], **options)
    assert beside.generations == alone.generations


def test_uds_as_a_metric_runs_what_an_audit_runs(trio, data, token_layers):
    models = trio("llama")
    evaluate(
        models.unlearned,
        data,
        metrics=["uds"],
        retain=models.retain,
        full=models.full,
        options=SHORT,
        run=RUN,
    )
    as_metric = total(token_layers)
    token_layers.clear()
    ul.DepthAudit.run(*models, data.with_entities, options=RUN)
    assert as_metric == total(token_layers) > 0


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt2", "qwen3", "neox", "mixtral"])
def test_gradients_side_by_side_are_those_of_each_alone(opened, family, monkeypatch):
    model = opened(family)
    rows = encode(EXAMPLES[:5], model.tokenizer).rows
    ran = []
    loss = block_gradients._loss
    monkeypatch.setattr(block_gradients, "_loss", lambda *args: ran.append(args) or loss(*args))
    together = diagonal_fisher(model, rows, range(4), show=False)
    forwards = len(ran)
    assert (forwards <= len(rows)) == (family != "mixtral"), "experts see the tokens of all rows at once"
    monkeypatch.setattr(block_gradients, "_may_run_together", lambda *args: False)
    alone = diagonal_fisher(model, rows, range(4), show=False)
    for layer in range(4):
        assert torch.allclose(together[layer], alone[layer], rtol=1e-3, atol=float(alone[layer].max()) * 1e-5)


@pytest.mark.parametrize("memory", [1, 1 << 28])
def test_memory_decides_how_many_run_side_by_side(llama, monkeypatch, memory):
    rows = encode(EXAMPLES, llama().tokenizer).rows
    sizes = []
    run = block_gradients._side_by_side
    monkeypatch.setattr(block_gradients, "GRAPH_BYTES", memory)
    monkeypatch.setattr(
        block_gradients,
        "_side_by_side",
        lambda m, r, indices, *rest: sizes.append(len(indices)) or run(m, r, indices, *rest),
    )
    diagonal_fisher(llama(), rows, [2], show=False)
    assert (max(sizes[1:]) == 1) == (memory == 1), "the first two are a trial"


def test_gradients_that_differ_side_by_side_are_not_taken(llama, monkeypatch):
    rows = encode(EXAMPLES[:3], llama().tokenizer).rows
    right = diagonal_fisher(llama(), rows, [1], show=False)[1]
    own = token_gradients._own_gradients
    monkeypatch.setattr(
        token_gradients, "_own_gradients", lambda *args: ((name, 1.1 * each) for name, each in own(*args))
    )
    assert torch.allclose(diagonal_fisher(llama(), rows, [1], show=False)[1], right, rtol=1e-3)


@pytest.fixture
def hybrid(trio, tmp_path):
    """A model whose first block is recurrent."""
    _, tokenizer = load_plain(trio("llama").full)
    torch.manual_seed(0)
    config = Qwen3NextConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        linear_conv_kernel_dim=4,
        linear_key_head_dim=8,
        linear_value_head_dim=8,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        mlp_only_layers=[0, 1],
        layer_types=["linear_attention", "full_attention"],
    )
    Qwen3NextForCausalLM(config).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    with open_model(tmp_path, device="cpu", dtype="float32") as model:
        yield model


def test_a_model_with_recurrent_layers_runs_whole_sequences(hybrid):
    """It keeps states of what it read, which cannot be handed to another answer."""
    rows = tokenised(hybrid, PAIRS[:4])
    assert may_share_prompts(hybrid)  # nothing tells before it has run
    together = score_answers(hybrid, rows, show=False)
    assert not may_share_prompts(hybrid)
    for row, found in zip(rows, together.logprobs, strict=True):
        (alone,) = score_answers(hybrid, [row], show=False).logprobs
        torch.testing.assert_close(found, alone, rtol=1e-4, atol=1e-4)
    target, prompts = (5, 6), [[7, 8, 9, 10], [7, 8, 9, 11], [7, 8, 3, 10]]
    losses = [
        SharedBeginning(hybrid, target, rows_at_once=2, cached=cached).losses(prompts, [7, 8, 9, 10], 1)
        for cached in (True, False)
    ]
    torch.testing.assert_close(*losses, rtol=1e-4, atol=1e-4)


def test_a_fault_in_small_weights_is_seen():
    """The largest squares of a block are many times those of its norms."""
    alone = torch.tensor([100.0, 50.0, 1e-2, 2e-2])
    fault = alone + torch.tensor([0.0, 0.0, 5e-2, 0.0])
    assert block_gradients._agree(alone, alone, [0, 2], exact=True)
    assert not block_gradients._agree(fault, alone, [0, 2], exact=True)
    assert not block_gradients._agree(fault, alone, [0, 2], exact=False)
    rounding = alone.clone().index_fill_(0, torch.tensor([2, 3]), 1e-9)
    assert block_gradients._agree(rounding * torch.tensor([1, 1, 3, 0.1]), rounding, [0, 2], exact=True)
