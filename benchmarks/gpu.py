"""What an audit costs on a GPU, for a Llama of 1B proportions (random weights, bfloat16) on TOFU's rows.

    make bench-gpu                                                    # 16 layers, d 2048, vocabulary 128,256
    python benchmarks/gpu.py --layers 32 --width 4096     # 8B proportions, where three fit
    python benchmarks/gpu.py --device cpu --rows 8 --layers 3 --width 64 --vocabulary 4096 --dtype float32

Whole audit and one more model against one patched forward per layer with full logits, in plain forwards and as share
of the least arithmetic; peak memory, tokens per second, and the batches the library chose; how far the engines are
apart; an audit of a 4-bit model; ten metrics. All models are open on the device; times are the best of `--repeats`,
after a warm-up, and end when the device is done. Prints Markdown.
"""

from __future__ import annotations

import argparse
import platform
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from audit_cost import bucketed, whole_texts
from bound import least_work
from reference import one_forward_per_layer, plain_forward
from workloads import Workload, random_llama, shared_parser

import uds_lens as ul
from uds_lens.audit._inputs import make_plan

TEN = ("es", "em", "prob", "paraprob", "truth_ratio", "mia_loss", "mia_zlib", "mia_min_k", "mia_min_kpp", "uds")


class Clock:
    """Seconds and peak memory of work on one device."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.gpu = device, device.type == "cuda"

    def once(self, work: Callable[[], object]) -> tuple[float, float]:
        """Seconds, and peak GiB of the device's memory (NaN on a CPU)."""
        if self.gpu:
            torch.cuda.synchronize(self.device)
            torch.cuda.reset_peak_memory_stats(self.device)
        begun = time.perf_counter()
        work()
        if self.gpu:
            torch.cuda.synchronize(self.device)
        seconds = time.perf_counter() - begun
        return seconds, torch.cuda.max_memory_allocated(self.device) / 2**30 if self.gpu else float("nan")

    def best(self, work: Callable[[], object], repeats: int) -> tuple[float, float]:
        """The fastest of several runs after one that warms up, and the largest peak."""
        self.once(work)
        runs = [self.once(work) for _ in range(repeats)]
        return min(seconds for seconds, _ in runs), max(peak for _, peak in runs)


def machine(device: torch.device) -> str:
    """The device in words."""
    if device.type != "cuda":
        return f"{platform.machine()}, {torch.get_num_threads()} threads; not a GPU"
    found = torch.cuda.get_device_properties(device)
    return f"{found.name}, {found.total_memory / 2**30:.0f} GiB, CUDA {torch.version.cuda}"


def costs(load: Workload, asked: argparse.Namespace, clock: Clock) -> None:
    """The table of the audit, and how far the engines are apart."""
    options = ul.RunOptions(progress=False, check_memory=False, device=asked.device)
    config = ul.AuditConfig(dtype=asked.dtype)
    opened = partial(ul.open_model, dtype=asked.dtype, device=asked.device)
    with opened(load.full) as full, opened(load.retain) as retain, opened(load.unlearned) as unlearned:
        rows, examples = load.encoded.rows, load.examples
        texts = whole_texts(full.tokenizer, rows)
        ways = [
            [batch.to(clock.device) for batch in bucketed(rows, token_budget=budget)] for budget in (2048, 8192, 32768)
        ]
        few = slice(0, asked.naive_rows)
        plain = partial(
            one_forward_per_layer, full.hf, unlearned.hf, rows[few], texts[few], rows_at_once=asked.naive_batch
        )
        baseline = ul.Baseline.measure(full, retain, examples, config=config, options=options)
        with baseline.recorded(options=options) as recorded:
            works: dict[str, Callable[[], object]] = {
                "(a) one forward per layer, one stage": plain,
                **{
                    f"(b) one plain forward, {i}": partial(plain_forward, unlearned.hf, way)
                    for i, way in enumerate(ways)
                },
                "whole audit, both stages, one model": lambda: ul.DepthAudit.run(
                    full, retain, unlearned, examples, config=config, options=options
                ),
                "one more model, full recorded again": lambda: baseline.audit(unlearned, options=options),
                "one more model, recording kept": lambda: recorded.audit(unlearned),
            }
            found = {name: clock.best(work, asked.repeats) for name, work in works.items()}
            plan = make_plan({"full": full}, examples, config=config, options=options)
            sizes = [len(batch) for batch in plan.batches]
        layers = full.n_layers
        bound = least_work(full.hf.config, load.encoded)
        apart = engines_apart(full, retain, unlearned, examples[: asked.naive_rows], config, options)
    forward = min(seconds for name, (seconds, _) in found.items() if name.startswith("(b)"))
    share = len(rows) / len(rows[few])
    stage = found["(a) one forward per layer, one stage"][0] * share
    tokens = sum(len(row.ids) for row in rows)
    print("| | seconds | plain forwards (b) | faster than (a) | peak, GiB |\n|---|---|---|---|---|")
    for name, (seconds, peak) in found.items():
        if name.startswith("(b)") and seconds != forward:
            continue
        shown = stage if name.startswith("(a)") else seconds
        against = 2 * stage if name.startswith("whole") else stage
        faster = f"{against / seconds:.1f}x" if name.startswith(("whole", "one more")) else ""
        print(f"| {name.rstrip(', 012')} | {shown:.3f} | {shown / forward:.2f} | {faster} | {peak:.2f} |")
    again = found["one more model, recording kept"][0]
    print(
        f"\n{len(rows)} rows, {tokens} tokens; {tokens / forward:,.0f} tokens/s in a plain forward. "
        f"(a) from {len(rows[few])} rows, scaled. Batches chosen by the library: {len(sizes)}, "
        f"{min(sizes)} to {max(sizes)} rows, {statistics.median(sizes):.0f} in the middle.\n"
        f"Least arithmetic of one more model: {bound.one_more:.2f} plain forwards; share reached: "
        f"{bound.one_more * forward / again:.0%}.\n"
        f"Engines on {asked.naive_rows} rows and {layers} layers, largest difference of S2: {apart:.2g} nats a token."
    )


