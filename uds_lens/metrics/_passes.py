"""The passes of one evaluation: which model runs when, what is reused, what each pass costs."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import Any, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from uds_lens import __version__
from uds_lens._types import Protocol
from uds_lens.audit._inputs import Plan, make_plan
from uds_lens.audit._runner import SourceStates, read_source
from uds_lens.audit._two_stage import PatchScores, TargetScores, score_sources
from uds_lens.data import (
    ChatStyle,
    TokenSequence,
    answer_prompt,
    answer_sequences,
    chosen_protocol,
    prompt_ids,
)
from uds_lens.generation import (
    KnownBeginning,
    answer_end_ids,
    generate_answers,
    known_beginning,
)
from uds_lens.metrics._answers import AnswerScores, score_answers
from uds_lens.metrics._data import AnswerText, MetricData
from uds_lens.metrics._declaration import Evidence, Outcome, Pass, Role
from uds_lens.metrics._fisher import (
    FisherMasks,
    SpilledFisher,
    dequantised,
    fisher_masks,
    masked_fisher,
    spill_fisher,
)
from uds_lens.metrics._fluency import FluencyScorer
from uds_lens.metrics._options import MetricOptions
from uds_lens.metrics._white_box import lens_logprobs
from uds_lens.models import (
    CheckpointFiles,
    CheckpointInfo,
    HookedModel,
    ModelSource,
    check_compatible,
    checkpoint_files,
    checkpoint_folders,
    open_model,
    read_checkpoint_info,
)
from uds_lens.patching import row_layout
from uds_lens.results import AuditConfig, RunOptions
from uds_lens.results._records import ModelRecord

# What was measured on `full` and `retain`, kept for the next model.


@dataclass(frozen=True)
class PassResult:
    """The result of one pass with its cost."""

    value: Any
    """What was measured."""

    seconds: float
    """Wall time."""

    forwards: int
    """Forward passes of the model, one per batch (and per generated token); at least 1."""


class MetricCache:
    """Measurements by what they depend on: fingerprints of weights, hash of the input tokens, settings.

    Pass one cache to several `evaluate` calls and the passes over `full` and `retain` run once. It lives in memory
    and holds their states at the entities (examples x layers x tokens x d_model numbers per model) if a white-box
    metric was asked for; `clear` empties it.
    """

    def __init__(self) -> None:
        self._measured: dict[tuple[Any, ...], PassResult] = {}
        self._fingerprints: dict[tuple[Any, ...], str] = {}
        self._records: dict[str, ModelRecord] = {}
        self._ends: dict[tuple[Any, ...], frozenset[int]] = {}

    def __len__(self) -> int:
        return len(self._measured)

    def __repr__(self) -> str:
        return f"MetricCache({len(self)} measurements of {len(self._records)} models)"

    def clear(self) -> None:
        """Forget everything."""
        self._measured.clear()
        self._fingerprints.clear()
        self._records.clear()
        self._ends.clear()

    def get(self, key: tuple[Any, ...]) -> PassResult | None:
        """A measurement, if it was made."""
        return self._measured.get(key)

    def put(self, key: tuple[Any, ...], measured: PassResult) -> None:
        """Keep a measurement."""
        self._measured[key] = measured

    def record_of(self, source: ModelSource, dtype: str) -> ModelRecord | None:
        """Who a source is, if that is known without opening it: a directory whose files have not changed."""
        if isinstance(source, HookedModel):
            return self.remember(source, dtype, source)
        identity = _files(source)
        return None if identity is None else self._records.get(self._fingerprints.get((identity, dtype), ""))

    def remember(self, source: ModelSource, dtype: str, model: HookedModel) -> ModelRecord:
        """Note who an opened source is."""
        record = ModelRecord.of(model)
        self._records[record.fingerprint] = record
        identity = _files(source)
        if identity is not None:
            self._fingerprints[(identity, dtype)] = record.fingerprint
        return record

    def ends_of(
        self, source: ModelSource, protocol: Protocol, chat: ChatStyle | None
    ) -> frozenset[int] | None:
        """Tokens at which a source's answers end, if that is known without opening it.

        Its generation config names some of them, and is no part of the fingerprint.
        """
        if isinstance(source, HookedModel):
            return answer_end_ids(source, protocol=protocol, chat=chat)
        identity = _files(source)
        return None if identity is None else self._ends.get((identity, protocol, chat))

    def remember_ends(
        self, source: ModelSource, protocol: Protocol, chat: ChatStyle | None, model: HookedModel
    ) -> frozenset[int]:
        """Note at which tokens the answers of an opened source end."""
        ends = answer_end_ids(model, protocol=protocol, chat=chat)
        identity = _files(source)
        if identity is not None:
            self._ends[(identity, protocol, chat)] = ends
        return ends


def _files(source: ModelSource) -> CheckpointFiles | None:
    """Files of a local checkpoint, and of an adapter's base; None for live models and Hub ids."""
    if not isinstance(source, str | os.PathLike):
        return None
    return checkpoint_files(*checkpoint_folders(source))


