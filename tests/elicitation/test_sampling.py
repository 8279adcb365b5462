"""Sampled decoding against a few-line oracle, and what a text may not depend on."""

import numpy as np
import pytest
import torch
from scipy import stats
from tiny_models import EXAMPLES

from uds_lens.errors import ConfigError
from uds_lens.generation import SamplingSettings, sample_continuations
from uds_lens.generation._decoding import choose_tokens

NO_END = frozenset()


@pytest.fixture
def prompts(opened):
    tokenizer = opened("llama").tokenizer
    return [tokenizer(f"Question: {row.question}\nAnswer:")["input_ids"] for row in EXAMPLES]


def _sampled(model, prompts, *, ends=NO_END, step=7, **options):
    options = {"max_new_tokens": 6, "samples": 4, "temperature": 1.5, "top_k": 9, **options}
    seeds = [step * n for n in range(len(prompts))]
    return sample_continuations(model, prompts, ends=ends, seeds=seeds, settings=SamplingSettings(**options))


def _texts(model, prompts, **options):
    return _sampled(model, prompts, **options).tokens


def test_tokens_come_as_often_as_their_probability():
    logits = torch.randn(40, generator=torch.Generator().manual_seed(3))
    uniforms = torch.rand(20_000, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    drawn = choose_tokens(logits.expand(20_000, -1), uniforms, temperature=2.0, top_k=12)
    kept = torch.sort(logits, descending=True)[1][:12]
    wanted = np.exp(logits[kept].double().numpy() / 2)
    counts = [(drawn == token).sum().item() for token in kept]
    assert sum(counts) == 20_000
    assert stats.chisquare(counts, 20_000 * wanted / wanted.sum()).pvalue > 0.001


def test_a_text_depends_on_its_seed_and_prompt_only(opened, prompts):
    model = opened("llama")
    together = _texts(model, prompts)
    assert _texts(model, prompts) == together
    alone = [_texts(model, [prompt], samples=4)[0] for prompt in prompts[:1]]
    assert alone[0] == together[0]
    assert _texts(model, prompts, rows_at_once=1) == together
    assert _texts(model, prompts, rows_at_once=7) == together
    assert [rows[:2] for rows in together] == _texts(model, prompts, samples=2)
    assert [[row[:3] for row in rows] for rows in together] == _texts(model, prompts, max_new_tokens=3)
    assert _texts(model, prompts, step=8) != together
    with pytest.raises(ConfigError, match="one seed per prompt"):
        sample_continuations(model, prompts, ends=NO_END, settings=SamplingSettings(temperature=1.0))


def test_prompts_are_read_once_and_ended_rows_are_dropped(opened, prompts):
    model = opened("llama")
    seen = []

    def see(module, args, kwargs):
        seen.append(tuple((args[0] if args else kwargs["hidden_states"]).shape[:2]))

    with model.anatomy.layers[0].register_forward_pre_hook(see, with_kwargs=True):
        stop = frozenset({_texts(model, prompts, samples=3)[0][0][1]})
        seen.clear()
        ended = _sampled(model, prompts, ends=stop, samples=3)
    prefill = sum(rows * tokens for rows, tokens in seen if tokens > 1)
    assert prefill == ended.prefilled == sum(map(len, prompts))
    assert ended.steps == len(seen)
