"""How well entities are found without anybody marking them, and what the depth score becomes with them.

    python benchmarks/annotation_ways.py --shared ../shared --tpo ../Unlearning-TPO

TOFU's forget10 has 367 rows whose entity was marked by hand. Each way finds them again without having seen them, and
two baselines that choose nothing stand beside the ways: the whole answer, and every word of it that is not in the
question. Token F1 compares the marked tokens with those found, averaged over rows (0 where nothing was found), with an
interval clustered by author; then the difference from the second baseline, paired by row. With `--tpo`, a clone of
github.com/xzhou98/Unlearning-TPO, the same for the rows of these in which GPT-4o marked words for the TPO paper (Zhou
et al. 2025): often several words or phrases of one answer, where a way finds one run of words.

Then `full`, `retain99`, `retain95` and `retain90` are audited with the spans of each way. An audit takes one run of
words, so the second baseline has no score. Prints two Markdown tables.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import eq
from pathlib import Path
from typing import Any, TypeAlias

import torch

import uds_lens as ul
from uds_lens.data._examples import entity_span
from uds_lens.results import bootstrap_interval

UNLEARNED = ("full", "retain99", "retain95", "retain90")
WHOLE, NEW = "baseline: whole answer", "baseline: words not in the question"
Marks: TypeAlias = list[tuple[int, int]]
"""Marked characters of one answer; empty where nothing is marked."""


def pipeline(name: str) -> Callable[[str], Any]:
    """Load a pipeline of spaCy by its name or folder."""
    import spacy

    return spacy.load(name)


def main() -> None:
    """Annotate, compare, audit, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shared", type=Path, default=Path("../shared"))
    parser.add_argument("--ways", nargs="+", default=["contrast", "difference", "answer"], help="also names")
    parser.add_argument("--spacy", help="for names: another pipeline of spaCy than the library's, by name or folder")
    parser.add_argument("--tpo", type=Path, help="a clone of github.com/xzhou98/Unlearning-TPO")
    parser.add_argument("--limit", type=int, default=None, help="a sample of the rows")
    parser.add_argument("--f1-only", action="store_true", help="no audits")
    args = parser.parse_args()
    models = args.shared / "models" / "tofu-small"
    given = ul.load_tofu(args.shared / "data" / "tofu", "forget10_filtered")
    if args.limit:
        given = ul.data.sample_examples(given, args.limit)
    sets = {"by hand": given, WHOLE: [replace(row, entity=row.answer, prefix="") for row in given]}
    for way in args.ways:
        nlp = pipeline(args.spacy) if way == "names" and args.spacy else None
        found = ul.annotate(given, by=way, full=models / "full", retain=models / "retain90", redo=True, nlp=nlp)
        sets[way] = list(found.examples)
    marks = {way: [marked(row) for row in examples] for way, examples in sets.items()}
    marks[NEW] = [new_words(row) for row in given]
    golds = {"by hand": marks["by hand"]}
    if args.tpo:
        told = marked_by_gpt(args.tpo)
        golds["by GPT-4o"] = [told.get(row.question, []) for row in given]
    with ul.open_model(models / "full") as model:
        print_agreement(model.tokenizer, given, marks, golds)
    if not args.f1_only:
        print_scores(sets, models)


def print_agreement(
    tokenizer: Any,
    rows: Sequence[ul.ForgetExample],
    marks: Mapping[str, Sequence[Marks]],
    golds: Mapping[str, Sequence[Marks]],
) -> None:
    """Print how far each way agrees with each marking; rows in which a marking has nothing are left out of it."""
    tokens = {way: list(map(partial(tokens_in, tokenizer), rows, found)) for way, found in marks.items()}
    scores: dict[tuple[str, str], torch.Tensor] = {}
    heads = ""
    for gold, spans in golds.items():
        wanted = list(map(partial(tokens_in, tokenizer), rows, spans))
        heads += f" token F1, {sum(map(bool, spans))} rows {gold} | above the second baseline |"
        for way in marks:
            pairs = zip(wanted, tokens[way], strict=True)
            scores[gold, way] = torch.tensor([f1(one, other) if one else torch.nan for one, other in pairs])
    print(f"| spans |{heads} same span | no span |\n|---|{'---|---|' * len(golds)}---|---|")
    subjects = [row.subject for row in rows]
    for way in dict.fromkeys(("by hand", WHOLE, NEW, *marks)):
        line = f"| {way} |"
        for gold in golds:
            ahead = "" if way == NEW else mean(scores[gold, way] - scores[gold, NEW], subjects, sign="+")
            line += f" {mean(scores[gold, way], subjects)} | {ahead} |"
        same = sum(map(eq, marks[way], marks["by hand"])) / len(rows)
        print(f"{line} {100 * same:.0f}% | {sum(not spans for spans in marks[way])} |", flush=True)


def print_scores(sets: Mapping[str, Sequence[ul.ForgetExample]], models: Path) -> None:
    """Print the depth scores that the spans of each way give."""
    print("\n| spans | measured |" + "".join(f" {name} |" for name in UNLEARNED))
    print("|---|---|" + "---|" * len(UNLEARNED))
    for way, examples in sets.items():
        baseline = ul.Baseline.measure(models / "full", models / "retain90", examples)
        audits = baseline.audit_all([models / name for name in UNLEARNED])
        cells = (f"{a.uds:.3f} ({a.uds_interval[0]:.2f} to {a.uds_interval[1]:.2f})" for a in audits)
        print(f"| {way} | {audits[0].n_measured} | {' | '.join(cells)} |", flush=True)


def marked(example: ul.ForgetExample) -> Marks:
    """Return the characters of an entity."""
    span = entity_span(example)
    return [] if isinstance(span, str) else [(span[0], span[1])]


def new_words(example: ul.ForgetExample) -> Marks:
    """Return the words of the answer that the question lacks: runs of letters and digits, compared without case."""
    asked = set(re.findall(r"\w+", example.question.lower()))
    return [match.span() for match in re.finditer(r"\w+", example.answer) if match[0].lower() not in asked]


def marked_by_gpt(clone: Path) -> dict[str, Marks]:
    """Read what GPT-4o marked in forget10 for the TPO paper, by question."""
    from datasets import load_from_disk

    rows = load_from_disk(str(clone / "TOFU" / "data" / "forget10_with_common_words_gpt"))
    words = {row["question"]: json.loads(row["target_words"]) for row in rows}
    return {question: [(word["start"], word["end"]) for word in found] for question, found in words.items()}


def tokens_in(tokenizer: Any, example: ul.ForgetExample, marks: Marks) -> set[int]:
    """Return the places of the answer's tokens that overlap the marks."""
    offsets = tokenizer(example.answer, add_special_tokens=False, return_offsets_mapping=True)
    places = enumerate(offsets["offset_mapping"])
    return {place for place, (a, b) in places if any(a < end and b > start for start, end in marks)}


def f1(one: set[int], other: set[int]) -> float:
    """Return F1 of two sets of tokens; 0 where they share none."""
    return 2 * len(one & other) / max(1, len(one) + len(other))


def mean(values: torch.Tensor, subjects: Sequence[str | None], *, sign: str = "") -> str:
    """Return a mean over rows with its interval, clustered by author."""
    low, high = bootstrap_interval(values, clusters=subjects)
    return f"{values.nanmean().item():{sign}.3f} ({low:{sign}.2f} to {high:{sign}.2f})"


if __name__ == "__main__":
    main()