_STAGES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("retain", ("answers", "generations", "states", "fisher_spill")),
    ("full", ("fisher_masks",)),
    ("model", ("answers", "generations", "states", "fisher_sums")),
    ("full", ("answers", "generations", "states", "patched", "lens")),
)
"""Models in the order in which they are opened, one at a time, and what runs on each. A stage with nothing to run
opens no model; `full` comes early only for the Fisher masks, which the pass over the model needs."""


Measure: TypeAlias = Callable[["Session", Sequence[Pass], HookedModel], list[Any]]
"""What runs passes of one kind on an open model."""


class Session:
    """Runs passes for one model and its references, each at most once."""

    def __init__(
        self,
        sources: dict[str, ModelSource],
        data: MetricData,
        *,
        options: MetricOptions,
        run: RunOptions,
        cache: MetricCache,
    ) -> None:
        self.sources, self.data, self.options, self.run, self.cache = sources, data, options, run, cache
        where = {"offline": run.offline, "trust_remote_code": run.trust_remote_code}
        order = [role for role in ("full", "retain", "model") if role in sources]
        infos: dict[str, CheckpointInfo] = {
            role: read_checkpoint_info(sources[role], revision=run.revision, **where) for role in order
        }
        self.tokenizer = check_compatible(infos)
        self.protocol: Protocol = chosen_protocol(options.protocol, self.tokenizer)
        self.config = AuditConfig(tau=options.tau, dtype=options.dtype)
        self.results: dict[Pass, PassResult] = {}
        self.fresh: set[Pass] = set()
        self.records: dict[str, ModelRecord] = {}
        self.ends: dict[str, frozenset[int]] = {}
        self.device = "none"
        self.rows: str | None = None
        self._rows: dict[str, tuple[list[AnswerText], list[TokenSequence]]] = {}
        for role, source in sources.items():
            record = cache.record_of(source, options.dtype)
            if record is not None:
                self.records[role] = record
            ends = cache.ends_of(source, self.protocol, options.chat)
            if ends is not None:
                self.ends[role] = ends

    @cached_property
    def plan(self) -> Plan:
        """The entity examples in tokens and batches, exactly those of an audit."""
        order: list[str] = [role for role in ("full", "retain", "model") if role in self.sources]
        models: dict[str, ModelSource] = {role: self.sources[role] for role in order}
        return make_plan(models, self.data.with_entities, config=self.config, options=self.run)

    def answer_rows(self, name: str) -> tuple[list[AnswerText], list[TokenSequence]]:
        """A set's answers and their tokens."""
        if name not in self._rows:
            texts = self.data.texts(name)
            pairs = [(text.question, text.answer) for text in texts]
            sequences = answer_sequences(
                self.tokenizer, pairs, protocol=self.protocol, chat=self.options.chat
            )
            self._rows[name] = texts, [sequence.scored for sequence in sequences]
        return self._rows[name]

    def prompt(self, question: str, *, start: str = "") -> str:
        """A question as the output metrics ask it."""
        return answer_prompt(
            question,
            protocol=self.protocol,
            tokenizer=self.tokenizer,
            chat=self.options.chat,
            start=start,
        )

    def perform(self, passes: Sequence[Pass], measure: Measure) -> None:
        """Run everything that is not at hand, one model in memory at a time.

        Args:
            passes: What to run; repeated ones run once.
            measure: Runs one of them on an open model (`uds_lens.metrics._passes.measure`).
        """
        wanted = list(dict.fromkeys(passes))
        for role, kinds in _STAGES:
            stage = [p for kind in kinds for p in wanted if p.role == role and p.kind == kind]
            self._stage(role, [p for p in stage if not self._at_hand(p)], measure)
        self._drop_spilled()

    def _stage(self, role: str, pending: list[Pass], measure: Measure) -> None:
        if not pending:
            return
        with self._opened(role) as model:
            self.device, self.rows = str(model.device), row_layout(model).described()
            for group in _together(pending):
                missing = [each for each in group if not self._at_hand(each)]
                if not missing:
                    continue
                start = time.perf_counter()
                with _counted(model) as count:
                    values = measure(self, missing, model)
                seconds = time.perf_counter() - start
                parts = _parts(seconds, count[0], self._weights(missing))
                for each, value, part in zip(missing, values, parts, strict=True):
                    self._keep(each, PassResult(value, *part))

    def _weights(self, passes: Sequence[Pass]) -> list[int]:
        """What each of some passes that ran together had a share in: answers by their tokens, others alike."""
        if passes[0].kind != "answers":
            return [1] * len(passes)
        return [sum(len(row.ids) for row in self.answer_rows(each.what)[1]) for each in passes]

    def _at_hand(self, wanted: Pass) -> bool:
        if wanted in self.results:
            return True
        if wanted.kind == "fisher_spill":
            return self._at_hand(Pass("full", "fisher_masks"))
        key = self._key(wanted)
        measured = None if key is None else self.cache.get(key)
        if measured is None:
            return False
        self.results[wanted] = measured
        return True

    def _keep(self, done: Pass, measured: PassResult) -> None:
        self.results[done] = measured
        self.fresh.add(done)
        key = self._key(done)
        states_of_the_model = done.kind == "states" and done.role == "model"
        if key is not None and done.kind != "fisher_spill" and not states_of_the_model:
            self.cache.put(key, measured)

    def correct(self, done: Pass, value: Any) -> None:
        """Put another value in the place of one that was measured before, for the models to come too."""
        self._keep(done, replace(self.results[done], value=value))

    def _key(self, wanted: Pass) -> tuple[Any, ...] | None:
        """Everything the result depends on; None while a model involved is not known yet."""
        roles = {
            "patched": ("full", wanted.what),
            "lens": ("full", wanted.what),
            "fisher_masks": ("retain", "full"),
            "fisher_sums": ("retain", "full", wanted.role),
        }.get(wanted.kind, (wanted.role,))
        if any(role not in self.records for role in roles):
            return None
        prints: tuple[Any, ...] = tuple(self.records[role].fingerprint for role in roles)
        if wanted.kind == "generations":
            if wanted.role not in self.ends:
                return None
            prints = (*prints, self.ends[wanted.role])
        rows = ("packed",) if wanted.kind in ("states", "patched", "lens") and self.plan.packed else ()
        return (wanted.kind, *prints, self.inputs_hash(wanted), self.options.dtype, *rows, __version__)

    def inputs_hash(self, wanted: Pass) -> str:
        """Hash of the tokens that a pass runs over."""
        if wanted.kind == "answers":
            return _hash_rows(self.answer_rows(wanted.what)[1])
        if wanted.kind == "generations":
            start = self.options.jailbreak_prefix if wanted.start else ""
            prompts = [self.prompt(e.question, start=start) for e in self.data.examples(wanted.what)]
            ids = prompt_ids(self.tokenizer, prompts, protocol=self.protocol)
            return _hash_numbers(ids, [self.options.max_new_tokens])
        return self.plan.encoded.ids_hash

    @contextmanager
    def _opened(self, role: str) -> Iterator[HookedModel]:
        """One model, open for the length of the block; an open model of the caller's stays open."""
        source = self.sources[role]
        if isinstance(source, HookedModel):
            with source.held(), self._recorded(role, source) as handle:
                yield handle
            return
        with open_model(
            source,
            dtype=self.options.dtype,
            device=self.run.device,
            device_map=self.run.device_map,
            revision=self.run.revision,
            offline=self.run.offline,
            trust_remote_code=self.run.trust_remote_code,
        ) as model:
            if model.tokenizer is None:
                model.tokenizer = self.tokenizer
            model.keeps_weights = isinstance(source, str | os.PathLike)
            with self._recorded(role, model) as handle:
                yield handle

    def _recorded(self, role: str, model: HookedModel) -> HookedModel:
        """A handle on an open model whose weights are hashed, once."""
        handle = model.lent()
        source = self.sources[role]
        self.records[role] = self.cache.remember(source, self.options.dtype, handle)
        self.ends[role] = self.cache.remember_ends(source, self.protocol, self.options.chat, handle)
        return handle

    def _drop_spilled(self) -> None:
        for done, measured in self.results.items():
            if done.kind == "fisher_spill":
                measured.value.close()


