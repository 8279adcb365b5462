"""What an audit costs, against one patched forward per layer and against one plain forward.

    python benchmarks/audit_cost.py --shared ../shared

All times are of one run on one machine, models already open, the best of `--repeats`; rows of `tofu-small` are those
of TOFU forget10, those of the random Llama the same. Prints Markdown.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from bound import least_work
from reference import one_forward_per_layer, plain_forward, scored_unembeddings
from workloads import Workload, least_seconds, workload_parser, workloads

import uds_lens as ul
from uds_lens.audit._inputs import make_plan
from uds_lens.data import TokenBatch, make_batch
from uds_lens.data._batches import plan_batches
from uds_lens.data._tokens import TokenRow


def bucketed(rows: Sequence[TokenRow], *, token_budget: int) -> list[TokenBatch]:
    """Rows of similar length together, as many as the budget takes."""
    buckets = plan_batches(rows, token_budget=token_budget, batch_cost=token_budget // 16)
    return [make_batch(rows, indices=bucket, pad_token_id=0) for bucket in buckets]


def whole_texts(tokenizer: Any, rows: Sequence[TokenRow]) -> list[list[int]]:
    """Prompt and whole answer of each row: what the plain way reads."""
    return [
        [
            *tokenizer(row.rendered.prompt).input_ids,
            *tokenizer(row.rendered.continuation, add_special_tokens=False).input_ids,
        ]
        for row in rows
    ]


def measure(load: Workload, *, repeats: int, token_budget: int, naive_rows: int | None) -> None:
    """Time one workload and print its table."""
    options = ul.RunOptions(progress=False, check_memory=False, token_budget=token_budget, device="cpu")
    with (
        ul.open_model(load.full, device="cpu") as full,
        ul.open_model(load.retain, device="cpu") as retain,
        ul.open_model(load.unlearned, device="cpu") as unlearned,
    ):
        rows = load.encoded.rows
        ways = [bucketed(rows, token_budget=tokens) for tokens in (1024, 1536, 2560)]
        batches = ways[0]
        texts = whole_texts(full.tokenizer, rows)
        some = slice(0, naive_rows)
        share = len(rows) / len(rows[some])
        stage = (
            share
            * least_seconds(
                {"a": lambda: one_forward_per_layer(full.hf, unlearned.hf, rows[some], texts[some], rows_at_once=32)},
                1,
                clock=time.perf_counter,
            )["a"]
        )
        baseline = ul.Baseline.measure(full, retain, load.examples, options=options)
        with baseline.recorded(options=options) as recorded:
            recorded.audit(unlearned)
            best = least_seconds(
                {
                    **{
                        f"forward {attention} {i}": partial(plain_forward, unlearned.hf, way, attention=attention)
                        for attention in ("eager", "sdpa")
                        for i, way in enumerate(ways)
                    },
                    "unembedding": lambda: scored_unembeddings(full.anatomy, batches),
                    "again": lambda: recorded.audit(unlearned),
                    "alone": lambda: baseline.audit(unlearned, options=options),
                    "whole": lambda: ul.DepthAudit.run(full, retain, unlearned, load.examples, options=options),
                },
                repeats,
                clock=time.perf_counter,
            )
        whole, alone, again = (best[name] for name in ("whole", "alone", "again"))
        forward = min(seconds for name, seconds in best.items() if name.startswith("forward"))
        unembedding = best["unembedding"]
        plan = make_plan({"full": full}, load.examples, config=baseline.config, options=options)
        config = full.hf.config
    bound = least_work(config, load.encoded)
    told = "" if naive_rows is None else f" (from the first {naive_rows} rows, scaled)"
    tokens = sum(len(row.ids) for row in rows) / len(rows)
    entity = sum(len(row.scored) for row in rows) / len(rows)
    print(f"\n### {load.name}\n")
    print(f"{config.num_hidden_layers} layers, d_model {config.hidden_size}, vocabulary {config.vocab_size}; ", end="")
    print(f"{len(rows)} rows, {tokens:.1f} tokens and {entity:.1f} entity tokens a row, {len(plan.batches)} batches.\n")
    print("| | seconds | plain forwards (b) | faster than (a) |\n|---|---|---|---|")
    for name, seconds, against in (
        (f"(a) one forward per layer, one stage{told}", stage, None),
        ("(b) one plain forward", forward, None),
        ("whole audit, both stages, one model", whole, 2 * stage),
        ("one more model, full recorded again", alone, stage),
        ("one more model, recording kept", again, stage),
        ("of that, scored unembeddings", unembedding, None),
    ):
        faster = f"{against / seconds:.1f}x" if against else ""
        print(f"| {name} | {seconds:.2f} | {seconds / forward:.2f} | {faster} |")
    parts = [f"{name} {getattr(bound, name) / bound.forward:.2f}" for name in ("source", "variants", "unembedding")]
    attention = min((name for name in best if name.startswith("forward")), key=best.__getitem__).split()[1]
    print(f"\nThe fastest plain forward was one with {attention} attention. In plain forwards, ", end="")
    print(f"one more model takes {bound.one_more:.2f} at least ({', '.join(parts)}), ", end="")
    print(f"a whole audit {bound.whole:.2f}; share reached: ", end="")
    print(f"{bound.one_more * forward / again:.0%} and {bound.whole * forward / whole:.0%}.")


def main() -> None:
    """Parse, measure, print."""
    parser = workload_parser(__doc__, llama_rows=128)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--repeats", type=int, default=5, help="rounds; the best counts")
    parser.add_argument("--token-budget", type=int, default=ul.RunOptions().token_budget)
    parser.add_argument("--naive-rows", type=int, default=64, help="rows for (a) on the larger model")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    print(
        f"{args.threads} threads, {platform.machine()}, torch {torch.__version__}, float32, {time.strftime('%Y-%m-%d')}"
    )
    settings = {"repeats": args.repeats, "token_budget": args.token_budget}
    for load in workloads(args):
        naive_rows = None if load.name == "tofu-small" else args.naive_rows
        measure(load, **settings, naive_rows=naive_rows)


if __name__ == "__main__":
    main()
