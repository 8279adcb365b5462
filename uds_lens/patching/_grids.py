"""Patching grids: one patch per layer, per layer and position, or per layer and head."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import torch
from torch import nn

from uds_lens._types import Engine, check_choice
from uds_lens.data import TokenBatch
from uds_lens.errors import PatchError
from uds_lens.models import HookedModel
from uds_lens.patching._engines import open_target
from uds_lens.patching._hooks import as_hooked
from uds_lens.patching._plain import capture
from uds_lens.patching._readout import Score
from uds_lens.patching._states import SpanCache

if TYPE_CHECKING:
    import pandas as pd

GridAxis: TypeAlias = Literal["layer", "position", "head"]  # a grid has one patch per layer and per ..


def patch_grid(
    model: HookedModel | nn.Module,
    batch: TokenBatch,
    cache: SpanCache,
    *,
    by: GridAxis = "position",
    engine: Engine = "wavefront",
    score: Score | None = None,
) -> pd.DataFrame:
    """Patch each layer at one position or one head at a time.

    Args:
        model: The target.
        batch: The tokens that `cache` was captured on.
        cache: The source's states.
        by: What a single patch covers: `position`, one patched position in each row; `head`, one head (sites `z`, `q`,
            `k`, `v`) at all patched positions; `layer`, everything at once.
        engine: See `open_target`.
        score: What to measure instead of log-probabilities; see `open_target`.

    Returns:
        A table with one line per row of the batch, layer, and position (counted in the row's own tokens) or head.
        `lost` is the unpatched minus the patched value, averaged over the scored positions (nats per token).

    Raises:
        PatchError: The site has no heads, or the cache does not match the batch.

    Example:
        >>> import uds_lens as ul
        >>> world = ul.toy.load()
        >>> with ul.open_model(world.full, device="cpu") as full, ul.open_model(world.retain, device="cpu") as retain:
        ...     rows = ul.data.encode(world.examples[:2], full.tokenizer).rows
        ...     batch = ul.data.make_batch(rows, pad_token_id=full.tokenizer.pad_token_id)
        ...     cache = ul.patching.capture(retain, batch, site="z")
        ...     grid = ul.patching.patch_grid(full, batch, cache, by="head")
        >>> list(grid.columns)
        ['row', 'layer', 'head', 'lost']
    """
    import pandas as pd

    check_choice("by", by, GridAxis)
    if by == "head" and not cache.n_heads:
        raise PatchError(f"{cache.site!r} has no heads: capture 'z', 'q', 'k' or 'v' for a grid by head.")
    model = as_hooked(model)
    target = open_target(model, batch, site=cache.site, engine=engine, score=score)
    batch = target.batch
    own = cache if by == "layer" else capture(model, batch, site=cache.site)
    columns = torch.arange(batch.window.shape[1], device=batch.window.device)
    frames = []
    parts: dict[str, Any] = {"layer": [0], "position": range(len(columns)), "head": range(cache.n_heads)}
    for part in parts[by]:
        here = batch.patched_mask if by != "position" else batch.patched_mask & (columns == part)
        rows = here.any(1).nonzero()[:, 0].tolist()
        if not rows:
            continue
        chosen = cache
        if by != "layer":
            chosen = cache.only(own, positions=here, heads=[part] if by == "head" else None)
        lost = (target.logprobs[:, None] - target.patched(chosen)).nanmean(-1)[rows]
        frame = pd.DataFrame(lost.cpu().numpy(), index=pd.Index(rows, name="row"))
        frame = frame.melt(ignore_index=False, var_name="layer", value_name="lost").reset_index()
        if by == "position":
            at = batch.position_ids.gather(1, batch.window)[:, part].tolist()
            frame.insert(2, by, [at[row] for row in frame["row"]])
        elif by == "head":
            frame.insert(2, by, part)
        frames.append(frame)
    return pd.concat(frames, ignore_index=True)
