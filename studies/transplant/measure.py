"""Measure the models of a world: depth, transplants, distance of weights, and the criterion, relearning.

    python studies/transplant/measure.py small-0

Writes a row per model to `results/WORLD.csv`, and what has a row is not measured again; transplants lie in
`runs/transplant/WORLD/transplants`. `--only` takes some of the models.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from transformers import AutoTokenizer, PreTrainedModel
from worlds import BATCH, HERE, OUT, SEEDS, WORLDS, blocks_of, draw_rows, is_small, learn, opened, start_of

import uds_lens as ul
from uds_lens.data import ForgetExample
from uds_lens.results import AuditConfig, RunOptions, mean_uds, output_depth
from uds_lens.transplants import Transplant
from uds_lens.transplants._measuring import each_transplant
from uds_lens.transplants._scores import least_on_others, taken

RESULTS = HERE / "results"
OPTIONS = RunOptions(device="cpu", progress=False)
CONFIGS = {True: AuditConfig(), False: AuditConfig(dtype="bfloat16")}
"""Of the small worlds, and of SmolLM2's, whose float32 passes would have taken three hours (see claims.md)."""
RELEARNING: dict[bool, float] = {True: 3e-4, False: 1e-4}
"""Rates of the small worlds, and of SmolLM2's."""
ASKED_STEP, CONTROL_STEP = {True: 1, False: 2}, {True: 3, False: 4}
"""Of the rows to forget all are asked in the small worlds, 2 of 4 of each author in SmolLM2's; 1 of 2
where all its weights are trained; of those to keep, every third and fourth is a control fact."""
TAU = AuditConfig().tau
MOST_EPOCHS = 20
RETURNED_AT = 0.1
"""Output depth of the relearned rows at which `retain-0` has learnt them."""

CANDIDATE_COLUMNS = ["blocks", "left", "c", "host_control_loss", "control_loss", "admitted", "chosen", "host_depth"]

KINDS = {
    "retain": "reference",
    "half": "reference",
    "lerp": "made: retain",
    "distilled": "made: retain",
    "removed": "made: removed",
    "noised": "made: spoiled",
    "rotated": "made: spoiled",
    "ablated": "made: spoiled",
}


def kind_of(model: str) -> str:
    """Return what a model is in the claims."""
    return KINDS.get(model.split("-")[0], "method")


def unit_of(model: str) -> str:
    """Return the method or construction that resampling draws as a whole."""
    if model.startswith(("retain", "lerp", "rmu")):
        return model.split("-")[0]
    return model.split("-at-")[0].removesuffix("-twice")


def log_probs(model: PreTrainedModel, tokenizer: Any, rows: Sequence[ForgetExample]) -> torch.Tensor:
    """Return the mean log-probability of each row's entity, nats per token."""
    encoded = ul.data.encode(rows, tokenizer).rows
    assert len(encoded) == len(rows)
    found = []
    with torch.no_grad():
        for row in encoded:
            logits = model(input_ids=torch.tensor([row.ids])).logits[0, list(row.scored)].float()
            targets = torch.tensor(row.targets)
            found.append(logits.log_softmax(-1).gather(1, targets[:, None]).mean())
    return torch.stack(found).double()


class Criterion:
    """Relearning on half of the subjects, tested on the others."""

    def __init__(self, world: str, full: PreTrainedModel, retain: PreTrainedModel) -> None:
        self.world, rows = world, draw_rows(world)
        self.tokenizer = AutoTokenizer.from_pretrained(start_of(world))
        self.rows = {name: rows[name] for name in ("relearned", "tested")}
        self.full, self.retain = self.scores(full), self.scores(retain)

    def scores(self, model: PreTrainedModel) -> dict[str, torch.Tensor]:
        """Return the log-probabilities of both halves."""
        return {name: log_probs(model, self.tokenizer, rows) for name, rows in self.rows.items()}

    def depth(self, model: PreTrainedModel, half: str) -> float:
        """Return the output depth on one half."""
        own = log_probs(model, self.tokenizer, self.rows[half])
        return mean_uds(output_depth(self.full[half], own, self.retain[half], TAU))

    def relearned(self, model: PreTrainedModel, epochs: int | None) -> dict[str, float]:
        """Relearn a model, for some epochs or until its answers are back, and return its depths before and after."""
        before = self.depth(model, "tested")
        done = learn(
            model,
            self.tokenizer,
            self.rows["relearned"],
            epochs=epochs or MOST_EPOCHS,
            after_epoch=None if epochs else lambda: self.depth(model, "relearned") <= RETURNED_AT,
            rate=RELEARNING[is_small(self.world)],
            batch_size=BATCH[self.world],
        )
        after, taught = self.depth(model, "tested"), self.depth(model, "relearned")
        return {
            "epochs": done,
            "tested_before": before,
            "tested_after": after,
            "relearned_after": taught,
            "returned": (before - after) / before if before >= 0.15 else math.nan,
        }


