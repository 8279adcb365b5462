"""A second audit on the same open models beside its arithmetic: the same tensor operations, on the same operands.

    python benchmarks/audit_profile.py FULL RETAIN UNLEARNED --examples ../shared/data/tofu/forget10_filtered.json

CPU seconds on one thread, the least of `--repeats` rounds in which all take turns. Prints Markdown.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from workloads import least_seconds

import uds_lens as ul

PRODUCTS = {torch.ops.aten.mm.default, torch.ops.aten.addmm.default, torch.ops.aten.bmm.default}
PRODUCTS |= {torch.ops.aten.baddbmm.default, torch.ops.aten.baddbmm_.default}


class Operations(TorchDispatchMode):
    """Keeps the tensor operations that run in the block, with their operands (which operations in place change)."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation, and keep it if it computes floating-point numbers."""
        result = func(*args, **(kwargs or {}))
        if not func.is_view and isinstance(result, torch.Tensor) and result.is_floating_point():
            self.found.append((func, args, kwargs or {}))
        return result

    @torch.no_grad()
    def run(self, *, products: bool) -> None:
        """Run the same operations (or only the matrix products) in the same order on the same operands."""
        for operation, args, kwargs in self.found:
            if not products or operation in PRODUCTS:
                operation(*args, **kwargs)


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for role in ("full", "retain", "unlearned"):
        parser.add_argument(role)
    parser.add_argument("--examples", required=True, help="the forget set")
    parser.add_argument("--rows", type=int, default=3, help="the first ones are taken")
    parser.add_argument("--repeats", type=int, default=3)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    examples = ul.load_examples(asked.examples, limit=asked.rows, sample="first")
    options = ul.RunOptions(device="cpu", progress=False, check_memory=False)
    with (
        ul.open_model(asked.full, device="cpu") as full,
        ul.open_model(asked.retain, device="cpu") as retain,
        ul.open_model(asked.unlearned, device="cpu") as unlearned,
    ):
        audit = partial(ul.DepthAudit.run, full, retain, unlearned, examples, options=options)
        begun = time.process_time()
        audit()
        first = time.process_time() - begun
        with Operations() as operations:
            audit()
        works: dict[str, Callable[[], object]] = {
            "its matrix products": partial(operations.run, products=True),
            "its arithmetic: all operations on floating-point tensors": partial(operations.run, products=False),
            "hashing three models": lambda: [model.fingerprint for model in (full, retain, unlearned)],
            "a second audit": audit,
        }
        least = least_seconds(works, asked.repeats)
    products, arithmetic, *_ = least.values()
    print(f"{len(examples)} rows\n\n| | CPU seconds | in products | in operations |\n|---|---|---|---|")
    for what, seconds in {**least, "the first audit": first}.items():
        print(f"| {what} | {seconds:.2f} | {seconds / products:.2f} | {seconds / arithmetic:.2f} |")


if __name__ == "__main__":
    main()
