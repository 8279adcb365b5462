"""Patching inside a block, against the block's arithmetic written out in plain transformers."""

import pytest
import torch

from uds_lens.patching import capture, patched_logprobs, run_patched, scored_logprobs

LAYER = 1


def parts(model, batch):
    """Residual stream before a Llama block, its attention's and its MLP's outputs."""
    block, kept = model.hf.model.layers[LAYER], {}
    hooks = [
        block.register_forward_pre_hook(lambda m, args: kept.update(pre=args[0])),
        block.self_attn.register_forward_hook(lambda m, args, output: kept.update(attn_out=output[0])),
        block.mlp.register_forward_hook(lambda m, args, output: kept.update(mlp_out=output)),
    ]
    with torch.no_grad():
        model.hf(
            input_ids=batch.input_ids, attention_mask=batch.attention_mask, position_ids=batch.position_ids
        )
    for hook in hooks:
        hook.remove()
    kept["resid_mid"] = kept["pre"] + kept["attn_out"]
    return kept


def expected_logits(target, source, batch, site):
    """The target's logits with one part of one block taken from the source at the patched positions."""
    mine, theirs = parts(target, batch), parts(source, batch)[site]
    rows, columns = batch.patched_mask.nonzero(as_tuple=True)
    at = rows, batch.window[rows, columns]
    block = target.hf.model.layers[LAYER]
    if site == "mlp_out":
        new = mine["resid_mid"][at] + theirs[at]
    else:
        mid = theirs[at] if site == "resid_mid" else mine["pre"][at] + theirs[at]
        new = mid + block.mlp(block.post_attention_layernorm(mid))

    def replace(module, args, output):
        output = output.clone()
        output[at] = new
        return output

    hook = block.register_forward_hook(replace)
    with torch.no_grad():
        logits = target.hf(
            input_ids=batch.input_ids, attention_mask=batch.attention_mask, position_ids=batch.position_ids
        ).logits
    hook.remove()
    return logits


@pytest.mark.parametrize("site", ["resid_mid", "attn_out", "mlp_out"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_a_patch_inside_a_block_reaches_everything_that_reads_it(opened, batch_of, site, side):
    target, source, batch = opened("llama"), opened("llama", "retain"), batch_of("entity", side)
    with torch.no_grad():
        expected = expected_logits(target, source, batch, site)
    cache = capture(source, batch, site=site)
    logits = run_patched(target, batch, cache, layer=LAYER)
    real = batch.attention_mask.bool()
    torch.testing.assert_close(logits[real], expected[real], atol=1e-5, rtol=0)
    fast = patched_logprobs(target, batch, cache)[:, LAYER]
    torch.testing.assert_close(fast, scored_logprobs(expected, batch), atol=1e-5, rtol=0, equal_nan=True)


def test_the_state_between_attention_and_mlp_is_more_than_what_the_mlp_reads(opened, batch_of):
    """A hook at `hook_resid_mid` alone reaches the MLP only: as if its output had been patched."""
    target, source, batch = opened("llama"), opened("llama", "retain"), batch_of()
    mid, mlp = (
        run_patched(target, batch, capture(source, batch, site=site), layer=LAYER)
        for site in ("resid_mid", "mlp_out")
    )
    assert (mid - mlp).abs().max() > 0.1
