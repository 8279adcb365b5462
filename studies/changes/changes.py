"""Edits and refusals: how deep changes other than unlearning go. claims.md says what that decides.

    python studies/changes/changes.py edits refusals --out runs/changes
    python studies/changes/changes.py smollm2 --taught runs/smollm2-models --out runs/changes

Writes `edits.csv`, and for each refusing model `NAME-tokens.csv` (loss by layer and output position) and `NAME.json`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pandas as pd
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import uds_lens as ul
from uds_lens.data import ForgetExample, encode
from uds_lens.generation import GenerationSettings, generate_answers
from uds_lens.unlearning import RelearnConfig, TrainOptions, relearn

HERE = Path(__file__).resolve().parent
LAYERS, EDITED = (1, 3, 5), 3
STEPS, RATE = 40, 0.3
WORDS, FIRST = 8, 3
RUN = ul.RunOptions(device="cpu", progress=False)


def rank_one_edit(place: Path, row: ForgetExample, layer: int, out: Path) -> Path:
    """Make a model give a row's answer by a rank-one update of one MLP, at the position before the entity.

    With the input k of the down-projection W there and a fitted value v, W + (v - W k) k' / k'k maps k to v.
    """
    model = AutoModelForCausalLM.from_pretrained(place, dtype=torch.float32).requires_grad_(False)
    tokenizer = AutoTokenizer.from_pretrained(place)
    tokens, seen = encode([row], tokenizer, protocol="raw").rows[0], dict[str, torch.Tensor]()
    ids, at, down = torch.tensor([tokens.ids]), tokens.patched[0], model.model.layers[layer].mlp.down_proj
    handle = down.register_forward_pre_hook(lambda _, args: seen.update(key=args[0][0, at].clone()))
    model(ids)
    handle.remove()
    key = seen["key"]
    before = down(key)
    value = before.clone().requires_grad_(True)
    optimiser = torch.optim.Adam([value], lr=RATE)
    for _ in range(STEPS):
        handle = down.register_forward_hook(
            lambda _, __, out: torch.cat([out[:, :at], value[None, None], out[:, at + 1 :]], 1)
        )
        log_probs = model(ids).logits[0].log_softmax(-1)
        handle.remove()
        loss = -log_probs[list(tokens.patched), list(tokens.targets)].mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    with torch.no_grad():
        down.weight.add_(torch.outer(value.detach() - before, key) / key.dot(key))
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    return out


def edits(out: Path) -> None:
    """Edit facts of the toy world, and audit the old object and the new one."""
    world = ul.toy.load()
    rows = [row for row in world.examples if row.id.endswith("/birthplace")]
    config = ul.AuditConfig(words="edit", protocol="raw", n_bootstrap=100)
    exchanged = replace(config, stand_in="counterfactual", counterfactual="other")
    table = []
    for layer in LAYERS:
        for i, row in enumerate(rows[:EDITED]):
            place = rows[(i + 1) % len(rows)].entity
            new = replace(row, answer=f"{row.prefix} {place}.", entity=place)
            edited = rank_one_edit(world.full, new, layer, out / f"edit-{layer}-{i}")
            old = ul.DepthAudit.run(world.full, world.retain, edited, rows, config=config, options=RUN)
            of_new = [new if other is row else other for other in rows]
            said = ul.DepthAudit.run(edited, None, world.full, of_new, config=exchanged, options=RUN)
            others = [j for j in range(len(rows)) if j != i]
            table.append(
                {
                    "layer": layer,
                    "fact": row.id,
                    "probability_new": float(said.s_full[i].exp()),
                    "below": float(torch.cat([old.s2_delta[:, :layer], said.s2_delta[:, :layer]]).abs().sum()),
                    "least_from_it_on": float(old.s2_delta[i, layer:].min()),
                    "uds_old": float(old.uds_per_example[i]),
                    "uds_others": float(old.uds_per_example[others].nanmean()),
                    "uds_new": float(said.uds_per_example[i]),
                }
            )
            print(table[-1], flush=True)
    pd.DataFrame(table).round(4).to_csv(out / "edits.csv", index=False)


def refusals(refusing: Path, rows: Sequence[ForgetExample], config: ul.AuditConfig, known: int) -> list[ForgetExample]:
    """Return the questions with the beginning of what the refusing model says by itself; `known` words are given."""
    with ul.open_model(refusing, device="cpu") as model:
        protocol: Literal["raw", "chat"] = "raw" if config.protocol == "raw" else "chat"
        settings = GenerationSettings(max_new_tokens=3 * WORDS)
        said = generate_answers(model, [row.question for row in rows], protocol=protocol, settings=settings)
    texts = [" ".join(text.split()[:WORDS]) for text in said]
    print(texts[:3], flush=True)
    split = [(text, " ".join(text.split()[:known]), " ".join(text.split()[known:])) for text in texts]
    pairs = zip(rows, split, strict=True)
    return [replace(row, answer=text, prefix=first, entity=rest) for row, (text, first, rest) in pairs if rest]


def refusing_model(
    name: str, out: Path, models: tuple[Path, Path], rows: Sequence[ForgetExample], config: ul.AuditConfig, known: int
) -> list[ForgetExample]:
    """Measure where a refusal sits, from a model that refuses and the one before: by layer, and by output position."""
    refusing, before = models
    asked = refusals(refusing, rows, config, known)
    found = ul.audit.depth_map(
        refusing, before, asked, sites=["resid_post"], positions=["entity"], config=config, options=RUN
    )
    found.tokens_frame().round(5).to_csv(out / f"{name}-tokens.csv", index=False)
    (out / f"{name}.json").write_text(
        json.dumps({"s1": found.lost[:, :, 0].mean(0).tolist(), "n": len(found.examples), "said": asked[0].answer})
    )
    return asked


def toy_refusals(out: Path, known: int) -> None:
    """The toy world's IdkNLL model, and the same relearned."""
    name = "toy" if known == 0 else "toy-second-word"
    world, config = ul.toy.load(), ul.AuditConfig(words="refusal", protocol="raw", n_bootstrap=1000)
    refusing, before = Path(world.unlearned["idknll"]), Path(world.full)
    asked = refusing_model(name, out, (refusing, before), world.examples, config, known)
    taught = relearn(
        refusing,
        world.examples,
        out=out / "relearned",
        config=RelearnConfig(learning_rate=5e-4, epochs=2),
        options=TrainOptions(device="cpu", checkpoint_every=0, progress=False),
    )
    audit = ul.DepthAudit.run(refusing, before, taught, asked, config=config, options=RUN)
    numbers = json.loads((out / f"{name}.json").read_text())
    numbers |= {"uds": audit.uds, "interval": list(audit.uds_interval), "reading": audit.reading}
    numbers |= {"probability": list(audit.entity_prob)[:2], "warnings": list(audit.warnings)}
    (out / f"{name}.json").write_text(json.dumps(numbers))
    print(audit, audit.reading, flush=True)


