"""Unlearn a small TOFU model with every method, audit each result, and print the table of docs/results/methods.md.

    python examples/unlearn_tofu_small.py --shared ../shared --out runs/tofu_small

Needs the TOFU files and the small checkpoints of the shared data folder. Each method runs at one setting, chosen
so that it lowers the probability of the forget answers while that of the retain answers stays at 80% of `full`'s or
more, and for nothing else. A run that is already in --out is not repeated.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch

import uds_lens as ul
from uds_lens.unlearning import TrainOptions, answer_log_probs, parse_name, read_record, unlearn

SETTINGS = (
    "ga_lr4e-04_epoch1",
    "graddiff_lr2e-04_alpha5_epoch3",
    "kl_lr2e-04_alpha5_epoch3",
    "npo_lr3e-04_beta0.1_alpha5_epoch3",
    "simnpo_lr3e-04_beta4.5_alpha1_delta1_gamma0.125_epoch3",
    "idknll_lr6e-04_alpha2_epoch3",
    "idkdpo_lr2e-03_beta0.1_alpha5_epoch3",
    "altpo_lr1e-03_beta0.1_alpha5_epoch3_nalternates2",
    "undial_lr1e-03_beta10_alpha1_epoch3",
    "rmu_lr1e-03_alpha5_layer2_scale30_epoch2",
    "rmu_lr1e-03_alpha5_layer4_scale30_epoch2",
    "rmu_lr1e-03_alpha5_layer6_scale30_epoch2",
)
RETAIN_STEP = 18
"""Two hundred retain rows are enough to measure the retain probability."""
N_CONTROL = 200
"""Retained facts, of 20 authors, on which the same patches measure damage."""


def probability(model: str | Path, examples: list[ul.ForgetExample]) -> float:
    """Prob: mean over examples of exp(mean log-probability of the answer's tokens, end token included)."""
    with ul.open_model(model, device="cpu") as opened:
        pairs = [(example.question, example.answer) for example in examples]
        rows = ul.data.answer_sequences(opened.tokenizer, pairs)
        assert opened.tokenizer is not None
        sums = answer_log_probs(opened.hf, rows, pad_token_id=opened.tokenizer.pad_token_id or 0)
    lengths = [len(row.ids) - row.n_prompt for row in rows]
    return float((torch.tensor(sums) / torch.tensor(lengths)).exp().mean())


def trained(name: str, shared: Path, out: Path, forget, retain) -> dict:
    """Train one setting and measure its probabilities; kept in a file beside the model."""
    file = out / f"{name}.json"
    if file.is_file():
        return json.loads(file.read_text())
    tofu, source = shared / "data/tofu", shared / "models/tofu-small"
    row: dict = {"name": name, "model": str(source / name)}
    if not (source / name).is_dir():
        model = unlearn(
            source / "full",
            tofu / "forget10.json",
            tofu / "retain90.json",
            method=parse_name(name),
            out=out / "models" / name,
            options=TrainOptions(device="cpu", mixed_precision="bfloat16", checkpoint_every=0),
        )
        record = read_record(model)
        row |= {"model": str(model), "steps": record["steps"], "seconds": record["seconds"]}
    row |= {"forget_prob": probability(row["model"], forget), "retain_prob": probability(row["model"], retain)}
    file.write_text(json.dumps(row, indent=1))
    print(f"{name:60} forget {row['forget_prob']:.3f} retain {row['retain_prob']:.3f}", flush=True)
    return row


def control_facts(shared: Path) -> list[ul.ForgetExample]:
    """Facts that full and retain90 both saw, with the words that differ from wrong answers as their entities."""
    known = ul.load_tofu(shared / "data/tofu", "retain_perturbed")
    return list(ul.annotate(ul.data.sample_examples(known, N_CONTROL), by="difference").examples)


def add_audits(rows: list[dict], shared: Path, out: Path) -> None:
    """Audit all models against retain90, with one pass over `full` for all of them."""
    models, options = shared / "models/tofu-small", ul.RunOptions(device="cpu")
    if (out / "baseline").is_dir():
        baseline = ul.Baseline.load(out / "baseline")
    else:
        scored = ul.load_examples(shared / "data/tofu/forget10_filtered.json")
        baseline = ul.Baseline.measure(
            models / "full", models / "retain90", scored, control=control_facts(shared), options=options
        )
        baseline.save(out / "baseline")
    new = [row for row in rows if not (out / "audits" / row["name"]).is_dir()]
    if new:
        for row, audit in zip(new, baseline.audit_all([row["model"] for row in new], options=options), strict=True):
            audit.save(out / "audits" / row["name"])
    for row in rows:
        audit = ul.DepthAudit.load(out / "audits" / row["name"])
        low, high = audit.uds_interval
        layers = audit.layers_frame()
        row |= {"uds": audit.uds, "low": low, "high": high, "over": audit.over_erased_share}
        row |= {"damage": audit.damage_estimate}
        row |= {"ler": layers["ler_mean"].tolist(), "ke_share": layers["ke_share"].tolist()}


def add_logit_lens(rows: list[dict], shared: Path, out: Path) -> None:
    """The Logit Lens score of each model, to set beside UDS."""
    models, cache = shared / "models/tofu-small", ul.metrics.MetricCache()
    examples = ul.load_examples(shared / "data/tofu/forget10_filtered.json")
    for row in rows:
        file = out / "logit_lens" / f"{row['name']}.json"
        if not file.is_file():
            results = ul.metrics.evaluate(
                row["model"],
                examples,
                metrics=["logit_lens"],
                retain=models / "retain90",
                full=models / "full",
                cache=cache,
                run=ul.RunOptions(device="cpu"),
            )
            file.parent.mkdir(exist_ok=True)
            file.write_text(json.dumps(results["logit_lens"].value))
        row["logit_lens"] = json.loads(file.read_text())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shared", type=Path, default=Path("../shared"))
    parser.add_argument("--out", type=Path, default=Path("runs/tofu_small"))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", nargs="*", default=SETTINGS, help="names of settings to run")
    parser.add_argument("--no-lens", action="store_true", help="without Logit Lens")
    parser.add_argument("--no-audit", action="store_true", help="stop after training")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    shared, out = arguments.shared, arguments.out
    out.mkdir(parents=True, exist_ok=True)
    forget = ul.load_examples(shared / "data/tofu/forget10.json")
    retain = ul.load_examples(shared / "data/tofu/retain90.json")[::RETAIN_STEP]
    names = ["full", "retain90", *arguments.only]
    rows = [trained(name, shared, out, forget, retain) for name in names]
    if not arguments.no_audit:
        add_audits(rows, shared, out)
        if not arguments.no_lens:
            add_logit_lens(rows, shared, out)
        print(table(rows))
        print(damage_table(rows))
        print(layer_table(rows))


def reading(uds: float) -> str:
    """Where a score lies, in one word."""
    return "shallow" if uds < 0.35 else "half-way" if uds < 0.65 else "deep"


def table(rows: list[dict]) -> str:
    """The results as Markdown."""
    lines = [
        "| model | forget Prob | retain Prob | of full's | UDS | 95% interval | reading | raw LER > 1 | damage "
        "| Logit Lens | steps | seconds |",
        "|---" * 12 + "|",
    ]
    for row in rows:
        kept = row["retain_prob"] / rows[0]["retain_prob"]
        word = reading(row["uds"]) if "steps" in row else "the scale"
        lines.append(
            f"| {row['name']} | {row['forget_prob']:.3f} | {row['retain_prob']:.3f} | {100 * kept:.0f}% | "
            f"{row['uds']:.3f} | {row['low']:.3f} to {row['high']:.3f} | {word} | "
            f"{100 * row['over']:.0f}% | {damage(row)} | {row.get('logit_lens', float('nan')):.3f} | "
            f"{row.get('steps', '')} | {round(row['seconds']) if 'seconds' in row else ''} |"
        )
    return "\n".join(lines)


def damage(row: dict) -> str:
    """Damage with its interval."""
    found = row["damage"]
    return "" if found.reason else f"{found.value:.3f} ({found.interval.low:.3f} to {found.interval.high:.3f})"


def damage_table(rows: list[dict]) -> str:
    """What the unlearned states cost on retained facts, beside what they cost on forget facts, as Markdown."""
    lines = ["| model | UDS | loss on forget facts | on retained facts | damage | 95% interval |", "|---" * 6 + "|"]
    for row in rows:
        found = row["damage"]
        low, high = found.interval
        told = f"{found.value:.3f} | {low:.3f} to {high:.3f}" if found.reason is None else "not defined | "
        lines.append(
            f"| {row['name']} | {row['uds']:.3f} | {found.forget_loss:.3f} | {found.control_loss:.3f} | {told} |"
        )
    return "\n".join(lines)


def layer_table(rows: list[dict]) -> str:
    """Mean LER of each layer as Markdown."""
    n_layers = len(rows[0]["ler"])
    lines = ["| model | " + " | ".join(f"layer {layer}" for layer in range(n_layers)) + " |"]
    lines.append("|---" * (n_layers + 1) + "|")
    lines += [f"| {row['name']} | " + " | ".join(f"{x:.2f}" for x in row["ler"]) + " |" for row in rows]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
