"""Open a target with either engine, and check the fast engine against the plain one before using it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from uds_lens._compat.torch import is_out_of_memory
from uds_lens._types import Engine, HookSite, check_choice
from uds_lens.data import TokenBatch
from uds_lens.data._tokens import TokenSequence
from uds_lens.errors import ModelBusyError, PatchError, Setting, warn_once
from uds_lens.models import HookedModel
from uds_lens.patching._hooks import as_hooked, chosen_combinations, chosen_layers
from uds_lens.patching._plain import NaiveTarget, capture
from uds_lens.patching._readout import Score, target_logprobs
from uds_lens.patching._recording import Recording
from uds_lens.patching._side_by_side import require_fitting
from uds_lens.patching._states import PatchEngine, SpanCache
from uds_lens.patching._wave import PatchedPass, Resumed, SourceLayers, Variants, own_passes, run_blocks
from uds_lens.patching._window_hooks import require_states_of

_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.5, torch.float16: 0.1}
"""Largest difference between the engines that rounding can explain, in nats. In float32, a wrong mask or position
causes larger errors. Half precision rounds log-probabilities by up to a tenth of a nat per step."""

_READING_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.05, torch.float16: 0.01}
"""Largest difference between states read in two ways that rounding can explain, as a fraction of the largest value."""

_CHECKED_LAYERS = 4  # number of layers that the self-check patches in separate forward passes

_Made = TypeVar("_Made")


@torch.no_grad()
def record(
    model: HookedModel,
    batch: TokenBatch,
    *,
    by_bridge: bool = False,
    packed: bool = False,
    scores_at_once: int | None = None,
    score: Score | None = None,
) -> Recording:
    """Run the target on the batch once, and record everything that its patched variants share.

    Args:
        model: The target.
        batch: The tokens.
        by_bridge: Whether to run TransformerLens's blocks instead of the plain ones, so that hooks inside a block apply
            when variants are resumed (needed for sites other than `resid_post`).
        packed: Whether to run rows end to end, without padding. It must be the same for source and target.
        scores_at_once: Maximum number of attention scores of one block held at a time, which limits how many variants
            are resumed together; None means 256 MiB in float32.
        score: What to measure instead of log-probabilities.

    Returns:
        The recording, with keys and values of every position.

    Raises:
        PatchError: The model did not run each block exactly once, keeps no key-value cache, or has user hooks.
    """
    why = None
    if model.runs_hooks:
        why = "has user hooks or a patched forward, which need whole sequences, so its blocks cannot run alone"
    elif model.anatomy.keeps_masks:
        why = "has blocks with their own causal masks, which would be misaligned for resumed tokens"
    if why is None:
        with model.running():
            [recording] = own_passes(model, [batch], keep_prefix=True, by_bridge=by_bridge, packed=packed)
            if all(count == 1 for count in recording.kept.writes):
                batch = recording.batch
                recording.logprobs = target_logprobs(
                    recording.anatomy, recording.states[:, -1], batch.targets, batch.scored_mask, score=score
                )
                recording.scores_at_once = scores_at_once
                return recording.ready()
        why = "has a block that did not write its keys and values to the cache exactly once"
    raise PatchError(f"{model.name!r} {why}. Use ", Setting("engine", "naive"), ".")


@dataclass(eq=False, repr=False)
class WavefrontTarget(PatchEngine):
    """A recorded pass of the target over one batch, from which patched layers are resumed."""

    model: HookedModel
    recording: Recording
    score: Score | None = None
    """What to measure instead of log-probabilities."""

    def __post_init__(self) -> None:
        self.batch = self.recording.batch

    @property
    def logprobs(self) -> Float[Tensor, "batch win"]:
        """Unpatched log-probabilities of the scored tokens."""
        assert self.recording.logprobs is not None
        return self.recording.logprobs

    @property
    def states(self) -> Float[Tensor, "batch layer win d_model"]:
        """The target's own `resid_post` at the window."""
        return self.recording.states

    @torch.no_grad()
    def patched(
        self, cache: SpanCache, *, layers: list[int] | None = None, wanted: Bool[Tensor, "batch layer"] | None = None
    ) -> Float[Tensor, "batch layer win"]:
        """Return log-probabilities with each of `layers` patched in turn (None: all), in the `wanted` rows (None: all).

        The result equals one patched forward pass per layer, up to rounding (tested to 1e-5 in float32).

        Raises:
            PatchError: The cache does not match the batch, a layer does not exist, or an argument of a block cannot be
                cut to the window.
        """
        chosen = chosen_layers(layers, self.states.shape[1])
        return self._waves(cache, {layer: [layer] for layer in chosen}, self.states.shape[1], wanted)

    @torch.no_grad()
    def patched_together(
        self, cache: SpanCache, layers: Sequence[Sequence[int]]
    ) -> Float[Tensor, "batch combination win"]:
        """Return log-probabilities with several layers patched at once, for each combination in `layers`.

        The result equals `run_patched` with each combination, up to rounding (tested to 1e-5 in float32).

        Raises:
            PatchError: As for `patched`, or a combination is empty.
        """
        combinations = chosen_combinations(layers, self.states.shape[1])
        in_order = sorted(range(len(combinations)), key=lambda i: combinations[i][0])
        return self._waves(cache, {i: combinations[i] for i in in_order}, len(combinations))

    def _waves(
        self,
        cache: SpanCache,
        combinations: dict[int, list[int]],
        n: int,
        wanted: Bool[Tensor, "batch n"] | None = None,
    ) -> Float[Tensor, "batch n win"]:
        """Patch combinations of layers (sorted by first layer), as many at a time as memory allows."""
        require_states_of(self.model, self.batch, cache)
        shape = (len(self.batch), n, self.batch.window.shape[1])
        result = torch.full(shape, torch.nan, dtype=torch.float32, device=self.batch.window.device)
        again: dict[int, list[int]] = {}
        for number, layers in combinations.items():
            for layer in layers[1:]:
                again.setdefault(layer, []).append(number)
        with self.model.running():
            for rows, group in self.recording.groups_wanting(wanted) if combinations else ():
                some = [number for number in combinations if wanted is None or wanted[rows, number].any()]
                for start in range(0, len(some), group.variants_at_once):
                    joining: dict[int, list[int]] = {}
                    for number in some[start : start + group.variants_at_once]:
                        joining.setdefault(combinations[number][0], []).append(number)
                    variants = Variants(self.model, rows, group, wanted)
                    run_blocks(self.model, [Resumed(variants, cache, joining, again)], first=min(joining))
                    variants.read_out(result, score=self.score)
        return result


