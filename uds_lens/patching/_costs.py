"""Costs of running a model, and bounds on memory; all tuned numbers are in this file.

The unit of cost is one token passing through one block. A pass over n rows costs one unit per token and block. If every
layer is patched and resumed at the window, block l of L
(counted from 0) also processes the windows of the l variants patched at earlier layers.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch

from uds_lens.data._batches import BatchCost, cut_batches, plan_batches
from uds_lens.data._tokens import TokenSequence

SCORES_AT_ONCE = 1 << 26  # maximum number of scores held at a time (256 MiB in float32)

LOGITS_AT_ONCE = {"cpu": 1 << 22, "cuda": 1 << 25}
"""Maximum number of logits held at a time. On a CPU: 16 MiB in float32, because allocators return blocks of 32 MiB to
the system immediately and then have to map every page again. On a GPU: 128 MiB, because smaller products would leave it
idle."""

LOGITS_IN_CACHE = {"cpu": 1 << 20}
"""Maximum number of logits held at a time for a head that is a single matrix product, which can be split at no cost:
few enough to stay in cache until they are summed."""

READOUT_ROWS_AT_LEAST = 128
"""Minimum number of rows multiplied by the whole vocabulary at once; if their logits do not fit, the vocabulary is
split."""

READOUT_ROWS_AT_ONCE = 1024
"""Number of rows multiplied by a piece of the vocabulary at once; with fewer rows, reading the weights would
dominate."""

BATCH_STATES = 1 << 18
"""Maximum tokens x d_model of a batch on a CPU. An MLP holds two arrays of four times this size, which still fit into
the processor's caches, and which allocators keep instead of returning the memory to the system."""

BATCH_TOKENS = 1280
"""Minimum number of tokens in a batch on a CPU; for wide models, reading the weights more often would cost more."""

# maximum number of tokens in a packed batch, including padding (for attention), as a multiple of the budget
BATCH_PADDED = 1.5

VARIANT_STATES = {"cpu": 1 << 20, "cuda": 1 << 26}
"""Maximum tokens x d_model of all variants resumed together, at the last block."""

CALL = {"cpu": (64, 4_000_000), "cuda": (2048, 0)}
"""Fixed cost of calling a block, in tokens: a + b / d_model squared."""

PAIR = 25
"""Cost of a query-key pair in attention, in tokens, times d_model squared, per head. This is more than the cost of the
multiplications, because scores are written and read several times."""


@cache
def product_rate(dtype: str, device: str) -> float:
    """Measure a device's speed on block-like matrix products, in operations per second (two per multiply-add)."""
    n = 512
    matrix = torch.ones(n, n, dtype=getattr(torch, dtype), device=device)
    seconds: list[float] = []
    while len(seconds) < 8 and sum(seconds) < 0.05:  # fewer runs for a slow dtype without its own instructions
        start = time.perf_counter()
        float((matrix @ matrix)[0, 0])
        seconds.append(time.perf_counter() - start)
    return 2 * n**3 / max(min(seconds), 1e-9)


FASTER = 2.0
"""Suggest a dtype if it is at least this many times faster than float32."""


BFLOAT16_COSTS = "UDS of a model with 135M weights moved by up to 0.06"


def bfloat16_gain(device: str) -> str | None:
    """Say how much faster products are in bfloat16 than in float32; None unless the device has instructions for it."""
    gain = product_rate("bfloat16", device) / product_rate("float32", device)
    return f"products in bfloat16 are {gain:.1f} times as fast as in float32 on {device}" if gain >= FASTER else None


def logits_at_once(device: torch.device) -> int:
    """Return the maximum number of logits to hold at a time on a device."""
    return LOGITS_AT_ONCE.get(device.type, LOGITS_AT_ONCE["cpu"])


