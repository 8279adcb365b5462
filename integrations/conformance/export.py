"""Write the data of this kit again, from the definition of the score and without the engine of uds_lens.

    python export.py FOLDER

The data in this folder were written so; `tests/test_conformance.py` compares both with what the engine measures.
"""

import csv
import io
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from check import NORMED, TOLERANCE, TRUE, score
from transformers import AutoModelForCausalLM, AutoTokenizer

from uds_lens import toy
from uds_lens.data import ForgetExample
from uds_lens.data._prompts import render

TAU = 0.05

_MODELS = {"full": "full", "retain": "retain", "unlearned": "unlearned/npo"}
"""Folders of the toy world, `uds_lens/toy/world` in this repository."""

_FORGET, _KEPT = 6, 2
"""Examples of the kit; of the second, facts that retain knows too, no layer has a delta above tau and UDS no value."""


class _Convention(NamedTuple):
    """How states are patched; the defaults are right."""

    normed: bool = False
    shift: int = 0
    space: bool = True
    span: str = "entity"


_CONVENTIONS = {
    TRUE: _Convention(),
    NORMED: _Convention(normed=True),
    "late": _Convention(shift=1),
    "early": _Convention(shift=-1),
    "no_space": _Convention(space=False),
    "answer": _Convention(span="answer"),
    "continuation": _Convention(span="continuation"),
}


class _Row(NamedTuple):
    """An example in tokens: what is scored, and where states are patched."""

    ids: list[int]
    scored: list[int]
    patched: list[int]
    entity: list[int]


def export(folder: Path) -> None:
    """Write the data: eight examples, their S1 and S2 under every convention, scores, and the table to fill in."""
    world = toy.load()
    examples = [*world.examples[:_FORGET], *world.retain_examples[:_KEPT]]
    places = {role: world.path / name for role, name in _MODELS.items()}
    models = {role: AutoModelForCausalLM.from_pretrained(place, dtype=torch.float32) for role, place in places.items()}
    tokenizer = AutoTokenizer.from_pretrained(places["full"])
    rows = {name: [_row(example, tokenizer, how) for example in examples] for name, how in _CONVENTIONS.items()}
    deltas = {name: [_deltas(models, row, _CONVENTIONS[name]) for row in own] for name, own in rows.items()}
    layers = len(deltas[TRUE][0])
    known = {"tau": TAU, "tolerance": TOLERANCE, "dtype": "float32", "layers": layers, "protocol": "raw"}
    known["models"] = {role: f"uds_lens/toy/world/{name}" for role, name in _MODELS.items()}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "kit.json").write_text(json.dumps(known, indent=1) + "\n", "utf-8")
    _write_lines(folder / "examples.jsonl", [_example_record(*pair) for pair in zip(examples, rows[TRUE], strict=True)])
    right = (TRUE, NORMED)
    for file, names in (("expected.jsonl", right), ("conventions.jsonl", [n for n in deltas if n not in right])):
        _write_lines(folder / file, [line for name in names for line in _layers(name, examples, deltas[name])])
    _write_lines(folder / "scores.jsonl", [line for name in right for line in _scores(name, examples, deltas[name])])
    (folder / "template.csv").write_text(_template(examples, layers), "utf-8")


def _row(example: ForgetExample, tokenizer: Any, how: _Convention) -> _Row:
    """Tokenise an example under a convention: position p predicts token p + 1."""
    text = render(example, "raw", entity_space="always")
    rest = text.continuation if how.space else text.continuation.lstrip(" ")
    cut = len(text.continuation) - len(rest)
    prompt = tokenizer(text.prompt)["input_ids"]
    more = tokenizer(rest, add_special_tokens=False, return_offsets_mapping=True)
    start, end = text.entity.start - cut, text.entity.end - cut
    inside = [i for i, (a, b) in enumerate(more["offset_mapping"]) if b > start and a < end]
    entity = [len(prompt) + i for i in inside]
    tokens = entity
    if how.span != "entity":
        bare = tokenizer(text.prompt[: text.answer_start])["input_ids"]
        first = len(bare) if how.span == "answer" else len(prompt)
        tokens = list(range(first, len(prompt) + len(more["input_ids"])))
    scored = [token - 1 for token in tokens]
    return _Row(prompt + more["input_ids"], scored, [place + how.shift for place in scored], entity)


