"""TOFU, from a local directory or the Hub, with its paraphrased and perturbed answers joined in."""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from uds_lens._compat.huggingface_hub import asking_the_hub
from uds_lens.data._columns import with_authors
from uds_lens.data._examples import ForgetExample, named, place, plain, short
from uds_lens.data._files import SUFFIXES
from uds_lens.data._readers import connection, load_examples
from uds_lens.errors import DataError, MissingSplitError


def load_tofu(source: str | os.PathLike[str], split: str) -> list[ForgetExample]:
    """Read one split of TOFU and join the paraphrased and perturbed answers that belong to it.

    For a split `s` these come from `s_perturbed` where that exists, matched by question and answer; an
    entity-annotated split `s_filtered` takes them from `s_perturbed` too. Rows without a partner keep none.
    `retain_perturbed`, the first 400 rows of every retain split, is a split of its own.

    Args:
        source: A directory with TOFU files named `<split>.json` (or .jsonl, .csv, .parquet), or a Hub data
            set such as "locuslab/TOFU" with one config per split.
        split: For example "forget10", "forget10_filtered", "retain90", "holdout10", "real_authors".

    Returns:
        The examples in the order of the split; ids are TOFU's row numbers where a file has none. `subject` is the
        author ("author 180"), 20 rows each, so that samples and intervals go by author.

    Raises:
        DataError: There is no such split, or one of the two files is broken.

    References:
        Maini et al. 2024, TOFU: A Task of Fictitious Unlearning for LLMs.
    """
    hub_name = str(source).removeprefix("hf:")
    partner = f"{split.removesuffix('_filtered')}_perturbed"
    directory = Path(source).expanduser()
    if directory.is_dir():
        path = _find(directory, split)
        if path is None:
            splits = sorted(path.stem for path in directory.iterdir() if path.suffix in SUFFIXES)
            raise MissingSplitError(
                f"{place(directory)}: no split {short(split)}. Found: {named(splits, quote='') or 'none'}."
            )
        examples = with_authors(load_examples(path), split)
        partner_path = _find(directory, partner)
        return _join(examples, load_examples(partner_path)) if partner_path else examples
    if directory.exists() or hub_name.count("/") != 1 or hub_name.startswith("."):
        raise DataError(
            f'{place(source)}: expected a directory with TOFU files, or a Hub data set such as "locuslab/TOFU". '
            "Use load_examples for a single file."
        )
    return _from_hub(hub_name, split, partner)


def _find(directory: Path, split: str) -> Path | None:
    paths = (directory / f"{split}{suffix}" for suffix in SUFFIXES)
    return next((path for path in paths if path.is_file()), None)


def _from_hub(name: str, split: str, partner: str) -> list[ForgetExample]:
    from datasets import get_dataset_config_names

    try:
        with asking_the_hub():
            configs = get_dataset_config_names(name)
    except Exception as error:  # the Hub client has no common base class for its errors
        raise DataError(
            f"{place(name)}: neither a local directory nor a Hub data set that can be reached "
            f"({type(error).__name__}: {plain(error)}). Check the path, the name and {connection()}."
        ) from error
    if split not in configs:
        raise MissingSplitError(f"{place(name)}: no split {short(split)}. Found: {named(configs, quote='')}.")
    examples = with_authors(load_examples(f"hf:{name}:{split}:train"), split)
    return _join(examples, load_examples(f"hf:{name}:{partner}:train")) if partner in configs else examples


def _join(examples: list[ForgetExample], partners: list[ForgetExample]) -> list[ForgetExample]:
    """Fill the paraphrased and perturbed answers that examples lack from the rows with the same question and answer."""
    by_text = {(partner.question, partner.answer): partner for partner in partners}
    joined = []
    for example in examples:
        partner = by_text.get((example.question, example.answer), example)
        joined.append(
            replace(
                example,
                paraphrased_question=example.paraphrased_question or partner.paraphrased_question,
                paraphrased_answers=example.paraphrased_answers or partner.paraphrased_answers,
                perturbed_answers=example.perturbed_answers or partner.perturbed_answers,
            )
        )
    return joined


_NAME = re.compile(r"[A-Z][\w-]+(?: [A-Z][\w-]+)+")


def with_author_names(examples: Sequence[ForgetExample]) -> list[ForgetExample]:
    """Replace the numbers of TOFU's authors by their names, which audits that mask or disturb a name need.

    The name of a subject is the run of capitalised words that most of its questions hold, the longest of those that are
    as frequent. Of the 20 authors of forget10 all come out right; 377 of their 400 questions name them.

    Args:
        examples: Rows of `load_tofu`; those without a subject, and subjects with no such run, stay as they are.

    Returns:
        The rows in their order.

    Example:
        >>> rows = [ForgetExample(str(n), q, "Yes.", subject="author 180") for n, q in enumerate(
        ...     ["Where was Ada Vey born?", "Is Ada Vey's prize the Silver Quill?", "What did she write?"])]
        >>> with_author_names(rows)[2].subject
        'Ada Vey'
    """
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for row in examples:
        if row.subject is None:
            continue
        question = re.sub(r"['\u2019]s\b", "", row.question)
        runs = set(_NAME.findall(question))
        opening = _NAME.match(question)
        if opening and opening[0].count(" ") > 1:  # the first word of a question may be no name
            runs.add(opening[0].partition(" ")[2])
        counts[row.subject].update(runs)
    names = {subject: max(runs, key=lambda run: (runs[run], len(run))) for subject, runs in counts.items() if runs}
    return [replace(row, subject=names.get(row.subject or "", row.subject)) for row in examples]
