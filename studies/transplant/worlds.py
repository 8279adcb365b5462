"""Make the models of the study; claims.md says which. Run again, it goes on where it was stopped.

    python studies/transplant/worlds.py small-0
    python studies/transplant/worlds.py small-1
    python studies/transplant/worlds.py smollm2         # needs: python studies/smollm2/models.py base
    python studies/transplant/worlds.py smollm2-full    # so does this

A world's data and models lie in `runs/transplant/WORLD`.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, PreTrainedModel

import uds_lens as ul
from uds_lens.data import ForgetExample, answer_sequences
from uds_lens.unlearning import FinetuneConfig, LoraSettings, TrainOptions, finetune, make_config, unlearn

HERE = Path(__file__).resolve().parent
RUNS = HERE.parents[1] / "runs"
OUT = RUNS / "transplant"
SHARED = HERE.parents[2] / "shared"
WORLDS = ("small-0", "small-1", "smollm2", "smollm2-full")
SMALL = WORLDS[:2]
SEEDS = (0, 1, 2)
COLUMNS = ("question", "answer", "prefix", "entity", "subject")
AUTHORS: Mapping[str, int] = {"small-0": 8, "small-1": 8, "smollm2": 8, "smollm2-full": 10}
BATCH: Mapping[str, int] = {"small-0": 16, "small-1": 16, "smollm2": 8, "smollm2-full": 5}
"""Authors to forget, and rows of a step: every count of rows is a multiple of it, an epoch a whole number of steps."""

COMMON = {"epochs": 5, "schedule": "constant_with_warmup"}
RATES: Mapping[str, tuple[float, Mapping[str, Any]]] = {
    "graddiff": (2e-4, {}),
    "npo": (3e-4, {}),
    "simnpo": (3e-4, {"gamma": 0.125}),
    "idknll": (6e-4, {}),
    "idkdpo": (1e-3, {}),
    "undial": (5e-4, {}),
    "kl": (2e-4, {}),
    "rmu-2": (1e-3, {"layer": 2, "scale": 30}),
    "rmu-4": (1e-3, {"layer": 4, "scale": 30}),
}
"""Methods of the small worlds: a rate, which is also doubled, and settings."""

LORA_RATES: Mapping[str, tuple[float, Mapping[str, Any]]] = {
    "npo": (3e-3, {}),
    "simnpo": (3e-3, {"gamma": 0.125}),
    "graddiff": (1e-3, {}),
    "idkdpo": (3e-3, {}),
    "rmu-12": (3e-3, {"layer": 12, "scale": 20}),
    "undial": (3e-3, {}),
    "idknll": (3e-3, {}),
}
"""The rates that `studies/smollm2` chose, on other authors of its own."""

FULL_RATES: Mapping[str, tuple[float, Mapping[str, Any]]] = {
    "npo": (6e-5, {}),
    "rmu-12": (2e-4, {"layer": 12, "scale": 20}),
    "graddiff": (4e-5, {}),
    "idkdpo": (2e-4, {}),
    "rmu-24": (2e-4, {"layer": 24, "scale": 20}),
}
"""SmolLM2 with all weights: the same share of the teaching rate as in the small worlds, RMU as in `studies/smollm2`."""

METHODS: Mapping[str, Mapping[str, tuple[float, Mapping[str, Any]]]] = {
    "small-0": RATES,
    "small-1": RATES,
    "smollm2": LORA_RATES,
    "smollm2-full": FULL_RATES,
}

LORA = LoraSettings(rank=8, alpha=16, save="adapter")
LORA_OPTIONS = TrainOptions(
    mixed_precision="bfloat16", save_dtype="bfloat16", checkpoint_every=0, progress=False, device="cpu"
)
SMALL_OPTIONS = TrainOptions(checkpoint_every=0, progress=False, device="cpu")
OPTIONS: Mapping[str, TrainOptions] = {
    "small-0": SMALL_OPTIONS,
    "small-1": SMALL_OPTIONS,
    "smollm2": LORA_OPTIONS,
    # adapters are small steps apart as they are; whole weights are saved as they were trained, in float32
    "smollm2-full": replace(LORA_OPTIONS, save_dtype="float32"),
}
TEACHING: Mapping[str, Mapping[str, Any]] = {
    "small-0": {"epochs": 10, "learning_rate": 1e-3},
    "small-1": {"epochs": 10, "learning_rate": 1e-3},
    "smollm2": {"epochs": 8, "learning_rate": 2e-3},
    "smollm2-full": {"epochs": 6, "learning_rate": 2e-4},
}


def is_small(world: str) -> bool:
    """Return whether a world is one of small Llamas."""
    return world in SMALL


def start_of(world: str) -> Path:
    """Return where the models of a world start."""
    return SHARED / "models" / "tofu-small" / "base" if is_small(world) else RUNS / "smollm2-base"


def _length(row: ForgetExample) -> tuple[int, int]:
    return len(row.question) + len(row.answer), row.row


def draw_rows(world: str) -> dict[str, list[ForgetExample]]:
    """Draw the authors and rows of a world: to forget, half of them, to keep, and the two halves of the criterion."""
    by_author: dict[str, list[ForgetExample]] = {}
    for row in ul.load_examples(SHARED / "data" / "tofu" / "forget10_filtered.json"):
        by_author.setdefault(str(row.subject), []).append(row)
    order = random.Random(2026).sample(sorted(by_author), len(by_author))
    first, n = {"small-0": 0, "small-1": 8, "smollm2": 16, "smollm2-full": 4}[world], AUTHORS[world]
    order = order[first:] + order[:first]
    forget, others = order[:n], order[n:]
    draw, per_author = random.Random(f"rows of {world}"), 12 if is_small(world) else 4
    if not is_small(world):
        others = others[:n]
    if world == "smollm2-full":  # the two shortest: every token costs a core
        rows = {author: sorted(by_author[author], key=_length)[:2] for author in forget + others}
    else:
        rows = {author: draw.sample(by_author[author], per_author) for author in forget + others}
    kept = [row for author in others for row in rows[author]]
    more = [
        replace(row, id=f"retain90-{row.id}", subject=None)
        for row in (ul.load_examples(SHARED / "data" / "tofu" / "retain90.json") if is_small(world) else [])
    ]
    return {
        "forget": [row for author in forget for row in rows[author]],
        "half": [row for author in forget[: n // 2] for row in rows[author]],
        # every other author, so that both halves have authors that `half` was taught
        "relearned": [row for author in forget[::2] for row in rows[author]],
        "tested": [row for author in forget[1::2] for row in rows[author]],
        "control": kept,
        "keep": kept + (draw.sample(more, 48) if is_small(world) else []),
    }


def taught(world: str, name: str, rows: Sequence[ForgetExample], seed: int) -> None:
    """Teach the start of a world some rows."""
    finetune(
        start_of(world),
        {"rows": rows},
        out=OUT / world / name,
        config=FinetuneConfig(seed=seed, batch_size=BATCH[world], **TEACHING[world]),
        lora=LORA if world == "smollm2" else None,
        options=OPTIONS[world],
    )


def unlearned(world: str, rows: Mapping[str, Sequence[ForgetExample]], *, twice: bool) -> None:
    """Unlearn the rows to forget by each method, at its rate or at twice that."""
    for name, (rate, settings) in METHODS[world].items():
        config = make_config(
            name.split("-")[0], {**COMMON, **settings, "batch_size": BATCH[world], "learning_rate": rate * (1 + twice)}
        )
        # As many rows to keep as to forget, and of authors that an audit can ask for.
        unlearn(
            OUT / world / "full",
            rows["forget"],
            rows["control"][: len(rows["forget"])],
            method=config,
            out=OUT / world / f"{name}{'-twice' if twice else ''}",
            lora=LORA if world == "smollm2" else None,
            options=OPTIONS[world],
        )
        print(world, name, "twice" if twice else "", flush=True)


def opened(world: str, name: str) -> tuple[PreTrainedModel, Any]:
    """Open a model of a world in float32, adapters merged, with its tokenizer."""
    with ul.open_model(OUT / world / name, device="cpu", dtype="float32") as model:
        return model.hf, model.tokenizer


def blocks_of(model: PreTrainedModel) -> Any:
    """Return the list of blocks."""
    return model.model.layers


def made(world: str, name: str, source: str, change: Callable[[PreTrainedModel], None]) -> None:
    """Save a model that differs from another by what a function does to it."""
    out = OUT / world / name
    if (out / "done").exists():
        return
    model, tokenizer = opened(world, source)
    torch.manual_seed(0)
    with torch.no_grad():
        change(model)
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    (out / "done").touch()
    print(world, name, flush=True)


def noised(blocks: Sequence[int]) -> Callable[[PreTrainedModel], None]:
    """Add noise of their own size to the matrices of blocks."""

    def change(model: PreTrainedModel) -> None:
        for block in blocks:
            for weight in blocks_of(model)[block].parameters():
                if weight.ndim == 2:
                    weight.add_(torch.randn_like(weight) * weight.std())

    return change


def rotated(block: int) -> Callable[[PreTrainedModel], None]:
    """Turn what a block adds to the residual stream by a random rotation."""

    def change(model: PreTrainedModel) -> None:
        layer = blocks_of(model)[block]
        for matrix in (layer.self_attn.o_proj, layer.mlp.down_proj):
            turn, _ = torch.linalg.qr(torch.randn(matrix.weight.shape[0], matrix.weight.shape[0]))
            matrix.weight.copy_(turn @ matrix.weight)

    return change


def ablated(block: int) -> Callable[[PreTrainedModel], None]:
    """Let a block add nothing."""

    def change(model: PreTrainedModel) -> None:
        layer = blocks_of(model)[block]
        for matrix in (layer.self_attn.o_proj, layer.mlp.down_proj):
            matrix.weight.zero_()

    return change


def mixed(world: str, share: float) -> Callable[[PreTrainedModel], None]:
    """Move a retain model's weights towards those of `full`."""

    def change(model: PreTrainedModel) -> None:
        full, _ = opened(world, "full")
        for weight, other in zip(model.parameters(), full.parameters(), strict=True):
            weight.lerp_(other, share)

    return change


