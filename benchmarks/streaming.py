"""Measure an audit of streamed models beside one of models in memory: peak memory, time, bytes read.

Makes random Llama checkpoints in bfloat16, shard by shard (full, retain and unlearned share all blocks but the first,
by hard links), and audits them in processes of their own. Nothing ever holds a whole model but the run in memory. They
run in float32, unless `--dtype` says otherwise: few CPUs have instructions for bfloat16.

    python benchmarks/streaming.py --folder /tmp/streaming                       # 24 layers, d 2048: 3 GB a checkpoint
    python benchmarks/streaming.py --folder /tmp/streaming --layers 40 --width 5120 --rows 4 --shortest --ways streamed
    python benchmarks/streaming.py --folder /tmp/streaming --device cuda --dtype bfloat16 --out streaming.json

Prints a Markdown table, a line as soon as a run is done. "Bound" is two blocks, the head and all states, without
padding, with 0.4 GB for the program. "Beyond imports" is what the estimate is about: the largest memory that is no page
of a file, beyond that of the program. GB are 10^9 bytes.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

ROLES = ("full", "retain", "unlearned")
GB = 1e9
COLUMNS = {
    "way": "models",
    "seconds": "seconds",
    "cpu_seconds": "of all cores",
    "peak_gb": "peak, GB",
    "bound_gb": "bound",
    "beyond_gb": "beyond imports",
    "estimate_gb": "estimate",
    "imports_gb": "imports alone",
    "gpu_gb": "GPU, GB",
    "gpu_reserved_gb": "reserved",
    "weights_gb": "weights, GB",
    "read_gb": "read, GB",
}


def make(folder: Path, *, layers: int, width: int, device: str) -> None:
    """Write the three checkpoints."""
    from workloads import Proportions, write_trio

    import uds_lens as ul

    size = Proportions(
        layers,
        width,
        vocabulary=32_000 if width < 4096 else 16_000,
        heads=width // 128,
        key_value_heads=width // 128,
        inner=(width * 11 // 4) // 128 * 128,
        tied=False,
    )
    begun = time.perf_counter()
    write_trio(folder, size, tokenizer=Path(ul.toy.load().full), dtype="bfloat16", device=device)
    print(f"{size.parameters / 1e9:.2f} billion weights, written in {time.perf_counter() - begun:.0f} s\n", flush=True)


def peak() -> int:
    """Peak resident memory of this process in bytes; `getrusage` would count what its parent held when it forked."""
    text = Path("/proc/self/status").read_text("ascii")
    return int(text.split("VmHWM:")[1].split()[0]) * 1024


def anonymous() -> int:
    """Memory of this process, in bytes, that is no page of a file, which the system may take back."""
    text = Path("/proc/self/status").read_text("ascii")
    return int(text.split("RssAnon:")[1].split()[0]) * 1024


class Sampler(threading.Thread):
    """The largest such memory, beyond that at the start."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.start_at, self.largest = anonymous(), 0

    def run(self) -> None:
        """Look every few milliseconds, for ever."""
        while True:
            self.largest = max(self.largest, anonymous() - self.start_at)
            time.sleep(0.01)


