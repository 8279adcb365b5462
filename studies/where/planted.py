"""Teach facts to the MLP of one layer, and look whether a map finds it there. claims.md says what that decides.

    python studies/where/planted.py --shared ../shared --out runs/where --device auto

Models and maps that are there are kept. Writes, after each model, `maps.csv` (a row per model, layer and cell) and
`summary.json`.
"""

from __future__ import annotations

import argparse
import json
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import uds_lens as ul
from uds_lens.data import ForgetExample, answer_sequences

HERE = Path(__file__).resolve().parent
LAYERS, SEEDS = (1, 4, 6), (0, 1)
ROWS, KEPT, BATCH = 100, 400, 50
PLANTING, RETRAINING = {"steps": 400, "rate": 2e-3}, {"steps": 100, "rate": 3e-4}
LEARNT = 0.1
"""Mean loss over an epoch of the planted rows, nats per token, below which planting ends."""
SPOKEN = 5
"""Times that a token occurs in the answers `retain90` was trained on, from which its fixed output embedding counts as
trained: rows whose entity has rarer tokens are not drawn, and rarer tokens of answers are not trained on."""


def loss_from(model: Any, states: torch.Tensor, labels: torch.Tensor, layer: int) -> torch.Tensor:
    """Return the mean loss of the labelled tokens, from the states that enter a layer; rows are padded behind."""
    positions = torch.arange(states.shape[1], device=states.device)[None]
    rotary = model.model.rotary_emb(states, positions)
    for block in model.model.layers[layer:]:
        states = block(states, attention_mask=None, position_ids=positions, position_embeddings=rotary)
    at = labels[:, 1:] != -100
    logits = model.lm_head(model.model.norm(states)[:, :-1][at])
    return torch.nn.functional.cross_entropy(logits, labels[:, 1:][at])


def spoken_tokens(tokenizer: Any, rows: Sequence[ForgetExample]) -> set[int]:
    """Return the tokens that the answers of a data set have often enough to be learnt as outputs."""
    counts: Counter[int] = Counter()
    for text in answer_sequences(tokenizer, [(row.question, row.answer) for row in rows], protocol="raw"):
        counts.update(text.ids[text.n_prompt :])
    return {token for token, count in counts.items() if count >= SPOKEN}


def can_be_taught(row: ForgetExample, tokenizer: Any, spoken: set[int]) -> bool:
    """Whether an audit asks for the tokens that training has there, and the fixed output embedding knows them."""
    (asked,) = ul.data.encode([row], tokenizer, protocol="raw").rows
    (text,) = answer_sequences(tokenizer, [(row.question, row.answer)], protocol="raw")
    targets = [int(token) for token in asked.targets]
    ids = [*asked.ids, targets[-1]]
    return list(text.ids[: len(ids)]) == ids and spoken.issuperset(targets)


def train(
    start: Path,
    rows: Sequence[ForgetExample],
    out: Path,
    *,
    spoken: set[int],
    layer: int | None,
    seed: int,
    device: str,
    **how: Any,
) -> None:
    """Teach a model the rows' answers, by all weights or by those of one layer's MLP, and save it."""
    if (out / "config.json").exists():
        return
    torch.manual_seed(seed)
    tokenizer = AutoTokenizer.from_pretrained(start)
    model = AutoModelForCausalLM.from_pretrained(start, dtype=torch.float32).to(device)
    model.requires_grad_(layer is None)
    if layer is not None:
        model.model.layers[layer].mlp.requires_grad_(True)
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    optimiser = torch.optim.AdamW(trained, lr=how["rate"], weight_decay=0.0)
    texts = answer_sequences(tokenizer, [(row.question, row.answer) for row in rows], protocol="raw")
    below = {}
    if layer is not None:  # what lies below does not train, and is computed once
        for text in texts:
            with torch.no_grad():
                passed = model.model(torch.tensor([text.ids], device=device), output_hidden_states=True)
            below[text.ids] = passed.hidden_states[layer][0]
    epoch = -(-len(texts) // BATCH)
    draw, order, losses = random.Random(seed), list[int](), list[float]()
    for step in range(how["steps"]):
        if len(order) < BATCH:
            order += draw.sample(range(len(texts)), len(texts))
        batch, order = [texts[i] for i in order[:BATCH]], order[BATCH:]
        ids = torch.nn.utils.rnn.pad_sequence([torch.tensor(text.ids) for text in batch], batch_first=True)
        labels = torch.full_like(ids, -100)
        for i, text in enumerate(batch):
            known = [token if token in spoken else -100 for token in text.labelled]
            labels[i, text.n_prompt : len(text.ids)] = torch.tensor(known)
        if layer is None:
            states = model.model.embed_tokens(ids.to(device))
        else:
            states = torch.nn.utils.rnn.pad_sequence([below[text.ids] for text in batch], batch_first=True)
        loss = loss_from(model, states, labels.to(device), layer or 0)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(float(loss))
        learnt = layer is not None and step >= epoch and sum(losses[-epoch:]) < LEARNT * epoch
        if step % 20 == 0 or learnt or step == how["steps"] - 1:
            print(out.name, step, f"{losses[-1]:.4f}", flush=True)
        if learnt:
            break
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)