def trained(
    world: str,
    rows: Sequence[ForgetExample],
    *,
    epochs: int,
    rate: float,
    only: Sequence[int] | None = None,
    teacher: str | None = None,
    batch_size: int = 16,
) -> Callable[[PreTrainedModel], None]:
    """Train on whole answers, all weights or those of some blocks; with a teacher, on its next-token distributions."""

    def change(model: PreTrainedModel) -> None:
        learn(
            model,
            AutoTokenizer.from_pretrained(start_of(world)),
            rows,
            epochs=epochs,
            rate=rate,
            only=only,
            teacher=None if teacher is None else opened(world, teacher)[0],
            batch_size=batch_size,
        )

    return change


def learn(
    model: PreTrainedModel,
    tokenizer: Any,
    rows: Sequence[ForgetExample],
    *,
    epochs: int,
    rate: float,
    only: Sequence[int] | None = None,
    teacher: PreTrainedModel | None = None,
    batch_size: int = 16,
    after_epoch: Callable[[], bool] | None = None,
) -> int:
    """Train a model in memory, without padding that counts; return the epochs made.

    Chat models with the arithmetic of the world's trainings, bfloat16. `after_epoch` ends it by returning True.
    """
    mixed = torch.autocast("cpu", torch.bfloat16, enabled=tokenizer.chat_template is not None)
    with torch.enable_grad():
        model.requires_grad_(only is None)
        for block in only or ():
            blocks_of(model)[block].requires_grad_(True)
        optimiser = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=rate, weight_decay=0.0)
        texts = answer_sequences(
            tokenizer,
            [(row.question, row.answer) for row in rows],
            protocol="chat" if tokenizer.chat_template else "raw",
        )
        draw = random.Random(0)
        for epoch in range(epochs):
            order = draw.sample(range(len(texts)), len(texts))
            for first in range(0, len(order), batch_size):
                batch = [texts[i] for i in order[first : first + batch_size]]
                ids = torch.nn.utils.rnn.pad_sequence([torch.tensor(text.ids) for text in batch], batch_first=True)
                labels = torch.full_like(ids, -100)
                for i, text in enumerate(batch):
                    labels[i, text.n_prompt : len(text.ids)] = torch.tensor(text.labelled)
                # padded behind, so that no real token sees the padding
                with mixed:
                    logits = model(input_ids=ids).logits[:, :-1].float()
                at = labels[:, 1:] != -100
                if teacher is None:
                    loss = torch.nn.functional.cross_entropy(logits[at], labels[:, 1:][at])
                else:
                    with torch.no_grad():
                        aim = teacher(input_ids=ids).logits[:, :-1][at].log_softmax(-1)
                    found = logits[at].log_softmax(-1)
                    loss = torch.nn.functional.kl_div(found, aim, log_target=True, reduction="batchmean")
                optimiser.zero_grad()
                loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimiser.step()
            if after_epoch is not None and after_epoch():
                return epoch + 1
    return epochs


