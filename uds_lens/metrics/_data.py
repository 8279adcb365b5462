"""The data sets that metrics use: forget, holdout, retain, real authors, world facts and passages."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, TypeAlias, cast

from pydantic import PlainValidator

from uds_lens._settings import check_value, validated
from uds_lens._storage.records import digest
from uds_lens._types import PositiveInt, Sampling
from uds_lens.data import ForgetExample, load_tofu, sample_examples
from uds_lens.data._readers import ExamplesLike, as_examples, sorted_by
from uds_lens.errors import DataError, MissingSplitError, warn_once

_SETS = {
    "forget": "forget set",
    "holdout": "holdout set (questions of the same kind that no model has seen)",
    "retain": "retain set (questions about retained knowledge)",
    "real_authors": "real-authors set",
    "world_facts": "world-facts set",
    "passages": "passages set (texts to be forgotten, each split into two parts)",
}

PASSAGES = "passages"
"""The set whose texts are continued without any template. An empty set is not listed in `sizes`."""

_OTHER_ANSWERS = ("paraphrased", "perturbed")

_Examples: TypeAlias = Annotated[Sequence[ForgetExample], PlainValidator(lambda rows: tuple(as_examples(rows)))]


@dataclass(frozen=True)
class AnswerText:
    """An answer to a question."""

    owner: int
    """Index of the example in its set."""

    question: str
    """The question."""

    answer: str
    """The text to score: the reference, a paraphrase, or a wrong answer."""


@validated
@dataclass(frozen=True, kw_only=True)
class MetricData:
    """Data sets for metrics. A metric that needs a missing set is NaN, with the reason.

    A set is a list of examples, or anything that `load_examples` reads, such as a list of dicts, a table or a path.

    Example:
        >>> one = ForgetExample("0", "Who wrote Ash?", "It was Ada Vey.", entity="Ada Vey")
        >>> data = MetricData(forget=[one])
        >>> data.missing("forget"), data.missing("holdout")
        (None, 'there is no holdout set (questions of the same kind that no model has seen)')
    """

    forget: _Examples
    """The forget set, with paraphrased and perturbed answers where available."""

    holdout: _Examples = ()
    """Questions of the same kind that no model has seen; the non-members in membership inference."""

    retain: _Examples = ()
    """Questions about retained knowledge, with perturbed answers."""

    real_authors: _Examples = ()
    """Related facts from the real world, with wrong options as perturbed answers."""

    world_facts: _Examples = ()
    """Unrelated facts, with wrong options as perturbed answers."""

    passages: _Examples = ()
    """Texts to be forgotten: the beginning is the question, and the continuation is the answer."""

    entities: _Examples | None = None
    """The forget set with entity spans, for white-box metrics; None means the rows of `forget` that have entities."""

    sample: Mapping[str, Any] | None = None
    """Record of how `limited` sampled the examples; None if all examples are used."""

    def __post_init__(self) -> None:
        if not self.forget:
            raise DataError("no forget examples: the metrics need at least one question with its answer.")

    @property
    def _sets(self) -> dict[str, Sequence[ForgetExample]]:
        return {name: rows for name in _SETS if (rows := getattr(self, name)) or name != PASSAGES}

    @property
    def with_entities(self) -> list[ForgetExample]:
        """Examples for white-box metrics."""
        chosen = self.forget if self.entities is None else self.entities
        return [example for example in chosen if (example.entity or "").strip()]

    def examples(self, name: str) -> Sequence[ForgetExample]:
        """Return the examples of a set; for a name such as "forget/paraphrased", return the examples of "forget".

        "forget/rephrased" holds the examples that have a paraphrased question, which replaces the original question.
        "forget/endings" holds two rows for each example with a perturbed answer: the true answer and the first
        perturbed answer, each as a prefix whose last state is used.
        """
        base, _, kind = name.partition("/")
        rows = getattr(self, base)
        if kind == "endings":
            return [
                replace(row, answer=f"{text} {_first_word(text)}", prefix=text, entity=_first_word(text))
                for row in rows
                if row.perturbed_answers
                for text in (row.answer.strip(), row.perturbed_answers[0].strip())
            ]
        if kind != "rephrased":
            return rows
        return [replace(row, question=row.paraphrased_question) for row in rows if row.paraphrased_question]

    def texts(self, name: str) -> list[AnswerText]:
        """Return the answers of "forget" (the references), "forget/paraphrased", "forget/perturbed" or another set."""
        kind = name.partition("/")[2]
        return [
            AnswerText(index, example.question, answer)
            for index, example in enumerate(self.examples(name))
            for answer in (getattr(example, f"{kind}_answers") if kind in _OTHER_ANSWERS else (example.answer,))
        ]

    def missing(self, name: str) -> str | None:
        """Return the reason why a set is missing, as a clause; None if the set is available."""
        if name == "entities":
            if self.with_entities:
                return None
            asked = "no example" if self.sample is None else f"none of the {len(self.forget)} sampled questions"
            return f"{asked} has an entity span"
        base, _, kind = name.partition("/")
        if not self.examples(base):
            return f"there is no {_SETS[base]}"
        if kind and not self.texts(name):
            lacked = {"rephrased": "a paraphrased question", "endings": "a perturbed answer"}
            what = lacked.get(kind, f"a {kind} answer")
            return f"no example of the {_SETS[base].partition(' (')[0]} has {what}"
        return None

    def limited(self, n: int | None, *, sample: Sampling = "random", seed: int = 0) -> MetricData:
        """Sample n examples from every set, so that all metrics on the forget set use the same questions.

        Each set is sampled by `uds_lens.data.sample_examples`. `entities` keeps the rows whose questions were drawn
        from `forget` (matched by question, otherwise by a custom id), so it may hold fewer than n rows.

        Args:
            n: Number of examples to keep in every set; None keeps all.
            sample: "random" for a sample spread over the subjects, or "first" for the first examples.
            seed: Seed of the random sample.

        Returns:
            The sample, or the same object if every set has at most n examples. Its field `sample` holds `limit`,
            `sample` and `seed`; for each set, the total number of examples (`of`), and how many of its subjects were
            drawn, out of how many (`subjects`); and for "first", the sort order of the forget set.

        Raises:
            ConfigError: `n` is not an integer of at least 1, or `sample` is neither "random" nor "first".
        """
        check_value("limit", n, PositiveInt | None)
        whole = self._sets
        if n is None or all(len(part) <= n for part in whole.values()):
            return self
        kept = {name: sample_examples(part, n, seed=seed, sample=sample) for name, part in whole.items()}
        if self.entities is not None:
            whole["entities"] = self.entities
            matched = _of_questions(kept["forget"], self.forget, self.entities)
            if matched is None:
                matched = sample_examples(self.entities, n, seed=seed, sample=sample)
            kept["entities"] = matched
        return replace(self, **kept, sample=sample_record(whole, kept, limit=n, sample=sample, seed=seed))

    def sizes(self) -> dict[str, int]:
        """Return the number of examples per set."""
        counts = {name: len(rows) for name, rows in self._sets.items()}
        return {**counts, "entities": len(self.with_entities)}


def _first_word(text: str) -> str:
    """Return a word to append to a text, so that the text's last state has a next token to predict."""
    return text.split()[0] if text else "The"


