"""What audits cost on a GPU, for Llamas of 1B and 8B proportions (random weights, bfloat16) on TOFU's rows.

    make bench-gpu                                                        # 1B; of 8B and 70B/20, some
    python benchmarks/gpu.py --sizes 8B --parts audit streamed --out gpu.json
    python benchmarks/gpu.py --device cpu --sizes 3x64 --vocabulary 4096 --rows 8 --dtype float32

Parts, each printed as Markdown as soon as it is there:

- `audit`: whole audit and one more model against one patched forward per layer with full logits, in plain forwards and
  as share of the least arithmetic; peak memory, tokens per second, and the batches the library chose. All models are
  open on the device; times are the best of `--repeats` after a warm-up (of one run without, for the forward per layer),
  and end when the device is done.
- `engines`: how far the fast engine is from one forward per layer, in the dtype and in float32.
- `streamed`: the same audit with a block in memory at a time, beside one in memory, both from disk; how far the numbers
  are apart.
- `nf4`: one more model in 4 bits.
- `metrics`: ten metrics.
- `transplant`: blocks of `retain` and of `full` in the unlearned model, from disk: seconds a forward pass.

`70B/20` is four blocks of 70B proportions and its ends: all that a streamed audit does there is done per block.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from audit_cost import bucketed, whole_texts
from bound import least_work
from reference import one_forward_per_layer, plain_forward
from workloads import Proportions, Workload, bytes_read, random_llama, shared_parser

import uds_lens as ul
from uds_lens.audit._inputs import make_plan
from uds_lens.models import _fingerprint

TEN = ("es", "em", "prob", "paraprob", "truth_ratio", "mia_loss", "mia_zlib", "mia_min_k", "mia_min_kpp", "uds")
SIZES = {
    "1B": Proportions.small(16, 2048, 128_256),
    "8B": Proportions(32, 4096, 128_256, heads=32, key_value_heads=8, inner=14_336, tied=False),
    "70B/20": Proportions(4, 8192, 128_256, heads=64, key_value_heads=8, inner=28_672, tied=False),
}
GIB = 1 << 30
PARTS_OF = {"1B": None, "8B": ("audit", "transplant", "streamed"), "70B/20": ("streamed",)}


class Clock:
    """Seconds and peak memory of work on one device."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.gpu = device, device.type == "cuda"

    def once(self, work: Callable[[], object]) -> tuple[float, float]:
        """Seconds, and peak GiB of tensors on the device (NaN on a CPU)."""
        if self.gpu:
            torch.cuda.synchronize(self.device)
            torch.cuda.reset_peak_memory_stats(self.device)
        begun = time.perf_counter()
        work()
        if self.gpu:
            torch.cuda.synchronize(self.device)
        seconds = time.perf_counter() - begun
        return seconds, torch.cuda.max_memory_allocated(self.device) / GIB if self.gpu else float("nan")

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
    precision = torch.get_float32_matmul_precision()
    return (
        f"{found.name}, {found.total_memory / GIB:.0f} GiB, CUDA {torch.version.cuda}, {os.cpu_count()} CPU cores; "
        f"precision of float32 products: {precision}"
    )


