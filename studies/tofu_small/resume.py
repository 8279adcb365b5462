"""Begin the sweep from what is kept here of it, or keep what it has measured since.

    python studies/tofu_small/resume.py runs/tofu_small
    uds-lens sweep studies/tofu_small/plan.toml --out runs/tofu_small --jobs 2
    python studies/tofu_small/resume.py runs/tofu_small --keep

`measured` holds one file for each model and state, and its values per example; their keys say whether they still fit.
With `--plan plan_stratified.toml` it is the second study, on a sample of all authors, kept in `measured_stratified`.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import uds_lens as ul
from uds_lens.study._folder import StudyFolder

HERE = Path(__file__).parent
KEPT = ("parts", "examples")
MEASURED = {"plan.toml": "measured", "plan_stratified.toml": "measured_stratified"}
"""Where what was measured of a plan is kept."""


def copied(source: Path, target: Path) -> int:
    """Copy the files that are not there yet; returns how many."""
    new = 0
    for name in KEPT:
        (target / name).mkdir(parents=True, exist_ok=True)
        for file in sorted((source / name).glob("*--*")):
            if not (target / name / file.name).exists():
                shutil.copyfile(file, target / name / file.name)
                new += 1
    return new


def main() -> None:
    """Copy one way or the other, and say where the study stands."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", type=Path)
    parser.add_argument("--plan", choices=sorted(MEASURED), default="plan.toml", help="which of the two studies")
    parser.add_argument("--keep", action="store_true", help="from the study into the folder beside this file")
    asked = parser.parse_args()
    folder, kept = (StudyFolder.begin(ul.study.plan(HERE / asked.plan), asked.study), HERE / MEASURED[asked.plan])
    ways = (folder.path, kept) if asked.keep else (kept, folder.path)
    print(f"{copied(*ways)} files; {ul.study.status(folder)}")


if __name__ == "__main__":
    main()
