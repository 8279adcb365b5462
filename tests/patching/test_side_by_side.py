"""What is decided of a model by running a few short rows: how rows are batched, and how texts grow."""

import re

import pytest
import torch
from tiny_models import EXAMPLES, FAMILIES, HYBRIDS, LONG_ROPE, ROW_KINDS, build_model, each_family

from uds_lens.data import encode, make_batch
from uds_lens.errors import ModelError, PatchError, UdsLensWarning
from uds_lens.generation import _reading as reading, greedy
from uds_lens.generation._reading import growing_way
from uds_lens.metrics._answers import score_answers
from uds_lens.models import open_model
from uds_lens.patching import _side_by_side as side_by_side, capture, patched_logprobs, row_layout
from uds_lens.patching._side_by_side import RowLayout
from uds_lens.results import DepthAudit, RunOptions

LAYOUTS = {
    "recurrent-gemma": RowLayout(side="right"),
    "longrope": RowLayout(limit=24),
    "dynamic": RowLayout(limit=24, long_rows="by length"),
}
WAYS = {"recurrent-gemma": "whole", "minimax": "one by one"}


@pytest.fixture
def all_tried(monkeypatch):
    """No family is trusted for having been tested."""
    for module in (side_by_side, reading):
        monkeypatch.setattr(module, "is_tested_family", lambda model: False)
    monkeypatch.setattr(side_by_side, "_layouts", {})
    monkeypatch.setattr(reading, "_ways", {})


@pytest.mark.filterwarnings("ignore::uds_lens.errors.UdsLensWarning")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", each_family(ROW_KINDS, of=(*FAMILIES, *HYBRIDS, *LONG_ROPE)))
def test_the_trial_of_every_family_comes_to_what_is_known_of_it(opened, all_tried, family, dtype):
    model = opened(family, "full", dtype)
    assert row_layout(model) == LAYOUTS.get(family, RowLayout())
    assert growing_way(model) == WAYS.get(family, "side by side")


def test_an_open_model_is_tried_once_and_tested_families_are_not(opened, all_tried, monkeypatch):
    passes = []
    run = side_by_side.run_decoder
    monkeypatch.setattr(side_by_side, "run_decoder", lambda *args, **options: passes.append(1) or run(*args, **options))
    for _ in range(3):
        row_layout(opened("llama"))
    assert len(passes) == 2
    monkeypatch.setattr(side_by_side, "is_tested_family", lambda model: True)
    row_layout(opened("qwen2"))
    assert len(passes) == 2


def test_what_is_done_about_padding_is_said_once_and_recorded(trio):
    with pytest.warns(UdsLensWarning) as caught:
        audit = DepthAudit.run(*trio("recurrent-gemma"), EXAMPLES[:3], options=RunOptions(device="cpu"))
    (told,) = (str(each.message) for each in caught if "padding a row on the left" in str(each.message))
    assert re.search(r"changes its states by \d+\.\d% .*Rows are padded on the right instead", told)
    assert audit.provenance["rows"] == "padded on the right"
    assert DepthAudit.run(*trio("llama"), EXAMPLES[:3]).provenance["rows"] == "packed"


def hooked(change):
    """A live model of no tested kind: somebody's code changes what its embedding gives."""
    model = build_model("llama")
    model.model.embed_tokens.register_forward_hook(lambda module, args, output: change(output))
    return open_model(model, device="cpu")


def test_rows_that_change_each_other_run_one_at_a_time(all_tried, trio, opened):
    model = hooked(lambda states: states + states.mean((0, 1), keepdim=True))
    model.tokenizer = opened("llama").tokenizer
    with pytest.warns(UdsLensWarning, match=r"Padding on the right changes them by .*one at a time, which is slower"):
        assert row_layout(model).side is None
    rows = encode(EXAMPLES[:4], model.tokenizer).rows
    together = score_answers(model, rows, show=False)
    for row, found in zip(rows, together.logprobs, strict=True):
        assert torch.equal(found, score_answers(model, [row], show=False).logprobs[0])
    prompts = [[1, 5, 6], [1, 7], [1, 9, 11, 13]]
    with pytest.warns(UdsLensWarning, match="processed again for each new token"):
        found = greedy(model, prompts, max_new_tokens=3)
    assert found == [greedy(model, [prompt], max_new_tokens=3)[0] for prompt in prompts]


def test_a_model_that_draws_random_numbers_is_refused(all_tried):
    model = hooked(lambda states: states + 0.3 * torch.randn_like(states))
    with pytest.raises(ModelError, match=r"different states when the same row is run again \(they differ by .*%\)"):
        row_layout(model)


def test_rows_past_the_limit_of_a_model_that_remembers_longer_texts_are_refused(trio):
    with open_model(trio("dynamic").full, device="cpu") as model:
        for handle in [m._forward_pre_hooks for m in model.hf.modules()]:
            handle.clear()  # as in a model with rotary code of its own
        layout = row_layout(model)
        assert layout == RowLayout(limit=24, long_rows="refused")
        assert layout.split([[0, 1]], [3, 24]) == [[0, 1]]
        with pytest.raises(ModelError, match=r"a row has 25 tokens, .* only up to 24"):
            layout.split([[0, 1]], [3, 25])
        assert len(greedy(model, [[1, 5, 6]], max_new_tokens=3, ends=frozenset())[0]) == 3
        with pytest.raises(ModelError, match=r"a row has 25 tokens, .* only up to 24"):
            greedy(model, [list(range(4, 26))], max_new_tokens=5, ends=frozenset())


def test_dynamic_frequencies_do_not_remember_a_longer_text(opened):
    model = opened("dynamic")
    text = torch.arange(30)[None] % 200
    alone = build_model("dynamic")(text).logits
    with torch.no_grad():
        model.hf(torch.arange(60)[None] % 200)
        assert torch.allclose(model.hf(text).logits, alone, atol=1e-5)
    assert not model.runs_hooks


@pytest.mark.filterwarnings("ignore::uds_lens.errors.UdsLensWarning")
@pytest.mark.parametrize("family", ["recurrent-gemma", "longrope"])
def test_batches_of_the_caller_that_would_give_other_numbers_are_refused(opened, family):
    model, (short, long) = opened(family), encode(EXAMPLES[1:3], opened(family).tokenizer, protocol="raw").rows
    side = row_layout(model).padding_side
    cache = capture(model, make_batch([short], pad_token_id=0, padding_side="left"))
    patched_logprobs(model, make_batch([short], pad_token_id=0, padding_side="left"), cache, engine="auto")
    wrong = make_batch([short, long], pad_token_id=0, padding_side="left")
    with pytest.raises(PatchError, match=r"which would change their numbers"):
        capture(model, wrong)
    with pytest.raises(PatchError, match=r"which would change their numbers"):
        patched_logprobs(model, wrong, cache, engine="auto")
    for rows in row_layout(model).split([[0, 1]], [len(short.ids), len(long.ids)]):
        capture(model, make_batch([short, long], pad_token_id=0, indices=rows, padding_side=side))
