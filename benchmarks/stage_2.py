"""What one more audit costs where stage 2 is measured at all layers, and only where `full` holds knowledge.

    python benchmarks/stage_2.py smol/full smol/retain smol/npo --toy 8          # the models of notebooks/08
    python benchmarks/stage_2.py FULL RETAIN UNLEARNED --examples ../shared/data/tofu/forget10_filtered.json

Both ways take turns in one process, `full` open and recorded and the unlearned model open; the least CPU time of
`--repeats` rounds counts (of all threads, so that other work on the machine matters less), beside one plain forward of
the same rows. Prints Markdown.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from audit_cost import bucketed
from reference import plain_forward
from workloads import least_seconds

import uds_lens as ul
from uds_lens.audit._inputs import make_plan
from uds_lens.data import encode


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for role in ("full", "retain", "unlearned"):
        parser.add_argument(role)
    parser.add_argument("--examples", help="the forget set")
    parser.add_argument("--toy", type=int, help="so many examples of the toy world instead")
    parser.add_argument("--limit", type=int)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    rows = list(ul.toy.load().examples)[: asked.toy] if asked.toy else ul.load_examples(asked.examples)
    rows = rows[: asked.limit]
    options = ul.RunOptions(device="cpu", progress=False, check_memory=False)
    parts = {"all": replace(options, stage_2="all"), "knowledge": replace(options, stage_2="knowledge")}
    with ul.open_model(asked.full, device="cpu") as full, ul.open_model(asked.unlearned, device="cpu") as unlearned:
        baseline = ul.Baseline.measure(full, asked.retain, rows, options=options)
        plan = make_plan({"full": full}, baseline.examples, config=baseline.config, options=options)
        encoded = encode(baseline.examples, full.tokenizer, protocol=baseline.config.protocol).rows
        with baseline.recorded(options=parts["all"]) as whole, baseline.recorded(options=parts["knowledge"]) as part:
            audits = {"all": whole.audit(unlearned), "knowledge": part.audit(unlearned)}
            works: dict[str, Callable[[], object]] = {
                "forward": partial(plain_forward, unlearned.hf, bucketed(encoded, token_budget=1536)),
                "all": partial(whole.audit, unlearned),
                "knowledge": partial(part.audit, unlearned),
            }
            best = least_seconds(works, asked.repeats)
    everywhere, some = audits.values()
    counting = everywhere.ke_mask
    apart = float((everywhere.s2_delta - some.s2_delta)[counting].abs().max())
    first = counting.any(0).nonzero()[:, 0].min() if counting.any() else -1
    print(
        f"{len(everywhere.examples)} rows, {len(plan.batches)} batches, {everywhere.n_layers} layers, of which "
        f"{float(counting.sum(1).double().mean()):.1f} count per example, the first at layer {int(first)}; "
        f"{asked.threads} threads.\n"
    )
    print("| one more model, `full` recorded | CPU seconds | plain forwards | UDS |\n|---|---|---|---|")
    for way, audit in audits.items():
        print(f"| stage 2 at {WAYS[way]} | {best[way]:.2f} | {best[way] / best['forward']:.2f} | {audit.uds!r} |")
    print(
        f"\nA plain forward takes {best['forward']:.2f} s. {best['knowledge'] / best['all']:.2f} of the time; largest "
        f"difference of S2 where both have it: {apart:.2g} nats per token; intervals "
        f"{'equal' if everywhere.uds_interval == some.uds_interval else 'differ'}, warnings "
        f"{'equal' if everywhere.warnings == some.warnings else 'differ'}."
    )


WAYS = {"all": "all layers", "knowledge": "layers that count"}

if __name__ == "__main__":
    main()
