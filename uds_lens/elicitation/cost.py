"""How long a run will take, roughly, told before it starts."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from uds_lens.elicitation.options import ElicitOptions
from uds_lens.errors import Setting, UdsLensWarning

if TYPE_CHECKING:
    from uds_lens.elicitation.asked import Asked

logger = logging.getLogger(__name__)

_RATE = {"cpu": 8e9, "cuda": 2e13, "mps": 5e11}
"""Multiplications and additions in a second in float32, by device; measured on two CPU cores while a model of 3.9
million parameters generates, guessed for the others from what their makers tell."""

_DENSE = 6.0
"""How many times more of them a CPU does while an optimiser reads many tokens side by side; measured there likewise."""

_HALF = {"cuda": 6.0, "mps": 2.0}
"""How many times faster half precision is, by device; guessed likewise."""

_PASS = {"cpu": 4e-3, "cuda": 2e-2, "mps": 2e-2}
"""Seconds that one forward pass takes at least."""


def estimate_hours(
    asked: Sequence[Asked],
    options: ElicitOptions,
    *,
    n_models: int,
    shape: Mapping[str, object],
    device: str,
) -> float:
    """Hours that all audits of all models take, to within a factor of three.

    Args:
        asked: Audits with their prompts.
        options: Samples and lengths.
        n_models: Models that are asked.
        shape: Depth, width and vocabulary of the models.
        device: Where they run.

    Returns:
        Hours.
    """
    layers, width, vocabulary = (
        int(str(shape[name])) for name in ("depth (layers)", "width (d_model)", "vocabulary size")
    )
    work = 2.0 * (12 * layers * width**2 + vocabulary * width)
    kind = device.split(":")[0]
    rate, once = _RATE.get(kind, _RATE["cpu"]), _PASS.get(kind, _PASS["cpu"])
    rate *= _HALF.get(kind, 1.0) if options.dtype in ("bfloat16", "float16") else 1.0
    seconds = 0.0
    for each in asked:
        prompts = sum(len(ask.rendered.ids) for ask in each.asks)
        for decoding in options.decodings if each.audit.samples_too else ("greedy",):
            texts = len(each.asks) * (options.samples if decoding == "sampled" else 1)
            steps = options.max_new_tokens * -(-texts // options.rows_at_once)
            seconds += (prompts + texts * options.max_new_tokens) * work / rate + steps * once
        extra = getattr(each.audit, "extra_tokens", None)
        if extra is not None:
            tokens, passes = extra(each.asks)
            seconds += tokens * work / (rate * (_DENSE if kind == "cpu" else 1.0)) + passes * once
    return seconds * n_models / 3600


def announce(hours: float, options: ElicitOptions) -> None:
    """Say how long a run may take.

    Warns:
        UdsLensWarning: It may take longer than `options.max_hours`. It runs all the same: the estimate is a guess.
    """
    logger.info("elicitation takes about %.2g hours", hours)
    if hours > options.max_hours:
        warnings.warn(
            UdsLensWarning(
                f"these audits may take about {hours:.2g} hours on this device (a guess, to within a factor of three), "
                "more than ",
                Setting("max_hours", options.max_hours),
                ". To make it shorter, ask fewer examples, draw fewer samples or take fewer optimiser steps.",
            ),
            stacklevel=3,
        )