def whole_model(world: str, name: str) -> Path:
    """Return where a model lies whole: an adapter in half precision would be merged into a base that was rounded."""
    place = OUT / world / name
    if is_small(world) or not (place / "adapter_config.json").exists():
        return place
    merged = OUT / world / "merged" / name
    if not (merged / "done").exists():
        model, tokenizer = opened(world, name)
        model.save_pretrained(merged)
        tokenizer.save_pretrained(merged)
        (merged / "done").touch()
    return merged


def distance(one: PreTrainedModel, other: PreTrainedModel) -> float:
    """Return the Frobenius distance of two models' blocks."""
    pairs = zip(blocks_of(one).parameters(), blocks_of(other).parameters(), strict=True)
    return math.sqrt(sum(float((a - b).double().square().sum()) for a, b in pairs))


def chosen_depth(found: Transplant, *, attention: bool) -> float:
    """Return host depth by attention alone, or by bands alone, as the library chooses among all candidates."""
    of_kind = torch.tensor([candidate.attention == attention for candidate in found.candidates])
    left = found.answers.left("unlearned_with_retain")[0]
    chosen = least_on_others(left, found.admitted[0] & of_kind, found.subjects)
    return mean_uds(taken(found.host_depth_by_candidate[0], chosen))


def transplant_row(found: Transplant) -> dict[str, Any]:
    """Return the numbers of a transplant."""
    row = {
        "output_depth": found.output_depth,
        "host_depth": found.host_depth,
        "host_depth_low": found.host_depth_interval.low,
        "host_depth_high": found.host_depth_interval.high,
        "hidden": found.hidden,
        "hidden_low": found.hidden_interval.low,
        "hidden_high": found.hidden_interval.high,
        "hidden_difference": mean_uds(found.hidden_per_example),
        "host_depth_bands": chosen_depth(found, attention=False),
        "host_depth_attention": chosen_depth(found, attention=True),
        "control_loss": found.control_loss,
        "n_admitted": int(found.admitted[0].sum()),
        "n_candidates": len(found.candidates),
        "seconds": found.provenance["seconds"],
    }
    for number, place in enumerate(found.localisation, 1):
        row |= {f"localisation_{number}": place.value, f"localisation_{number}_retain": place.retain}
        row |= {f"band_{number}": place.band}
    return row


def keep_candidates(world: str, name: str, found: Transplant) -> None:
    """Add what every candidate of `retain` gave to `results/WORLD_candidates.csv`: c and control loss among others."""
    file = RESULTS / f"{world}_candidates.csv"
    frame = found.candidates_frame()
    frame = frame.loc[frame["donor"].str.startswith("retain"), CANDIDATE_COLUMNS].assign(model=name)
    earlier = pd.read_csv(file) if file.exists() else pd.DataFrame(columns=["model"])
    frame = pd.concat([earlier[earlier["model"] != name], frame[["model", *CANDIDATE_COLUMNS]]], ignore_index=True)
    frame.to_csv(file, index=False, float_format="%.4f")


def names_in(world: str) -> list[str]:
    """Return the models of a world that are there, references first."""
    folder = OUT / world
    there = [path.name for path in sorted(folder.iterdir()) if path.is_dir() and is_whole(path)]
    others = [
        name for name in there if name not in ("planted", "transplants", "merged") and not name.startswith("full")
    ]
    return sorted(others, key=lambda name: (kind_of(name) != "reference", kind_of(name) == "method", name))


