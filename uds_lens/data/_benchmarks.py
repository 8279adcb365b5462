"""Published data sets for unlearning: their locations and licences, what they lack, and how to read them.

TOFU has a separate reader, which adds its paraphrased and perturbed answers.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

from uds_lens.data._columns import examples_from_rows, with_authors
from uds_lens.data._examples import ForgetExample, named, place, short
from uds_lens.data._readers import SUFFIXES, hub_data, load_examples, read_rows
from uds_lens.errors import ConfigError, DataError, MissingSplitError


def load_tofu(source: str | os.PathLike[str], split: str) -> list[ForgetExample]:
    """Read one split of TOFU, including its paraphrased and perturbed answers.

    For a split `s`, or its entity-annotated version `s_filtered`, these answers come from the split `s_perturbed`, if
    it exists. Rows are matched by question and answer; a row without a match gets no such answers. `retain_perturbed`,
    the first 400 rows of every retain split, is a separate split.

    Args:
        source: A directory with TOFU files named `<split>.json` (or .jsonl, .csv, .parquet), or a Hub data
            set such as "locuslab/TOFU" with one config per split.
        split: For example "forget10", "forget10_filtered", "retain90", "holdout10", "real_authors".

    Returns:
        The examples in the split's order. If the file has no ids, TOFU's row numbers are used. `subject` is the author
        ("author 180", with 20 rows each), so that samples are drawn and intervals computed by author.

    Raises:
        DataError: The split does not exist, or one of its files is broken.

    References:
        Maini et al. 2024, TOFU: A Task of Fictitious Unlearning for LLMs.
    """
    where, splits = _splits(source)
    if split not in splits:
        raise MissingSplitError(f"{where}: no split {short(split)}. Found: {named(splits, quote='') or 'none'}.")
    examples = with_authors(load_examples(splits[split]), split)
    partner = splits.get(f"{split.removesuffix('_filtered')}_perturbed")
    return examples if partner is None else _join(examples, load_examples(partner))


def _splits(source: str | os.PathLike[str]) -> tuple[str, dict[str, str | Path]]:
    """Return the location of TOFU's splits, and each split's source for `load_examples`, keyed by name."""
    directory, name = Path(source).expanduser(), str(source).removeprefix("hf:")
    if directory.is_dir():
        files = [file for suffix in reversed(SUFFIXES) for file in directory.glob(f"*{suffix}") if file.is_file()]
        return place(directory), dict(sorted({file.stem: file for file in files}.items()))
    if directory.exists() or name.count("/") != 1 or name.startswith("."):
        raise DataError(
            f'{place(source)}: expected a directory with TOFU files, or a Hub data set such as "locuslab/TOFU". '
            "Use load_examples for a single file."
        )
    from datasets import get_dataset_config_names

    with hub_data(name, "neither a local directory nor a Hub data set that can be reached", "the path, the name"):
        configs = get_dataset_config_names(name)
    return place(name), {config: f"hf:{name}:{config}:train" for config in configs}


def _join(examples: list[ForgetExample], partners: list[ForgetExample]) -> list[ForgetExample]:
    """Fill in missing paraphrased and perturbed answers from the rows with the same question and answer."""
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
    """Replace TOFU's author numbers with the authors' names, for audits that mask or perturb a name.

    An author's name is the sequence of capitalised words that occurs in the largest number of the author's questions
    (the longest sequence, if several are equally frequent). This is correct for all 20 authors of forget10, who are
    named in 377 of their 400 questions.

    Args:
        examples: Rows from `load_tofu`. Rows without a subject, or with a subject whose name is not found, are
            unchanged.

    Returns:
        The rows, in order.

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
        if opening and opening[0].count(" ") > 1:  # the first word of a question is capitalised anyway
            runs.add(opening[0].partition(" ")[2])
        counts[row.subject].update(runs)
    names = {subject: max(runs, key=lambda run: (runs[run], len(run))) for subject, runs in counts.items() if runs}
    return [replace(row, subject=names.get(row.subject or "", row.subject)) for row in examples]