def _together(passes: Sequence[Pass]) -> list[list[Pass]]:
    """Neighbours that share work when they run at once: sets of answers, and sources patched into one model."""
    groups: list[list[Pass]] = []
    for each in passes:
        last = groups[-1] if groups else []
        joins = each.kind in ("answers", "patched") and all(
            other.kind == each.kind and other.what != each.what for other in last
        )
        if last and joins:
            last.append(each)
        else:
            groups.append([each])
    return groups


def _parts(seconds: float, forwards: int, weights: Sequence[int]) -> list[tuple[float, int]]:
    """A cost in parts by weight; forwards are whole numbers, and no part has none."""
    total, before = sum(weights) or 1, 0
    parts = []
    for weight in weights:
        first, after = round(forwards * before / total), before + weight
        parts.append((seconds * weight / total, max(1, round(forwards * after / total) - first)))
        before = after
    return parts


@contextmanager
def _counted(model: HookedModel) -> Iterator[list[int]]:
    """Count forwards of the decoder by its first block."""
    count = [0]

    def add(module: Any, args: Any) -> None:
        count[0] += 1

    handle = model.anatomy.layers[0].register_forward_pre_hook(add)
    try:
        yield count
    finally:
        handle.remove()


def _hash_rows(rows: Sequence[TokenSequence]) -> str:
    return _hash_numbers(*([row.ids, row.targets, row.scored] for row in rows))


