"""Follow depth, damage, utility and forget answers while a small TOFU model unlearns, as docs/results/methods.md tells.

    python examples/depth_while_training.py --shared ../shared --out runs/depth_while_training
    python examples/depth_while_training.py --out runs/depth_while_training --draw

Written down before it was run: with NPO, SimNPO and IdkNLL the answers go first. Their probability loses half of what
it loses in all at an earlier measured step than that at which UDS reaches half of its last value. RMU, which trains on
hidden states, loses both within one measurement of each other. Damage stays below 0.2 but for IdkNLL.

Each method and seed is a file in --out, so that a stopped run resumes, and each can be a process of its own
(--only NPO --seeds 0). --draw makes table, figure and runs.csv from all files that are there; those of the page are in
studies/depth_while_training.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from transformers import TrainerCallback
from unlearn_tofu_small import RETAIN_STEP, control_facts

import uds_lens as ul
from uds_lens.unlearning import TrainOptions, answer_log_probs, parse_name, unlearn

METHODS = {
    "NPO": "npo_lr3e-04_beta0.1_alpha5_epoch3",
    "SimNPO": "simnpo_lr3e-04_beta4.5_alpha1_delta1_gamma0.125_epoch3",
    "IdkNLL": "idknll_lr6e-04_alpha2_epoch3",
    "RMU": "rmu_lr1e-03_alpha5_layer4_scale30_epoch2",
}
"""As in the table of unlearned models: 39 steps, 26 of RMU."""
EVERY, ROWS, ANSWERS = 2, 100, 100
"""Steps between two measurements; forget facts, and control facts, of UDS; answers of each side for Prob."""


class Answers(TrainerCallback):
    """Prob of forget and of retain answers at the steps at which depth is measured."""

    def __init__(self, depth: ul.training.DepthCallback, model: Path, sides: dict[str, list[ul.ForgetExample]]) -> None:
        self.depth, self.found = depth, list[dict[str, float]]()
        tokenizer = ul.open_model(model, device="cpu").tokenizer
        assert tokenizer is not None
        self.pad = tokenizer.pad_token_id or 0
        self.rows = {
            name: ul.data.answer_sequences(tokenizer, [(x.question, x.answer) for x in rows])
            for name, rows in sides.items()
        }

    def measure(self, model: Any) -> None:
        """Mean over examples of exp(mean log-probability of the answer's tokens)."""
        training, point = model.training, {}
        model.eval()
        for name, rows in self.rows.items():
            sums = torch.tensor(answer_log_probs(model, rows, pad_token_id=self.pad))
            lengths = torch.tensor([len(row.ids) - row.n_prompt for row in rows])
            point[name] = float((sums / lengths).exp().mean())
        model.train(training)
        self.found.append(point)

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        self.measure(model)

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        if len(self.depth.curve.points) > len(self.found):  # it has just been measured
            self.measure(model)


def followed(method: str, seed: int, baseline: ul.Baseline, arguments: argparse.Namespace) -> None:
    """Train once, and write a file with a row per measured step; does nothing where the file is."""
    out = arguments.out
    file = out / f"{method}-seed{seed}.csv"
    if file.is_file():
        return
    tofu, full = arguments.shared / "data/tofu", arguments.shared / "models/tofu-small/full"
    forget, retain = ul.load_examples(tofu / "forget10.json"), ul.load_examples(tofu / "retain90.json")
    sides = {"answers": ul.data.sample_examples(forget, ANSWERS), "kept": retain[::RETAIN_STEP][:ANSWERS]}
    depth = ul.training.DepthCallback(baseline, every=EVERY, options=ul.RunOptions(device=arguments.device))
    answers = Answers(depth, full, sides)
    unlearn(
        full,
        tofu / "forget10.json",
        tofu / "retain90.json",
        method=replace(parse_name(METHODS[method]), seed=seed),
        out=out / "models" / file.stem,
        options=TrainOptions(device=arguments.device, checkpoint_every=0, callbacks=(depth, answers), progress=False),
    )
    frame = depth.curve.to_frame().join(pd.DataFrame(answers.found))
    frame["utility"] = frame["kept"] / frame["kept"].iloc[0]
    frame.insert(0, "model", method)
    frame.insert(1, "seed", seed)
    frame.to_csv(file, index=False)


def half_way(steps: pd.Series, values: pd.Series) -> tuple[float, float]:
    """Where half of the way from the first value to the last is covered: first measured step, and between two."""
    way = ((values - values.iloc[0]) / (values.iloc[-1] - values.iloc[0])).cummax()
    return float(steps[way >= 0.5].iloc[0]), float(np.interp(0.5, way, steps))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shared", type=Path, default=Path("../shared"))
    parser.add_argument("--out", type=Path, default=Path("runs/depth_while_training"))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", nargs="*", default=list(METHODS), help="methods to run")
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    parser.add_argument("--draw", action="store_true", help="train nothing: table and figure")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    shared, out = arguments.shared, arguments.out
    out.mkdir(parents=True, exist_ok=True)
    if not arguments.draw:
        models = shared / "models/tofu-small"
        baseline = ul.Baseline.measure(
            models / "full",
            models / "retain90",
            ul.load_examples(shared / "data/tofu/forget10_filtered.json"),
            control=control_facts(shared),
            config=ul.AuditConfig(limit=ROWS),
            options=ul.RunOptions(device=arguments.device),
        )
        for method in arguments.only:
            for seed in arguments.seeds:
                followed(method, seed, baseline, arguments)
        return
    frames = [pd.read_csv(file) for name in METHODS for file in sorted(out.glob(f"{name}-seed*.csv"))]
    print(table(frames))
    runs = pd.concat(frames, ignore_index=True)
    runs.round(6).to_csv(out / "runs.csv", index=False)
    means = runs.groupby(["model", "step"], sort=False, as_index=False).mean(numeric_only=True)
    ul.plots.save_figure(ul.plots.depth_by_step(means), out / "depth.html", overwrite=True)


def table(frames: list[pd.DataFrame]) -> str:
    """The results as Markdown."""
    lines = [
        "| method, seed | half of Prob gone | half of log Prob gone | half of UDS reached | UDS at half of Prob "
        "| highest UDS | last UDS | highest damage | lowest utility | last utility | last Prob "
        "| measuring |",
        "|---" * 12 + "|",
    ]
    for frame in frames:
        last, logs = frame.iloc[-1], frame["answers"].map(math.log)
        halves = [half_way(frame["step"], values) for values in (frame["answers"], logs, frame["uds"])]
        deepest = frame.iloc[frame["uds"].argmax()]
        cells = [
            f"{last['model']}, {last['seed']}",
            *(f"{step:.0f} ({between:.1f})" for step, between in halves),
            f"{frame[frame['step'] == halves[0][0]]['uds'].iloc[0]:.3f}",
            f"{deepest['uds']:.3f} (step {deepest['step']})",
            *(f"{value:.3f}" for value in (last["uds"], frame["damage"].max(), frame["utility"].min())),
            *(f"{last[name]:.3f}" for name in ("utility", "answers")),
            f"{frame['seconds'].sum():.1f} s",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
