"""Costs of running a model, and memory bounds: all tuned numbers in one place.

The unit of cost is one token passing one block. A pass over n rows costs their tokens; if every layer is patched and
resumed at the window, block l of L also processes the windows of the l variants patched before it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from uds_lens.data._batches import BatchCost, cut_batches, plan_batches
from uds_lens.data._tokens import TokenSequence

SCORES_AT_ONCE = 1 << 26  # attention scores of one block held at a time (256 MiB in float32)

LOGITS_AT_ONCE = {"cpu": 1 << 22, "cuda": 1 << 25}
"""Logits held at a time: 16 MiB in float32 on a CPU, where allocators return blocks of 32 MiB to the system at once and
must map every page again; 128 MiB on a GPU, which small products would not fill."""

LOGITS_IN_CACHE = {"cpu": 1 << 20}
"""The same for a head that is a single product, which can be split at no cost: as many as caches hold until they are
summed."""

READOUT_ROWS_AT_LEAST = 128
"""Minimum number of rows multiplied by the whole vocabulary at once; if their logits do not fit, the vocabulary is
split."""

READOUT_ROWS_AT_ONCE = 1024
"""Rows multiplied by a piece of the vocabulary at once: with fewer, reading the weights would dominate."""

BATCH_STATES = 1 << 18
"""Tokens x d_model of a batch on a CPU. An MLP holds two arrays of four times this size: small enough for the
processor's caches, and for allocators to keep the memory instead of returning it to the system."""

BATCH_TOKENS = 1280
"""Minimum number of tokens in a batch on a CPU: for wide models, reading the weights again costs more."""

# limit on a packed batch's tokens, including the padding that attention sees, as a multiple of the budget
BATCH_PADDED = 1.5

VARIANT_STATES = {"cpu": 1 << 20, "cuda": 1 << 26}
"""Tokens x d_model of all variants resumed together, at the last block."""

CALL = {"cpu": (64, 4_000_000), "cuda": (2048, 0)}
"""Cost of one more call of a block, in tokens: a + b / d_model squared."""

PAIR = 25
"""Cost of a query-key pair in attention, in tokens, times d_model squared, per head. It exceeds the multiplications
because scores are written and read several times."""


def product_rate(dtype: str, device: str) -> float:
    """Measure a device's speed on block-like matrix products, in operations per second (two per multiply-add)."""
    n = 512
    matrix = torch.ones(n, n, dtype=getattr(torch, dtype), device=device)
    seconds: list[float] = []
    while len(seconds) < 8 and sum(seconds) < 0.05:  # a dtype without its own instructions is timed less often
        start = time.perf_counter()
        float((matrix @ matrix)[0, 0])
        seconds.append(time.perf_counter() - start)
    return 2 * n**3 / max(min(seconds), 1e-9)


FASTER = 2.0
"""A dtype this many times faster than float32 is worth a note."""


def bfloat16_gain(device: str) -> float:
    """Return the speed-up of bfloat16 over float32 products: about 3 or more on CPUs with bfloat16 instructions."""
    return product_rate("bfloat16", device) / product_rate("float32", device)


def logits_at_once(device: torch.device) -> int:
    """Return how many logits are held at a time on a device."""
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
        """Read the costs from a transformers configuration, with common values for missing entries."""
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
        """Cost of one more call of a block, in tokens."""
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
        """Return the tokens of one batch, at most `budget`."""
        if self.device == "cuda":
            return budget
        return min(budget, max(BATCH_TOKENS, BATCH_STATES // self.d_model))

    def batches(self, rows: Sequence[TokenSequence], *, token_budget: int, packed: bool = False) -> list[list[int]]:
        """Group rows at the least cost of one pass over them plus every layer patched and resumed at the window.

        Args:
            rows: The rows.
            token_budget: Tokens per batch at most.
            packed: Whether they run packed, so that only attention sees padding.

        Returns:
            Lists of indices into `rows`, each index once; batches of short rows first, rows in order of window width.

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
        """Group rows at the least cost of one padded forward pass; see `batches`."""
        return plan_batches(rows, token_budget=self.tokens_at_once(token_budget), batch_cost=self.call)

    def _packed_batch(self, budget: int) -> BatchCost:
        """Tokens cost the same in any batch, but query-key pairs, which are padded, do not.

        Rows of S tokens have S squared of them in the forward; at block l, the l W queries of variants with windows of
        width W see S + l W keys.
        """
        once, squared = self.variants_per_block, self.squared_variants_per_block

        def cost(count: np.ndarray, longest: np.ndarray, widest: np.ndarray) -> np.ndarray:
            pairs = longest**2 + widest * (once * longest + squared * widest)
            too_padded = (count > 1) & (count * longest > BATCH_PADDED * budget)
            return np.where(too_padded, np.inf, self.call + self.pair * count * pairs)

        return cost

    def row_group(self, *, packed: bool) -> BatchCost:
        """Cost of resuming rows together at all blocks, given their number, longest prefix and widest window.

        Windows are padded to the widest only in attention, or everywhere if rows are padded.
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
        """Tokens of all variants that are resumed together, at the last block."""
        return VARIANT_STATES.get(self.device, VARIANT_STATES["cpu"]) / self.d_model

    def variants_at_once(self, *, rows: int, prefix: int, width: int, scores_at_once: int) -> int:
        """Return how many variants may be resumed together within a bound on their attention scores.

        Args:
            rows: Rows of the batch.
            prefix: Keys before the windows.
            width: Width of the windows.
            scores_at_once: The bound, for one block.

        Returns:
            At least 1, at most one per layer.
        """
        per_head = scores_at_once / (rows * self.n_heads)
        n = 1
        while n < self.n_layers and (n + 1) * width * (prefix + (n + 1) * width) <= per_head:
            n += 1
        return n