@dataclass(frozen=True, kw_only=True)
class ModelCosts:
    """Costs of one model on one device."""

    n_layers: int
    """Number of blocks."""

    d_model: int
    """Width of the residual stream."""

    n_heads: int
    """Attention heads."""

    device: str = "cpu"
    """Kind of device: `cpu`, `cuda` ..."""

    @classmethod
    def of(cls, config: Any, device: torch.device | str) -> ModelCosts:
        """Read the sizes from a transformers config, with typical values for missing entries."""
        text = config.get_text_config()
        d_model = int(getattr(text, "hidden_size", None) or 1024)
        return cls(
            n_layers=int(getattr(text, "num_hidden_layers", None) or 16),
            d_model=d_model,
            n_heads=int(getattr(text, "num_attention_heads", None) or max(1, d_model // 64)),
            device=torch.device(device).type,
        )

    @property
    def call(self) -> float:
        """Fixed cost of calling a block, in tokens."""
        fixed, small = CALL.get(self.device, CALL["cpu"])
        return fixed + small / self.d_model**2

    @property
    def pair(self) -> float:
        """Cost of a query-key pair in attention, in tokens."""
        return PAIR * self.n_heads / self.d_model**2

    @property
    def variants_per_block(self) -> float:
        """Number of variants that a block processes, averaged over the blocks."""
        return (self.n_layers - 1) / 2

    @property
    def squared_variants_per_block(self) -> float:
        """Mean square of the number of variants that a block processes."""
        return (self.n_layers - 1) * (2 * self.n_layers - 1) / 6

    def tokens_at_once(self, budget: int) -> int:
        """Return the number of tokens for one batch, at most `budget`."""
        if self.device == "cuda":
            return budget
        return min(budget, max(BATCH_TOKENS, BATCH_STATES // self.d_model))

    def batches(self, rows: Sequence[TokenSequence], *, token_budget: int, packed: bool = False) -> list[list[int]]:
        """Group rows to minimise the cost of one pass plus every layer patched and resumed at the window.

        Args:
            rows: The rows.
            token_budget: Maximum number of tokens per batch.
            packed: Whether rows are packed, so that only attention runs on padding.

        Returns:
            Lists of indices into `rows`, each index once. Batches of short rows come first; rows are ordered by window
            width.

        Raises:
            ConfigError: The budget is smaller than 1.

        Example:
            >>> rows = [TokenSequence(ids=(1,) * n, targets=(1,), scored=(0,), patched=(0,)) for n in (4, 900, 5)]
            >>> costs = ModelCosts(n_layers=16, d_model=2048, n_heads=32)
            >>> costs.batches(rows, token_budget=4096), costs.batches(rows, token_budget=4096, packed=True)
            ([[0, 2], [1]], [[0, 2], [1]])
        """
        budget = self.tokens_at_once(token_budget)
        if packed:
            return cut_batches(rows, token_budget=budget, cost=self._packed_batch(budget))
        weight = self.variants_per_block
        return plan_batches(rows, token_budget=budget, window_weight=weight, batch_cost=self.call)

    def forward_batches(self, rows: Sequence[TokenSequence], *, token_budget: int) -> list[list[int]]:
        """Group rows to minimise the cost of one padded forward pass; see `batches`."""
        return plan_batches(rows, token_budget=self.tokens_at_once(token_budget), batch_cost=self.call)

    def _packed_batch(self, budget: int) -> BatchCost:
        """Return the part of the cost that depends on the batching: query-key pairs, which are padded.

        A row of S tokens has S squared pairs in the forward pass. At block l, l variants with windows of width W have l
        W queries, each with S + l W keys.
        """
        once, squared = self.variants_per_block, self.squared_variants_per_block

        def cost(count: np.ndarray, longest: np.ndarray, widest: np.ndarray) -> np.ndarray:
            pairs = longest**2 + widest * (once * longest + squared * widest)
            too_padded = (count > 1) & (count * longest > BATCH_PADDED * budget)
            return np.where(too_padded, np.inf, self.call + self.pair * count * pairs)

        return cost

    def row_group(self, *, packed: bool) -> BatchCost:
        """Return the cost of resuming rows together at all blocks, from their number, longest prefix and widest window.

        Windows are padded to the widest one: only in attention if rows are packed, otherwise everywhere.
        """
        blocks = self.n_layers - 1
        once, squared = (self.n_layers * self.variants_per_block, self.n_layers * self.squared_variants_per_block)

        def cost(count: np.ndarray, prefix: np.ndarray, widest: np.ndarray) -> np.ndarray:
            pairs = count * widest * (once * prefix + squared * widest)
            padded = 0.0 if packed else count * widest * once
            return self.call * blocks + self.pair * pairs + padded

        return cost

    @property
    def variant_tokens_at_once(self) -> float:
        """Maximum number of tokens at the last block in all variants that are resumed together."""
        return VARIANT_STATES.get(self.device, VARIANT_STATES["cpu"]) / self.d_model

    def variants_at_once(self, *, rows: int, prefix: int, width: int, scores_at_once: int) -> int:
        """Return how many variants can be resumed together within a limit on their attention scores.

        Args:
            rows: Number of rows in the batch.
            prefix: Number of keys before the windows.
            width: Width of the windows.
            scores_at_once: Maximum number of attention scores of one block.

        Returns:
            At least one variant, and at most one per layer.
        """
        per_head = scores_at_once / (rows * self.n_heads)
        n = 1
        while n < self.n_layers and (n + 1) * width * (prefix + (n + 1) * width) <= per_head:
            n += 1
        return n