def measure(folder: Path, *, stream: bool, rows: int, shortest: bool, dtype: str, device: str) -> None:
    """Audit, and print what it took as JSON."""
    import torch
    from workloads import bytes_read

    import uds_lens as ul
    from uds_lens.audit._inputs import make_plan
    from uds_lens.audit._memory import estimate_memory, weight_sizes
    from uds_lens.models._checkpoint import load_config

    examples = list(ul.toy.load().examples)
    examples = sorted(examples, key=lambda example: len(example.entity or ""))[:rows] if shortest else examples[:rows]
    config = ul.AuditConfig(dtype=dtype, protocol="raw")  # type: ignore[arg-type]
    options = ul.RunOptions(device=device, stream=stream, engine="wavefront", check_memory=False, progress=False)
    places = {role: str(folder / role) for role in ROLES}
    plan = make_plan(places, examples, config=config, options=options)
    llama = load_config(places["full"], revision=None, offline=True, trust_remote_code=False)
    estimate = estimate_memory(
        llama, plan, n_sources=2, dtype=dtype, device=device, states_budget=4 << 30, streamed=stream
    )
    gpu = torch.device(device).type == "cuda"
    if gpu:
        torch.zeros(1, device=device)  # the device's own start
    before = peak()
    sampler = Sampler()
    sampler.start()
    start, start_cpu = time.perf_counter(), time.process_time()
    full, retain, unlearned = places.values()
    with bytes_read() as read:
        audit = ul.DepthAudit.run(full, retain, unlearned, examples, config=config, options=options)
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - start_cpu
    size = getattr(torch, dtype).itemsize
    sizes = weight_sizes(llama, size)
    # The tokens at a block, and at the entities those of all layers: of full, of both sources, and their variants.
    at_entities = llama.num_hidden_layers * sum(len(row.window) for row in plan.rows)
    states = (sum(plan.lengths) + 5 * at_entities) * llama.hidden_size * size
    told = {
        "way": f"{'streamed' if stream else 'in memory'}, {dtype}, {len(audit.examples)} rows, {device}",
        "weights_gb": sizes.whole / GB,
        "bound_gb": (2 * sizes.block + sizes.head + sizes.around + states) / GB + 0.4,
        "estimate_gb": estimate.total / GB,
        "imports_gb": before / GB,
        "peak_gb": peak() / GB,
        "beyond_gb": sampler.largest / GB,
        "gpu_gb": torch.cuda.max_memory_allocated() / GB if gpu else float("nan"),
        "gpu_reserved_gb": torch.cuda.max_memory_reserved() / GB if gpu else float("nan"),
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
        "read_gb": [n / GB for n in read],
        "threads": torch.get_num_threads(),
        "sums": [float(audit.s1_delta.sum()), float(audit.s2_delta.sum())],
    }
    print(json.dumps(told))


def cell(value: object) -> str:
    """A number, or several, to two places."""
    if isinstance(value, list):
        return " + ".join(map(cell, value))
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def main() -> None:
    """Make the checkpoints if they are not there, and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--shortest", action="store_true", help="those with the shortest entities, not the first")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--device", nargs="+", default=["cpu"], help="one or more; checkpoints are made on the first")
    parser.add_argument("--ways", nargs="+", choices=["streamed", "memory"], default=["streamed", "memory"])
    parser.add_argument("--keep", action="store_true", help="leave the checkpoints")
    parser.add_argument("--out", type=Path, help="also write JSON here, after each run")
    parser.add_argument("--measure", action="store_true", help="one run, in this process")
    given = parser.parse_args()
    if given.measure:
        stream = given.ways == ["streamed"]
        rows = {"rows": given.rows, "shortest": given.shortest}
        measure(given.folder, stream=stream, dtype=given.dtype, device=given.device[0], **rows)
        return
    told: list[dict[str, object]] = []
    made = not given.folder.exists()
    try:
        if made:
            make(given.folder, layers=given.layers, width=given.width, device=given.device[0])
        print(f"| {' | '.join(COLUMNS.values())} |\n|{'---|' * len(COLUMNS)}", flush=True)
        for device in given.device:
            for way in given.ways:
                arguments = ["--folder", given.folder, "--rows", given.rows, "--dtype", given.dtype]
                arguments += ["--measure", "--ways", way, "--device", device, *["--shortest"] * given.shortest]
                done = subprocess.run(
                    [sys.executable, __file__, *map(str, arguments)], capture_output=True, text=True, check=False
                )
                if done.returncode:
                    print(f"{way} on {device} failed ({done.returncode}): {done.stderr[-2000:]}", flush=True)
                    continue
                told.append(json.loads(done.stdout.splitlines()[-1]))
                print(f"| {' | '.join(cell(told[-1][name]) for name in COLUMNS)} |", flush=True)
                if given.out:
                    given.out.write_text(json.dumps(told, indent=1))
        print("\nSums of S1 and S2: " + "; ".join(f"{run['way']} {run['sums']}" for run in told))
    finally:
        if made and not given.keep:  # a folder that was there before is somebody's
            shutil.rmtree(given.folder, ignore_errors=True)


if __name__ == "__main__":
    main()