def is_whole(folder: Path) -> bool:
    """Return whether a model is finished: written by the library at once, or marked by worlds.py."""
    return any((folder / name).exists() for name in ("finetuning.json", "unlearning.json", "done"))


def measure(world: str, only: Sequence[str] | None) -> None:
    """Measure what has no row yet."""
    folder, rows, config = OUT / world, draw_rows(world), CONFIGS[is_small(world)]
    asked_rows = rows["forget"][:: ASKED_STEP[is_small(world)]]
    file = RESULTS / f"{world}.csv"
    table = pd.read_csv(file, keep_default_na=False, na_values=[""]) if file.exists() else pd.DataFrame()
    done = set(table["model"]) if len(table) else set()
    (folder / "transplants").mkdir(exist_ok=True)
    RESULTS.mkdir(exist_ok=True)
    full_place, retain_place = whole_model(world, "full"), whole_model(world, "retain-0")
    full, retain = (opened(world, name)[0] for name in ("full", "retain-0"))
    criterion, whole = Criterion(world, full, retain), distance(full, retain)
    needed = folder / "relearning.json"
    if not needed.exists():
        needed.write_text(json.dumps(criterion.relearned(opened(world, "retain-0")[0], None)), encoding="utf-8")
    epochs = json.loads(needed.read_text(encoding="utf-8"))["epochs"]
    kept, control = folder / "baseline", rows["control"][:: CONTROL_STEP[is_small(world)]]
    if kept.exists():
        baseline = ul.Baseline.load(kept).with_full(full_place)
    else:
        how: dict[str, Any] = {"control": control, "config": config, "options": OPTIONS}
        baseline = ul.Baseline.measure(full_place, retain_place, asked_rows, **how)
    asked: dict[str, tuple[str, str, str]] = {name: (name, "full", "retain-0") for name in names_in(world)}
    for seed in SEEDS if is_small(world) else ():  # each retain model with each of the others as donor
        for donor in SEEDS:
            if donor != seed:
                asked[f"retain-{seed}-by-{donor}"] = (f"retain-{seed}", "full", f"retain-{donor}")
    if (folder / "planted" / "done").exists():
        asked["removed"] = ("retain-0", "planted", "retain-1")
    groups: dict[tuple[str, str], dict[str, str]] = {}
    for name, (model, known, by) in asked.items():
        if name not in done and (not only or name in only) and model != by:
            groups.setdefault((known, by), {})[name] = model
    for (known, by), models in groups.items():
        transplants = each_transplant(
            whole_model(world, known),
            whole_model(world, by),
            [whole_model(world, model) for model in models.values()],
            asked_rows,
            control=control,
            config=config,
            options=OPTIONS,
            baseline=baseline if (known, by) == ("full", "retain-0") else None,
        )
        for (name, model), found in zip(models.items(), transplants, strict=True):
            if baseline.exchanged is not None and not kept.exists():
                baseline.save(kept)
            found.save(folder / "transplants" / name)
            row = {"world": world, "model": name, "kind": kind_of(name), "unit": unit_of(name), **transplant_row(found)}
            if known == "full" and name == model:
                weights, _ = opened(world, model)
                row |= {"uds": baseline.audit(whole_model(world, model), options=OPTIONS).uds}
                row |= {"distance": distance(weights, full) / whole, **criterion.relearned(weights, epochs)}
            elif known != "full":
                places = (folder / known, folder / by, folder / model)
                row |= {"uds": ul.DepthAudit.run(*places, asked_rows, config=config, options=OPTIONS).uds}
            table = pd.concat([table, pd.DataFrame([row])], ignore_index=True)
            table.to_csv(file, index=False, float_format="%.6f")
            keep_candidates(world, name, found)
            shown = ("uds", "output_depth", "host_depth", "hidden_difference", "localisation_1", "returned")
            print(world, name, *(f"{key} {row.get(key, math.nan):.3f}" for key in shown), flush=True)


def main() -> None:
    """Measure one world."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("world", choices=WORLDS)
    parser.add_argument("--only", nargs="+", metavar="MODEL")
    given = parser.parse_args()
    measure(given.world, given.only)


if __name__ == "__main__":
    main()