Row: TypeAlias = Mapping[str, Any]
RowReader: TypeAlias = Callable[[Row], Iterable[dict[str, Any]]]

_BLANK = re.compile(r"_{2,}")
_LUME_ID = re.compile(r"^\"?(?P<document>[\w-]+?)\"?(?P<kind>qa|sc)\d+$")
_LUME_KINDS = {"qa": "question", "sc": "completion"}


def _answer_is_entity(question: object, answer: object, **more: Any) -> dict[str, Any]:
    return {"question": question, "answer": answer, "entity": answer, "prefix": "", **more}


def rwku(row: Row) -> Iterator[dict[str, Any]]:
    """Read a row of RWKU. Sentences with a blank are preceded by the instruction of RWKU's authors."""
    query = row.get("query")
    if not isinstance(query, str):
        raise DataError(f"expected text under `query`; got {short(query)}. Found: {named(row) or 'no column'}.")
    if _BLANK.search(query):
        query = f"Please complete the blank in the following question. {query}"
    yield _answer_is_entity(query, row.get("answer"), subject=row.get("subject"), type=row.get("type"))


def full_output(row: Row) -> Iterator[dict[str, Any]]:
    """Read the full model's continuation (`full_output`) as the answer, and as the entity without its full stop."""
    said, prefix, answer = (str(row.get(name) or "") for name in ("full_output", "prefix", "answer"))
    follows = answer.startswith(prefix) and not answer[len(prefix) : len(prefix) + 1].isspace()
    space = "" if follows or not prefix else " "
    yield {**row, "answer": f"{prefix}{space}{said.strip()}", "entity": said.strip().rstrip("."), "prefix": prefix}


def muse(row: Row) -> Iterator[dict[str, Any]]:
    """Read a row of MUSE: a question whose answer is the entity, or a passage in two parts."""
    if "gt" in row:
        yield {"question": row.get("prompt"), "answer": row.get("gt")}
        return
    yield _answer_is_entity(row.get("question"), row.get("answer"))


def multiple_choice(row: Row) -> Iterator[dict[str, Any]]:
    """Read a row of WMDP. The correct choice is both answer and entity; the other choices are perturbed answers."""
    choices, right = row.get("choices"), row.get("answer")
    if not isinstance(choices, (list, tuple)) or type(right) is not int or not 0 <= right < len(choices):
        raise DataError(
            f"expected a list of `choices`, and in `answer` the 0-based index of the correct one; got {short(choices)} "
            f"and {short(right)}."
        )
    wrong = [choice for place, choice in enumerate(choices) if place != right]
    yield _answer_is_entity(row.get("question"), choices[right], perturbed_answers=wrong)


def knowundo(row: Row) -> Iterator[dict[str, Any]]:
    """Read a row of KnowUnDo, whose lists `train` and `val` contain questions (`text`) and answers (`labels`)."""
    if "text" in row:
        yield {"question": row.get("text"), "answer": row.get("labels")}
        return
    for part in ("train", "val"):
        for cell in row.get(part) or ():
            if not isinstance(cell, Mapping):
                raise DataError(f"expected rows of `text` and `labels` under `{part}`; got {short(cell)}.")
            yield {"question": cell.get("text"), "answer": cell.get("labels"), "type": part}


def lume(row: Row) -> Iterator[dict[str, Any]]:
    """Read a row of LUME. Answers to questions are also entities; completions are whole passages without an entity."""
    parts = _LUME_ID.match(str(row.get("id", "")))
    kind = parts["kind"] if parts else None
    task = row.get("task")
    columns = {
        "id": row.get("id"),
        "question": row.get("input"),
        "answer": row.get("output"),
        "subject": parts["document"] if parts else None,
        "type": f"{task} {_LUME_KINDS[kind]}" if kind else task,
    }
    yield {**columns, "entity": row.get("output"), "prefix": ""} if kind == "qa" else columns


_HUBBLE = ("nationality", "birthdate", "birthplace", "email", "occupation", "alumni_of", "uuid")