def _hash_numbers(*lists: Any) -> str:
    return hashlib.blake2b(repr(lists).encode(), digest_size=16).hexdigest()


# What each kind of pass does with an open model.


def measure(session: Session, wanted: Sequence[Pass], model: HookedModel) -> list[Any]:
    """Run passes of one kind: several together where that saves work, else one."""
    with model.running():
        if wanted[0].kind == "answers":
            return _answers(session, wanted, model)
        if wanted[0].kind == "patched":
            return _patched(session, wanted, model)
        run = {
            "generations": _generations,
            "states": _states,
            "lens": _lens,
            "fisher_spill": _fisher_spill,
            "fisher_masks": _fisher_masks,
            "fisher_sums": _fisher_sums,
        }[wanted[0].kind]
        return [run(session, each, model) for each in wanted]


def _answers(session: Session, wanted: Sequence[Pass], model: HookedModel) -> list[AnswerScores]:
    """Sets that ask the same questions run together, so that each question runs once."""
    sets = [session.answer_rows(each.what) for each in wanted]
    scores = score_answers(
        model,
        [row for _, rows in sets for row in rows],
        names=[text.question for texts, _ in sets for text in texts],
        token_budget=session.run.token_budget,
        desc=f"{wanted[0].role}: {', '.join(each.what for each in wanted)}",
        show=session.run.progress,
    )
    ends = list(accumulate(len(rows) for _, rows in sets))
    return [scores.rows(stop - len(rows), stop) for stop, (_, rows) in zip(ends, sets, strict=True)]


