"""Patching between attention and MLP, against the block's arithmetic written out in plain transformers."""

import pytest
import torch

from uds_lens.patching import capture, patched_logprobs, run_patched, scored_logprobs

LAYER = 1


def forward(model, batch):
    with torch.no_grad():
        return model.hf(
            input_ids=batch.input_ids, attention_mask=batch.attention_mask, position_ids=batch.position_ids
        ).logits


def between(model, batch):
    """The residual stream after the attention of a Llama block."""
    block, kept = model.hf.model.layers[LAYER], []
    hooks = [
        block.register_forward_pre_hook(lambda m, args: kept.append(args[0])),
        block.self_attn.register_forward_hook(lambda m, args, output: kept.append(output[0])),
    ]
    forward(model, batch)
    for hook in hooks:
        hook.remove()
    return sum(kept)


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_patch_between_attention_and_mlp_reaches_everything_that_reads_it(opened, batch_of, side):
    target, source, batch = opened("llama"), opened("llama", "retain"), batch_of("entity", side)
    rows, columns = batch.patched_mask.nonzero(as_tuple=True)
    at = rows, batch.window[rows, columns]
    block, mid = target.hf.model.layers[LAYER], between(source, batch)[at]

    def replace(module, args, output):
        output = output.clone()
        output[at] = mid + block.mlp(block.post_attention_layernorm(mid))
        return output

    hook = block.register_forward_hook(replace)
    expected = forward(target, batch)
    hook.remove()
    cache = capture(source, batch, site="resid_mid")
    real = batch.attention_mask.bool()
    logits = run_patched(target, batch, cache, layer=LAYER)
    torch.testing.assert_close(logits[real], expected[real], atol=1e-5, rtol=0)
    fast = patched_logprobs(target, batch, cache)[:, LAYER]
    torch.testing.assert_close(fast, scored_logprobs(expected, batch), atol=1e-5, rtol=0, equal_nan=True)
