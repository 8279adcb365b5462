"""How fast this machine multiplies float32 matrices on one core, as a small Llama has them.

    python benchmarks/cpu_products.py
    LD_PRELOAD=./libfast.so python benchmarks/cpu_products.py

The second line is for AMD processors (docs/guide/memory.md): the same with MKL told to take its AVX-512 kernels.
"""

from __future__ import annotations

import time

import torch

SHAPES = ((700, 192, 512), (700, 512, 192), (1400, 512, 2048))
"""Tokens, width of what comes in, width of what goes out."""


def main() -> None:
    """Multiply, print the best rate."""
    torch.set_num_threads(1)
    for tokens, enters, leaves in SHAPES:
        states, weight = torch.randn(tokens, enters), torch.randn(leaves, enters)
        best = float("inf")
        for _ in range(50):
            begun = time.perf_counter()
            torch.nn.functional.linear(states, weight)
            best = min(best, time.perf_counter() - begun)
        print(f"{tokens} x {enters} x {leaves}: {2 * tokens * enters * leaves / best / 1e9:.0f} GFLOP/s")


if __name__ == "__main__":
    main()
