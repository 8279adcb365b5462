"""Ask the sixteen unlearned models, `retain-0` and `full` with the author's name masked.

    python studies/smollm2/masked.py    # run again, it resumes

The rows of the study name their subject as TOFU numbers it ("author 190"), which no question contains, so that in the
sweep the probe `mask` applied to no row. Here each row has its author's name. `collect.py` puts the answers beside
those of the sweep.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np
from collect import RUNS

import uds_lens as ul

NAMES = {
    "author 180": "Hsiao Yun-Hwa",
    "author 181": "Carmen Montenegro",
    "author 183": "Rajeev Majumdar",
    "author 186": "Ji-Yeon Park",
    "author 187": "Behrouz Rohani",
    "author 188": "Wei-Jun Chen",
    "author 190": "Hina Ameen",
    "author 191": "Xin Lee Williams",
}


def main() -> None:
    """Ask each model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, default=RUNS / "smollm2-models")
    parser.add_argument("--out", type=Path, default=RUNS / "smollm2-masked")
    given = parser.parse_args()
    rows = ul.load_examples(given.models / "data" / "forget.json")
    named = [replace(row, subject=NAMES[str(row.subject)]) for row in rows]
    options = ul.elicitation.ElicitOptions(max_new_tokens=32, samples=0)  # as in plan.toml
    plan = ul.study.plan(Path(__file__).parent / "plan.toml")
    for name in [*(model.name for model in plan.model if model.role == "unlearned"), "retain-0", "full"]:
        place = given.out / name
        if not place.is_dir():
            answered = ul.elicitation.elicit(given.models / name, named, probes=["mask"], options=options)
            answered.save(place)
        asked = ul.elicitation.ElicitationResults.load(place)
        print(f"{name}: ROUGE {np.nanmean(asked.mean('unlearned', 'mask')):.3f}", flush=True)


if __name__ == "__main__":
    main()