def hubble(row: Row) -> Iterator[dict[str, Any]]:
    """Read a biography from Hubble (`text`), as one row for each fact in `meta` that a single sentence states.

    The biography up to that sentence is the question, as in training. The sentence is the answer, and the fact in it is
    the entity. For the first sentence, the question is a request that names the person. The type says how often the
    biography was inserted.
    """
    meta, text = row.get("meta"), row.get("text")
    try:
        meta = json.loads(meta) if isinstance(meta, str) else meta
    except ValueError:
        meta = None
    if not isinstance(meta, Mapping) or not isinstance(text, str):
        raise DataError(f"expected a biography under `text`, and its facts under `meta`; got {short(row)}.")
    starts = [0, *(match.end() for match in re.finditer(r"(?<=[.!?])\s+(?=[A-Z])", text))]
    for start, end in zip(starts, [*starts[1:], len(text)], strict=True):
        for fact in _HUBBLE:
            value, sentence = str(meta.get(fact) or ""), text[start:end].strip()
            if value and text.count(value) == 1 and value in sentence:
                yield {
                    "question": text[:start].strip() or f"Tell me about {meta.get('full_name')}.",
                    "answer": sentence,
                    "entity": value,
                    "prefix": sentence[: sentence.index(value)].rstrip(),
                    "subject": meta.get("full_name"),
                    "type": f"{fact}, inserted {row.get('duplicates', 0)} times",
                }


def prompt_and_response(row: Row) -> Iterator[dict[str, Any]]:
    """Read `prompt` and `response`, or `question` and `answer`."""
    yield {"question": row.get("question", row.get("prompt")), "answer": row.get("answer", row.get("response"))}


@dataclass(frozen=True)
class Part:
    """A named set of rows in a benchmark."""

    config: str | None  # configuration on the Hub
    split: str  # split on the Hub
    files: tuple[str, ...]  # path patterns in a copy of the repository; the first one that matches is used


@dataclass(frozen=True)
class Benchmark:
    """Description of a published data set."""

    title: str
    """Its full name."""
    hub: str | None
    """Its id on the Hugging Face Hub; None if it is not there."""
    licence: str
    """The licence under which its authors publish it."""
    parts: Mapping[str, Part]
    """Its parts, keyed by the names used in this library; the first part is the forget set."""
    read: RowReader
    """Converts a published row to rows that this library reads."""
    lacks: tuple[str, ...]
    """What the data set lacks but an audit or a metric may need."""
    reference: str
    """The paper."""
    models: Mapping[str, str] = field(default_factory=dict)
    """Hub ids of published checkpoints for an audit, keyed by role ("full", "retain")."""


def _rwku(name: str) -> Part:
    return Part(name, "test", (f"All/{name}.json", f"{name}.json", f"{name}.jsonl", f"{name}/test/*.parquet"))


def _muse(name: str) -> Part:
    return Part("knowmem", name, (f"knowmem/{name}-*.parquet", f"{name}.*", f"knowmem/{name.replace('_', '-')}.json"))


_MUSE_PASSAGES = Part("verbmem", "forget", ("verbmem/forget-*.parquet", "verbmem/forget.json"))


def _wmdp(name: str) -> Part:
    return Part(name, "test", (f"{name}/test-*.parquet", f"{name.removeprefix('wmdp-')}_questions.json", f"{name}.*"))


def _knowundo(config: str, split: str) -> Part:
    return Part(config, split, (f"{config}/{split}.json", f"{config}/{split}/*.parquet", f"{config}_{split}.*"))


_NO_RETAIN_MODEL = "a retain model (if the facts were learned in fine-tuning, the model before fine-tuning can be used)"
_NO_PARAPHRASES = "paraphrased and perturbed answers"
_NO_SUBJECTS = "subjects (so intervals are over examples)"
_NO_ENTITIES = "entities: mark them (`uds_lens.annotate`)"

_TOFU_MODELS = {
    role: f"open-unlearning/tofu_Llama-3.2-1B-Instruct_{name}"
    for role, name in (("full", "full"), ("retain", "retain90"))
}


