"""`elicit`: the same audits, with the same budget and random numbers, on the unlearned model, on retain and on full."""

from __future__ import annotations

import dataclasses
import logging
import os
import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from uds_lens._optional_packages import require_package
from uds_lens._settings import as_settings
from uds_lens._types import Protocol
from uds_lens.data import ForgetExample, sample_examples
from uds_lens.data._prompts import chosen_protocol
from uds_lens.data._readers import as_examples
from uds_lens.elicitation._options import AuditRecord, Decoding, ElicitOptions
from uds_lens.elicitation._parts import (
    HOLDOUT,
    Part,
    Said,
    part_key,
    parts_folder,
    read_part,
    write_part,
)
from uds_lens.elicitation._probes import Asking, Audit, ByPrompt, PromptAudit
from uds_lens.elicitation._registry import Asked, ask_rows, chosen_audits
from uds_lens.elicitation._results import ElicitationResults
from uds_lens.errors import DataError, ResultFormatError, Setting, UdsLensWarning
from uds_lens.generation import answer_end_ids, growing_way
from uds_lens.models import (
    HookedModel,
    ModelSource,
    check_compatible,
    open_model,
    read_checkpoint_info,
)
from uds_lens.results import ModelRecord, RunOptions
from uds_lens.results._records import provenance

if TYPE_CHECKING:
    from uds_lens.data._readers import ExampleSource


# How long a run will take, roughly, told before it starts.

logger = logging.getLogger(__name__)

_RATE = {"cpu": 8e9, "cuda": 2e13, "mps": 5e11}
"""Multiplications and additions in a second in float32, by device; measured on two CPU cores while a model of 3.9
million parameters generates, guessed for the others from what their makers tell."""

_DENSE = 6.0
"""How many times more of them a CPU does while an optimiser reads many tokens side by side; measured there likewise."""

_HALF = {"cuda": 6.0, "mps": 2.0}
"""How many times faster half precision is, by device; guessed likewise."""

_PASS = {"cpu": 4e-3, "cuda": 2e-2, "mps": 2e-2}
"""Seconds that one forward pass takes at least."""


