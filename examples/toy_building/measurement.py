"""What a stored checkpoint recalls, and what has to hold for the whole world."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import PreTrainedTokenizerFast

from toy_building.training import load_checkpoint
from toy_building.unlearning import METHODS
from uds_lens.data import encode, load_examples

BUDGET_MB = 10.0


@torch.no_grad()
def recall(checkpoint: Path, data: dict[str, Path]) -> dict[str, float]:
    """Mean entity probability `mean_i exp(mean_t log p(y_t))` of a stored checkpoint, by group of examples."""
    tokenizer = PreTrainedTokenizerFast.from_pretrained(checkpoint)
    model = load_checkpoint(checkpoint)
    shares = {}
    for group, path in data.items():
        rows = encode(load_examples(path), tokenizer).rows
        chances = []
        for row in rows:
            log_probs = model(torch.tensor([row.ids])).logits[0].float().log_softmax(-1)
            chances.append(log_probs[torch.tensor(row.scored), torch.tensor(row.targets)].mean().exp().item())
        shares[group] = sum(chances) / len(chances)
    return shares


def broken_promises(recalled: dict[str, dict[str, float]], megabytes: float) -> list[str]:
    """What an audit of this world relies on and does not hold."""
    full, retain = recalled["full"], recalled["retain"]
    promises = [
        (full["forget"] >= 0.8, "full recalls the forget entities (>= 0.8)"),
        (retain["forget"] <= 0.2, "retain does not know the forget entities (<= 0.2)"),
        (full["retain"] >= 0.8, "full recalls retained facts (>= 0.8)"),
        (retain["retain"] >= 0.8, "retain recalls retained facts (>= 0.8)"),
        (retain["forget"] < recalled["half"]["forget"] < full["forget"], "half lies between retain and full"),
        (megabytes <= BUDGET_MB, f"everything fits into {BUDGET_MB:g} MB (takes {megabytes:.2f})"),
    ]
    for method in METHODS:
        kept = recalled[method]["retain"] / full["retain"]
        left = recalled[method]["forget"] / full["forget"]
        promises.append((kept >= 0.8, f"{method} keeps 80% of the recall of retained facts (keeps {kept:.0%})"))
        promises.append((left <= 0.8, f"{method} lowers the recall of forget entities to 80% (to {left:.0%})"))
    return [promise for holds, promise in promises if not holds]


def print_table(recalled: dict[str, dict[str, float]]) -> None:
    print(f"\nMean entity probability\n{'':<12}{'forget':>9}{'retain':>9}{'holdout':>9}")
    for name, shares in recalled.items():
        print(f"{name:<12}" + "".join(f"{shares[group]:>9.3f}" for group in ("forget", "retain", "holdout")))
    print()
