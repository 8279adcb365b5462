"""Heads, mentions, several layers, scores of one's own and grids, against plain forward hooks."""

from dataclasses import replace

import pytest
import torch
from tiny_models import EXAMPLES

import uds_lens as ul
from uds_lens.data import encode, make_batch, positions_of
from uds_lens.data._tokens import TokenSequence
from uds_lens.errors import DataError, PatchError
from uds_lens.patching import (
    capture,
    open_target,
    patch_grid,
    patched_logprobs,
    run_hooked,
    run_patched,
    scored_logprobs,
)

from .plain import patched_at, with_hooks

SITES = ("resid_pre", "resid_post", "attn_out", "mlp_out", "z", "q", "k", "v")


def expected(target, source, batch, site, layers, columns=slice(None)):
    """Logits with some columns of a site's activation taken from the source at the patched positions."""
    kept = {}
    with_hooks(source, batch, {(site, layer): lambda a, layer=layer: kept.setdefault(layer, a) for layer in layers})
    at = patched_at(batch)

    def change(activation, layer):
        activation, theirs = activation.clone(), kept[layer][at]
        mine = activation[at]
        mine[:, columns] = theirs[:, columns]
        activation[at] = mine
        return activation

    return with_hooks(target, batch, {(site, layer): lambda a, layer=layer: change(a, layer) for layer in layers})


@pytest.fixture
def mentions(opened):
    """Rows of the forget set whose patched positions are all mentions of a word, in question and answer."""
    tokenizer = opened("llama").tokenizer
    rows = encode(EXAMPLES[:3], tokenizer).rows
    marked = []
    for row in rows:
        words = [w for w in tokenizer.decode(row.ids).split() if w.isalpha()]
        twice = [*positions_of(tokenizer, row.ids, words[1]), *positions_of(tokenizer, row.ids, words[3])]
        marked.append(replace(row, patched=tuple(sorted(set(twice)))))
    batch = make_batch(marked, pad_token_id=tokenizer.pad_token_id)
    inside = batch.patched_mask.int()
    assert (inside.diff(dim=1) == 1).any(), "positions are contiguous: that tests nothing"
    return batch


@pytest.mark.parametrize("site", SITES)
def test_every_site_is_patched_as_by_plain_hooks(opened, mentions, site):
    target, source = opened("llama"), opened("llama", "retain")
    cache = capture(source, mentions, site=site)
    logits = expected(target, source, mentions, site, [1])
    real = mentions.attention_mask.bool()
    torch.testing.assert_close(run_patched(target, mentions, cache, layer=1)[real], logits[real], atol=1e-5, rtol=0)
    fast = patched_logprobs(target, mentions, cache)[:, 1]
    torch.testing.assert_close(fast, scored_logprobs(logits, mentions), atol=1e-5, rtol=0, equal_nan=True)


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_patch_between_attention_and_mlp_reaches_everything_that_reads_it(opened, batch_of, side):
    """Block and MLP read it: as if the attention had given the source's residual stream less the target's."""
    target, source, batch, kept = opened("llama"), opened("llama", "retain"), batch_of("entity", side), []
    for model in (source, target):
        with_hooks(model, batch, {(site, 1): lambda a: kept.append(a) or a for site in ("resid_pre", "attn_out")})
    at = patched_at(batch)

    def change(output):
        output = output.clone()
        output[at] = (kept[0] + kept[1] - kept[2])[at]
        return output

    logits, real = with_hooks(target, batch, {("attn_out", 1): change}), batch.attention_mask.bool()
    cache = capture(source, batch, site="resid_mid")
    torch.testing.assert_close(run_patched(target, batch, cache, layer=1)[real], logits[real], atol=1e-5, rtol=0)
    fast = patched_logprobs(target, batch, cache)[:, 1]
    torch.testing.assert_close(fast, scored_logprobs(logits, batch), atol=1e-5, rtol=0, equal_nan=True)


@pytest.mark.parametrize("site", ["z", "v"])
def test_one_head_is_patched_as_by_plain_hooks(opened, mentions, site):
    target, source = opened("llama"), opened("llama", "retain")
    cache = capture(source, mentions, site=site)
    one = cache.only(capture(target, mentions, site=site), heads=[1])
    logits = expected(target, source, mentions, site, [2], slice(8, 16))
    fast = patched_logprobs(target, mentions, one)[:, 2]
    torch.testing.assert_close(fast, scored_logprobs(logits, mentions), atol=1e-5, rtol=0, equal_nan=True)
    with pytest.raises(PatchError, match="heads must be numbers from 0 to"):
        cache.only(cache, heads=[9])
    with pytest.raises(PatchError, match="does not match"):
        cache.only(capture(target, mentions))


