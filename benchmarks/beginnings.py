"""What an audit saves by running the tokens that several rows begin with once, as those of a chat template.

    python benchmarks/beginnings.py FULL RETAIN UNLEARNED --examples ../shared/data/tofu/forget10_filtered.json

Both ways take turns in one process, all models open; the least CPU time of `--repeats` rounds counts, next to one
plain forward of the same rows. `--rows` are spread over the file. Prints Markdown.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

import torch
from audit_cost import bucketed
from reference import plain_forward
from workloads import least_seconds

import uds_lens as ul
from uds_lens.audit._inputs import make_plan
from uds_lens.patching._packing import Packing

T = TypeVar("T")


@contextmanager
def rows_apart() -> Iterator[None]:
    """Run every token of every row, as if no two rows began alike."""
    shared = Packing.__dict__["of_texts"]
    Packing.of_texts = classmethod(lambda cls, ids, real: cls.of(real))  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        Packing.of_texts = shared  # type: ignore[method-assign]


def apart(work: Callable[[], T]) -> T:
    """Do something with `rows_apart`."""
    with rows_apart():
        return work()


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for role in ("full", "retain", "unlearned"):
        parser.add_argument(role)
    parser.add_argument("--examples", required=True, help="the forget set")
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    examples = ul.load_examples(asked.examples)
    examples = examples[:: max(1, len(examples) // asked.rows)][: asked.rows]
    options = ul.RunOptions(device="cpu", progress=False, check_memory=False)
    with (
        ul.open_model(asked.full, device="cpu") as full,
        ul.open_model(asked.retain, device="cpu") as retain,
        ul.open_model(asked.unlearned, device="cpu") as unlearned,
    ):
        baseline = ul.Baseline.measure(full, retain, examples, options=options)
        plan = make_plan({"full": full}, baseline.examples, config=baseline.config, options=options)
        batches = [plan.batch(number) for number in range(len(plan.batches))]
        packed = [len(Packing.of_texts(batch.input_ids, batch.attention_mask.bool())) for batch in batches]
        whole = partial(ul.DepthAudit.run, full, retain, unlearned, examples, options=options)
        buckets = bucketed(plan.rows, token_budget=1536)
        with baseline.recorded(options=options) as recorded:
            again = partial(recorded.audit, unlearned)
            together, alone = again(), apart(again)
            works: dict[str, Callable[[], object]] = {
                **{f"forward {way}": partial(plain_forward, unlearned.hf, buckets, attention=way) for way in ATTENTION},
                "one more model": again,
                "one more model, rows apart": partial(apart, again),
                "whole audit": whole,
                "whole audit, rows apart": partial(apart, whole),
            }
            best = least_seconds(works, asked.repeats)
    forward = min(best.pop(f"forward {way}") for way in ATTENTION)
    difference = float((together.s2_delta - alone.s2_delta).abs().max())
    print(f"{len(plan.rows)} rows, {sum(plan.lengths)} tokens, of which {sum(packed)} are run; ", end="")
    print(f"{len(batches)} batches, {plan.prompts!r}, {asked.threads} threads. Largest difference of S2: ", end="")
    print(f"{difference:.2g} nats.\n\n| | CPU seconds | plain forwards |\n|---|---|---|")
    for name, seconds in {"one plain forward": forward, **best}.items():
        print(f"| {name} | {seconds:.2f} | {seconds / forward:.2f} |")


ATTENTION = ("eager", "sdpa")

if __name__ == "__main__":
    main()
