"""All metrics for four small TOFU checkpoints: the table in docs/results/metrics.md.

    python examples/metrics_tofu_small.py --shared ../shared --out runs/metrics-tofu-small

The results of each model are saved as soon as they are there; a second run reads those it finds.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import torch

import uds_lens as ul
from uds_lens.metrics import METRICS, MetricCache, MetricOptions, MetricResults

MODELS = ("full", "retain99", "retain95", "retain90")
"""In the order of the table; retain90 is the reference that never saw forget10."""


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--shared", type=Path, default=Path("../shared"), help="folder with data/ and models/")
    options.add_argument("--out", type=Path, default=Path("runs/metrics-tofu-small"))
    options.add_argument("--limit", type=int, help="only the first examples of every set")
    options.add_argument("--threads", type=int, default=2)
    asked = options.parse_args()
    torch.set_num_threads(asked.threads)

    models = asked.shared / "models" / "tofu-small"
    data = ul.metrics.load_tofu_data(asked.shared / "data" / "tofu", split="forget10", limit=asked.limit)
    cache = MetricCache()
    found: dict[str, MetricResults] = {}
    for name in MODELS:
        file = asked.out / f"{name}.json"
        if file.is_file():
            found[name] = MetricResults.load(file)
            continue
        found[name] = ul.metrics.evaluate(
            models / name,
            data,
            retain=models / "retain90",
            full=models / "full",
            cache=cache,
            options=MetricOptions(fluency="heuristic"),
            run=ul.RunOptions(device="cpu", progress=False),
        )
        found[name].save(file)
        print(f"{name}: {found[name].total}", flush=True)
    table = markdown(found)
    (asked.out / "table.md").write_text(table + "\n", encoding="utf-8")
    print(table)


def markdown(found: dict[str, MetricResults]) -> str:
    """One row per metric: what 1 means, and the models' values."""
    head = ["metric", "1 means", *found]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for name, spec in METRICS.items():
        values = [cell(result[name].value) for result in found.values()]
        lines.append(f"| {' | '.join([spec.label, spec.meaning.one, *values])} |")
    return "\n".join(lines)


def cell(value: float) -> str:
    return "NaN" if math.isnan(value) else f"{value:.3f}"


if __name__ == "__main__":
    main()
