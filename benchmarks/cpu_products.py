"""Measure how fast one core multiplies float32 matrices of the shapes that a small Llama has.

    python benchmarks/cpu_products.py
    LD_PRELOAD=./libfast.so python benchmarks/cpu_products.py

The second line is for AMD processors with AVX-512, on which MKL chooses slower AVX2 kernels. To pass its (undocumented)
check, write `int mkl_serv_intel_cpu_true(void) { return 1; }` to `fast.c` and compile it with
`gcc -shared -fPIC -o libfast.so fast.c`. On an EPYC 9005, products then took half the time, with other rounding.
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