def _generations(session: Session, wanted: Pass, model: HookedModel) -> tuple[str, ...]:
    options = session.options
    return tuple(
        generate_answers(
            model,
            [example.question for example in session.data.examples(wanted.what)],
            protocol=session.protocol,
            chat=options.chat,
            start=options.jailbreak_prefix if wanted.start else "",
            max_new_tokens=options.max_new_tokens,
            rows_at_once=options.generation_rows,
            known=_known_beginnings(session, wanted),
            desc=f"{wanted.role}: answer {wanted.what}",
            show=session.run.progress,
        )
    )


def _known_beginnings(session: Session, wanted: Pass) -> list[KnownBeginning | None] | None:
    """Where the references were scored before: how far the model repeats them, it need not generate."""
    scored = session.results.get(Pass(wanted.role, "answers", wanted.what))
    if wanted.start or scored is None:
        return None
    _, rows = session.answer_rows(wanted.what)
    choices = scored.value.first_choices
    return [known_beginning(row, own.tolist()) for row, own in zip(rows, choices, strict=True)]


def _states(session: Session, wanted: Pass, model: HookedModel) -> SourceStates:
    return read_source(
        model.lent(), session.plan, role=wanted.role, config=session.config, options=session.run
    )


def _patched(session: Session, wanted: Sequence[Pass], model: HookedModel) -> list[PatchScores]:
    """All sources at once, since the model's own pass is the same for each of them; one engine for all."""
    others = [
        each for role in ("retain", "model") if (each := Pass("full", "patched", role)) in session.results
    ]
    run = session.run
    if run.engine == "auto" and any(session.results[each].value.engine == "naive" for each in others):
        run = replace(run, engine="naive")
    scores = _scored(session, wanted, model, run)
    for each in others:  # measured for an earlier model by the fast engine, which has failed since
        if session.results[each].value.engine != scores.engine:
            again = _scored(session, [each], model, replace(run, engine=scores.engine))
            session.correct(each, again.sources[0])
    return scores.sources


def _scored(session: Session, wanted: Sequence[Pass], model: HookedModel, run: RunOptions) -> TargetScores:
    sources = [session.results[Pass(each.what, "states")].value for each in wanted]  # type: ignore[arg-type]
    return score_sources(model.lent(), sources, session.plan, config=session.config, options=run)


def _lens(session: Session, wanted: Pass, model: HookedModel) -> Float[Tensor, "example layer"]:
    source: SourceStates = session.results[Pass(wanted.what, "states")].value  # type: ignore[arg-type]
    plan = session.plan
    found = torch.full((len(plan.encoded.rows), model.n_layers), torch.nan, dtype=torch.float64)
    for number in range(len(plan.batches)):
        batch = plan.batch(number)
        states = source.cache(batch).states.to(model.device, model.dtype)
        batch = batch.to(model.device)
        found[list(batch.rows)] = lens_logprobs(model.anatomy, states, batch.targets, batch.scored_mask).cpu()
    return found


def _fisher_spill(session: Session, wanted: Pass, model: HookedModel) -> SpilledFisher:
    return spill_fisher(
        dequantised(model),
        session.plan.encoded.rows,
        memory_gb=session.options.fisher_memory_gb,
        show=session.run.progress,
    )