@torch.no_grad()
def patch_on_the_way(
    model: HookedModel,
    batches: Sequence[TokenBatch],
    sources: Sequence[Sequence[SourceLayers]],
    *,
    packed: bool,
    exact_noop: bool = True,
    wanted: Sequence[Bool[Tensor, "batch layer"]] | None = None,
    desc: str = "patching",
    show: bool | None = None,
) -> list[tuple[WavefrontTarget, list[Float[Tensor, "batch layer win"]]]]:
    """Run batches through a streamed model's blocks once, patching in every source on the way.

    Args:
        model: The target, with the embeddings of all tokens loaded.
        batches: The tokens.
        sources: The sources to patch into each batch.
        packed: See `record`.
        exact_noop: See `PatchedPass`.
        wanted: For each batch, the layers at which its rows are patched; None for all.
        desc: Label of the progress bar over blocks.
        show: Whether to show the bar; None shows it in terminals and notebooks only.

    Returns:
        For each batch, a target with its own states and log-probabilities (which can no longer be patched), and for
        each source, the log-probabilities with each layer patched; NaN where the patch changes nothing.
    """
    several = wanted if wanted is not None else [None] * len(batches)
    passes = [
        PatchedPass(model, batch, of_batch, packed=packed, exact_noop=exact_noop, wanted=layers)
        for batch, of_batch, layers in zip(batches, sources, several, strict=True)
    ]
    run_blocks(model, passes, desc=desc, show=show)
    with model.head():
        measured = [each.read_out() for each in passes]
    return [(WavefrontTarget(model, each.recording), values) for each, values in zip(passes, measured, strict=True)]