def data_hash(data: MetricData) -> str:
    """Return a hash of the examples in all sets, ignoring row numbers."""
    left_out = ("sample", *([] if data.passages else [PASSAGES]))
    sets = {each.name: getattr(data, each.name) for each in fields(data) if each.name not in left_out}
    plain = {name: rows and [{**vars(row), "row": None} for row in rows] for name, rows in sets.items()}
    return digest(plain)


def load_tofu_data(
    source: str | os.PathLike[str],
    *,
    split: str = "forget10",
    limit: int | None = None,
    sample: Sampling = "random",
    seed: int = 0,
) -> MetricData:
    """Load one forget split of TOFU with its variants, holdout, retain, real authors and world facts.

    The sets are the same as in Open-Unlearning: `<split>` with `<split>_perturbed`, `holdoutNN`, `retain_perturbed`,
    `real_authors_perturbed` and `world_facts_perturbed`; and, if it exists, `<split>_filtered` for the entity spans.

    Args:
        source: A directory with TOFU files, or a Hub data set such as "locuslab/TOFU".
        split: "forget01", "forget05" or "forget10".
        limit: Number of examples to sample from every set, with `sample` and `seed` (see `MetricData.limited`); None
            keeps all.
        sample: "random" or "first".
        seed: Seed of the random sample.

    Returns:
        The data; sets that do not exist are empty.

    Raises:
        DataError: The forget split does not exist.
    """

    def optional(name: str) -> list[ForgetExample]:
        try:
            return load_tofu(source, name)
        except MissingSplitError:  # a corrupt file still raises an error
            return []

    holdout = split.replace("forget", "holdout")
    data = MetricData(
        forget=load_tofu(source, split),
        holdout=optional(holdout) if holdout != split else (),
        retain=optional("retain_perturbed"),
        real_authors=optional("real_authors_perturbed"),
        world_facts=optional("world_facts_perturbed"),
        entities=optional(f"{split}_filtered") or None,
    )
    return data.limited(limit, sample=sample, seed=seed)


