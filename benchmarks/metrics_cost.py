"""What the metrics cost beside the audit, against the plain way: one pass per metric over whole sequences.

    python benchmarks/metrics_cost.py --shared ../shared --limit 100

The 20 metrics of one model (`retain95`, or `--model`) on TOFU forget10 with `retain90` and `full`, models open. Each is
measured the plain way (`plain_metrics.py`) and by the library alone, in turns, then the library measures all of them in
one call; both ways must give the same values. Seconds are CPU seconds of the process, which on one thread of an idle
machine are those of the clock. A token-layer is a token that runs through a block, padding included. Prints Markdown.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from plain_metrics import Plain, utility_parts, works
from workloads import shared_parser

import uds_lens as ul
from uds_lens.data import encode
from uds_lens.metrics import METRICS, MetricCache, MetricOptions, MetricResults, evaluate, load_tofu_data

FISHER = tuple(name for name in METRICS if name.startswith("fisher_masked_"))
"""Three masks of one measurement: a line of the table."""


@dataclass
class Cost:
    """What some work took: CPU seconds, and tokens times blocks."""

    seconds: float = 0.0
    token_layers: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.seconds + other.seconds, self.token_layers + other.token_layers)


@contextmanager
def costed() -> Iterator[Cost]:
    """CPU seconds of the block, and tokens through Llama blocks, counted where no hook is needed."""
    from transformers.models.llama.modeling_llama import LlamaDecoderLayer

    cost, plain = Cost(), LlamaDecoderLayer.forward

    def counting(self: Any, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        cost.token_layers += hidden_states.shape[0] * hidden_states.shape[1]
        return plain(self, hidden_states, *args, **kwargs)

    counting.__module__ = plain.__module__
    LlamaDecoderLayer.forward = counting
    begun = time.process_time()
    try:
        yield cost
    finally:
        cost.seconds = time.process_time() - begun
        LlamaDecoderLayer.forward = plain


def compare(plain: Plain, *, run: ul.RunOptions) -> None:
    """Measure everything both ways, and print the table."""

    def by_library(names: tuple[str, ...], cache: MetricCache | None = None) -> MetricResults:
        return evaluate(
            plain.model,
            plain.data,
            metrics=names,
            retain=plain.retain,
            full=plain.full,
            options=plain.options,
            run=run,
            cache=cache,
        )

    both = works(plain)
    asked = {name: FISHER if name == "fisher_masked" else (name,) for name in both}
    names = tuple(each for name in both for each in asked[name])
    _warm_up(replace(plain, data=plain.data.limited(2, sample="first")), names, run)
    print("| metric | value | plain: s | token-layers | alone: s | token-layers | times |")
    print("|---|---|---|---|---|---|---|")
    sums = [Cost(), Cost(), Cost()]
    values = {}
    for name, work in both.items():
        with costed() as references:
            known = work.of_references()
        with costed() as own:
            values[name] = work.of_model(known)
        with costed() as alone:
            found = by_library(asked[name])
        _require_same(name, values[name], found[asked[name][-1]].value)
        sums = [before + more for before, more in zip(sums, (references, own, alone), strict=True)]
        label = "Fisher Masked, three masks" if name == "fisher_masked" else METRICS[name].label
        _row(f"{label} | {values[name]:.3f}", references + own, alone)
    kept = _references_alone(plain, names, run)
    with costed() as together:
        found = by_library(names, MetricCache())
    with costed() as one_more:
        by_library(names, kept)
    for name, value in values.items():
        _require_same(name, value, found[asked[name][-1]].value)
    _row("sum of the lines | ", sums[0] + sums[1], sums[2])
    _row("**all 20 in one call** | ", sums[0] + sums[1], together)
    _row("one more model, references kept | ", sums[1], one_more)
    with costed() as plainly:
        parts = utility_parts(plain)
    with costed() as ours:
        found = by_library(tuple(parts))
    for name, value in parts.items():
        _require_same(name, value, found[name].value)
    _row("the nine parts of Model Utility | ", plainly, ours)
    _audit_beside(plain, by_library, run)


def _warm_up(few: Plain, names: tuple[str, ...], run: ul.RunOptions) -> None:
    """Imports, and what a process does once: both ways on two examples."""
    few.generations("forget")
    evaluate(
        few.model, few.data, metrics=names, retain=few.retain, full=few.full,
        options=few.options, run=run,
    )  # fmt: skip


def _references_alone(plain: Plain, names: tuple[str, ...], run: ul.RunOptions) -> MetricCache:
    """What another model leaves behind for the next one."""
    cache = MetricCache()
    evaluate(
        plain.full, plain.data, metrics=names, retain=plain.retain, full=plain.full,
        options=plain.options, run=run, cache=cache,
    )  # fmt: skip
    return cache


def _audit_beside(plain: Plain, by_library: Callable[..., MetricResults], run: ul.RunOptions) -> None:
    """UDS as a metric beside UDS as an audit."""
    examples = plain.data.with_entities
    with costed() as metric:
        value = by_library(("uds",))["uds"].value
    with costed() as audit:
        found = ul.DepthAudit.run(plain.full, plain.retain, plain.model, examples, options=run).uds
    _require_same("uds", found, value)
    print(f'\n`evaluate(metrics=["uds"])`: {metric.seconds:.2f} s, {metric.token_layers:,} token-layers; ', end="")
    print(f"`DepthAudit.run`: {audit.seconds:.2f} s, {audit.token_layers:,} token-layers.")


def _row(label: str, plain: Cost, ours: Cost) -> None:
    cells = [
        f"{plain.seconds:.2f}", f"{plain.token_layers:,}", f"{ours.seconds:.2f}", f"{ours.token_layers:,}",
        f"{plain.seconds / ours.seconds:.1f}",
    ]  # fmt: skip
    print(f"| {label} | {' | '.join(cells)} |", flush=True)


def _require_same(name: str, plain: float, ours: float) -> None:
    if not (abs(plain - ours) <= 1e-3 * max(1.0, abs(plain)) or (math.isnan(plain) and math.isnan(ours))):
        raise SystemExit(f"{name}: the plain way gives {plain:.6f}, the library {ours:.6f}")


def main() -> None:
    """Parse, measure, print."""
    parser = shared_parser(__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--limit", type=int, default=None, help="only a sample of every set, spread over the authors")
    parser.add_argument("--model", default="retain95")
    parser.add_argument("--max-new-tokens", type=int, default=MetricOptions().max_new_tokens)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    folder = args.shared / "models" / "tofu-small"
    data = load_tofu_data(args.shared / "data" / "tofu", split="forget10", limit=args.limit)
    options = MetricOptions(protocol="raw", max_new_tokens=args.max_new_tokens, fluency="heuristic")
    with (
        ul.open_model(folder / "full", device="cpu") as full,
        ul.open_model(folder / "retain90", device="cpu") as retain,
        ul.open_model(folder / args.model, device="cpu") as model,
    ):
        encoded = encode(data.with_entities, model.tokenizer)
        print(f"{args.model}, {args.threads} thread(s), torch {torch.__version__}, float32; ", end="")
        print(f"{len(data.forget)} questions, {len(encoded.rows)} with an entity\n")
        compare(
            Plain(full, retain, model, data, encoded, options),
            run=ul.RunOptions(progress=False, check_memory=False, device="cpu"),
        )


if __name__ == "__main__":
    main()
