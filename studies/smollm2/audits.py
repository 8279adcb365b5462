"""Audit every model of the study by layer, on three scales: what the sweep, which keeps scores only, does not have.

    python studies/smollm2/audits.py --device cuda

The scales are `retain-0`, `base` (the pretrained model as stand-in) and `retains` (the mean of three seeds). Damage,
with the kept rows as control, and stage 2 at all layers are measured on the first; the others give scores, for which
the layers that count are enough. A model is opened once for all scales. Run again, it measures what is missing: one
folder for each model and scale in `audits/`. At the end three tables are written, which `decide.py` reads:

    models.csv      scale, model, UDS with interval, damage with interval, warnings
    examples.csv    scale, model, example: UDS, first knowledge-encoding layer, entity's log-probability under `full`
    layers.parquet  scale, model, example, layer: S1 and S2
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pandas as pd

import uds_lens as ul
from uds_lens.audit import Baseline
from uds_lens.study import StudyPlan

HERE = Path(__file__).resolve().parent
OUT = HERE.parents[1] / "runs" / "smollm2-audits"
SCALES = ("retain-0", "base", "retains")
WHOLE = "retain-0"
"""The scale with damage, and with stage 2 at all layers."""


def scale_of(name: str, places: Mapping[str, str]) -> tuple[str | list[str], ul.AuditConfig]:
    """Return what defines 1 on a scale, and the settings."""
    if name == "base":
        return places["base"], ul.AuditConfig(stand_in="base")
    if name == "retains":
        return [places[each] for each in ("retain-0", "retain-1", "retain-2")], ul.AuditConfig()
    return places[name], ul.AuditConfig()


def measure(plan: StudyPlan, places: Mapping[str, str], out: Path, *, options: ul.RunOptions) -> None:
    """Measure what is missing."""
    done = {(scale, name): out / "audits" / scale / name for scale in SCALES for name in places}
    wanted = [name for name in places if not all((done[scale, name] / "manifest.json").is_file() for scale in SCALES)]
    if not wanted:
        return
    with ExitStack() as stack:
        recorded = {}
        for scale in SCALES:
            if (place := out / "baselines" / scale).is_dir():
                baseline = Baseline.load(place).with_full(plan.full)
            else:
                retain, config = scale_of(scale, places)
                rows, kept = str(plan.data.forget), str(plan.data.retain) if scale == WHOLE else None
                baseline = Baseline.measure(plan.full, retain, rows, control=kept, config=config, options=options)
                baseline.save(place)
            whole = replace(options, stage_2="all" if scale == WHOLE else "knowledge")
            recorded[scale] = stack.enter_context(baseline.recorded(options=whole))
        for number, name in enumerate(wanted, 1):
            with ul.open_model(places[name], device=options.device) as model:
                for scale in SCALES:
                    audit = recorded[scale].audit(model)
                    audit.save(done[scale, name])
                    print(f"{number} of {len(wanted)}: {name}, {scale}: UDS {audit.uds:.3f}", flush=True)


def write_tables(out: Path) -> None:
    """Read the saved audits, and write the three tables."""
    models, examples, layers = [], [], []
    for place in sorted((out / "audits").glob("*/*")):
        audit, named = ul.DepthAudit.load(place), {"scale": place.parent.name, "model": place.name}
        summary = audit.summary()
        kept = ("uds", "uds_low", "uds_high", "uds_lowest", "uds_highest", "n_measured", "ke_layers_mean")
        harm = ("damage", "damage_low", "damage_high", "forget_loss", "control_loss", "control_retain_loss")
        row = named | {column: summary[column] for column in (*kept, *harm, "over_erased_share", "reading")}
        models.append(row | {"warnings": " ".join(caution.mark for caution in audit.cautions)})
        columns = ["example_id", "subject", "n_tokens", "n_ke", "first_ke", "s_full", "uds"]
        examples.append(audit.examples_frame()[columns].assign(**named))
        layers.append(audit.to_frame()[["example_id", "layer", "s1_delta", "s2_delta"]].assign(**named))
    pd.DataFrame(models).round(5).to_csv(out / "models.csv", index=False)
    pd.concat(examples).round(5).to_csv(out / "examples.csv", index=False)
    long = pd.concat(layers).astype({"s1_delta": "float32", "s2_delta": "float32", "layer": "int16"})
    long.to_parquet(out / "layers.parquet", compression="zstd", compression_level=19, use_dictionary=False, index=False)


def main() -> None:
    """Audit, and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plan", type=Path, default=HERE / "plan.toml")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--device", default="auto")
    given = parser.parse_args()
    plan = ul.study.plan(given.plan)
    places = {"full": plan.full, "retain-0": plan.retain, **{model.name: model.path for model in plan.model}}
    if absent := [n for n, p in places.items() if not (p.startswith(("package:", "toy:")) or Path(p).is_dir())]:
        print(f"not made yet, and left out: {', '.join(absent)}")
        places = {name: place for name, place in places.items() if name not in absent}
    measure(plan, places, given.out, options=ul.RunOptions(device=given.device, memory_gib=8))
    write_tables(given.out)


if __name__ == "__main__":
    main()
