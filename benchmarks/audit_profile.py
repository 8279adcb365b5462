"""A second audit on the same open models beside its arithmetic: the matrix products of its passes, run by themselves.

    python benchmarks/audit_profile.py FULL RETAIN UNLEARNED --examples ../shared/data/tofu/forget10_filtered.json

CPU seconds on one thread, the least of `--repeats` rounds in which all take turns. Prints Markdown.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from functools import partial
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from workloads import least_seconds

import uds_lens as ul

PRODUCTS = {torch.ops.aten.mm.default, torch.ops.aten.addmm.default, torch.ops.aten.bmm.default}
PRODUCTS |= {torch.ops.aten.baddbmm.default, torch.ops.aten.baddbmm_.default}


class Products(TorchDispatchMode):
    """Counts the matrix products that run in the block, by operation, shapes and strides."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[tuple[Any, ...]] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Count an operation, and run it."""
        if func in PRODUCTS:
            key = (func, *((tuple(each.shape), each.stride()) for each in args))
            self.found[key] += 1
        return func(*args, **(kwargs or {}))

    def run(self) -> None:
        """Run the same products on other numbers."""
        for (product, *places), count in self.found.items():
            several = [torch.ones(1 + sum(s * (n - 1) for n, s in zip(*place, strict=True))) for place in places]
            given = [one.as_strided(*place) for one, place in zip(several, places, strict=True)]
            for _ in range(count):
                product(*given)


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
        with Products() as products:
            audit()
        works = {
            "its matrix products": torch.no_grad()(products.run),
            "hashing three models": lambda: [model.fingerprint for model in (full, retain, unlearned)],
            "a second audit": audit,
        }
        least = least_seconds(works, asked.repeats)
    print(f"{len(examples)} rows\n\n| | CPU seconds | in products |\n|---|---|---|")
    for what, seconds in {**least, "the first audit": first}.items():
        print(f"| {what} | {seconds:.2f} | {seconds / least['its matrix products']:.2f} |")


if __name__ == "__main__":
    main()