def _muse_benchmark(name: str, about: str) -> Benchmark:
    return Benchmark(
        title=f"MUSE {name}, questions about {about}",
        hub=f"muse-bench/MUSE-{name}",
        licence="CC-BY-4.0",
        parts={"forget": _muse("forget_qa"), "retain": _muse("retain_qa"), "passages": _MUSE_PASSAGES},
        read=muse,
        lacks=(_NO_PARAPHRASES, _NO_SUBJECTS),
        models={"full": f"muse-bench/MUSE-{name}_target", "retain": f"muse-bench/MUSE-{name}_retrain"},
        reference="Shi et al. 2024, MUSE: Machine Unlearning Six-Way Evaluation for Language Models",
    )


BENCHMARKS: dict[str, Benchmark] = {
    "tofu": Benchmark(
        title="TOFU",
        hub="locuslab/TOFU",
        licence="MIT",
        parts={
            name: Part(name, "train", (f"{name}.*",))
            for name in (
                "forget10",
                "forget05",
                "forget01",
                "retain90",
                "retain95",
                "retain99",
                "full",
                "holdout10",
                "retain_perturbed",
                "real_authors",
                "world_facts",
            )
        },
        read=lambda row: [dict(row)],
        lacks=("entities (tofu-annotated has them for forget10)",),
        models=_TOFU_MODELS,
        reference="Maini et al. 2024, TOFU: A Task of Fictitious Unlearning for LLMs",
    ),
    "tofu-annotated": Benchmark(
        title="TOFU forget10 with entities",
        hub="jaeunglee/uds-annotated-tofu",
        licence="Apache-2.0",
        parts={"forget10": Part(None, "train", ("forget10_filtered.*", "*.json", "*.parquet", "data/*.parquet"))},
        read=lambda row: [dict(row)],
        lacks=("paraphrased and perturbed answers (load_tofu joins them from TOFU's own files)",),
        models=_TOFU_MODELS,
        reference="Lee, Kim and Jo 2026, Measuring the Depth of LLM Unlearning via Activation Patching",
    ),
    "tofu-full-output": Benchmark(
        title="TOFU forget10 with the full model's continuation of each prefix as the answer",
        hub="jaeunglee/uds-annotated-tofu",
        licence="Apache-2.0",
        parts={"forget10": Part(None, "train", ("forget10_filtered.*", "*.json", "*.parquet", "data/*.parquet"))},
        read=full_output,
        lacks=(_NO_PARAPHRASES,),
        models=_TOFU_MODELS,
        reference="Lee, Kim and Jo 2026, Measuring the Depth of LLM Unlearning via Activation Patching",
    ),
    "rwku": Benchmark(
        title="RWKU, real-world knowledge about famous people",
        hub="jinzhuoran/RWKU",
        licence="CC-BY-4.0",
        parts={
            "level1": _rwku("forget_level1"),
            "level2": _rwku("forget_level2"),
            "level3": _rwku("forget_level3"),
            "neighbor1": _rwku("neighbor_level1"),
            "neighbor2": _rwku("neighbor_level2"),
        },
        read=rwku,
        lacks=("a retain model: no model was trained on everything except one person", _NO_PARAPHRASES),
        reference="Jin et al. 2024, RWKU: Benchmarking Real-World Knowledge Unlearning for LLMs",
    ),
    "muse-news": _muse_benchmark("News", "BBC articles"),
    "muse-books": _muse_benchmark("Books", "Harry Potter"),
    "wmdp": Benchmark(
        title="WMDP, multiple choice on hazardous knowledge",
        hub="cais/wmdp",
        licence="MIT",
        parts={"bio": _wmdp("wmdp-bio"), "chem": _wmdp("wmdp-chem"), "cyber": _wmdp("wmdp-cyber")},
        read=multiple_choice,
        lacks=("paraphrased answers (its perturbed answers are the wrong choices)", _NO_SUBJECTS),
        models={
            "full": "EleutherAI/deep-ignorance-unfiltered",
            "retain": "EleutherAI/deep-ignorance-e2e-strong-filter",
        },
        reference="Li et al. 2024, The WMDP Benchmark: Measuring and Reducing Malicious Use With Unlearning",
    ),
    "knowundo": Benchmark(
        title="KnowUnDo, copyright and privacy",
        hub="zjunlp/KnowUnDo",
        licence="MIT",
        parts={
            "copyright": _knowundo("copyright", "unlearn"),
            "copyright-retain": _knowundo("copyright", "retention"),
            "privacy": _knowundo("privacy", "unlearn"),
            "privacy-retain": _knowundo("privacy", "retention"),
        },
        read=knowundo,
        lacks=(_NO_RETAIN_MODEL, _NO_ENTITIES, _NO_PARAPHRASES, _NO_SUBJECTS),
        reference="Tian et al. 2024, To Forget or Not? Towards Practical Knowledge Unlearning for LLMs",
    ),
    "lume": Benchmark(
        title="LUME, stories, personal data and biographies (SemEval 2025, task 4)",
        hub="llmunlearningsemeval2025organization/semeval25-unlearning-dataset-public",
        licence="Apache-2.0 (amazon-science/lume-llm-unlearning)",
        parts={
            kind: Part(None, f"{kind}_train", (f"data/{kind}.jsonl", f"data/{kind}_train-*.parquet", f"{kind}.jsonl"))
            for kind in ("forget", "retain")
        },
        read=lume,
        lacks=(_NO_RETAIN_MODEL, "entities in its completions, which are whole passages", _NO_PARAPHRASES),
        reference="Ramakrishna et al. 2025, LUME: LLM Unlearning with Multitask Evaluations",
    ),
    "r-tofu": Benchmark(
        title="R-TOFU, TOFU with reasoning traces: the answer after the trace is scored",
        hub=None,
        licence="see your copy: its repository (AI-ISL/R-TOFU) states none",
        parts={
            name: Part(None, "train", (f"data/tofu/{name}.json", f"{name}.json", f"{name}.jsonl"))
            for name in ("forget10", "forget05", "forget01", "retain90", "retain95", "retain99", "full")
        },
        read=prompt_and_response,  # the reasoning trace (`cot`) is not scored
        lacks=("a retain model", _NO_ENTITIES, _NO_PARAPHRASES),
        reference="Yoon et al. 2025, R-TOFU: Unlearning in Large Reasoning Models",
    ),
    "hubble": Benchmark(
        title="Hubble, biographies inserted into the pretraining data 1 to 256 times",
        hub="allegrolab/biographies_yago",
        licence="see its page on the Hub",
        parts={
            name: Part(None, split, (f"data/{split}-*.parquet", f"{split}-*.parquet", f"{split}.*"))
            for name, split in (("inserted", "train"), ("never-inserted", "test"))
        },
        read=hubble,
        lacks=(_NO_PARAPHRASES,),
        models={
            "full": "allegrolab/hubble-1b-100b_toks-perturbed-hf",
            "retain": "allegrolab/hubble-1b-100b_toks-standard-hf",
        },
        reference="Wei et al. 2025, Hubble: a Model Suite to Advance the Study of LLM Memorization",
    ),
    "whp": Benchmark(
        title="Who's Harry Potter, questions",
        hub=None,
        licence="see your copy: the questions (hp_qa.jsonl) are distributed with the code of several papers",
        parts={"forget": Part(None, "train", ("hp_qa.jsonl", "data/hp/hp_qa.jsonl", "*.jsonl", "*.json", "*.csv"))},
        read=prompt_and_response,
        lacks=("a retain model", _NO_ENTITIES, _NO_PARAPHRASES, _NO_SUBJECTS),
        reference="Eldan and Russinovich 2023, Who's Harry Potter? Approximate Unlearning in LLMs",
    ),
}
"""Published data sets by name."""