def estimate_hours(
    asked: Sequence[Asked],
    options: ElicitOptions,
    *,
    n_models: int,
    shape: Mapping[str, object],
    device: str,
) -> float:
    """Hours that all audits of all models take, to within a factor of three.

    Args:
        asked: Audits with their prompts.
        options: Samples and lengths.
        n_models: Models that are asked.
        shape: Depth, width and vocabulary of the models.
        device: Where they run.

    Returns:
        Hours.
    """
    layers, width, vocabulary = (
        int(str(shape[name])) for name in ("depth (layers)", "width (d_model)", "vocabulary size")
    )
    work = 2.0 * (12 * layers * width**2 + vocabulary * width)
    kind = device.split(":")[0]
    rate, once = _RATE.get(kind, _RATE["cpu"]), _PASS.get(kind, _PASS["cpu"])
    rate *= _HALF.get(kind, 1.0) if options.dtype in ("bfloat16", "float16") else 1.0
    seconds = 0.0
    for each in asked:
        prompts = sum(len(ask.rendered.ids) for ask in each.asks)
        for decoding in options.decodings if each.audit.samples_too else ("greedy",):
            texts = len(each.asks) * (options.samples if decoding == "sampled" else 1)
            steps = options.max_new_tokens * -(-texts // options.rows_at_once)
            seconds += (prompts + texts * options.max_new_tokens) * work / rate + steps * once
        extra = getattr(each.audit, "extra_tokens", None)
        if extra is not None:
            tokens, passes = extra(each.asks)
            seconds += tokens * work / (rate * (_DENSE if kind == "cpu" else 1.0)) + passes * once
    return seconds * n_models / 3600


def announce(hours: float, options: ElicitOptions) -> None:
    """Say how long a run may take.

    Warns:
        UdsLensWarning: It may take longer than `options.max_hours`. It runs all the same: the estimate is a guess.
    """
    logger.info("elicitation takes about %.2g hours", hours)
    if hours > options.max_hours:
        warnings.warn(
            UdsLensWarning(
                f"these audits may take about {hours:.2g} hours on this device (a guess, to within a factor of three), "
                "more than ",
                Setting("max_hours", options.max_hours),
                ". To make it shorter, ask fewer examples, draw fewer samples or take fewer optimiser steps.",
            ),
            stacklevel=3,
        )


def elicit(
    model: ModelSource,
    examples: ExampleSource | Iterable[ForgetExample | Mapping[str, Any]],
    *,
    retain: ModelSource | None = None,
    full: ModelSource | None = None,
    audits: Sequence[str | PromptAudit | Audit] | str = "quick",
    retain_examples: ExampleSource | Iterable[ForgetExample | Mapping[str, Any]] = (),
    holdout_examples: ExampleSource | Iterable[ForgetExample | Mapping[str, Any]] = (),
    limit: int | None = None,
    options: ElicitOptions | None = None,
    run: RunOptions | None = None,
    out: str | os.PathLike[str] | None = None,
) -> ElicitationResults:
    """Ask an unlearned model, and beside it `retain` and `full`, in every way that was asked for.

    Args:
        model: The unlearned model: directory, Hub id, transformers model or `TransformerBridge`.
        examples: The forget set: examples, rows, or what `load_examples` reads.
        retain: Never saw it. Without it a score cannot be told from what any model would say by chance:
            `control_frame` then compares with the references of other subjects, which is weaker, and says so.
        full: Trained on everything; without it there is no power and no share.
        audits: Names (`"mask+icl+aoa"`), audit objects, or the name of a preset ("quick", "black_box", "paper").
        retain_examples: Facts for `ICL(source="retain")`.
        holdout_examples: Questions of the same kind that no model learnt. The unlearned model is asked them in the same
            ways; `control_frame` compares.
        limit: Ask a random sample of so many rows, by subject (`uds_lens.data.sample_examples`), of the holdout too;
            None asks all. Shots still come from all rows.
        options: How to ask; default `ElicitOptions()`.
        run: Where to run; default `RunOptions()`.
        out: Directory for finished parts; a run that was killed goes on from there, with no forward for what is done.

    Returns:
        Texts and scores.

    Raises:
        ConfigError: No such audit, two of one name, or a `limit` below 1.
        DataError: No examples, or ids that occur twice.
        ModelError: A checkpoint cannot be opened, or gives NaN.
        StorageError: Nothing can be written to `out`.
        MissingDependencyError: rouge-score is not installed.
        TrioMismatchError: The checkpoints do not fit together.

    Example:
        >>> import uds_lens as ul
        >>> world = ul.toy.load()
        >>> options = ul.elicitation.ElicitOptions(samples=0, max_new_tokens=8)
        >>> found = ul.elicitation.elicit(
        ...     world.retain, world.examples[:6], retain=world.retain, full=world.full,
        ...     audits=["plain", "cloze"], options=options,
        ... )
        >>> found.summary()[["audit", "beyond_retain"]].to_dict("split")["data"]
        [['plain', 0.0], ['cloze', 0.0], ['any audit', 0.0]]
    """
    options = as_settings(ElicitOptions, options, name="options")
    run = as_settings(RunOptions, run, name="run")
    require_package("rouge_score", needed_by="scoring what a model says needs")
    forget, strange, facts = map(as_examples, (examples, holdout_examples, retain_examples))
    rows = _require_rows(_sampled(forget, limit, options.seed))
    kept_out = tuple(_sampled(strange, limit, options.seed))
    chosen = chosen_audits(audits)
    folder = None if out is None else parts_folder(out)
    beside = {"retain": retain, "full": full}
    sources: dict[str, ModelSource] = {role: source for role, source in beside.items() if source is not None}
    sources["unlearned"] = model
    where = {"offline": run.offline, "trust_remote_code": run.trust_remote_code}
    infos = {role: read_checkpoint_info(s, revision=run.revision, **where) for role, s in sources.items()}
    tokenizer = check_compatible(
        {role: infos[role] for role in ("full", "retain", "unlearned") if role in infos}
    )
    protocol: Protocol = chosen_protocol(options.protocol, tokenizer)
    window = getattr(infos["unlearned"].config.get_text_config(), "max_position_embeddings", None)
    room = window - options.max_new_tokens if isinstance(window, int) else None
    asked, aside = (
        [
            ask_rows(audit, some, pool, facts, tokenizer, protocol=protocol, room=room, options=options)
            for audit in chosen
        ]
        for some, pool in ((rows, forget), (kept_out, strange))
    )
    shape = infos["unlearned"].shape
    hours = estimate_hours(asked, options, n_models=len(sources), shape=shape, device=run.device)
    hours += estimate_hours(aside, options, n_models=1, shape=shape, device=run.device)
    announce(hours, options)
    parts: list[Part] = []
    records: dict[str, ModelRecord] = {}
    ways: list[str] = []
    for role, source in sources.items():
        twin = _same_object(role, source, sources)
        if twin is not None and not (role == "unlearned" and kept_out):
            records[role] = records[twin]
            parts += [_as(part, role) for part in parts if part.role == twin]
            continue
        with _opened(source, options, run, tokenizer) as opened:
            records[role] = ModelRecord.of(opened)
            ways.append(f"texts generated {growing_way(opened)}")
            for each in asked:
                parts += _parts(opened, role, records[role], each, options, protocol, run, folder)
            for each in aside if role == "unlearned" and kept_out else ():
                parts += _parts(opened, HOLDOUT, records[role], each, options, protocol, run, folder)
    return ElicitationResults(
        options=options,
        protocol=protocol,
        models={role: records[role] for role in ("full", "retain", "unlearned") if role in records},
        examples=tuple(rows),
        audits=tuple(
            AuditRecord(
                name=each.audit.name,
                access=each.audit.access,
                injects=each.audit.injects,
                opening=each.audit.opening,
                skipped=tuple((rows[row].id, why) for row, why in each.skipped.items()),
            )
            for each in asked
        ),
        parts=tuple(parts),
        holdout=kept_out,
        provenance={"sample": _sample_told(forget, limit, options.seed)}
        | provenance(
            engine="generation",
            device=run.device,
            rows=", ".join(dict.fromkeys(ways)),
            rendered_prompt=next((ask.rendered.text for each in asked for ask in each.asks), None),
            ids_hash=part_key("", "", "greedy", [a.key for e in asked for a in e.asks], options),
        ),
    )


def _parts(
    model: HookedModel,
    role: str,
    record: ModelRecord,
    asked: Asked,
    options: ElicitOptions,
    protocol: Protocol,
    run: RunOptions,
    folder: Path | None,
) -> list[Part]:
    found = []
    ends = answer_end_ids(model, protocol=protocol, chat=options.chat)
    for decoding in options.decodings if asked.audit.samples_too else ("greedy",):
        told = asked.audit.name if isinstance(asked.audit, ByPrompt) else repr(asked.audit)
        asks = [ask.key for ask in asked.asks]
        key = part_key(record.fingerprint, told, decoding, asks, options, ends=ends)
        file = None if folder is None else folder / f"{key}.parquet"
        part = None if file is None else _finished(file, key)
        if part is None:
            part = _ask(model, role, asked, decoding, options, protocol, run, ends)
            if file is not None:
                write_part(part, file, key=key)
        found.append(_as(part, role))
    return found


def _ask(
    model: HookedModel,
    role: str,
    asked: Asked,
    decoding: Decoding,
    options: ElicitOptions,
    protocol: Protocol,
    run: RunOptions,
    ends: frozenset[int],
) -> Part:
    began = time.perf_counter()
    asking = Asking(
        decoding=decoding,
        options=options,
        protocol=protocol,
        ends=ends,
        desc=f"{role}: {asked.audit.name}, {decoding}",
        show=run.progress,
    )
    answers = asked.audit.answer(model, asked.asks, asking)
    said = tuple(
        Said(row=ask.row, prompt=prompt, reference=ask.rendered.prompt.reference, texts=texts, told=told)
        for ask, prompt, texts, told in zip(
            asked.asks, answers.prompts, answers.texts, answers.told, strict=True
        )
    )
    return Part(
        role=role,
        audit=asked.audit.name,
        decoding=decoding,
        said=said,
        prefilled=answers.prefilled,
        seconds=time.perf_counter() - began,
    )


def _finished(file: Path, key: str) -> Part | None:
    """A part of an earlier run; a broken one is made again."""
    if not file.is_file():
        return None
    try:
        return read_part(file, key=key)
    except ResultFormatError:
        return None


def _as(part: Part, role: str) -> Part:
    return dataclasses.replace(part, role=role)


def _same_object(role: str, source: ModelSource, sources: Mapping[str, ModelSource]) -> str | None:
    """An earlier role that is asked from the very same place."""
    for other, given in sources.items():
        if other == role:
            return None
        if given is source or (isinstance(source, str | os.PathLike) and str(given) == str(source)):
            return other
    return None


def _opened(source: ModelSource, options: ElicitOptions, run: RunOptions, tokenizer: Any) -> Any:
    if isinstance(source, HookedModel):
        return source.held()
    model = open_model(
        source,
        dtype=options.dtype,
        device=run.device,
        device_map=run.device_map,
        revision=run.revision,
        offline=run.offline,
        trust_remote_code=run.trust_remote_code,
    )
    if model.tokenizer is None:
        model.tokenizer = tokenizer
    return model


def _sample_told(rows: Sequence[ForgetExample], limit: int | None, seed: int) -> dict[str, Any] | None:
    """How the rows were chosen, for the record; None where all are asked."""
    if limit is None or limit >= len(rows):
        return None
    return {"limit": limit, "of": len(rows), "sample": "random", "seed": seed}


def _sampled(rows: Sequence[ForgetExample], limit: int | None, seed: int) -> Sequence[ForgetExample]:
    return rows if limit is None else sample_examples(rows, limit, seed=seed)


def _require_rows(examples: Sequence[ForgetExample]) -> Sequence[ForgetExample]:
    if not examples:
        raise DataError("no examples: elicitation needs at least one row with question and answer.")
    ids = [example.id for example in examples]
    twice = next((name for name in ids if ids.count(name) > 1), None) if len(set(ids)) < len(ids) else None
    if twice is not None:
        raise DataError(
            f"the id {twice!r} occurs twice: random numbers are keyed by it. Give each row its own."
        )
    return examples
