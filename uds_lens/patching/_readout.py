"""Log-probabilities of the scored tokens only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from uds_lens._compat.torch import forward_hooks_of
from uds_lens.data import TokenBatch
from uds_lens.models import HookedModel
from uds_lens.models._anatomy import Anatomy
from uds_lens.patching import _costs as costs
from uds_lens.patching._states import SpanCache

Score: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""Takes float32 logits `[n, d_vocab]` and targets `[n]`, and returns `[n]` numbers to use instead of
log-probabilities."""

_linear: WeakKeyDictionary[nn.Module, tuple[object, bool]] = WeakKeyDictionary()
"""Whether the head of a model is just a linear map, and the settings for which this was tested."""


def target_logprobs(
    anatomy: Anatomy,
    states: Float[Tensor, "*rows win d_model"],
    targets: Int[Tensor, "*rows win"],
    scored: Bool[Tensor, "*rows win"],
    *,
    score: Score | None = None,
    normed: bool = False,
) -> Float[Tensor, "*rows win"]:
    """Return the log-probability of each scored target, computed from the last layer's states.

    The result is `log_softmax(head(norm(state)))[target]` in float32, computed in chunks and only where `scored`. If
    the head is a plain linear map, the vocabulary is also split, so that many rows share each piece of it.

    Args:
        anatomy: The model whose final norm and head are used.
        states: Last-layer residual stream.
        targets: Next-token ids; ignored where not scored.
        scored: True for the entries to score.
        score: What to measure instead of log-probabilities; see `Score`.
        normed: Whether the states have already passed the final norm.

    Returns:
        Float32 nats (natural logarithms), at most 0; NaN where not scored.
    """
    rows, wanted = states[scored], targets[scored]
    held = costs.logits_at_once(states.device)
    head = _plain_head(anatomy, rows) if len(rows) else None
    if head is not None:
        held = min(held, costs.LOGITS_IN_CACHE.get(states.device.type, held))
    chunk = max(1, held // anatomy.d_vocab)
    cut = head is not None and score is None and chunk < min(costs.READOUT_ROWS_AT_LEAST, len(rows))
    if cut:
        chunk = min(costs.READOUT_ROWS_AT_ONCE, len(rows))
    values = torch.empty(len(rows), dtype=torch.float32, device=states.device)
    for start in range(0, len(rows), chunk):
        part = slice(start, start + chunk)
        read = rows[part] if normed else anatomy.final_norm(rows[part])
        if cut:
            scores = _in_tiles(head, read, wanted[part], tile=max(1, held // chunk))
        else:
            logits = (anatomy.unembed(read) if head is None else head(read)).float()
            ids = wanted[part].to(logits.device)
            scores = score(logits, ids) if score else -nn.functional.cross_entropy(logits, ids, reduction="none")
        values[part] = scores.to(values.device)
    result = torch.full(scored.shape, torch.nan, dtype=torch.float32, device=states.device)
    result[scored] = values
    return result


@torch.no_grad()
def own_logprobs(model: HookedModel, batch: TokenBatch, cache: SpanCache) -> Float[Tensor, "batch win"]:
    """Return a model's own log-probabilities of the scored tokens, computed from its captured `resid_post`."""
    batch = batch.to(model.device)
    with model.running():
        return target_logprobs(
            model.anatomy, cache.states[:, -1], batch.targets, batch.scored_mask, normed=cache.last_layer == "post_norm"
        )


def _in_tiles(
    head: Any, normed: Float[Tensor, "row d_model"], targets: Int[Tensor, "row"], *, tile: int
) -> Float[Tensor, "row"]:
    """Return log-probabilities, computed one piece of the vocabulary at a time."""
    targets = targets.to(normed.device)
    of_target = torch.zeros(targets.shape, dtype=torch.float32, device=normed.device)
    totals = []
    for start in range(0, len(head.weight), tile):
        bias = None if head.bias is None else head.bias[start : start + tile]
        logits = nn.functional.linear(normed, head.weight[start : start + tile], bias).float()
        inside = (targets >= start) & (targets < start + logits.shape[1])
        place = (targets - start).clamp(0, logits.shape[1] - 1)
        of_target = torch.where(inside, logits.gather(1, place[:, None])[:, 0], of_target)
        totals.append(logits.logsumexp(1))
    return of_target - torch.stack(totals).logsumexp(0)


def _plain_head(anatomy: Anatomy, rows: Tensor) -> Any | None:
    """Return the head if the model's logits are just a linear map of its states; tested once per model on a few rows.

    Soft-capping, scaling, hooks, accelerate, and quantised or adapted heads rule this out.
    """
    model = anatomy.causal_lm
    head: Any = getattr(model, "get_output_embeddings", lambda: None)()
    if type(head) is not nn.Linear or any(
        "forward" in vars(module) or bool(forward_hooks_of(module)) for module in (head, model)
    ):
        return None
    few = anatomy.final_norm(rows[:2])
    if head.weight.dtype != few.dtype or head.weight.device != few.device:
        return None
    settings = [(k, v) for k, v in vars(anatomy.text_config).items() if "logit" in k or "scal" in k]
    tried = (id(head), repr(settings))
    if _linear.get(model, (None, False))[0] != tried:
        few = torch.cat([few, 64 * few])  # large enough to reveal soft-capping in half precision
        by_model, by_head = anatomy.unembed(few), nn.functional.linear(few, head.weight, head.bias)
        same = by_model.shape == by_head.shape and torch.equal(by_model, by_head)
        _linear[model] = (tried, same)
    return head if _linear[model][1] else None


def scored_logprobs(
    logits: Float[Tensor, "batch pos d_vocab"], batch: TokenBatch, *, score: Score | None = None
) -> Float[Tensor, "batch win"]:
    """Return log-probabilities of the scored targets (float32 nats), or the values of `score`; NaN where not scored."""
    rows = torch.arange(batch.window.shape[0], device=logits.device)[:, None]
    at, targets = logits[rows, batch.window].float(), batch.targets.clamp(min=0)
    if score is None:
        values = at.log_softmax(-1).gather(-1, targets[..., None])[..., 0]
    else:
        values = score(at.flatten(0, 1), targets.flatten()).view_as(targets).float()
    return values.masked_fill(~batch.scored_mask, torch.nan)
