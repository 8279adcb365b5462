"""What the audit is measured against: the plain way to do it, and one plain forward."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from uds_lens._compat.transformers import attention_replaced
from uds_lens.data import TokenBatch
from uds_lens.data._tokens import TokenRow
from uds_lens.models._anatomy import Anatomy
from uds_lens.patching import target_logprobs


def padded(rows: Sequence[list[int]]) -> tuple[Tensor, Tensor]:
    """Right-padded ids and mask."""
    longest = max(map(len, rows))
    ids = torch.tensor([[*row, *[0] * (longest - len(row))] for row in rows])
    mask = torch.tensor([[*[1] * len(row), *[0] * (longest - len(row))] for row in rows])
    return ids, mask


def replaced(module: nn.Module, args: object, output: Tensor, *, part: Sequence[TokenRow], new: Tensor) -> Tensor:
    """A forward hook: the block's output with the patched positions of some rows replaced."""
    output = output.clone()
    for i, row in enumerate(part):
        output[i, list(row.patched)] = new[i, list(row.patched)]
    return output


@torch.no_grad()
def one_forward_per_layer(
    target: Any, source: Any, rows: Sequence[TokenRow], texts: Sequence[list[int]], *, rows_at_once: int
) -> Tensor:
    """One stage the plain way: rows in input order, whole answers, full logits everywhere.

    Per batch one source forward with all hidden states, then one full forward of the target per layer with the span
    replaced by a forward hook on the block.

    Returns:
        Mean log-probability of each entity with each layer patched, `[example, layer]`.
    """
    layers = target.model.layers
    result = torch.full((len(rows), len(layers)), torch.nan)
    for start in range(0, len(rows), rows_at_once):
        part = rows[start : start + rows_at_once]
        ids, mask = (part_of.to(target.device) for part_of in padded(texts[start : start + rows_at_once]))
        states = source(ids, attention_mask=mask, output_hidden_states=True).hidden_states
        for layer, block in enumerate(layers):
            new = states[layer + 1]

            handle = block.register_forward_hook(partial(replaced, part=part, new=new))
            logits = target(ids, attention_mask=mask).logits
            handle.remove()
            for i, row in enumerate(part):
                logprobs = logits[i, list(row.scored)].float().log_softmax(-1)
                result[start + i, layer] = logprobs.gather(
                    -1, torch.tensor(row.targets, device=logprobs.device)[:, None]
                ).mean()
    return result


@torch.no_grad()
def plain_forward(model: Any, batches: Sequence[TokenBatch], *, attention: str | None = None) -> None:
    """The decoder once over all rows, cut at the last scored position and bucketed by length, without logits.

    `attention` is one of transformers' (`eager`, `sdpa`); None leaves that the model was opened with.
    """
    with attention_replaced([model.config], attention or model.config._attn_implementation):
        for batch in batches:
            model.model(
                input_ids=batch.input_ids,
                attention_mask=batch.attention_mask,
                position_ids=batch.position_ids,
                use_cache=False,
            )


@torch.no_grad()
def scored_unembeddings(anatomy: Anatomy, batches: Sequence[TokenBatch]) -> None:
    """Norm, head and log-softmax for every layer of every scored token: what no way of patching can save."""
    for batch in batches:
        shape = (len(batch), anatomy.n_layers, batch.window.shape[1])
        states = torch.randn(*shape, anatomy.text_config.hidden_size)
        target_logprobs(anatomy, states, batch.targets[:, None].expand(shape), batch.scored_mask[:, None].expand(shape))
