"""`uds-lens annotate`: mark the words in each answer that carry the knowledge."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated, Literal

import typer

import uds_lens as ul
from uds_lens._cli import options as opt
from uds_lens._cli.terminal import echo, print_json, say
from uds_lens._storage.files import check_writable, located
from uds_lens.annotation._annotations import FORMAT, AnnotateOptions
from uds_lens.errors import ConfigError


def annotate(
    examples: Annotated[str, opt.data("Questions with answers: a file, a Hub data set, or rwku/level2:DIR.")],
    by: Annotated[
        Literal["contrast", "difference", "names", "answer", "language_model"],
        typer.Option(
            help="contrast: the words on which full and retain differ most; difference: the words that set an answer "
            "apart from other answers; names: named entities (spaCy); answer: the words that are not in the question; "
            "language_model: the replies of a model of your choice to --prompts."
        ),
    ],
    out: Annotated[Path, opt.file("JSON file to write.")],
    full: Annotated[str | None, opt.model("For contrast: model trained on everything.")] = None,
    retain: Annotated[str | None, opt.model("For contrast: model that never saw the forget set.")] = None,
    prompts: Annotated[
        Path | None, opt.file("For language_model: write the prompts to this file (JSON lines: id, prompt) and exit.")
    ] = None,
    replies: Annotated[
        Path | None, opt.file("For language_model: the model's replies (JSON lines: id, reply).")
    ] = None,
    review: Annotated[
        Path | None, opt.file("Also write an HTML page that shows every answer with its entity highlighted.")
    ] = None,
    redo: Annotated[bool, opt.flag("--redo", "Also annotate rows that already have an entity.")] = False,
    *,
    options: Annotated[AnnotateOptions, opt.Offer(first=("protocol",))],
    run: opt.ModelRun,
    printing: opt.Printing,
) -> None:
    """Find the entity in every answer where none is marked, and fill in missing prompt types.

    Use it for data sets that do not mark entities. Every command can read the file written to --out; its field
    `entity_by` says how each entity was found. Look at the --review page before quoting a score, because the methods
    find different words.

    Token F1 on 367 hand-annotated TOFU rows: answer and difference .45, contrast .37, names .17; for comparison, all
    words that are not in the question .38, the whole answer .29. On 357 rows annotated by GPT-4o: answer .41,
    difference .42, contrast .37, names .23; all words that are not in the question .48, the whole answer .40.

    \b
    Example:
      uds-lens annotate --examples forget10.json --by contrast --full ckpt/full \\
          --retain ckpt/retain --out forget10-annotated.json --review review.html
    """
    say(f"finding entities in {examples} with {by} ...")
    check_writable(out, directory=False, format=FORMAT)
    if review is not None and check_writable(review, directory=False) == located(out):
        raise ConfigError("--out and --review name the same file: choose two different files.")
    rows = ul.load_examples(examples)
    if prompts is not None:
        ul.annotation.language_model_prompts(rows, prompts)
        echo(f"{len(rows)} prompts in {prompts}: save the model's replies as JSON lines (id, reply) for --replies.")
        return
    annotations = ul.annotate(
        rows, by=by, full=full, retain=retain, options=options, run=run, redo=redo, replies=replies
    )
    annotations.save(out)
    if review is not None:
        annotations.review(review)
    if printing.json:
        places = {"out": str(out), "review": None if review is None else str(review)}
        record = {**places, "examples": len(annotations.examples), "entities": annotations.counts}
        print_json(record)
        return
    if set(annotations.counts) == {"given"}:
        echo(f"All {len(annotations.examples)} examples already have an entity.")
    else:
        words = {"given": "already marked", "none": "without an entity"}
        counts = (f"{count} {words.get(way, f'found by {way}')}" for way, count in annotations.counts.items())
        echo(f"{len(annotations.examples)} examples: {'; '.join(counts)}.")
    for reason, count in Counter(reason for _, reason in annotations.findings if reason).most_common():
        echo(f"! {count} without: {reason}")
    echo(f"\nSaved in {out}" + ("" if review is None else f"; look at {review} before you measure"))
