"""Plain transformers with forward hooks: what patches are compared with."""

from contextlib import ExitStack

import torch

PLACES = {
    "resid_pre": ("", True),
    "resid_post": ("", False),
    "attn_out": ("self_attn", False),
    "mlp_out": ("mlp", False),
    "z": ("self_attn.o_proj", True),
    "q": ("self_attn.q_proj", False),
    "k": ("self_attn.k_proj", False),
    "v": ("self_attn.v_proj", False),
}
"""Site -> module within a block, whose input (True) or output it is; below the block, of a Llama."""


def inputs(batch):
    """Return what transformers takes of a batch."""
    return {"input_ids": batch.input_ids, "attention_mask": batch.attention_mask, "position_ids": batch.position_ids}


def patched_at(batch):
    """Return rows and positions of the patched tokens."""
    rows, entries = batch.patched_mask.nonzero(as_tuple=True)
    return rows, batch.window[rows, entries]


def with_hooks(model, batch, changes):
    """Logits with `change(tensor) -> tensor` at each (site, layer)."""
    with ExitStack() as stack, torch.no_grad():
        for (site, layer), change in changes.items():
            path, at_input = PLACES[site]
            module = model.anatomy.layers[layer].get_submodule(path)
            if at_input:
                hook = module.register_forward_pre_hook(lambda m, args, change=change: (change(args[0]), *args[1:]))
            else:
                hook = module.register_forward_hook(
                    lambda m, args, out, change=change: (
                        change(out) if torch.is_tensor(out) else (change(out[0]), *out[1:])
                    )
                )
            stack.callback(hook.remove)
        return model.hf(**inputs(batch)).logits
