"""The two ways to run an audit, in memory and a block at a time: memory, bytes and time, at this machine's rates."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from uds_lens.doctor._checks import Finding
from uds_lens.results import AuditConfig, RunOptions

if TYPE_CHECKING:
    from uds_lens.audit._inputs import Plan

_TRIED = 1 << 26
"""Bytes of a file that are read to see how fast its disk is."""


def ways_to_run(
    models: Mapping[str, str], plan: Plan, *, config: AuditConfig, options: RunOptions
) -> Iterator[Finding]:
    """Compare an audit of models in memory with one that reads them a block at a time."""
    from uds_lens.audit._memory import memory_of_audit
    from uds_lens.patching._streamed import why_not_streamed

    full = models["full"]
    sizes: dict[str, Any] = {"n_sources": max(1, len(models) - 1), "config": config, "options": options}
    whole = memory_of_audit(full, plan, **sizes)
    if whole is None:
        yield Finding("audit", "note", "memory not estimated")
        return
    by_block = memory_of_audit(full, plan, streamed=True, **sizes)
    assert by_block is not None
    reasons = (why_not_streamed(m, revision=options.revision, offline=options.offline) for m in models.values())
    why = next((reason for reason in reasons if reason is not None), None)
    if whole.fits:
        yield Finding("audit", "ok", str(whole))
    elif why is None and by_block.fits:
        yield Finding("audit", "note", str(whole), "nothing: models are read a block at a time, as below")
    else:
        fix = "--dtype bfloat16, a lower --token-budget, --device-map auto, or another device"
        yield Finding("audit", "problem", str(whole), fix)
    if why is not None:
        yield Finding("audit, streamed", "note", f"not possible: {why}")
        return
    yield Finding("audit, streamed", "ok" if by_block.fits else "note", f"{by_block}; {_costs(models, plan, config)}")


def _costs(models: Mapping[str, str], plan: Plan, config: AuditConfig) -> str:
    """Say what is read, and how long reading and computing take at the rates of this disk and this device."""
    files = [file for model in models.values() for file in sorted(Path(model).expanduser().glob("*.safetensors"))]
    stored = sum(file.stat().st_size for file in files)
    if not files:
        return "each model is read once, from the Hub's cache"
    reading = stored / disk_rate(max(files, key=lambda file: file.stat().st_size))
    floats, products = _work(models["full"], plan, len(models)), product_rate(config.dtype)
    count = "1 model" if len(models) == 1 else f"{len(models)} models"
    return (
        f"reads {stored / 1e9:.2f} GB, each weight of {count} once: about {_duration(reading)} at this disk's rate, "
        f"while the products take about {_duration(floats / products)} at this device's ({products / 1e9:.0f} GFLOP/s)"
    )


def _work(full: str, plan: Plan, n_models: int) -> float:
    """Floating-point operations: two per weight and token, of the rows in every model and of variants in `full`."""
    from uds_lens.audit._memory import weight_sizes
    from uds_lens.models._checkpoint import load_config

    config = load_config(full, revision=None, offline=True, trust_remote_code=False)
    layers = config.get_text_config().num_hidden_layers
    tokens, windows = sum(plan.lengths), sum(len(row.window) for row in plan.rows)
    variants = max(1, n_models - 1) * windows * (layers - 1) / 2
    return 2.0 * weight_sizes(config, 1).whole * (n_models * tokens + variants)


def disk_rate(file: Path) -> float:
    """Read a part of a file that is not in memory, where the system allows to ask for that; bytes per second."""
    with open(file, "rb", buffering=0) as opened:
        length = min(_TRIED, os.fstat(opened.fileno()).st_size)
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(opened.fileno(), 0, length, os.POSIX_FADV_DONTNEED)
        start = time.perf_counter()
        opened.read(length)
        return length / max(time.perf_counter() - start, 1e-6)


def product_rate(dtype: str) -> float:
    """Multiply matrices as blocks do, on the device that audits would use; operations per second."""
    import torch

    from uds_lens.models import pick_device

    n, device = 512, pick_device("auto")
    matrix = torch.ones(n, n, dtype=getattr(torch, dtype), device=device)
    done = []
    for _ in range(3):
        start = time.perf_counter()
        float((matrix @ matrix)[0, 0])
        done.append(time.perf_counter() - start)
    return 2 * n**3 / max(min(done), 1e-9)


def _duration(seconds: float) -> str:
    """Say a time in words.

    >>> _duration(0.2), _duration(90), _duration(7200)
    ('1 s', '90 s', '2.0 h')
    """
    if seconds < 600:
        return f"{max(1, round(seconds))} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