def _deltas(models: Mapping[str, Any], row: _Row, how: _Convention) -> list[tuple[float, float]]:
    """Return S1 and S2 of each layer from the definition, without the engine."""
    full = models["full"]
    (before,) = _logprobs(full, row, [])
    after = [_logprobs(full, row, _states(models[role], row.ids, how.normed)) for role in ("retain", "unlearned")]
    return [(before - one, before - two) for one, two in zip(*after, strict=True)]


def _states(model: Any, ids: Sequence[int], normed: bool) -> list[Any]:
    states: list[Any] = []
    layers = model.model.layers
    hooks = [layer.register_forward_hook(lambda _module, _inputs, output: states.append(output)) for layer in layers]
    try:
        with torch.no_grad():
            model(torch.tensor([ids]))
            return [*states[:-1], model.model.norm(states[-1]) if normed else states[-1]]
    finally:
        for hook in hooks:
            hook.remove()


def _logprobs(model: Any, row: _Row, states: Sequence[Any]) -> list[float]:
    """Return the mean log-probability of the scored tokens, one for each layer that is patched; one without states."""

    def patching(layer: int) -> Any:
        def patch(_module: Any, _inputs: Any, output: Any) -> Any:
            output = output.clone()
            output[layer, row.patched] = states[layer][0, row.patched]  # row `layer` is the run with this layer patched
            return output

        return patch

    hooks = [model.model.layers[layer].register_forward_hook(patching(layer)) for layer in range(len(states))]
    try:
        with torch.no_grad():
            logits = model(torch.tensor([row.ids] * max(1, len(states)))).logits.float()
    finally:
        for hook in hooks:
            hook.remove()
    targets = torch.tensor([row.ids[place + 1] for place in row.scored])
    chosen = logits[:, row.scored].log_softmax(-1).gather(2, targets[None, :, None].expand(len(logits), -1, 1))
    return [float(mean) for mean in chosen.double().mean((1, 2))]


def _example_record(example: ForgetExample, row: _Row) -> dict[str, Any]:
    text = render(example, "raw", entity_space="always")
    return {
        **{name: getattr(example, name) for name in ("id", "question", "answer", "prefix", "entity")},
        "prompt": text.prompt,
        "continuation": text.continuation,
        "input_ids": row.ids,
        "entity_tokens": row.entity,
        "patched_positions": row.patched,
    }


def _layers(
    name: str, examples: Sequence[ForgetExample], deltas: Sequence[Sequence[tuple[float, float]]]
) -> list[dict[str, Any]]:
    return [
        {"id": example.id, "layer": layer, "convention": name, "s1_delta": round(s1, 7), "s2_delta": round(s2, 7)}
        for example, own in zip(examples, deltas, strict=True)
        for layer, (s1, s2) in enumerate(own)
    ]


def _scores(
    name: str, examples: Sequence[ForgetExample], deltas: Sequence[Sequence[tuple[float, float]]]
) -> list[dict[str, Any]]:
    """UDS of each example, null where it has none, and their mean."""
    scores = {example.id: score(own, TAU) for example, own in zip(examples, deltas, strict=True)}
    defined = [value for value in scores.values() if value == value]
    lines = [
        {"id": example_id, "convention": name, "uds": value if value == value else None}
        for example_id, value in scores.items()
    ]
    return [*lines, {"id": "mean", "convention": name, "uds": sum(defined) / len(defined)}]


def _template(examples: Sequence[ForgetExample], layers: int) -> str:
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["id", "layer", "s1_delta", "s2_delta", "uds"])
    table.writerows([example.id, layer, "", "", ""] for example in examples for layer in range(layers))
    table.writerow(["mean", "", "", "", ""])
    return text.getvalue()


def _write_lines(file: Path, records: Sequence[Mapping[str, Any]]) -> None:
    file.write_text("".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records), "utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("usage: python export.py FOLDER")
    export(Path(sys.argv[1]))