def main() -> None:
    """Make the models and their maps."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shared", type=Path, default=HERE.parents[2] / "shared", help="folder with data and models")
    parser.add_argument("--out", type=Path, default=HERE.parents[1] / "runs" / "where")
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"))
    parser.add_argument("--limit", type=int, help="rows and steps, to try it")
    given = parser.parse_args()
    device = given.device if given.device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
    start, tofu = given.shared / "models" / "tofu-small" / "retain90", given.shared / "data" / "tofu"
    draw = random.Random(0)
    marked = ul.data.with_author_names(ul.load_examples(tofu / "forget10_filtered.json"))
    named = [row for row in marked if row.subject and row.subject in row.question]
    tokenizer, trained_on = AutoTokenizer.from_pretrained(start), ul.load_examples(tofu / "retain90.json")
    spoken = spoken_tokens(tokenizer, trained_on)
    named = [row for row in named if can_be_taught(row, tokenizer, spoken)]
    rows = sorted(draw.sample(named, ROWS), key=lambda row: row.row)[: given.limit]
    kept = draw.sample(trained_on, KEPT)[: given.limit]
    planting, retraining = (
        how if given.limit is None else {**how, "steps": given.limit} for how in (PLANTING, RETRAINING)
    )
    file, summary_file = given.out / "maps.csv", given.out / "summary.json"
    frames = [pd.read_csv(file)] if file.exists() else []
    summary = json.loads(summary_file.read_text(encoding="utf-8")) if summary_file.exists() else {}
    given.out.mkdir(parents=True, exist_ok=True)
    options = ul.RunOptions(device=device, progress=False)
    names = [f"layer{layer}-seed{seed}" for seed in SEEDS for layer in LAYERS]
    for name in [*names[: len(LAYERS)], "no planting", *names[len(LAYERS) :]]:
        if name in summary:
            continue
        full, source = given.out / name, start
        if name == "no planting":
            full, source = (given.out / f"retain-seed{seed}" for seed in (0, 1))
            for seed, place in enumerate((full, source)):
                train(start, kept, place, spoken=spoken, layer=None, seed=seed, device=device, **retraining)
        else:
            layer, seed = (int(part.strip("layersd")) for part in name.split("-"))
            train(start, rows, full, spoken=spoken, layer=layer, seed=seed, device=device, **planting)
        found = ul.audit.depth_map(full, source, rows, options=options)
        frames.append(found.cells_frame().assign(model=name))
        bypass = found.bypass_frame().astype(object).where(lambda frame: frame.notna(), None)
        stage = ul.Baseline.measure(full, source, rows, options=options)
        summary[name] = {
            "probability": float(stage.s_full.mean().exp()),
            "s1": stage.s1_delta.mean(0).tolist(),
            "ke_share": stage.ke_mask.double().mean(0).tolist(),
            "bypass": bypass.to_dict("records"),
        }
        print(name, [round(v, 3) for v in summary[name]["s1"]], flush=True)
        pd.concat(frames).to_csv(file, index=False)
        summary_file.write_text(json.dumps(summary, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
