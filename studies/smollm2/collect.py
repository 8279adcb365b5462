"""Gather what the study measured into small tables beside this file, from where the models lie.

    python studies/smollm2/collect.py

Reads the models' records, the sweep and the audits; writes `measured/`, from which `decide.py` works without a model:

    models.csv       how each model was made: settings, rows visited, last loss, Prob of its rows before and after
    rates.csv        the learning rates that were tried for each method, on other authors
    table.csv        every metric of every model in every state (`ul.study.table`)
    values.parquet   the same by example, where a metric has values by example
    elicitation.csv  ROUGE of each answer to each probe
    scales.csv, scores.csv, layers.parquet   of `audits.py`
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

import uds_lens as ul
from uds_lens.study._folder import StudyFolder
from uds_lens.unlearning import read_record

HERE = Path(__file__).resolve().parent
RUNS = HERE.parents[1] / "runs"


def made(models: Path) -> Iterator[dict[str, Any]]:
    """Return a row for each model that was trained."""
    for file in sorted(models.glob("*/adapter_config.json")):
        record = read_record(file.parent)
        row = {"model": file.parent.name, "method": record["method"], "name": record["name"]}
        row |= {name: record[name] for name in ("visits", "steps", "device")}
        row |= {"learning_rate": record["config"]["learning_rate"], "loss": record["loss_curve"][-1]["loss"]}
        for rows in record.get("prob", []):
            row |= {f"{rows['name']} {when}": rows[when] for when in ("before", "after")}
        yield row


def rates(models: Path) -> Iterator[dict[str, Any]]:
    """Return a row for each learning rate that was tried."""
    for file in sorted((models / "chosen").glob("*.json")):
        for row in json.loads(file.read_text(encoding="utf-8")):
            yield {"method": file.stem, **row}


def by_example(folder: StudyFolder) -> Iterator[pd.DataFrame]:
    """Return the values by example of each model in each state, for what the plan asks."""
    for model in folder.models:
        for state in model.states:
            wanted = folder.keys.items(model, state)
            for part in folder.parts(model, state):
                values = folder.examples(part)
                fits = {row.metric for row in part.rows if part.keys.get(row.item) == wanted.get(row.item, "")}
                if values is not None:
                    values = values[values["metric"].isin(fits)]
                    yield values.assign(
                        model=model.model_id, state=state.state, example_id=values["example_id"].astype(str)
                    )


def answers(folder: StudyFolder, masked: Path) -> Iterator[pd.DataFrame]:
    """Return the scores of the answers of each model, those of `masked.py` among them."""
    for place in sorted([*(folder.path / "elicitations").glob("*"), *masked.glob("*")]):
        frame = ul.elicitation.ElicitationResults.load(place).to_frame()
        yield frame.rename(columns={"model": "role"}).assign(model=place.name.partition("--")[0])


def main() -> None:
    """Gather."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, default=RUNS / "smollm2-models")
    parser.add_argument("--sweep", type=Path, default=RUNS / "smollm2")
    parser.add_argument("--masked", type=Path, default=RUNS / "smollm2-masked")
    parser.add_argument("--audits", type=Path, default=RUNS / "smollm2-audits")
    parser.add_argument("--out", type=Path, default=HERE / "measured")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)

    def write(name: str, rows: Iterator[Any]) -> None:
        if not (kept := list(rows)):
            print(f"{name}: nothing yet")
            return
        table = pd.concat(kept, ignore_index=True) if isinstance(kept[0], pd.DataFrame) else pd.DataFrame(kept)
        if name.endswith(".parquet"):
            small = {"compression": "zstd", "compression_level": 19, "use_dictionary": False}
            table.astype({"value": "float32"}).to_parquet(given.out / name, index=False, **small)
        else:
            table.round(6).to_csv(given.out / name, index=False)
        print(f"{name}: {len(table)} rows")

    write("models.csv", made(given.models))
    write("rates.csv", rates(given.models))
    if (given.sweep / "manifest.json").is_file():
        folder = StudyFolder(given.sweep)
        print(ul.study.status(folder))
        write("table.csv", iter([ul.study.table(folder)]))
        write("values.parquet", by_example(folder))
        write("elicitation.csv", answers(folder, given.masked))
    for name, kept in {
        "models.csv": "scales.csv",
        "examples.csv": "scores.csv",
        "layers.parquet": "layers.parquet",
    }.items():
        if (given.audits / name).is_file():
            shutil.copyfile(given.audits / name, given.out / kept)


if __name__ == "__main__":
    main()
