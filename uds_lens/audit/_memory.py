"""Estimate the memory that an audit needs, and halve batches when memory runs out."""

from __future__ import annotations

import dataclasses
import gc
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import torch

from uds_lens._compat.bitsandbytes import is_4bit_config
from uds_lens._compat.torch import is_out_of_memory
from uds_lens._compat.transformers import largest_entry
from uds_lens._progress import tell
from uds_lens.audit._inputs import Plan, where_of
from uds_lens.errors import ModelError, Setting, warn_once
from uds_lens.models._anatomy import anatomy_of
from uds_lens.models._checkpoint import LOADING, load_config
from uds_lens.models._hooked import ModelSource, pick_device
from uds_lens.patching._costs import SCORES_AT_ONCE, ModelCosts, logits_at_once
from uds_lens.patching._side_by_side import why_not_streamed
from uds_lens.results._settings import AuditConfig, RunOptions

logger = logging.getLogger(__name__)

GIB = 1 << 30

T = TypeVar("T")

_PROGRAM = 150_000_000
"""CPU memory not covered by the other estimates, such as library code and matrix-product buffers, in bytes."""


def run_halving(
    items: Sequence[T], work: Callable[[list[T]], None], *, relieve: Callable[[], bool] | None = None, about: str = ""
) -> list[list[T]]:
    """Run `work` on rows or batches; if memory runs out, run it on each half instead (a single batch is split)."""
    try:
        work(list(items))
        return [list(items)]
    except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        again = relieve is not None and relieve()
        halves = _halves(list(items))
        if not (halves or again):
            raise ModelError(
                "memory ran out on a single example: use a GPU with more memory, ",
                Setting("device_map", "auto"),
                " to spread the model, ",
                Setting("dtype", "bfloat16"),
                ", or ",
                Setting("device", "cpu"),
                ".",
            ) from error
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    if again:
        return run_halving(items, work, relieve=relieve, about=about)
    warn_once(
        "memory ran out on a batch, so batches are halved, which does not change results. A lower ",
        Setting("token_budget", of="RunOptions"),
        " avoids the failed attempts.",
        key=f"halving {about}",
    )
    return [piece for half in halves for piece in run_halving(half, work, relieve=relieve, about=about)]


def _halves(items: list[Any]) -> list[list[Any]]:
    """Halve a list of batches, or the rows of a single batch; empty if there is only one row.

    >>> _halves([[1, 2], [3]]), _halves([[1, 2, 3]]), _halves([[1]]), _halves([1, 2])
    ([[[1, 2]], [[3]]], [[[1]], [[2, 3]]], [], [[1], [2]])
    """
    middle = len(items) // 2
    if middle:
        return [items[:middle], items[middle:]]
    return [[half] for half in _halves(items[0])] if isinstance(items[0], list) else []


@dataclass(frozen=True)
class MemoryEstimate:
    """Peak memory of an audit, in bytes."""

    weights: int  # the model in memory; streamed: two of its blocks, or its head if that is larger
    states: int  # window states of all sources, and kept recordings; streamed: all states waiting for a block
    batch: int  # the largest batch: recorded keys and values, activations, logits
    available: int  # free memory of the device
    program: int = 0  # additional memory for running models on the CPU
    streamed: bool = False  # whether the model is read a block at a time
    parts: tuple[tuple[int, ...], ...] = ()  # streamed: groups of batches; the files are read once per group
    in_files: int = 0  # weights of one model as stored in its files

    @property
    def fits(self) -> bool:
        """Whether enough memory is available."""
        return self.total <= self.available

    @property
    def total(self) -> int:
        """Sum of the parts."""
        return self.weights + self.states + self.batch + self.program

    def __str__(self) -> str:
        parts = (("weights", self.weights), ("states", self.states), ("batch", self.batch), ("program", self.program))
        shares = ", ".join(f"{name} {value / GIB:.2f}" for name, value in parts)
        return f"needs about {self.total / GIB:.2f} GiB ({shares}) of {self.available / GIB:.2f} GiB free"

    def require(self, more: str = "") -> None:
        """Raise `ModelError` if memory is not sufficient; `more` is a sentence to put before the advice."""
        if not self.fits:
            way = ", streamed," if self.streamed else ""
            raise ModelError(
                f"the audit{way} {self}. {more}Use ",
                Setting("dtype", "bfloat16"),
                ", a lower ",
                Setting("token_budget", of="RunOptions"),
                ", a lower ",
                Setting("memory_gib", of="RunOptions"),
                " for the states, ",
                Setting("device_map", "auto"),
                ", or another device; ",
                Setting("check_memory", False, of="RunOptions"),
                " runs it anyway.",
            )