@pytest.mark.parametrize(
    ("site", "packed", "one_at_a_time"),
    [("resid_post", False, False), ("resid_post", True, True), ("mlp_out", False, False), ("v", False, False)],
)
def test_combinations_of_layers_are_patched_in_one_wave(opened, mentions, monkeypatch, site, packed, one_at_a_time):
    if one_at_a_time:
        monkeypatch.setattr("uds_lens.patching._costs.SCORES_AT_ONCE", 1)
    target, source = opened("llama"), opened("llama", "retain")
    cache = capture(source, mentions, site=site, packed=packed)
    together = [[1, 2, 3], [0], range(2), [3, 0], [2, 3]]
    fast = open_target(target, mentions, site=site, packed=packed).patched_together(cache, together)
    slow = open_target(target, mentions, site=site, engine="naive").patched_together(cache, together)
    for number, layers in enumerate(together):
        logits = expected(target, source, mentions, site, layers)
        plain = scored_logprobs(logits, mentions)
        torch.testing.assert_close(fast[:, number], plain, atol=1e-5, rtol=0, equal_nan=True)
        torch.testing.assert_close(slow[:, number], plain, atol=1e-5, rtol=0, equal_nan=True)
        if layers == together[0] and not packed:
            real = mentions.attention_mask.bool()
            found = run_patched(target, mentions, cache, layer=layers)
            torch.testing.assert_close(found[real], logits[real], atol=1e-5, rtol=0)
    assert (fast[:, 0] - fast[:, 4]).nan_to_num().abs().max() > 1e-3, "layer 1 does nothing: the test proves nothing"
    with pytest.raises(PatchError, match="expected combinations of layers"):
        open_target(target, mentions, site=site).patched_together(cache, [[1], []])


def test_a_score_of_ones_own_takes_the_place_of_log_probabilities(opened, mentions):
    target = opened("llama")

    def margin(logits, targets):
        best = logits.scatter(1, targets[:, None], -torch.inf).amax(1)
        return logits.gather(1, targets[:, None])[:, 0] - best

    cache = capture(opened("llama", "retain"), mentions)
    fast, slow = (open_target(target, mentions, engine=engine, score=margin) for engine in ("wavefront", "naive"))
    torch.testing.assert_close(fast.logprobs, slow.logprobs, atol=1e-5, rtol=1e-5, equal_nan=True)
    torch.testing.assert_close(fast.patched(cache), slow.patched(cache), atol=1e-5, rtol=1e-5, equal_nan=True)
    rows, at = mentions.scored_mask.nonzero(as_tuple=True)
    logits = with_hooks(target, mentions, {})[rows, mentions.window[rows, at]]
    torch.testing.assert_close(
        fast.logprobs[rows, at], margin(logits, mentions.targets[rows, at]), atol=1e-5, rtol=1e-5
    )


def test_grids_hold_one_patch_per_position_and_per_head(opened, mentions):
    target, source = opened("llama"), opened("llama", "retain")
    cache = capture(source, mentions, site="z")
    unpatched = scored_logprobs(with_hooks(target, mentions, {}), mentions)

    heads = patch_grid(target, mentions, cache, by="head")
    assert len(heads) == len(mentions) * cache.n_layers * cache.n_heads
    logits = expected(target, source, mentions, "z", [1], slice(16, 24))
    lost = (unpatched - scored_logprobs(logits, mentions)).nanmean(-1)
    found = heads[(heads["layer"] == 1) & (heads["head"] == 2)].sort_values("row")["lost"]
    torch.testing.assert_close(torch.tensor(found.to_numpy()), lost, atol=1e-5, rtol=0)

    grid = patch_grid(target, mentions, cache)
    assert len(grid) == int(mentions.patched_mask.sum()) * cache.n_layers
    row, position = 1, int(grid[grid["row"] == 1]["position"].max())
    at = mentions.position_ids.gather(1, mentions.window) == position
    single = replace(mentions, patched_mask=mentions.patched_mask & at)
    lost = (unpatched - scored_logprobs(expected(target, source, single, "z", [2]), single)).nanmean(-1)
    found = grid[(grid["row"] == row) & (grid["position"] == position) & (grid["layer"] == 2)]["lost"]
    assert found.item() == pytest.approx(float(lost[row]), abs=1e-5)

    figure = ul.plots.patch_heatmap(grid[grid["row"] == row])
    assert len(figure.data[0].z[0]) == cache.n_layers
    assert figure.layout.title.text == "Loss by layer and position"
    with pytest.raises(DataError, match=r"positions from several texts.*grid\[grid\[\"row\"\] == 0\]"):
        ul.plots.patch_heatmap(grid)
    with pytest.raises(PatchError, match="has no heads"):
        patch_grid(target, mentions, capture(source, mentions), by="head")


def test_hooks_that_change_nothing_are_errors(opened, mentions):
    model = opened("llama")
    with pytest.raises(PatchError, match=r"returned a copy with the same values: it changed nothing"):
        run_hooked(model, mentions, "blocks.1.hook_mlp_out", lambda activation, hook: activation.clone())

    token = TokenSequence(ids=(5,), targets=(9,), scored=(0,), patched=(0,))
    with pytest.raises(PatchError, match=r"changed values, but the logits of .* stayed the same"):
        # A single token attends to itself, whatever its query is.
        run_hooked(
            model, make_batch([token], pad_token_id=0), "blocks.1.attn.hook_q", lambda activation, hook: activation * 2
        )


def test_what_is_printed_is_one_line(opened, mentions):
    model = opened("llama")
    target = open_target(model, mentions)
    shown = [capture(model, mentions), mentions, target, target.recording, open_target(model, mentions, engine="naive")]
    for each in shown:
        assert "\n" not in repr(each)
        assert len(repr(each)) < 300, repr(each)[:400]