class Bench:
    """What is measured, and where it is noted."""

    def __init__(self, load: Workload, asked: argparse.Namespace, folder: Path) -> None:
        self.load, self.asked, self.folder = load, asked, folder
        self.clock = Clock(torch.device(asked.device))
        self.options = ul.RunOptions(progress=False, check_memory=False, stream=False, device=asked.device)
        self.config = ul.AuditConfig(dtype=asked.dtype)
        self.found: dict[str, object] = {}

    def audit(self) -> None:
        """The table of costs, all models open."""
        load, asked, clock = self.load, self.asked, self.clock
        options, config = self.options, self.config
        opened = partial(ul.open_model, dtype=asked.dtype, device=asked.device)
        start = time.perf_counter()
        with opened(load.full) as full, opened(load.retain) as retain, opened(load.unlearned) as unlearned:
            opening = time.perf_counter() - start
            hashing = clock.once(lambda: full.fingerprint)[0]
            for model in (full, retain, unlearned):
                model.keeps_weights = True  # nobody trains them: hashed once, as models that are opened from files are
            rows, examples = load.encoded.rows, load.examples
            texts = whole_texts(full.tokenizer, rows)
            ways = [
                [batch.to(clock.device) for batch in bucketed(rows, token_budget=budget)]
                for budget in (2048, 8192, 32768)
            ]
            few = slice(0, asked.naive_rows)
            plain = partial(
                one_forward_per_layer, full.hf, unlearned.hf, rows[few], texts[few], rows_at_once=asked.naive_batch
            )
            forwards = [clock.best(partial(plain_forward, unlearned.hf, way), asked.repeats) for way in ways]
            baseline = ul.Baseline.measure(full, retain, examples, config=config, options=options)
            measured = {
                "(a) one forward per layer, one stage": clock.once(plain),
                "(b) one plain forward": min(forwards),
            }
            measured["whole audit, both stages, one model"] = clock.best(
                lambda: ul.DepthAudit.run(full, retain, unlearned, examples, config=config, options=options),
                asked.repeats,
            )
            measured["one more model, full recorded again"] = clock.best(
                lambda: baseline.audit(unlearned, options=options), asked.repeats
            )
            with baseline.recorded(options=options) as recorded:
                measured["one more model, recording kept"] = clock.best(
                    lambda: recorded.audit(unlearned), asked.repeats
                )
            plan = make_plan({"full": full}, examples, config=config, options=options)
            sizes = [len(batch) for batch in plan.batches]
            bound = least_work(full.hf.config, load.encoded)
        forward = measured["(b) one plain forward"][0]
        share = len(rows) / len(rows[few])
        stage = measured["(a) one forward per layer, one stage"][0] * share
        tokens = sum(len(row.ids) for row in rows)
        print("| | seconds | plain forwards (b) | faster than (a) | peak, GiB |\n|---|---|---|---|---|")
        for name, (seconds, peak) in measured.items():
            shown = stage if name.startswith("(a)") else seconds
            against = 2 * stage if name.startswith("whole") else stage
            faster = f"{against / seconds:.1f}x" if name.startswith(("whole", "one more")) else ""
            print(f"| {name} | {shown:.3f} | {shown / forward:.2f} | {faster} | {peak:.2f} |")
        again = measured["one more model, recording kept"][0]
        print(
            f"\nThree models opened in {opening:.1f} s; the weights of one are hashed in {hashing:.1f} s. "
            f"{len(rows)} rows, {tokens} tokens; {tokens / forward:,.0f} "
            f"tokens/s in a plain forward (batches of 2048, 8192, 32768 tokens: "
            f"{', '.join(f'{seconds:.3f}' for seconds, _ in forwards)} s). (a) from {len(rows[few])} rows, scaled. "
            f"Batches chosen by the library: {len(sizes)}, {min(sizes)} to {max(sizes)} rows, "
            f"{statistics.median(sizes):.0f} in the middle. A plain forward does {2e-12 * bound.forward / forward:.0f} "
            f"TFLOP/s, one more model {2e-12 * bound.one_more * bound.forward / again:.0f}, counting products alone.\n"
            f"Least arithmetic of one more model: {bound.one_more:.2f} plain forwards; share reached: "
            f"{bound.one_more * forward / again:.0%}."
        )
        self.found["audit"] = {"seconds_and_gib": measured, "forwards": forwards, "batches": sizes, "bound": bound}

    def engines(self) -> None:
        """Largest difference of S2 between the fast engine and the one that runs one forward per layer."""
        some, apart = self.load.examples[: self.asked.naive_rows // 2], {}
        for dtype in dict.fromkeys((self.asked.dtype, "float32")):
            fast, slow = (
                ul.DepthAudit.run(
                    *self.models,
                    some,
                    config=replace(self.config, dtype=dtype),
                    options=replace(self.options, engine=engine),
                ).s2_delta.numpy()
                for engine in ("wavefront", "naive")
            )
            apart[dtype] = float(np.nanmax(np.abs(fast - slow)))
            largest = float(np.nanmax(np.abs(slow)))
            print(
                f"Engines on {len(some)} rows and all layers in {dtype}, largest difference of S2: "
                f"{apart[dtype]:.2g} nats a token (largest S2 {largest:.3g})."
            )
        self.found["engines_apart"] = apart

    def streamed(self) -> None:
        """The audit with a block in memory at a time, beside the same in memory, both from disk."""
        print("| | seconds | peak, GiB | reserved, GiB |\n|---|---|---|---|")
        audits, told = [], {}
        with bytes_read() as read:
            for name, stream in (("in memory", False), ("streamed", True)):
                if self.clock.gpu:
                    torch.cuda.empty_cache()
                _fingerprint.known_fingerprints.clear()  # each hashes what it reads
                options = replace(self.options, stream=stream, engine="wavefront")

                def run(options: ul.RunOptions = options) -> None:
                    audits.append(
                        ul.DepthAudit.run(*self.models, self.load.examples, config=self.config, options=options)
                    )

                seconds, peak = self.clock.once(run)
                reserved = torch.cuda.max_memory_reserved(self.clock.device) / GIB if self.clock.gpu else float("nan")
                told[name] = (seconds, peak, reserved)
                print(f"| whole audit from disk, {name} | {seconds:.2f} | {peak:.2f} | {reserved:.2f} |", flush=True)
        held, streamed = audits
        apart = float(np.nanmax(np.abs(held.s2_delta.numpy() - streamed.s2_delta.numpy())))
        gib = [f"{n / GIB:.2f}" for n in read]
        print(f"\nRead: {', '.join(gib)} GiB. Largest difference of S2: {apart:.2g} nats a token.")
        self.found["streamed"] = {"seconds_gib_reserved": told, "read": read, "apart": apart}

    def nf4(self) -> None:
        """An audit whose unlearned model is quantised to NF4."""
        seconds, _ = self.clock.once(
            lambda: ul.unlearning.quantise(self.load.unlearned, out=self.folder / "nf4", device=self.asked.device)
        )
        full, retain, _ = self.models
        baseline = ul.Baseline.measure(full, retain, self.load.examples, config=self.config, options=self.options)
        scores: list[float] = []
        audit = partial(baseline.audit, self.folder / "nf4", options=self.options)
        taken, peak = self.clock.once(lambda: scores.append(audit().uds))
        print(
            f"Quantised to NF4 in {seconds:.1f} s. One more in NF4, it and `full` opened from disk: {taken:.2f} s, "
            f"peak {peak:.2f} GiB, UDS {scores[0]:.4f}."
        )
        self.found["nf4"] = {"quantise": seconds, "seconds": taken, "gib": peak, "uds": scores[0]}

    def metrics(self) -> None:
        """Ten metrics of one model on TOFU forget10."""
        data = ul.metrics.load_tofu_data(self.asked.shared / "data" / "tofu", split="forget10", limit=self.asked.rows)
        full, retain, unlearned = self.models
        evaluate = partial(
            ul.metrics.evaluate,
            unlearned,
            data,
            metrics=TEN,
            retain=retain,
            full=full,
            options=ul.metrics.MetricOptions(dtype=self.asked.dtype),
            run=self.options,
        )
        seconds, peak = self.clock.once(evaluate)
        print(f"Ten metrics ({', '.join(TEN)}), models opened: {seconds:.2f} s, peak {peak:.2f} GiB.")
        self.found["metrics"] = {"seconds": seconds, "gib": peak}

    def transplant(self) -> None:
        """A transplant, with what its forward passes cost."""
        run = partial(ul.transplant, *self.models, self.load.examples, config=self.config, options=self.options)
        found: list[ul.Transplant] = []
        seconds, peak = self.clock.once(lambda: found.append(run()))
        passes = found[0].provenance["passes"]
        print(
            f"Transplant, three models opened: {seconds:.2f} s for {passes:.1f} forward passes, "
            f"{seconds / passes:.3f} s each; peak {peak:.2f} GiB."
        )
        self.found["transplant"] = {"seconds": seconds, "passes": passes, "gib": peak}

    @property
    def models(self) -> tuple[Path, Path, Path]:
        """Full, retain and unlearned, on disk."""
        return self.load.full, self.load.retain, self.load.unlearned


PARTS = ("audit", "engines", "streamed", "nf4", "metrics", "transplant")


def size_of(name: str, vocabulary: int) -> Proportions:
    """One of `SIZES`, or LAYERSxWIDTH."""
    if name in SIZES:
        return SIZES[name]
    layers, width = map(int, name.split("x"))
    return Proportions.small(layers, width, vocabulary)


def main() -> None:
    """Parse, measure, print; a part that fails is told and does not stop the others."""
    parser = shared_parser(__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float16", "float32"))
    parser.add_argument("--sizes", nargs="+", default=list(SIZES), help="1B, 8B, 70B/20, or LAYERSxWIDTH")
    parser.add_argument("--vocabulary", type=int, default=128_256, help="of LAYERSxWIDTH")
    parser.add_argument("--parts", nargs="+", choices=PARTS, help="default: all, and for larger sizes some")
    parser.add_argument("--rows", type=int, default=None, help="rows of the forget set; default: all 367")
    parser.add_argument("--naive-rows", type=int, default=64, help="rows for (a); half of them for the engines")
    parser.add_argument("--naive-batch", type=int, default=32, help="rows at once in (a)")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--out", type=Path, help="also write JSON here, after each part")
    asked = parser.parse_args()
    device = torch.device(asked.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise SystemExit("no GPU here; --device cpu with a small model tries the script out (see --help)")
    told: dict[str, object] = {"machine": machine(device), "torch": torch.__version__, "dtype": asked.dtype}
    print(f"{told['machine']}, torch {torch.__version__}, {asked.dtype}, {time.strftime('%Y-%m-%d')}", flush=True)
    failed = False
    for name in asked.sizes:
        size = size_of(name, asked.vocabulary)
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            load = random_llama(
                asked.shared, folder, asked.rows, size, name="random Llama", dtype=asked.dtype, device=asked.device
            )
            print(
                f"\n### {name}: {size.layers} layers, d_model {size.width}, vocabulary {size.vocabulary}, "
                f"{size.parameters / 1e9:.2f} billion weights\n",
                flush=True,
            )
            bench = Bench(load, asked, folder)
            told[name] = bench.found
            for part in asked.parts or PARTS_OF.get(name) or PARTS:
                begun = time.perf_counter()
                try:
                    getattr(bench, part)()
                except Exception:
                    failed = True
                    bench.found[part] = traceback.format_exc()
                    print(f"Part {part} failed:\n{bench.found[part]}")
                if device.type == "cuda":
                    torch.cuda.empty_cache()
                print(f"\n({part}: {time.perf_counter() - begun:.0f} s)\n", flush=True)
                if asked.out:
                    asked.out.write_text(json.dumps(told, indent=1, default=str))
    if failed:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
