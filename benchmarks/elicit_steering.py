"""ActPert on the small TOFU models: do two draws of its direction agree, and does it bring out more than its controls?

    python benchmarks/elicit_steering.py --out runs/elicit-steering
    python benchmarks/elicit_steering.py --out runs/elicit-steering --sweep 20 --swept runs/unlearned/*

Cosine of two independent directions at 8 copies and gamma 0.01 in block 3, antithetic and plain; then retain95 greedily
under the antithetic direction, its opposite, and a random one of the same norm. With --sweep only Tables 3 and 4 of
Chen et al. (arXiv 2505.23270), with independent draws as theirs: blocks at one strength, strengths at one block, and
Algorithm 1 as it is printed (all blocks).
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from elicit_models import rows

import uds_lens as ul
from uds_lens.elicitation import ActPert, ElicitationResults, ElicitOptions, elicit
from uds_lens.elicitation._asking import ask_rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shared", type=Path, default=Path("../shared"))
    parser.add_argument("--out", type=Path, default=Path("runs/elicit-steering"))
    parser.add_argument("--directions", type=int, default=40, help="questions whose directions are compared")
    parser.add_argument("--limit", type=int, default=None, help="questions that are asked, by author")
    parser.add_argument("--sweep", type=int, default=0, help="questions that are asked at each layer and strength")
    parser.add_argument("--swept", type=Path, nargs="*", default=[], help="models of the sweep besides retain90")
    parser.add_argument("--threads", type=int, default=1)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    small, options = asked.shared / "models/tofu-small", ElicitOptions(samples=0)
    if asked.sweep:
        sweep([small / "retain90", *asked.swept], rows(asked.shared, asked.sweep), options, asked.out)
        return
    with ul.open_model(small / "retain95", device="cpu") as model:
        examples = rows(asked.shared)
        probe = ActPert(layer=3)
        whole = ask_rows(probe, examples, model.tokenizer, pool=(), protocol="raw", room=None, options=options)
        reasons = sorted({why for _, why in whole.skipped})
        print(f"{len(whole.asks)} questions name the author, {len(whole.skipped)} do not: {reasons}")
        chosen = whole.asks[:: max(1, len(whole.asks) // asked.directions)][: asked.directions]
        for antithetic in (True, False):
            probe = ActPert(layer=3, antithetic=antithetic)
            cosines, rms = [], 0.0
            for ask in chosen:
                (one, rms), (other, _) = (probe.delta(model, ask, seed=seed) for seed in (1, 2))
                cosines.append(float(torch.cosine_similarity(one.flatten(), other.flatten(), dim=0)))
            words = "antithetic" if antithetic else "plain"
            print(
                f"{words}, {probe.copies} copies, gamma {probe.gamma:g} ({rms:.2f} of the embeddings' root mean "
                f"square), layer {probe.chosen_layers(model)[0]}: cosine of two draws {np.mean(cosines):.2f} (from "
                f"{min(cosines):.2f} to {max(cosines):.2f}, {len(cosines)} questions)"
            )
    found = elicit(
        small / "retain95",
        rows(asked.shared, asked.limit),
        retain=small / "retain90",
        probes=["plain", ActPert(layer=3, antithetic=True)],
        options=options,
        run=ul.RunOptions(device="cpu", progress=False),
        out=asked.out,
    )
    print_table(found)


class Alone(ActPert):
    """Without controls: the published tables have none."""

    controls = ()


def sweep(models: list[Path], examples: list[ul.ForgetExample], options: ElicitOptions, out: Path) -> None:
    """Ask each model at the relative depths and at the strengths of the published tables; prints recall."""
    probes = [Alone(layer=layer) for layer in (1, 2, 3, 4, 5)]  # their 6, 9, 12 and 15, 18, 21 of 32, in 8 blocks
    probes += [Alone(layer=3, gamma=gamma) for gamma in (0.002, 0.005, 0.02, 0.04)]
    for model in models:
        found = elicit(
            model,
            examples,
            probes=["plain", *probes, Alone()],
            options=options,
            run=ul.RunOptions(device="cpu", progress=False),
            out=out.with_name(f"{out.name}-sweep"),
        )
        print(f"\n| {model.name} | recall |\n|---|---|")
        for record in found.probes:
            recall = found.mean("unlearned", record.name)
            print(f"| {record.name} | {np.nanmean(recall):.3f} ({(~np.isnan(recall)).sum()} asked) |")


def print_table(found: ElicitationResults) -> None:
    """Print what each probe brings out."""
    print("\n| probe | retain90 | retain95 | beyond retain | added to plain | asked |\n" + "|---" * 6 + "|")
    for row in found.summary().itertuples():
        print(
            f"| {row.probe} | {row.retain:.3f} | {row.unlearned:.3f} | {row.beyond_retain:+.3f} | "
            f"{row.added:+.3f} [{row.added_low:+.3f}, {row.added_high:+.3f}] | {row.n} |"
        )


if __name__ == "__main__":
    main()
