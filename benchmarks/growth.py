"""How time and memory grow with the size of what is judged.

    python benchmarks/growth.py
    python benchmarks/growth.py --only models --sizes 1000,2000

examples: the report of one audit of as many examples of 16 layers, with 9999 resamples, from the measured losses to the
page. subjects: the same with 10 examples of each of as many subjects.

models: everything `uds-lens meta` computes for a table of 20 metrics of as many pool models and unlearned models, each
quantised and relearned: intervals of F, cuts, all pairs of four metrics, Q and R under every filter; and a
ranking with its stability over configurations.

Each row is a process of its own; `CPU s` and `MiB` are its time and its peak memory beyond an empty one. Prints a table
(Markdown); `each` is the time for 1,000 of what grows: the same in all rows where the growth is linear.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd

import uds_lens as ul

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))


def examples(count: int, *, per_subject: int | None = None) -> Callable[[], object]:
    """Make up an audit of `count` examples; return what writes its report."""
    from synthetic_audits import synthetic_audit

    audit = synthetic_audit(n=count, layers=16, config=ul.AuditConfig())
    subjects = [None if per_subject is None else f"subject {i // per_subject}" for i in range(count)]
    rows = [dataclasses.replace(row, subject=name) for row, name in zip(audit.examples, subjects, strict=True)]
    audit = dataclasses.replace(audit, examples=rows)
    place = Path(tempfile.mkdtemp()) / "report.html"

    def run() -> int:
        ul.report.write(audit, place)
        return place.stat().st_size

    return run


def subjects(count: int) -> Callable[[], object]:
    """Make up an audit of `count` subjects with 10 examples each; return what writes its report."""
    return examples(10 * count, per_subject=10)


def models(count: int) -> Callable[[], object]:
    """Make tables of `count` pool models and `count` unlearned ones; return what judges them."""
    rng = np.random.default_rng(0)
    names = [name for name, spec in ul.metrics.METRICS.items() if spec.group in ("memorization", "membership")]
    names = [*names, "cka", "fisher_masked_0.001", "logit_lens", "uds"]
    skill = rng.uniform(0.2, 2, len(names))

    def table(rows: pd.DataFrame, knowledge: np.ndarray) -> pd.DataFrame:
        ways = ul.meta.directions(pd.DataFrame(0.0, rows.index, names), names)
        noise = rng.normal(size=(len(rows), len(names)))
        m = 1 / (1 + np.exp(-(skill * knowledge[:, None] + 0.5 * noise)))
        m[:, ::3] = m[:, ::3].round(2)  # ties
        columns = {name: m[:, i] if ways[name] == "knowledge" else 1 - m[:, i] for i, name in enumerate(names)}
        return pd.concat([rows, pd.DataFrame(columns)], axis=1)

    number = np.arange(count)
    knows = number % 2 == 0
    pools = pd.DataFrame({"model": [f"p{i}" for i in number], "knows": knows})
    pools["variant"] = [f"{'PN'[i % 2]}{i // 2 % 3}" for i in number]
    pools["run"] = [f"run{i // 12}" for i in number]
    pools = table(pools, np.where(knows, 1.0, -1.0))
    rows = pd.DataFrame({"model": [f"u{i}" for i in number], "method": [f"method{i % 8}" for i in number]})
    rows["run"] = [f"run{i // 16}" for i in number]
    rows["utility_rel"] = rng.uniform(0.7, 1, count)
    depth = rng.normal(size=count)
    before, quantised, relearned = (table(rows, depth + shift) for shift in (-0.5, -0.45, 0.2))
    retain = pools[~pools["knows"]].iloc[[0]].reset_index(drop=True)
    again = table(pd.DataFrame({"model": [retain["model"][0]] * 5}), np.full(5, 0.3))

    def run() -> None:
        faithful, cuts = ul.meta.faithfulness(pools), ul.meta.thresholds(pools)
        ul.meta.compare_all(pools, metrics=names[:4])
        ul.meta.variant_table(pools)
        tables = ul.meta.Tables(
            before=before,
            quantised=quantised,
            relearned=relearned,
            retain_before=retain,
            retain_relearned=again,
            thresholds=cuts,
            faithful=faithful,
        )
        ul.meta.summary(faithful, ul.meta.robustness(tables))
        ul.meta.robustness_by_filter(tables)
        ul.meta.rank(before)
        ul.meta.stability(before)

    return run


PARTS: dict[str, tuple[Callable[[int], Callable[[], object]], tuple[int, ...]]] = {
    "examples": (examples, (2000, 5000, 20_000)),
    "subjects": (subjects, (200, 500, 2000)),
    "models": (models, (1000, 2000, 5000)),
}
"""By name: what makes the data of a size and returns the work, and three sizes."""


def measured(part: str, size: int) -> None:
    """Do one piece of work, and print its time and memory as JSON."""
    work = PARTS[part][0](size)
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    work()
    seconds = time.process_time() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(json.dumps({"seconds": seconds, "mib": (peak - before) / 1024}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=sorted(PARTS))
    parser.add_argument("--sizes", type=lambda text: [int(size) for size in text.split(",")])
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.measure:
        measured(asked.only, int(asked.measure))
        return
    print("| what grows | size | CPU s | each | MiB |\n|---|---|---|---|---|")
    for part, (_, sizes) in PARTS.items():
        if asked.only in (None, part):
            for size in asked.sizes or sizes:
                command = [sys.executable, __file__, "--only", part, "--measure", str(size)]
                answer = subprocess.run(command, capture_output=True, check=True, text=True).stdout
                found = json.loads(answer.splitlines()[-1])
                each = 1000 * found["seconds"] / size
                print(f"| {part} | {size:,} | {found['seconds']:.1f} | {each:.2f} | {found['mib']:.0f} |", flush=True)


if __name__ == "__main__":
    main()