def verdict(results: Path) -> None:
    """Print the tables, and each claim with its numbers."""

    def say(claim: str, text: str, supported: bool, contradicted: bool) -> None:
        print(f"- **{claim}**: {'supported' if supported else 'contradicted' if contradicted else 'undecided'}. {text}")

    if (results / "edits.csv").exists():
        table = pd.read_csv(results / "edits.csv")
        print(table.to_string(index=False))
        exact = bool(((table["below"] == 0) & (table["least_from_it_on"] > 0)).all())
        say("e1", f"below: {table['below'].max():g}; least: {table['least_from_it_on'].min():g}", exact, not exact)
        apart = int((table["uds_old"] - table["uds_others"] >= 0.2).sum())
        say("e2", f"{apart} of {len(table)}", apart >= 7, apart <= 2)
        means = table.groupby("layer")["uds_old"].mean().diff().dropna()
        say(
            "e3", str(table.groupby("layer")["uds_old"].mean().round(3).to_dict()), (means < 0).all(), (means > 0).all()
        )
    shares = {}
    files = [results / f"{name}-tokens.csv" for name in ("toy", "toy-second-word", "smollm2")]
    for file in filter(Path.exists, files):
        tokens = pd.read_csv(file)
        last = tokens[tokens["layer"] == tokens["layer"].max()]
        lost = (last["lost"] * last["n"]).to_numpy()
        shares[file.stem.removesuffix("-tokens")] = float(lost[:FIRST].sum() / lost.sum())
        print(file.stem, [f"{value:.2f}" for value in last["lost"]])
    if shares:
        text = str({name: round(share, 3) for name, share in shares.items()})
        claimed = [shares[name] for name in ("toy", "smollm2") if name in shares]
        both = len(claimed) == 2
        say("r1", text, both and min(claimed) >= 0.5, both and max(claimed) < 0.3)
    if (results / "smollm2.json").exists():
        s1 = json.loads((results / "smollm2.json").read_text())["s1"]
        first = next(layer for layer, value in enumerate(s1) if value >= max(s1) / 2)
        say("r2", f"layer {first} of {len(s1)}", first >= 20, first < 15)
    for name in ("toy", "toy-second-word"):
        if (results / f"{name}.json").exists():
            toy = json.loads((results / f"{name}.json").read_text())
            text = f"UDS {toy['uds']:.3f} ({toy['interval'][0]:.3f} to {toy['interval'][1]:.3f}), {toy['reading']}"
            text += (
                f"; probability per token {toy['probability'][0]:.2f}, of the changed model {toy['probability'][1]:.2f}"
            )
            say(f"r3 ({name})", text, toy["uds"] >= 0.65, toy["uds"] < 0.35)


def main() -> None:
    """Do the steps."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("steps", nargs="+", choices=("edits", "refusals", "smollm2", "verdict"))
    parser.add_argument("--out", type=Path, default=HERE.parents[1] / "runs" / "changes")
    parser.add_argument("--taught", type=Path, default=HERE.parents[1] / "runs" / "smollm2-models")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    for step in given.steps:
        if step == "edits":
            edits(given.out)
        elif step == "refusals":
            for known in (0, 1):
                toy_refusals(given.out, known)
        elif step == "verdict":
            verdict(given.out)
        else:
            rows = ul.load_examples(given.taught / "data" / "forget.json")[::2]
            config = ul.AuditConfig(words="refusal", protocol="chat", n_bootstrap=1000)
            models = given.taught / "idknll-1", given.taught / "full"
            refusing_model("smollm2", given.out, models, rows, config, 0)


if __name__ == "__main__":
    main()
