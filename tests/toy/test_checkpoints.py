"""What the shipped checkpoints recall, measured with plain transformers and nothing of the library."""

import pytest
import torch
from safetensors import safe_open
from tiny_models import some_now
from transformers import AutoModelForCausalLM, AutoTokenizer

from uds_lens.toy import load

WORLD = load()


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(WORLD.full)


def entity_rows(tokenizer, examples):
    for example in examples:
        gap = " " if example.prefix else ""
        before = f"Question: {example.question}\nAnswer: {example.prefix}"
        rest = gap + example.answer[len(example.prefix) :].lstrip()
        start = len(gap)
        tokens = tokenizer(rest, add_special_tokens=False, return_offsets_mapping=True)
        end = start + len(example.entity)
        inside = [k for k, (a, b) in enumerate(tokens["offset_mapping"]) if a < end and b > start]
        prompt = tokenizer(before)["input_ids"]
        yield prompt + tokens["input_ids"], [len(prompt) + k for k in inside]


@torch.no_grad()
def mean_entity_probability(path, tokenizer, examples):
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    rows = list(entity_rows(tokenizer, examples))
    width = max(len(ids) for ids, _ in rows)
    batch = torch.tensor([ids + [tokenizer.pad_token_id] * (width - len(ids)) for ids, _ in rows])
    logits = model(batch).logits
    chances = [
        logits[row, [at - 1 for at in spots]].log_softmax(-1)[range(len(spots)), [ids[at] for at in spots]].mean().exp()
        for row, (ids, spots) in enumerate(rows)
    ]
    return torch.stack(chances).mean().item()


@pytest.mark.parametrize("name", some_now(["full", "retain", "npo"], of=WORLD.checkpoints))
def test_the_recorded_recall_is_the_measured_one(tokenizer, name):
    for group, examples in (("forget", WORLD.examples), ("retain", WORLD.retain_examples)):
        measured = mean_entity_probability(WORLD.checkpoints[name], tokenizer, examples)
        assert measured == pytest.approx(WORLD.recall[name][group], abs=1e-3)


def test_full_knows_everything_retain_what_was_retained_half_a_half_and_unlearned_models_less():
    forgotten, kept = ({name: of[group] for name, of in WORLD.recall.items()} for group in ("forget", "retain"))
    assert forgotten["full"] >= 0.8 and forgotten["retain"] <= 0.2 and 0.3 <= forgotten["half"] <= 0.7
    assert min(kept[name] for name in ("full", "retain", "half")) >= 0.8
    for method in WORLD.unlearned:
        assert forgotten[method] <= 0.8 * forgotten["full"] and kept[method] >= 0.8 * kept["full"], method


def test_checkpoints_differ_in_weights_only(tokenizer):
    seen = set()
    for path in WORLD.checkpoints.values():
        assert (path / "config.json").read_bytes() == (WORLD.full / "config.json").read_bytes()
        assert (path / "tokenizer.json").read_bytes() == (WORLD.full / "tokenizer.json").read_bytes()
        with safe_open(path / "model.safetensors", "pt") as file:
            assert {file.get_slice(name).get_dtype() for name in file.keys()} == {"BF16"}  # noqa: SIM118
        seen.add((path / "model.safetensors").read_bytes())
    assert len(seen) == len(WORLD.checkpoints)


def test_bos_comes_once_and_the_chat_template_is_answered(tokenizer):
    example = WORLD.retain_examples[0]
    ids = tokenizer(f"Question: {example.question}\nAnswer:")["input_ids"]
    assert ids.count(tokenizer.bos_token_id) == 1 == ids.index(tokenizer.bos_token_id) + 1
    chat = tokenizer.apply_chat_template(
        [{"role": "user", "content": example.question}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )
    assert chat["input_ids"][0].tolist().count(tokenizer.bos_token_id) == 1
    model = AutoModelForCausalLM.from_pretrained(WORLD.full, dtype=torch.float32)
    told = model.generate(**chat, max_new_tokens=40, do_sample=False)[0, chat["input_ids"].shape[1] :]
    assert tokenizer.decode(told) == f"{example.answer}{tokenizer.eos_token}"
