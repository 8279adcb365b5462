"""Open a target with either engine, and check the fast one against the plain one before it is trusted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from uds_lens._compat.torch import is_out_of_memory
from uds_lens._types import Engine, Site, check_choice
from uds_lens.data import TokenBatch, TokenSequence
from uds_lens.errors import ModelBusyError, warn_once
from uds_lens.models import HookedModel
from uds_lens.patching._hooks import as_hooked
from uds_lens.patching._plain import NaiveTarget, capture
from uds_lens.patching._side_by_side import require_fitting
from uds_lens.patching._states import PatchEngine, SpanCache
from uds_lens.patching._wave import Recording, record, resume_patched


@dataclass(eq=False)
class WavefrontTarget(PatchEngine):
    """The target on one batch, recorded; every patched layer resumes from the recording."""

    model: HookedModel
    recording: Recording

    def __post_init__(self) -> None:
        self.batch = self.recording.batch

    @property
    def logprobs(self) -> Float[Tensor, "batch win"]:
        """Unpatched log-probabilities of the scored tokens."""
        return self.recording.logprobs

    @property
    def states(self) -> Float[Tensor, "batch layer win d_model"]:
        """The target's own `resid_post` at the window."""
        return self.recording.states

    def patched(
        self, cache: SpanCache, *, layers: list[int] | None = None
    ) -> Float[Tensor, "batch layer win"]:
        """Log-probabilities with each of `layers` patched (None: all); NaN for the others."""
        return resume_patched(self.model, self.recording, cache, layers=layers)


def open_target(
    model: HookedModel,
    batch: TokenBatch,
    *,
    site: Site = "resid_post",
    engine: Engine = "wavefront",
    packed: bool = False,
    scores_at_once: int | None = None,
    reading: Engine = "wavefront",
) -> WavefrontTarget | NaiveTarget:
    """The target on one batch, ready to be patched from any number of sources; see `record`."""
    require_fitting(model, batch)
    batch = batch.to(model.device)
    if engine == "naive":
        return NaiveTarget(model, batch, packed, reading)
    recording = record(
        model, batch, by_bridge=site != "resid_post", packed=packed, scores_at_once=scores_at_once
    )
    return WavefrontTarget(model, recording)


# Patched layers scored by either engine, and the check that chooses between the two.

_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.5, torch.float16: 0.1}
"""Largest difference between the engines, in nats, that rounding explains. Errors of a wrong mask or position are
larger in float32; half precision rounds log-probabilities by up to a tenth of a nat per step."""

_READING_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.05, torch.float16: 0.01}
"""Largest difference between states read in two ways that rounding explains, as a share of the largest state."""

_CHECKED_LAYERS = 4
"""Layers that the self-check patches one forward at a time."""


def patched_logprobs(
    model: HookedModel | nn.Module, batch: TokenBatch, cache: SpanCache, *, engine: Engine = "wavefront"
) -> Float[Tensor, "batch layer win"]:
    """Log-probabilities of the scored tokens with each layer patched in turn.

    Args:
        model: The target.
        batch: The tokens that `cache` was captured on.
        cache: The source's states.
        engine: `wavefront`, `naive` (one forward per layer), or `auto` (the first that passes `choose_engine`).

    Returns:
        Float32 nats, at most 0; NaN where `batch.scored_mask` is False.

    Raises:
        PatchError: The cache does not fit the batch, or a patch did not take effect.
    """
    check_choice("engine", engine, Engine)
    model = as_hooked(model)
    if engine == "auto":
        engine = choose_engine(model, batch, site=cache.site)
    return open_target(model, batch, site=cache.site, engine=engine).patched(cache)