def open_target(
    model: HookedModel | nn.Module,
    batch: TokenBatch,
    *,
    site: HookSite = "resid_post",
    engine: Engine = "wavefront",
    packed: bool = False,
    scores_at_once: int | None = None,
    reading: Engine = "wavefront",
    score: Score | None = None,
) -> WavefrontTarget | NaiveTarget:
    """Prepare the target on one batch, for patches from any number of sources.

    Args:
        model: The target.
        batch: The tokens.
        site: Where the target will be patched.
        engine: `wavefront` records the target and resumes all patched layers together; `naive` runs one forward pass
            per layer.
        packed: See `record`.
        scores_at_once: See `record`.
        reading: The engine that reads the target's own states, if `engine` is `naive`.
        score: Takes float32 logits `[n, d_vocab]` and target tokens `[n]`, and returns `[n]` numbers to use instead of
            log-probabilities.

    Raises:
        PatchError: The model cannot be patched at this site, or batching the rows would change their numbers.
    """
    model = as_hooked(model)
    require_fitting(model, batch)
    batch = batch.to(model.device)
    if engine == "naive":
        return NaiveTarget(model, batch, packed, reading, score)
    by_bridge = site != "resid_post"
    recording = record(model, batch, by_bridge=by_bridge, packed=packed, scores_at_once=scores_at_once, score=score)
    return WavefrontTarget(model, recording, score)


def patched_logprobs(
    model: HookedModel | nn.Module,
    batch: TokenBatch,
    cache: SpanCache,
    *,
    engine: Engine = "wavefront",
    score: Score | None = None,
) -> Float[Tensor, "batch layer win"]:
    """Return the log-probabilities of the scored tokens with each layer patched in turn.

    Args:
        model: The target.
        batch: The tokens that `cache` was captured on.
        cache: The source's states.
        engine: `wavefront`, `naive` (one forward pass per layer), or `auto` (chosen by `choose_engine`).
        score: See `open_target`.

    Returns:
        Float32 nats, at most 0; NaN where `batch.scored_mask` is False.

    Raises:
        PatchError: The cache does not match the batch, or a patch had no effect.
    """
    check_choice("engine", engine, Engine)
    model = as_hooked(model)
    if engine == "auto":
        engine = choose_engine(model, batch, site=cache.site)
    return open_target(model, batch, site=cache.site, engine=engine, score=score).patched(cache)


def choose_engine(
    model: HookedModel, batch: TokenBatch, *, site: HookSite = "resid_post", packed: bool = False
) -> Engine:
    """Compare the wavefront engine with the naive one on a batch; if they differ, warn and choose the naive one.

    The patched-in states are the target's own, scaled by 0.9 and shifted by one layer, which is different enough to
    reveal a wrong mask, position or layer. The wavefront engine patches all layers together, the naive engine only a
    few, from the first to the last. A patch at the first layer passes through every later block, so it reveals any
    block that is resumed incorrectly.

    Args:
        model: The target.
        batch: A small batch. Two rows are enough; rows of different lengths, which are padded, test more.
        site: Patch site.
        packed: Whether to run the wavefront engine on packed rows; the naive engine always runs on padded ones.

    Returns:
        `wavefront` if both engines agree up to rounding, else `naive`.
    """
    if model.runs_hooks:
        warn_once(
            f"{model.name!r} has user hooks or a patched forward, so it is run with the naive engine, which is slower.",
            key=f"hooked {model.name} {model.fingerprint}",
        )
        return "naive"
    require_fitting(model, batch)

    def fast() -> tuple[SpanCache, Tensor, Tensor]:
        own = capture(model, batch, site=site, packed=packed)
        probe = SpanCache(own.states.roll(1, dims=1) * 0.9, site, name=own.name, n_heads=own.n_heads)
        target = open_target(model, batch, site=site, packed=packed)
        return probe, target.patched(probe), target.logprobs

    measured = _tried(model, fast)
    if measured is None:
        return "naive"
    probe, patched, unpatched = measured
    # Use TransformerLens only for sites that need it: wrapping a model takes as long as a small audit.
    naive = NaiveTarget(model, batch.to(model.device), plain=site == "resid_post" and not model.is_wrapped)
    some = sorted({round(i * (model.n_layers - 1) / (_CHECKED_LAYERS - 1)) for i in range(_CHECKED_LAYERS)})
    gap = max(_gap(patched[:, some], naive.patched(probe, layers=some)[:, some]), _gap(unpatched, naive.logprobs))
    tolerance = _TOLERANCE.get(model.dtype, 1e-3)
    if gap <= tolerance:
        return "wavefront"
    if gap == float("inf"):
        return fall_back(model, "log-probabilities are NaN with one engine only")
    return fall_back(model, f"log-probabilities differ by {gap:.2g} nats (allowed {tolerance:g})")


