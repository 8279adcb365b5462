"""Where the time of one more model goes: its operations by what they are for, in percent of their CPU time.

    python benchmarks/audit_profile.py --shared ../shared --only tofu-small

One thread, recording kept; what torch's profiler finds, so without the wait for hashes. Prints Markdown.
"""

from __future__ import annotations

import torch
from torch.profiler import ProfilerActivity, profile
from workloads import Workload, workload_parser, workloads

import uds_lens as ul

PARTS = {
    "products with weights": ("mm", "addmm"),
    "products of attention": ("bmm", "baddbmm", "baddbmm_"),
    "softmax of attention, its mask": ("_softmax", "add_"),
    "norms, rotary positions, SiLU, residual sums": (
        *("mul", "add", "silu", "pow", "mean", "neg", "rsqrt", "sum", "div", "div_"),
    ),
    "log-probabilities beyond the product": ("_log_softmax", "exp_", "exp", "sub", "amax", "gather"),
    "moves between packed and padded rows, rows joined": ("cat", "index_select", "where"),
}
"""Names of operations, without `aten::`; all others are views, calls and small things."""


def measure(load: Workload) -> None:
    """Profile one more model, after one that warms up."""
    options = ul.RunOptions(progress=False, check_memory=False, device="cpu")
    with (
        ul.open_model(load.full, device="cpu") as full,
        ul.open_model(load.retain, device="cpu") as retain,
        ul.open_model(load.unlearned, device="cpu") as unlearned,
    ):
        baseline = ul.Baseline.measure(full, retain, load.examples, options=options)
        with baseline.recorded(options=options) as recorded:
            recorded.audit(unlearned)
            with profile(activities=[ProfilerActivity.CPU]) as found:
                recorded.audit(unlearned)
    spent = {event.key.removeprefix("aten::"): event.self_cpu_time_total for event in found.key_averages()}
    total = sum(spent.values())
    print(f"\n### {load.name}: {total / 1e6:.2f} s\n\n| part | percent |\n|---|---|")
    left = 100.0
    for part, names in PARTS.items():
        percent = 100 * sum(spent.get(name, 0.0) for name in names) / total
        left -= percent
        print(f"| {part} | {percent:.1f} |")
    print(f"| views, calls, all else | {left:.1f} |")


def main() -> None:
    """Parse, measure, print."""
    asked = workload_parser(__doc__, llama_rows=32).parse_args()
    torch.set_num_threads(1)
    for load in workloads(asked):
        measure(load)


if __name__ == "__main__":
    main()
