"""How well entities are found without anybody marking them, and what the depth score becomes with them.

    python benchmarks/annotation_ways.py --shared ../shared

TOFU's forget10 has 367 rows whose entity was marked by hand. Each way finds them again without having seen them; token
F1 compares the tokens of both spans, averaged over rows (0 where nothing was found). Then `full`, `retain99`,
`retain95` and `retain90` are audited with the spans of each way. Prints a Markdown table.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import uds_lens as ul
from uds_lens.data import entity_span

UNLEARNED = ("full", "retain99", "retain95", "retain90")


def pipeline(name: str) -> Callable[[str], Any]:
    """A pipeline of spaCy by its name or folder."""
    import spacy

    return spacy.load(name)


def main() -> None:
    """Annotate, compare, audit, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shared", type=Path, default=Path("../shared"))
    parser.add_argument("--ways", nargs="+", default=["contrast", "difference", "answer"], help="also names")
    parser.add_argument(
        "--spacy", help="for names: another pipeline of spaCy than the library's, by name or folder"
    )
    parser.add_argument("--limit", type=int, default=None, help="a sample of the rows")
    parser.add_argument("--f1-only", action="store_true", help="no audits")
    args = parser.parse_args()
    models = args.shared / "models" / "tofu-small"
    given = ul.load_tofu(args.shared / "data" / "tofu", "forget10_filtered")
    if args.limit:
        given = ul.data.sample_examples(given, args.limit)
    print(
        "| spans | token F1 | same span | no span | measured |" + "".join(f" {name} |" for name in UNLEARNED)
    )
    print("|---|---|---|---|---|" + "---|" * len(UNLEARNED))
    with ul.open_model(models / "full") as model:
        tokenizer = model.tokenizer
    sets = {"by hand": given}
    for way in args.ways:
        nlp = pipeline(args.spacy) if way == "names" and args.spacy else None
        found = ul.annotate(
            given, by=way, full=models / "full", retain=models / "retain90", redo=True, nlp=nlp
        )
        sets[way] = list(found.examples)
    for way, examples in sets.items():
        scores = [token_f1(tokenizer, one, other) for one, other in zip(given, examples, strict=True)]
        same = sum(entity_span(one) == entity_span(other) for one, other in zip(given, examples, strict=True))
        none = sum(example.entity is None for example in examples)
        line = f"| {way} | {sum(scores) / len(scores):.3f} | {same / len(given):.0%} | {none} |"
        if not args.f1_only:
            baseline = ul.Baseline.measure(models / "full", models / "retain90", examples)
            audits = baseline.audit_all([models / name for name in UNLEARNED])
            line += f" {audits[0].n_measured} |"
            for audit in audits:
                low, high = audit.uds_interval
                line += f" {audit.uds:.3f} ({low:.2f} to {high:.2f}) |"
        print(line.replace("%", " %"), flush=True)
    print(f"\n{len(given)} rows", file=sys.stderr)


def token_f1(tokenizer: Any, one: ul.ForgetExample, other: ul.ForgetExample) -> float:
    """F1 of the answer's tokens inside two spans; 0 where one of them is missing."""
    spans = [span for span in (entity_span(one), entity_span(other)) if not isinstance(span, str)]
    if len(spans) < 2:
        return 0.0
    offsets = tokenizer(one.answer, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    first, second = ({i for i, (a, b) in enumerate(offsets) if a < s.end and b > s.start} for s in spans)
    shared = len(first & second)
    return 2 * shared / (len(first) + len(second)) if shared else 0.0


if __name__ == "__main__":
    main()