def choose_reading(model: HookedModel, batch: TokenBatch, *, packed: bool = False) -> Engine:
    """Compare the fast way of reading states with a plain forward pass; if they differ, warn and choose the latter.

    Args:
        model: The source.
        batch: A small batch, with rows of different lengths.
        packed: Whether to test packed rows.

    Returns:
        The `engine` for `capture`.
    """
    if model.runs_hooks:
        return "naive"
    fast = _tried(model, lambda: capture(model, batch, packed=packed).states.float())
    if fast is None:
        return "naive"
    slow = capture(model, batch, engine="naive").states.float()
    real = batch.window_mask[:, None, :, None].to(slow.device).expand_as(slow)
    gap, largest = _gap(fast[real], slow[real]), float(slow[real].abs().nan_to_num(0.0).max())
    if gap <= _READING_TOLERANCE.get(model.dtype, 1e-3) * largest:
        return "wavefront"
    return fall_back(model, f"states differ by {gap:.2g} (the largest is {largest:.2g})")


_agreed: dict[tuple[object, ...], tuple[int, int]] = {}
"""Longest row and widest window, in tokens, for which a model's fast engine passed the check."""


def tried_once(choose: Callable[[], Engine], about: tuple[object, ...], rows: Sequence[TokenSequence]) -> Engine:
    """Return the engine chosen by the self-check, or the fast one if it has already passed on rows as large as these.

    Args:
        choose: The self-check.
        about: The cache key: the weights, and how the model is run.
        rows: The rows to run. The check is repeated if a row is longer or a window wider than in all previous checks.
    """
    sizes = max(len(row.ids) for row in rows), max(len(row.window) for row in rows)
    known = _agreed.get(about, (0, 0))
    if sizes[0] <= known[0] and sizes[1] <= known[1]:
        return "wavefront"
    engine = choose()
    if engine == "wavefront":
        _agreed[about] = max(sizes[0], known[0]), max(sizes[1], known[1])
    return engine


def _tried(model: HookedModel, work: Callable[[], _Made]) -> _Made | None:
    """Return the result of the fast engine; warn and return None if it fails for a reason other than memory."""
    try:
        return work()
    except Exception as error:
        if is_out_of_memory(error) or isinstance(error, ModelBusyError):
            raise
        fall_back(model, error)
        return None


def fall_back(model: HookedModel, why: str | Exception) -> Engine:
    """Warn that the fast engine failed on a model, and return the engine to use instead."""
    if isinstance(why, Exception):
        first = str(why).splitlines()[0] if str(why) else "no message"
        why = f"it failed: {type(why).__name__}: {first[:200]}"
    warn_once(
        f"{model.name!r} ({model.architecture}): the fast engine does not reproduce plain forwards ({why}); using the "
        "naive engine, which is slower.",
        key=f"fall back {model.name} {model.fingerprint}: {why}",
    )
    return "naive"


def checked_rows(rows: Sequence[TokenSequence]) -> list[int]:
    """Choose two rows for `choose_engine`: the longest, and a shorter one that has to be padded.

    The second is the row with the widest window, or, if that is as long as the longest, the shortest row. If all rows
    have the same length, any other row is chosen.
    """
    numbers = range(len(rows))
    longest = max(numbers, key=lambda i: (len(rows[i].ids), len(rows[i].window)))
    widest = max(numbers, key=lambda i: len(rows[i].window))
    others = sorted((i for i in numbers if i != longest), key=lambda i: len(rows[i].ids))
    if len(rows[widest].ids) < len(rows[longest].ids):
        others.insert(0, widest)
    return sorted({longest, *others[:1]})


def _gap(left: Tensor, right: Tensor) -> float:
    """Return the largest absolute difference; infinite if a number is NaN on one side only."""
    if not torch.equal(left.isnan(), right.isnan()):
        return float("inf")
    return float((left - right).abs().nan_to_num(0.0).max())