def estimate_memory(
    config: Any,
    plan: Plan,
    *,
    n_sources: int,
    dtype: str,
    device: str,
    states_budget: int,
    keep: bool = False,
    trust_remote_code: bool = False,
    streamed: bool = False,
) -> MemoryEstimate:
    """Estimate the memory for weights, states and one batch from a transformers config, without loading weights.

    The estimate is rough. If it is too low and a GPU runs out of memory, batches are halved.
    """
    text = config.get_text_config()
    size = torch.empty(0, dtype=getattr(torch, dtype)).element_size()
    sizes = weight_sizes(config, size, trust_remote_code)  # called first, because its error says what a model must have
    width, layers = int(text.hidden_size), int(text.num_hidden_layers)
    heads = largest_entry(text, "num_attention_heads") or max(1, width // 64)
    keys = 2 * (largest_entry(text, "head_dim") or width // heads)
    keys *= largest_entry(text, "num_key_value_heads") or heads
    inner = largest_entry(text, "intermediate_size") or 4 * width
    rows, waiting = plan.rows, []
    recorded = batch_room = 0
    at_once = ModelCosts.of(config, device).variant_tokens_at_once
    for batch in plan.batches:
        length, variants = max(len(rows[i].ids) for i in batch), layers * max(len(rows[i].window) for i in batch)
        tokens, resumed = len(batch) * length, len(batch) * variants
        together = int(min(resumed, max(variants, at_once)))  # rows are resumed a group at a time
        scores = max(heads * tokens * length, min(heads * together * (length + variants), SCORES_AT_ONCE))
        in_block = max(tokens, together) * (2 * width + 3 * inner + keys) + 3 * scores
        kept = 0 if streamed else tokens * layers * keys + resumed * (2 * width + length + variants)  # with masks
        recorded, batch_room = recorded + kept, max(batch_room, in_block + kept)
        # Add a quarter for the masks and positions that are held with the states of `full` and of the variants.
        waiting.append((tokens + (1 + n_sources) * resumed) * width * size * 5 // 4)
    windows = layers * sum(len(row.window) for row in rows)
    logits = 3 * min(logits_at_once(torch.device(device)), windows * int(text.vocab_size)) * 4
    room, available = batch_room * size + logits, free_bytes(device)
    program = 0 if torch.device(device).type == "cuda" else _PROGRAM
    weights, states = sizes.whole, min(states_budget, n_sources * windows * width * size)
    parts: tuple[tuple[int, ...], ...] = ()
    if streamed:  # a block and the stored bytes of the next one (on a GPU, its weights); at the end, only the head
        beside = size if torch.device(device).type == "cuda" else _stored_size(config, size)
        # a tied head is also the embedding, so it always stays in memory
        always, head = (sizes.head, 0) if sizes.tied else (0, sizes.head)
        weights = max(sizes.block * (size + beside) // size, head) + sizes.around + always
        parts = _parts_that_fit(waiting, available - weights - states - room - program)
        states += max((sum(waiting[number] for number in part) for part in parts), default=0)
    elif keep:
        states += min(states_budget, recorded * size)
    in_files = sizes.whole * _stored_size(config, size) // size
    return MemoryEstimate(weights, states, room, available, program, streamed, parts, in_files)


def _stored_size(config: Any, size: int) -> int:
    """Return the bytes per number in the checkpoint's files (by default `size`), from the dtype in its config."""
    stored = getattr(config, "dtype", None)
    stored = getattr(torch, stored, None) if isinstance(stored, str) else stored
    return stored.itemsize if isinstance(stored, torch.dtype) else size


def _parts_that_fit(sizes: Sequence[int], room: int) -> tuple[tuple[int, ...], ...]:
    """Group batches so that each group fits into memory; a batch that is too large forms its own group.

    >>> _parts_that_fit([3, 3, 3, 9, 1], 6)
    ((0, 1), (2,), (3,), (4,))
    """
    parts: list[list[int]] = []
    left = 0
    for number, size in enumerate(sizes):
        if not parts or size > left:
            parts.append([])
            left = room
        parts[-1].append(number)
        left -= size
    return tuple(map(tuple, parts))


def memory_of_audit(
    full: ModelSource,
    plan: Plan,
    *,
    n_sources: int,
    config: AuditConfig,
    options: RunOptions,
    keep: bool = False,
    streamed: bool = False,
) -> MemoryEstimate | None:
    """Estimate the memory of an audit.

    Returns None for live models (which are already in memory), with `device_map` (accelerate places the weights), or
    with `check_memory=False`.
    """
    if not options.check_memory or options.device_map is not None or not isinstance(full, str | os.PathLike):
        return None
    estimate = estimate_memory(
        load_config(full, **where_of(options)),
        plan,
        n_sources=n_sources,
        dtype=config.dtype,
        device=pick_device(options.device),
        states_budget=int(options.memory_gib * GIB),
        keep=keep,
        trust_remote_code=options.trust_remote_code,
        streamed=streamed,
    )
    return dataclasses.replace(estimate, weights=estimate.weights * (2 if keep else 1))


def settled(
    full: ModelSource,
    plan: Plan,
    *,
    n_sources: int,
    config: AuditConfig,
    options: RunOptions,
    keep: bool = False,
    report: bool = True,
) -> RunOptions:
    """Check that there is enough memory for an audit, and decide whether its models are streamed.

    Args:
        full: The target.
        plan: Rows and batches.
        n_sources: Number of models whose states are kept at the same time.
        config: What is measured.
        options: How the audit is run.
        keep: Whether recordings of `full` are kept, which rules out streaming.
        report: Whether to log the estimate.

    Returns:
        The options, with `stream` set to True or False.

    Raises:
        ModelError: There is not enough memory, or the model cannot be streamed.
    """
    sizes: dict[str, Any] = {"n_sources": n_sources, "config": config, "options": options}
    estimate = None if options.stream is True else memory_of_audit(full, plan, keep=keep, **sizes)
    if estimate is not None and report:
        logger.info("the audit %s", estimate)
    if options.stream is False or (options.stream == "auto" and (estimate is None or estimate.fits)):
        if estimate is not None:
            estimate.require()
        return dataclasses.replace(options, stream=False)
    if (why := _why_not(full, config, options, keep)) is not None:
        if estimate is not None:
            estimate.require(f"It cannot be streamed: {why}. ")
        raise ModelError(
            f"{os.fspath(full) if isinstance(full, str | os.PathLike) else 'full'!r} cannot be streamed: {why}."
        )
    streamed = memory_of_audit(full, plan, streamed=True, **sizes)
    if streamed is not None and estimate is not None:
        if not streamed.fits:
            estimate.require(f"Even with models read one block at a time, the audit {streamed}. ")
        weights = f"{streamed.in_files / GIB:.1f} GiB"
        warn_once(
            f"the audit {estimate}: models are read one block at a time, which takes about {streamed.total / GIB:.2f} "
            f"GiB. Each audit reads the weights of each model ({weights}) from disk {_times(streamed)}. The results do "
            "not change.",
            key=f"streamed {full}",
        )
    if streamed is not None:
        logger.info("the audit, streamed, %s", streamed)
        streamed.require()
        if options.stream is True and len(streamed.parts) > 1:
            tell(
                "the states of all rows do not fit into memory together: the rows are processed in groups, and the "
                f"weights are read {_times(streamed)}"
            )
    return dataclasses.replace(options, stream=True)


def _times(estimate: MemoryEstimate) -> str:
    """Return how often a streamed audit reads the weights, in words."""
    return "once" if len(estimate.parts) < 2 else f"{len(estimate.parts)} times"


def _why_not(full: ModelSource, config: AuditConfig, options: RunOptions, keep: bool) -> str | None:
    """Return the reason why an audit cannot be streamed; None if it can."""
    if keep:
        return "the model must stay open, with its activations recorded, for several models"
    if config.site != "resid_post":
        return f"{config.site!r} is inside a block, where TransformerLens patches whole models"
    if options.engine == "naive":
        return "the naive engine runs whole models"
    if options.device_map is not None:
        return "device_map places whole models"
    if options.trust_remote_code:
        return "a checkpoint's own code runs whole models"
    return why_not_streamed(full, revision=options.revision, offline=options.offline)


def free_bytes(device: str) -> int:
    """Return the free memory of a device, in bytes."""
    kind = torch.device(device)
    if kind.type == "cuda":
        return int(torch.cuda.mem_get_info(kind)[0])
    import psutil

    return int(psutil.virtual_memory().available)


class WeightSizes(NamedTuple):
    """Sizes of a model's weights, in bytes."""

    whole: int
    """All weights; tied weights are counted once."""

    block: int
    """The largest block."""

    head: int
    """The head or the input embedding, whichever is larger."""

    around: int
    """Weights outside the blocks, except the head and the input embedding."""

    tied: bool
    """Whether the head is the input embedding."""


def weight_sizes(config: Any, size: int, trust_remote_code: bool = False) -> WeightSizes:
    """Measure the weights of a model by building it without storage.

    Args:
        config: The model's transformers config.
        size: Bytes per number.
        trust_remote_code: Whether to build it from the checkpoint's own code.
    """
    import copy

    from transformers import AutoModelForCausalLM

    try:
        with LOADING, torch.device("meta"):
            model = AutoModelForCausalLM.from_config(copy.deepcopy(config), trust_remote_code=trust_remote_code)
    except ValueError as error:
        first = str(error).splitlines()[0].rstrip(".") if str(error) else type(error).__name__
        raise ModelError(
            f"no causal language model can be built from a {type(config).__name__}: {first[:200]}. For a multimodal "
            "model, save the text model on its own."
        ) from error
    total = sum(parameter.numel() for parameter in model.parameters())
    packed = 0
    if is_4bit_config(config):
        packed = sum(m.weight.numel() for m in model.modules() if isinstance(m, torch.nn.Linear))
        packed -= config.get_text_config().vocab_size * config.get_text_config().hidden_size
    blocks = [sum(p.numel() for p in block.parameters()) for block in anatomy_of(model).layers]
    ends = {id(e.weight): e.weight.numel() for e in (model.get_input_embeddings(), model.get_output_embeddings())}
    around = total - sum(blocks) - sum(ends.values())
    whole = (total - packed) * size + packed * 9 // 16
    return WeightSizes(whole, max(blocks) * size, max(ends.values()) * size, max(around, 0) * size, len(ends) == 1)