def _fisher_masks(session: Session, wanted: Pass, model: HookedModel) -> FisherMasks:
    return fisher_masks(
        dequantised(model),
        session.results[Pass("retain", "fisher_spill")].value,
        session.plan.encoded.rows,
        memory_gb=session.options.fisher_memory_gb,
        show=session.run.progress,
    )


def _fisher_sums(session: Session, wanted: Pass, model: HookedModel) -> list[Float[Tensor, "_"]]:
    return masked_fisher(
        dequantised(model),
        session.plan.encoded.rows,
        session.results[Pass("full", "fisher_masks")].value,
        memory_gb=session.options.fisher_memory_gb,
        show=session.run.progress,
    )


# The evidence of one evaluation: its finished passes, read by set and role.


class Measured(Evidence):
    """What a session measured, for the functions of the metrics."""

    def __init__(self, session: Session, fluency: FluencyScorer) -> None:
        self.session, self.fluency = session, fluency
        self.data, self.options = session.data, session.options
        self.outcomes: dict[str, Outcome] = {}

    def answers(self, name: str, role: Role = "model") -> AnswerScores:
        """Token scores of a set; of no text where the set is empty."""
        found = self.session.results.get(Pass(role, "answers", name)) or self.session.results.get(
            Pass(role, "answers", name, optional=True)
        )
        return AnswerScores((), (), ()) if found is None else found.value

    def texts(self, name: str) -> Sequence[str]:
        """The answers of a set."""
        return [text.answer for text in self.data.texts(name)]

    def by_example(self, name: str, values: Sequence[float]) -> list[list[float]]:
        """Values of a set's answers, listed per example; nothing for a set that was not asked."""
        found: list[list[float]] = [[] for _ in self.data.examples(name)]
        texts = self.data.texts(name) if values else ()
        for text, value in zip(texts, values, strict=True):
            found[text.owner].append(value)
        return found

    def generations(self, name: str, role: Role = "model", *, jailbreak: bool = False) -> tuple[str, ...]:
        """Greedy answers to a set's questions."""
        return self._value(Pass(role, "generations", name, start=jailbreak))

    def entity_ids(self) -> list[str]:
        """Identities of the examples that white-box metrics look at."""
        return [row.example.id for row in self.session.plan.encoded.rows]

    def n_skipped(self) -> int:
        """Examples whose entity could not be located."""
        return len(self.session.plan.encoded.skipped)

    def n_layers(self) -> int:
        """Layers of the models."""
        return self.session.records["full"].n_layers

    def stacked_states(self, role: Role, layer: int) -> Float[Tensor, "token d_model"]:
        """States of one layer at the scored positions of all examples, float64."""
        source: SourceStates = self._value(Pass(role, "states"))
        rows = self.session.plan.encoded.rows
        at = [[position - row.window[0] for position in row.scored] for row in rows]
        parts = [source.store.get(n)[layer, places].double() for n, places in enumerate(at)]
        return torch.cat(parts)

    def patched_delta(self, role: Role) -> Float[Tensor, "example layer"]:
        """What patching a model's states into `full` costs, nats per token."""
        return self._value(Pass("full", "patched", role)).delta

    def lens(self, role: Role) -> Float[Tensor, "example layer"]:
        """Logit Lens of a model's states through the head of `full`, nats per token."""
        return self._value(Pass("full", "lens", role))

    def masks(self) -> FisherMasks:
        """Fisher masks of `full` and `retain`."""
        return self._value(Pass("full", "fisher_masks"))

    def fisher(self) -> list[Float[Tensor, "_"]]:
        """Fisher information of the model at the masked weights."""
        return self._value(Pass("model", "fisher_sums"))

    def _value(self, wanted: Pass) -> Any:
        return self.session.results[wanted].value