def engines_apart(full, retain, unlearned, examples, config, options) -> float:
    """Largest difference of the second stage between the fast engine and the one that runs one forward per layer."""
    from dataclasses import replace

    fast, slow = (
        ul.DepthAudit.run(full, retain, unlearned, examples, config=config, options=replace(options, engine=engine))
        for engine in ("wavefront", "naive")
    )
    return float(np.nanmax(np.abs(np.asarray(fast.s2_delta) - np.asarray(slow.s2_delta))))


def four_bits(load: Workload, asked: argparse.Namespace, clock: Clock, folder: Path) -> None:
    """An audit whose unlearned model is quantised to NF4."""
    ul.unlearning.quantise(load.unlearned, out=folder / "nf4", device=asked.device)
    options = ul.RunOptions(progress=False, check_memory=False, device=asked.device)
    config = ul.AuditConfig(dtype=asked.dtype)
    baseline = ul.Baseline.measure(load.full, load.retain, load.examples, config=config, options=options)
    scores: list[float] = []
    seconds, peak = clock.once(lambda: scores.append(baseline.audit(folder / "nf4", options=options).uds))
    print(f"\nOne more model in NF4, opened from disk: {seconds:.2f} s, peak {peak:.2f} GiB, UDS {scores[0]:.4f}.")


def metrics(load: Workload, asked: argparse.Namespace, clock: Clock) -> None:
    """Ten metrics of one model on TOFU forget10."""
    data = ul.metrics.load_tofu_data(asked.shared / "data" / "tofu", split="forget10", limit=asked.rows)
    run = ul.RunOptions(progress=False, check_memory=False, device=asked.device)
    options = ul.metrics.MetricOptions(dtype=asked.dtype)
    seconds, peak = clock.once(
        lambda: ul.metrics.evaluate(
            load.unlearned, data, metrics=TEN, retain=load.retain, full=load.full, options=options, run=run
        )
    )
    print(f"Ten metrics ({', '.join(TEN)}), models opened: {seconds:.2f} s, peak {peak:.2f} GiB.")


def main() -> None:
    """Parse, measure, print."""
    parser = shared_parser(__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float16", "float32"))
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--vocabulary", type=int, default=128_256)
    parser.add_argument("--rows", type=int, default=None, help="rows of the forget set; default: all 367")
    parser.add_argument("--naive-rows", type=int, default=64, help="rows for (a) and for the engines")
    parser.add_argument("--naive-batch", type=int, default=32, help="rows at once in (a)")
    parser.add_argument("--repeats", type=int, default=3)
    asked = parser.parse_args()
    device = torch.device(asked.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise SystemExit("no GPU here; --device cpu with a small model tries the script out (see --help)")
    clock = Clock(device)
    print(f"{machine(device)}, torch {torch.__version__}, {asked.dtype}, {time.strftime('%Y-%m-%d')}\n")
    folder = Path(tempfile.mkdtemp())
    try:
        load = random_llama(
            asked.shared,
            folder,
            asked.rows,
            n_layers=asked.layers,
            d_model=asked.width,
            vocabulary=asked.vocabulary,
            name="random Llama",
            dtype=asked.dtype,
        )
        print(f"Random Llama: {asked.layers} layers, d_model {asked.width}, vocabulary {asked.vocabulary}.\n")
        costs(load, asked, clock)
        four_bits(load, asked, clock, folder)
        metrics(load, asked, clock)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