def choose_engine(
    model: HookedModel, batch: TokenBatch, *, site: Site = "resid_post", packed: bool = False
) -> Engine:
    """Try the wavefront against the reference on a batch; fall back with a warning where they differ.

    The states that are patched in are the target's own, scaled by 0.9 and shifted one layer: far enough from a
    no-op that a wrong mask, position or layer shows. The wavefront runs with all layers patched, side by side; the
    reference for a few of them, from the first to the last: what is patched at the first layer runs through every
    later block, so that a block that resumes wrongly shows there.

    Args:
        model: The target.
        batch: A small batch (two rows are enough; ragged and padded ones test more).
        site: Patch site.
        packed: Try the wavefront on packed rows; the reference always runs on padded ones.

    Returns:
        `wavefront` if both engines agree within rounding, else `naive`.
    """
    if model.runs_hooks:
        warn_once(
            f"{model.name!r} has hooks or forwards of somebody's on it: it is run as it is, by the naive engine, which "
            "is slower.",
            key=f"hooked {model.name} {model.fingerprint}",
        )
        return "naive"
    require_fitting(model, batch)
    try:
        own = capture(model, batch, site=site, packed=packed)
        probe = SpanCache(states=own.states.roll(1, dims=1) * 0.9, site=site, name=own.name)
        wavefront = open_target(model, batch, site=site, packed=packed)
        fast, unpatched = wavefront.patched(probe), wavefront.logprobs
    except Exception as error:
        if is_out_of_memory(error) or isinstance(error, ModelBusyError):
            raise
        return fall_back(model, error)
    naive = open_target(model, batch, site=site, engine="naive")
    some = _spread(model.n_layers, _CHECKED_LAYERS)
    slow = naive.patched(probe, layers=some)
    gap = max(_gap(fast[:, some], slow[:, some]), _gap(unpatched, naive.logprobs))
    tolerance = _TOLERANCE.get(model.dtype, 1e-3)
    if gap <= tolerance:
        return "wavefront"
    if gap == float("inf"):
        return fall_back(model, "log-probabilities are NaN in one engine only")
    return fall_back(model, f"log-probabilities differ by {gap:.2g} nats (allowed {tolerance:g})")


def checked_rows(rows: Sequence[TokenSequence]) -> list[int]:
    """Two rows for `choose_engine`: the longest, and a shorter one, which is padded.

    That is the one with the widest window, or where this is among the longest, the shortest of all. Where all rows are
    of one length, any other.

    Returns:
        Indices in their order; one where there is one.
    """
    numbers = range(len(rows))
    longest = max(numbers, key=lambda i: (len(rows[i].ids), len(rows[i].window)))
    widest = max(numbers, key=lambda i: len(rows[i].window))
    others = sorted((i for i in numbers if i != longest), key=lambda i: len(rows[i].ids))
    if len(rows[widest].ids) < len(rows[longest].ids):
        others.insert(0, widest)
    return sorted({longest, *others[:1]})


def _spread(n_layers: int, n: int) -> list[int]:
    """At most `n` layers, evenly from the first to the last."""
    return sorted({round(i * (n_layers - 1) / (n - 1)) for i in range(n)})


def _gap(left: Tensor, right: Tensor) -> float:
    """Largest difference where both are numbers; infinite where one is NaN and the other is not."""
    if not torch.equal(left.isnan(), right.isnan()):
        return float("inf")
    return float((left - right).abs().nan_to_num(0.0).max())


def choose_reading(model: HookedModel, batch: TokenBatch, *, packed: bool = False) -> Engine:
    """Try the fast way of reading states against a plain forward; fall back with a warning where they differ.

    Args:
        model: The source.
        batch: A small batch, ragged.
        packed: Try packed rows.

    Returns:
        The `engine` for `capture`.
    """
    if model.runs_hooks:
        return "naive"
    try:
        fast = capture(model, batch, packed=packed).states.float()
    except Exception as error:
        if is_out_of_memory(error) or isinstance(error, ModelBusyError):
            raise
        return fall_back(model, error)
    slow = capture(model, batch, engine="naive").states.float()
    real = batch.window_mask[:, None, :, None].to(slow.device).expand_as(slow)
    gap, largest = _gap(fast[real], slow[real]), float(slow[real].abs().nan_to_num(0.0).max())
    allowed = _READING_TOLERANCE.get(model.dtype, 1e-3)
    if gap <= allowed * largest:
        return "wavefront"
    return fall_back(model, f"states differ by {gap:.2g} (the largest is {largest:.2g})")


def fall_back(model: HookedModel, why: str | Exception) -> Engine:
    """Warn that the fast engine failed on a model and how, and name the engine to use instead."""
    if isinstance(why, Exception):
        first = str(why).splitlines()[0] if str(why) else "no message"
        why = f"it failed: {type(why).__name__}: {first[:200]}"
    warn_once(
        f"{model.name!r} ({model.architecture}): the fast engine does not reproduce plain forwards ({why}); using the "
        "naive engine, which is slower.",
        key=f"fall back {model.name} {model.fingerprint}: {why}",
    )
    return "naive"