def open_metric_data(
    source: ExamplesLike,
    *,
    retain: ExamplesLike | None = None,
    holdout: ExamplesLike | None = None,
    passages: ExamplesLike | None = None,
    split: str = "forget10",
    limit: int | None = None,
    sample: Sampling = "random",
    seed: int = 0,
) -> MetricData:
    """Load metric data from a TOFU source ("tofu:SOURCE" or a directory, see `load_tofu_data`) or from a forget set.

    A single file, rows, or anything else that `load_examples` reads is used as the forget set.

    Args:
        source: A TOFU source or a forget set, as described above.
        retain: Facts to retain, in any form that `load_examples` reads; replaces TOFU's retain set, if there is one.
        holdout: Questions of the same kind that no model has seen; replaces TOFU's holdout set, if there is one.
        passages: Texts to be forgotten, each split into two parts.
        split: Forget split of TOFU.
        limit: Number of examples to sample from every set; None keeps all.
        sample: "random" (spread over the subjects) or "first".
        seed: Seed of the random sample.
    """
    named = os.fspath(source) if isinstance(source, str | os.PathLike) else None
    if named is not None and (named.startswith("tofu:") or Path(named).expanduser().is_dir()):
        data = load_tofu_data(named.removeprefix("tofu:"), split=split)
    else:
        data = MetricData(forget=as_examples(source))
    others = {"retain": retain, "holdout": holdout, PASSAGES: passages}
    given = {name: as_examples(rows) for name, rows in others.items() if rows is not None}
    return replace(data, **cast("dict[str, Any]", given)).limited(limit, sample=sample, seed=seed)


def sample_record(
    whole: Mapping[str, Sequence[ForgetExample]],
    kept: Mapping[str, Sequence[ForgetExample]],
    *,
    limit: int,
    sample: str,
    seed: int,
) -> dict[str, Any]:
    """Return the provenance record of the sampling; see `MetricData.limited`."""

    def n_subjects(examples: Sequence[ForgetExample]) -> int:
        return len({example.subject for example in examples if example.subject})

    record = {
        "limit": limit,
        "of": {name: len(part) for name, part in whole.items()},
        "sample": sample,
        "seed": seed,
        "subjects": {
            name: {"asked": n_subjects(kept[name]), "of": n_subjects(part)}
            for name, part in whole.items()
            if n_subjects(part)
        },
    }
    return record if sample == "random" else record | {"sorted_by": sorted_by(whole["forget"])}


def _of_questions(
    drawn: Sequence[ForgetExample], forget: Sequence[ForgetExample], entities: Sequence[ForgetExample]
) -> list[ForgetExample] | None:
    """Return the rows of `entities` whose questions were drawn; None if no row matches any question of `forget`."""

    def keys(row: ForgetExample) -> list[tuple[str, ...]]:
        # a row number is not an id: row 3 in two files need not be the same question
        ids = [] if row.id == str(row.row) else [("id", row.id)]
        return [("both", row.question, row.answer), ("question", row.question), *ids]

    by_key: dict[tuple[str, ...], ForgetExample] = {}
    for row in forget:
        for key in keys(row):
            by_key.setdefault(key, row)
    owners = [next((by_key[key] for key in keys(row) if key in by_key), None) for row in entities]
    unknown = owners.count(None)
    if unknown == len(owners):
        return None
    if unknown:
        warn_once(
            f"{unknown} of {len(entities)} rows with entities have a question that is not in the forget set. The "
            "sample leaves these rows out, so that all metrics use the same questions. Give the forget set and the "
            "rows with entities the same questions or ids."
        )
    chosen = {id(row) for row in drawn}
    return [row for row, owner in zip(entities, owners, strict=True) if owner is not None and id(owner) in chosen]
