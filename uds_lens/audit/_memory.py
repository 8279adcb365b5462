"""Halve batches when memory runs out, and estimate before a run how much it needs."""

from __future__ import annotations

import dataclasses
import gc
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from uds_lens._compat.bitsandbytes import is_4bit_config
from uds_lens._compat.torch import is_out_of_memory
from uds_lens.audit._inputs import Plan, where_of
from uds_lens.errors import ModelError, Setting, warn_once
from uds_lens.models import ModelSource, pick_device
from uds_lens.models._checkpoint import LOADING, load_config
from uds_lens.patching._costs import SCORES_AT_ONCE, logits_at_once
from uds_lens.patching._packing import Packing
from uds_lens.results._settings import AuditConfig, RunOptions

logger = logging.getLogger(__name__)

GIB = 1 << 30


def run_halving(
    rows: Sequence[int],
    work: Callable[[list[int]], None],
    *,
    relieve: Callable[[], bool] | None = None,
    about: str = "",
) -> list[list[int]]:
    """Run `work` on rows; where memory runs out, on each half of them instead."""
    try:
        work(list(rows))
        return [list(rows)]
    except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        again = relieve is not None and relieve()
        if len(rows) == 1 and not again:
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
        return run_halving(rows, work, relieve=relieve, about=about)
    warn_once(
        "memory ran out on a batch: halving batches, results do not change. A lower ",
        Setting("token_budget", of="RunOptions"),
        " avoids the failed attempts.",
        key=f"halving {about}",
    )
    halves = rows[: len(rows) // 2], rows[len(rows) // 2 :]
    return [piece for half in halves for piece in run_halving(half, work, relieve=relieve, about=about)]


@dataclass(frozen=True)
class MemoryEstimate:
    """Memory of an audit at its largest moment, in bytes."""

    weights: int  # one model, the only one in memory
    states: int  # states of all sources at the windows, and recordings that are kept
    batch: int  # the largest batch: recorded keys and values, activations, logits
    available: int  # free memory of the device now

    @property
    def total(self) -> int:
        """Sum of the parts."""
        return self.weights + self.states + self.batch

    def __str__(self) -> str:
        parts = (("weights", self.weights), ("states", self.states), ("batch", self.batch))
        shares = ", ".join(f"{name} {value / GIB:.2f}" for name, value in parts)
        return f"needs about {self.total / GIB:.2f} GiB ({shares}) of {self.available / GIB:.2f} GiB free"

    def require(self) -> None:
        """Raise unless it fits."""
        if self.total > self.available:
            raise ModelError(
                f"the audit {self}. Use ",
                Setting("dtype", "bfloat16"),
                ", a lower ",
                Setting("token_budget", of="RunOptions"),
                ", a lower ",
                Setting("memory_gib", of="RunOptions"),
                " for the states, ",
                Setting("device_map", "auto"),
                ", or another device; ",
                Setting("check_memory", False, of="RunOptions"),
                " tries all the same.",
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
) -> MemoryEstimate:
    """Estimate from a transformers config, without loading weights."""
    text = config.get_text_config()
    size = torch.empty(0, dtype=getattr(torch, dtype)).element_size()
    width, layers = int(text.hidden_size), int(text.num_hidden_layers)
    heads = int(text.num_attention_heads)
    head = int(getattr(text, "head_dim", None) or width // heads)
    kv = 2 * head * int(getattr(text, "num_key_value_heads", None) or heads)
    inner = int(getattr(text, "intermediate_size", None) or 4 * width)
    rows = plan.rows
    windows = sum(len(row.window) for row in rows)
    largest = kept = 0
    for batch in plan.batches:
        length = max(len(rows[i].ids) for i in batch)
        per_row = max(len(rows[i].window) for i in batch) * layers
        tokens, resumed = len(batch) * length, len(batch) * per_row
        masks = 3 * resumed * (length + per_row) * size  # of the window, beside them while they are built
        recorded = tokens * layers * kv * size + 2 * resumed * width * size
        if plan.packed:  # where heads stand, for each number of variants
            recorded += resumed * (layers + 1) // 2 * Packing.bytes_to_move(heads, kv // (2 * head))
        scores = heads * max(tokens * length, min(resumed * (length + per_row), SCORES_AT_ONCE // heads))
        active = max(tokens, resumed) * (2 * width + 3 * inner) * size + 3 * scores * size
        largest = max(largest, recorded + masks + active)
        kept += recorded + masks // 3
    logits = 3 * min(logits_at_once(torch.device(device)), windows * layers * int(text.vocab_size)) * 4
    return MemoryEstimate(
        weights=_weight_bytes(config, size, trust_remote_code),
        states=min(states_budget, n_sources * windows * layers * width * size)
        + (min(states_budget, kept) if keep else 0),
        batch=largest + logits,
        available=free_bytes(device),
    )


def memory_of_audit(
    full: ModelSource, plan: Plan, *, n_sources: int, config: AuditConfig, options: RunOptions, keep: bool = False
) -> MemoryEstimate | None:
    """Estimate an audit's memory.

    Nothing is estimated for live models (they are in memory already), with `device_map` (accelerate places the
    weights), or with `check_memory=False`.

    Returns: The estimate, or None where there is none.
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
    )
    return dataclasses.replace(estimate, weights=estimate.weights * (2 if keep else 1))


def require_memory(
    full: ModelSource, plan: Plan, *, n_sources: int, config: AuditConfig, options: RunOptions, keep: bool = False
) -> None:
    """Log the estimate, and raise `ModelError` if that memory is not there."""
    estimate = memory_of_audit(full, plan, n_sources=n_sources, config=config, options=options, keep=keep)
    if estimate is not None:
        logger.info("the audit %s", estimate)
        estimate.require()


def free_bytes(device: str) -> int:
    """Return the free memory of a device, in bytes."""
    kind = torch.device(device)
    if kind.type == "cuda":
        return int(torch.cuda.mem_get_info(kind)[0])
    import psutil

    return int(psutil.virtual_memory().available)


def _weight_bytes(config: Any, size: int, trust_remote_code: bool) -> int:
    """Bytes of the weights, from the model built without storage; tied weights count once."""
    import copy

    from transformers import AutoModelForCausalLM

    with LOADING, torch.device("meta"):
        model = AutoModelForCausalLM.from_config(copy.deepcopy(config), trust_remote_code=trust_remote_code)
    kept = sum(parameter.numel() for parameter in model.parameters())
    packed = 0
    if is_4bit_config(config):
        packed = sum(m.weight.numel() for m in model.modules() if isinstance(m, torch.nn.Linear))
        packed -= config.get_text_config().vocab_size * config.get_text_config().hidden_size
    return (kept - packed) * size + packed * 9 // 16