def load_benchmark(
    name: str, source: str | os.PathLike[str] | None = None, *, part: str | None = None
) -> list[ForgetExample]:
    """Read a published data set.

    If the published answer is the fact itself (in RWKU, MUSE, WMDP and LUME's questions), it becomes the entity, with
    an empty prefix. Duplicate rows (RWKU has hundreds) are read only once. `BENCHMARKS[name]` describes a data set: its
    licence, for example, and what it lacks.

    Args:
        name: One of `BENCHMARKS`: tofu, tofu-annotated, r-tofu, hubble, rwku, muse-news, muse-books, wmdp,
            knowundo, lume, whp.
        source: A directory with a copy of the published repository, one of its files, or a Hub id; None means the Hub
            id in `BENCHMARKS`.
        part: One of the data set's parts, for example "level2" of rwku; None means the first part, which is the forget
            set. For tofu, any split.

    Returns:
        The examples, in the published order.

    Raises:
        ConfigError: The benchmark or part does not exist.
        DataError: The source does not exist or cannot be reached, or a row does not have the published format.

    Example:
        >>> BENCHMARKS["rwku"].licence, list(BENCHMARKS["rwku"].parts)
        ('CC-BY-4.0', ['level1', 'level2', 'level3', 'neighbor1', 'neighbor2'])
    """
    if name not in BENCHMARKS:
        raise ConfigError(f"no benchmark {short(name)}; choose one of {', '.join(BENCHMARKS)}.")
    benchmark = BENCHMARKS[name]
    chosen = next(iter(benchmark.parts)) if part is None else part
    source = benchmark.hub if source is None else source
    if source is None:
        raise DataError(f"{benchmark.title} is not on the Hub: pass a directory or file that contains it.")
    if name == "tofu" and not Path(source).is_file():
        return load_tofu(source, chosen)
    if chosen not in benchmark.parts:
        raise ConfigError(f"{name} has no part {short(chosen)}; it has {', '.join(benchmark.parts)}.")
    where, published = _published(benchmark, benchmark.parts[chosen], Path(source), str(source))
    examples = examples_from_rows(_distinct_rows(benchmark, published, where), where=where)
    return with_authors(examples, chosen) if name == "r-tofu" else examples