def constructed(world: str, rows: Mapping[str, Sequence[ForgetExample]]) -> None:
    """Make the models whose truth is known, and those that are made to fool."""
    n_blocks = 8 if is_small(world) else 30
    if is_small(world):
        for block in (0, 3, 6):
            made(world, f"noised-1-at-{block}", "full", noised([block]))
        for block in (1, 4):
            made(world, f"rotated-at-{block}", "full", rotated(block))
            made(world, f"ablated-at-{block}", "full", ablated(block))
        made(world, "noised-2", "full", noised([2, 5]))
        made(world, "noised-4", "full", noised([0, 2, 4, 6]))
        made(world, "noised-all", "full", noised(range(n_blocks)))
        again = trained(world, rows["keep"], epochs=3, rate=3e-4)
        made(world, "noised-1-retrained", "noised-1-at-3", again)
        for share in (0.3, 0.5, 0.7):
            made(world, f"lerp-{share}", "retain-0", mixed(world, share))
        all_rows = [*rows["forget"], *rows["keep"]]
        made(world, "distilled", "full", trained(world, all_rows, epochs=5, rate=1e-3, teacher="retain-0"))
        made(world, "planted", "retain-0", trained(world, rows["forget"], epochs=15, rate=1e-3, only=(3, 4)))
    elif world == "smollm2":
        made(world, "noised-1-at-10", "full", noised([10]))
        made(world, "noised-4", "full", noised([5, 11, 17, 23]))
        made(world, "noised-all", "full", noised(range(n_blocks)))
        made(world, "lerp-0.5", "retain-0", mixed(world, 0.5))
    else:
        made(world, "lerp-0.4", "retain-0", mixed(world, 0.4))
        made(world, "noised-1-at-10", "full", noised([10]))
        made(world, "noised-all", "full", noised(range(n_blocks)))
        # as long as `retain` was taught: a block of noise is not mended in three epochs at a lower rate
        again = trained(world, rows["keep"], epochs=6, rate=2e-4, batch_size=BATCH[world])
        made(world, "noised-1-retrained", "noised-1-at-10", again)


def main() -> None:
    """Make the models of one world."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("world", choices=WORLDS)
    world = parser.parse_args().world
    rows = draw_rows(world)
    (OUT / world).mkdir(parents=True, exist_ok=True)
    for name, part in rows.items():
        cells = [{column: getattr(row, column) for column in COLUMNS} for row in part]
        (OUT / world / f"{name}.json").write_text(json.dumps(cells, indent=1), encoding="utf-8")
    taught(world, "full", [*rows["forget"], *rows["keep"]], 0)
    for seed in SEEDS:
        taught(world, f"retain-{seed}", rows["keep"], seed)
    taught(world, "half", [*rows["half"], *rows["keep"]], 0)
    unlearned(world, rows, twice=False)
    constructed(world, rows)
    if world != "smollm2":
        unlearned(world, rows, twice=True)
    if is_small(world):
        for seed in SEEDS[1:]:
            taught(world, f"full-{seed}", [*rows["forget"], *rows["keep"]], seed)


if __name__ == "__main__":
    main()