def _distinct_rows(benchmark: Benchmark, published: list[Any], where: str) -> list[dict[str, Any]]:
    """Convert published rows, skipping those with the same question, answer and subject as an earlier row."""
    rows: dict[object, dict[str, Any]] = {}
    for index, cells in enumerate(published):
        if not isinstance(cells, Mapping):
            raise DataError(f"{where}, row {index}: expected a dictionary; got {short(cells)}.")
        try:
            read = list(benchmark.read(cells))
        except DataError as error:
            raise DataError(f"{where}, row {index}: {error}") from error
        for row in read:
            key = (row.get("question"), row.get("answer"), row.get("subject"))
            is_text = all(isinstance(cell, (str, type(None))) for cell in key)
            rows.setdefault(key if is_text else len(rows), row)
    return list(rows.values())


def _published(benchmark: Benchmark, part: Part, path: Path, source: str) -> tuple[str, list[Any]]:
    """Return the source of the rows, and the rows as published."""
    if path.is_file():
        return place(path), read_rows(path)
    if path.is_dir():
        for pattern in part.files:
            files = [file for file in sorted(path.glob(pattern)) if file.suffix.lower() in SUFFIXES]
            if files:
                return place(files[0]), [row for file in files for row in read_rows(file)]
        inside = sorted(str(file.relative_to(path)) for file in path.rglob("*") if file.suffix.lower() in SUFFIXES)
        raise DataError(
            f"{place(path)}: no file of {benchmark.title} found; expected {' or '.join(part.files)}. "
            f"Found: {named(inside, 100, quote='') or 'none'}."
        )
    hub = source.removeprefix("hf:")
    if hub.count("/") != 1 or hub.startswith((".", "/")):
        raise DataError(
            f"{place(source)}: no such directory or file. Pass a copy of {benchmark.title}, or its Hub id "
            f"({benchmark.hub})."
        )
    from datasets import load_dataset

    with hub_data(hub, "neither a local directory nor a Hub data set that can be loaded", "the name"):
        return hub, list(load_dataset(hub, part.config, split=part.split))
