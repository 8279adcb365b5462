"""Run the passes of an evaluation: the order of models, the reuse of results, and the cost of each pass."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import accumulate, chain, groupby
from typing import Any, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from uds_lens import __version__
from uds_lens._compat.transformers import rope_limit
from uds_lens._types import Protocol
from uds_lens.audit._inputs import Plan, make_plan, where_of
from uds_lens.audit._memory import GIB
from uds_lens.audit._runner import Target, is_streamed, opened, read_source
from uds_lens.audit._states import SourceStates, StateStore
from uds_lens.audit._two_stage import PatchScores, patch_sources
from uds_lens.data import answer_sequences
from uds_lens.data._prompts import ChatStyle
from uds_lens.data._tokens import TokenSequence, answer_prompt, prompt_ids
from uds_lens.errors import ConfigError, Setting
from uds_lens.generation import GenerationSettings, generate_answers
from uds_lens.generation._decoding import answer_end_ids, known_beginning
from uds_lens.metrics._answers import AnswerScores, batch_of, fitting_rows, score_answers, scores_of, whole_batches
from uds_lens.metrics._data import PASSAGES, AnswerText, MetricData
from uds_lens.metrics._declaration import OF_TEXTS, Pass
from uds_lens.metrics._fisher import dequantised, fisher_masks, masked_fisher, spill_fisher
from uds_lens.metrics._gradients import gradient_norms
from uds_lens.metrics._options import MetricOptions
from uds_lens.metrics._white_box import lens_logprobs
from uds_lens.models import CheckpointInfo, HookedModel, read_checkpoint_info
from uds_lens.models._checkpoint import checkpoint_folders
from uds_lens.models._compatibility import check_compatible, deciding_record, protocol_of, require_embedded
from uds_lens.models._fingerprint import checkpoint_files
from uds_lens.models._hooked import ModelSource
from uds_lens.patching import row_layout
from uds_lens.patching._blocks import OwnPass, WholeRows
from uds_lens.patching._plain import cache_of
from uds_lens.patching._side_by_side import embed_tokens_of
from uds_lens.patching._wave import run_blocks
from uds_lens.results import AuditConfig, RunOptions
from uds_lens.results._records import ModelRecord, open_to_measure
from uds_lens.transplants._running import HostScores, run_host

_Key: TypeAlias = tuple[Any, ...]


@dataclass(frozen=True)
class PassResult:
    """The result and cost of one pass."""

    value: Any
    """What was measured."""

    seconds: float
    """Wall time."""

    forwards: int
    """Forward passes of the model, one per batch (and per generated token); at least 1."""


class MetricCache:
    """Measurements, keyed by everything they depend on: weight fingerprints, a hash of the input tokens, and settings.

    If several `evaluate` calls share a cache, the passes over `full` and `retain` run only once. The cache is kept in
    memory. If a white-box metric was measured, it includes both models' states at the entities (examples x layers x
    tokens x d_model numbers per model). `clear` empties it.
    """

    def __init__(self) -> None:
        self.results: dict[_Key, PassResult] = {}
        self._known: dict[_Key, tuple[ModelRecord, frozenset[int] | None]] = {}

    def __len__(self) -> int:
        return len(self.results)

    def __repr__(self) -> str:
        return f"MetricCache({len(self)} measurements)"

    def clear(self) -> None:
        """Forget everything."""
        self.results.clear()
        self._known.clear()

    def identity(
        self, source: ModelSource, dtype: str, protocol: Protocol, chat: ChatStyle, model: HookedModel | None = None
    ) -> tuple[ModelRecord, frozenset[int] | None] | None:
        """Return a source's fingerprint and the tokens that end its answers (None if only streamed).

        Some of the end tokens come from the generation config, which is not part of the fingerprint. Without `model`,
        both are known only for open models and for directories whose files have not changed since.
        """
        files = None
        if isinstance(source, str | os.PathLike):
            files = checkpoint_files(*checkpoint_folders(source))
        model = source if isinstance(source, HookedModel) and model is None else model
        key = (files, dtype, protocol, chat)
        if model is None:
            return None if files is None else self._known.get(key)
        if not model.is_resident and key in self._known:
            return self._known[key]
        ends = answer_end_ids(model, protocol=protocol, chat=chat) if model.is_resident else None
        identity = ModelRecord.of(model), ends
        if files is not None:
            self._known[key] = identity
        return identity


_STAGES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("retain", (*OF_TEXTS, "own", "states", "transplanted", "fisher_spill")),
    ("full", ("fisher_masks",)),
    ("model", (*OF_TEXTS, "own", "states", "transplanted", "fisher_sums")),
    ("full", (*OF_TEXTS, "own", "states", "patched", "lens", "transplanted")),
)
"""The order in which models are opened, one at a time, and the kinds of passes that run on each. Only
`transplanted` opens `retain` as well. If nothing is left to run on a model, it is not opened. `full` comes early once,
for the Fisher masks, because the Fisher pass over the model needs them."""


_TOGETHER = ("answers", "patched")
"""Kinds of passes that share work if they run together."""


class Session:
    """The passes over one model and its reference models; each runs at most once."""

    def __init__(
        self,
        sources: dict[str, ModelSource],
        data: MetricData,
        *,
        options: MetricOptions,
        run: RunOptions,
        cache: MetricCache,
    ) -> None:
        order: list[str] = [role for role in ("full", "retain", "model") if role in sources]
        self.sources: dict[str, ModelSource] = {role: sources[role] for role in order}
        self.data, self.options, self.run, self._cache = data, options, run, cache
        infos: dict[str, CheckpointInfo] = {
            role: read_checkpoint_info(source, **where_of(run)) for role, source in self.sources.items()
        }
        self.tokenizer = check_compatible(infos)
        self.protocol: Protocol = protocol_of(options.protocol, infos, self.tokenizer)
        self.recorded = deciding_record(infos) is not None
        self.config = AuditConfig(
            tau=options.tau, dtype=options.dtype, protocol="raw", entity_space=options.entity_space
        )
        self._by_length = any(rope_limit(info.config) is not None for info in infos.values())
        self.results: dict[Pass, PassResult] = {}
        self.fresh: set[Pass] = set()
        self.records: dict[str, ModelRecord] = {}
        self._ends: dict[str, frozenset[int] | None] = {}
        self.device = "none"
        self.rows: str | None = None
        self._answer_plans: dict[str, Plan] = {}
        self._rows: dict[str, tuple[list[AnswerText], list[TokenSequence]]] = {}
        for role in order:
            self._identify(role)

    def _identify(self, role: str, model: HookedModel | None = None) -> None:
        identity = self._cache.identity(self.sources[role], self.options.dtype, self.protocol, self.options.chat, model)
        if identity is not None:
            self.records[role], self._ends[role] = identity

    @cached_property
    def plan(self) -> Plan:
        """The entity examples, tokenised and batched exactly as in an audit."""
        return make_plan(self.sources, self.data.with_entities, config=self.config, options=self.run)

    def plan_of(self, wanted: Pass) -> Plan:
        """Return the examples for a white-box pass: the entities, or the whole answers of a set."""
        if wanted.kind != "states" or not wanted.what:
            return self.plan
        if wanted.what not in self._answer_plans:
            whole = self.data.examples(wanted.what)
            if not wanted.what.endswith("/endings"):
                whole = [replace(example, entity=example.answer.strip(), prefix="") for example in whole]
            asked = replace(self.config, protocol=self.protocol, **asdict(self.options.chat))
            plan = make_plan(self.sources, whole, config=asked, options=self.run, report=False)
            self._answer_plans[wanted.what] = plan
        return self._answer_plans[wanted.what]

    def answer_rows(self, name: str) -> tuple[list[AnswerText], list[TokenSequence]]:
        """Return a set's answers and their tokens."""
        if name not in self._rows:
            texts = self.data.texts(name)
            pairs = [(text.question, text.answer) for text in texts]
            sequences = answer_sequences(self.tokenizer, pairs, protocol=self.protocol, chat=self.options.chat)
            end = None if self._by_length else -1
            self._rows[name] = texts, [sequence.scored_in(sequence.ids[:end]) for sequence in sequences]
        return self._rows[name]

    def prompt(self, question: str, *, start: str = "") -> str:
        """Return a question as the prompt that the output metrics use."""
        return answer_prompt(
            question, protocol=self.protocol, tokenizer=self.tokenizer, chat=self.options.chat, start=start
        )

    def inputs_hash(self, wanted: Pass) -> str:
        """Return a hash of the tokens in a pass."""
        if wanted.kind in ("answers", "gradients"):
            return _hash(*([row.ids, row.targets, row.scored] for row in self.answer_rows(wanted.what)[1]))
        if wanted.kind == "generations":
            penalty = self.options.repetition_penalty
            decoding = [self.options.max_new_tokens, *([penalty] if penalty != 1.0 else [])]
            return _hash([ids for _, ids in self._inputs(wanted)], decoding)
        return _hash(wanted.what) if wanted.kind == "own" else self.plan_of(wanted).encoded.ids_hash

    def _inputs(self, wanted: Pass) -> list[tuple[str, Sequence[int]]]:
        """Return the questions in a pass, with their token ids."""
        if wanted.kind in ("answers", "gradients"):
            texts, rows = self.answer_rows(wanted.what)
            return [(text.question, row.ids) for text, row in zip(texts, rows, strict=True)]
        if wanted.kind == "generations":
            questions = [example.question for example in self.data.examples(wanted.what)]
            start = self.options.jailbreak_prefix if wanted.start else ""
            prompts, protocol = [self.prompt(question, start=start) for question in questions], self.protocol
            if wanted.what == PASSAGES:
                prompts, protocol = questions, "raw"
            ids = prompt_ids(self.tokenizer, prompts, protocol=protocol)
            return list(zip(questions, ids, strict=True))
        located = [] if wanted.kind == "own" else self.plan_of(wanted).encoded.rows
        return [(row.example.question, row.ids) for row in located]

    def perform(self, passes: Sequence[Pass]) -> None:
        """Run every pass whose result is not cached, with one model in memory at a time."""
        wanted = list(dict.fromkeys(passes))
        if self.run.stream is True:  # check before any model is read
            paths = {role for role, source in self.sources.items() if isinstance(source, str | os.PathLike)}
            require_read_once(p for p in wanted if p.role in paths and p.kind != "patched" and not self._at_hand(p))
        for role, kinds in _STAGES:
            pending = [p for kind in kinds for p in wanted if (p.role, p.kind) == (role, kind) and not self._at_hand(p)]
            if not pending:
                continue
            for groups in _openings(pending, streamed=is_streamed(self.sources[role], self.run)):
                with self._opened(role) as model:
                    self.device, self.rows = str(model.device), row_layout(model).described()
                    for group in groups:
                        if missing := [p for p in group if not self._at_hand(p)]:
                            self._run(missing, model)
        for done, result in self.results.items():
            if done.kind == "fisher_spill":
                result.value.close()

    def _run(self, wanted: Sequence[Pass], model: HookedModel) -> None:
        inputs = [self._inputs(p) for p in wanted]
        require_embedded(model.hf, chain.from_iterable(inputs), name=model.name)
        start = time.perf_counter()
        with _counted(model) as count, model.running():
            values = self._measure(wanted, model)
        seconds = time.perf_counter() - start
        if not model.is_resident:  # only now has everything been hashed
            self._identify(wanted[0].role, model)
        weights = [max(1, sum(len(ids) for _, ids in rows)) for rows in inputs]  # tokens decide the shares
        for p, value, cost in zip(wanted, values, _shares(seconds, count[0], weights), strict=True):
            self._keep(p, PassResult(value, *cost))

    def _at_hand(self, wanted: Pass) -> bool:
        if wanted in self.results:
            return True
        if wanted.kind == "fisher_spill":
            return self._at_hand(Pass("full", "fisher_masks"))
        key = self._key(wanted)
        result = None if key is None else self._cache.results.get(key)
        if result is not None:
            self.results[wanted] = result
        return result is not None

    def _keep(self, done: Pass, result: PassResult) -> None:
        self.results[done] = result
        self.fresh.add(done)
        key = self._key(done)
        if key is not None and done.kind != "fisher_spill" and (done.kind, done.role) != ("states", "model"):
            self._cache.results[key] = result

    def _key(self, wanted: Pass) -> _Key | None:
        """Return everything that a result depends on, or None if one of the models has not been identified yet."""
        roles = {
            "patched": ("full", wanted.what),
            "lens": ("full", wanted.what),
            "transplanted": ("retain", wanted.role),
            "fisher_masks": ("retain", "full"),
            "fisher_sums": ("retain", "full", wanted.role),
        }.get(wanted.kind, (wanted.role,))
        if any(role not in self.records for role in roles):
            return None
        depends: _Key = tuple(self.records[role].fingerprint for role in roles)
        if wanted.kind == "generations":
            if (ends := self._ends.get(wanted.role)) is None:  # the source has only been streamed
                return None
            depends = (*depends, ends)
        rows = ("packed",) if wanted.kind in ("states", "patched", "lens") and self.plan_of(wanted).packed else ()
        return (wanted.kind, *depends, self.inputs_hash(wanted), self.options.dtype, *rows, __version__)

    @contextmanager
    def _opened(self, role: str) -> Iterator[HookedModel]:
        """Open a model inside a `with` block; a model that the caller opened stays open."""
        source = self.sources[role]
        if is_streamed(source, self.run):
            with opened(source, self.config, self.run, self.tokenizer) as streamed:
                yield streamed
            return
        if isinstance(source, HookedModel):
            with source.held():
                handle = source.lent()
                self._identify(role, handle)
                yield handle
            return
        opening = open_to_measure(source, dtype=self.options.dtype, run=self.run, tokenizer=self.tokenizer)
        # the handle is closed first: if a frame still holds it, it would keep the weights
        with opening as model, model.lent() as handle:
            self._identify(role, handle)
            yield handle

    # One method per kind of pass; answers and patches take several passes at once, which saves work.

    def _measure(self, wanted: Sequence[Pass], model: HookedModel) -> list[Any]:
        kind = wanted[0].kind
        if kind == "patched":
            return self._patched(wanted, model)
        if not model.is_resident:
            return self._in_one_reading(wanted, model)
        if kind == "answers":
            return self._answers(wanted, model)
        singly = {
            "generations": self._generations,
            "gradients": self._gradients,
            "own": self._own,
            "states": self._states,
            "lens": self._lens,
            "transplanted": self._transplanted,
        }
        return [singly.get(kind, self._fisher)(p, model) for p in wanted]

    def _answers(self, wanted: Sequence[Pass], model: HookedModel) -> list[AnswerScores]:
        """Score several sets together, so that questions they share run once."""
        sets = [self.answer_rows(p.what) for p in wanted]
        scores = score_answers(
            model,
            [row for _, rows in sets for row in rows],
            names=[text.question for texts, _ in sets for text in texts],
            token_budget=self.run.token_budget,
            desc=f"{wanted[0].role}: {', '.join(p.what for p in wanted)}",
            show=self.run.progress,
        )
        ends = list(accumulate(len(rows) for _, rows in sets))
        return [scores.rows(stop - len(rows), stop) for stop, (_, rows) in zip(ends, sets, strict=True)]

    def _generations(self, wanted: Pass, model: HookedModel) -> tuple[str, ...]:
        options, known = self.options, None
        scored = self.results.get(Pass(wanted.role, "answers", wanted.what))
        if scored is not None and not wanted.start:  # tokens that equal the references need not be generated
            rows, choices = self.answer_rows(wanted.what)[1], scored.value.first_choices
            known = [known_beginning(row, own.tolist()) for row, own in zip(rows, choices, strict=True)]
        return tuple(
            generate_answers(
                model,
                [example.question for example in self.data.examples(wanted.what)],
                protocol=self.protocol,
                chat=options.chat,
                start=options.jailbreak_prefix if wanted.start else "",
                known=known,
                bare=wanted.what == PASSAGES,
                settings=GenerationSettings(
                    max_new_tokens=options.max_new_tokens,
                    rows_at_once=options.generation_rows,
                    repetition_penalty=options.repetition_penalty,
                    progress=self.run.progress,
                ),
                desc=f"{wanted.role}: answer {wanted.what}",
            )
        )

    def _own(self, wanted: Pass, model: HookedModel) -> Any:
        assert wanted.measure is not None
        return wanted.measure(model)

    def _gradients(self, wanted: Pass, model: HookedModel) -> list[float]:
        texts, rows = self.answer_rows(wanted.what)
        names, desc = [text.question for text in texts], f"{wanted.role}: gradients, {wanted.what}"
        return gradient_norms(model, rows, names=names, desc=desc, show=self.run.progress)

    def _patched(self, wanted: Sequence[Pass], model: HookedModel) -> list[Any]:
        """Patch all sources together, with one engine, because they share the target's own pass."""

        def scored(passes: Sequence[Pass], run: RunOptions) -> list[PatchScores]:
            sources = [self.results[Pass(p.what, "states")].value for p in passes]  # type: ignore[arg-type]
            full = model.lent() if model.is_resident else model
            with Target(full, self.plan, config=self.config, options=run) as target:
                return patch_sources(target, sources)[1]

        roles = ("retain", "model")
        others = [p for role in roles if (p := Pass("full", "patched", role)) in self.results]
        run = self.run
        if model.is_resident and run.engine == "auto" and any(self.results[p].value.engine == "naive" for p in others):
            run = replace(run, engine="naive")
        scores = scored(wanted, run)
        for p in others:  # measured earlier with the fast engine, which has failed since
            if self.results[p].value.engine != scores[0].engine:
                again = scored([p], replace(run, engine=scores[0].engine))[0]
                self._keep(p, replace(self.results[p], value=again))
        return scores

    @torch.no_grad()
    def _in_one_reading(self, wanted: Sequence[Pass], model: HookedModel) -> list[Any]:
        """Run several passes over a streamed model, loading each block once for all of them."""
        done: dict[Pass, Any] = {}
        budget = int(self.run.memory_gib * GIB / max(1, sum(p.kind == "states" for p in wanted)))
        steps: list[Iterator[Any]] = []
        for p in wanted:
            if p.kind == "answers":
                steps.append(self._answers_by_block(p, model))
            elif p.kind == "states":
                steps.append(self._states_by_block(p, model, budget))
            else:
                steps.append(self._lens_by_block(p, model, done))
        embed_tokens_of(model, [batch for step in steps for batch in next(step)])
        riders = [rider for step in steps for rider in next(step)]
        if riders:  # the logit lens alone needs only the final norm and the head
            run_blocks(model, riders, desc=f"reading {os.path.basename(model.name)}", show=self.run.progress)
        with model.head():
            for p, step in zip(wanted, steps, strict=True):
                done[p] = next(step)
        return [done[p] for p in wanted]

    # These generators yield three times: their batches, what runs through the blocks, and the value.

    def _answers_by_block(self, wanted: Pass, model: HookedModel) -> Iterator[Any]:
        texts, rows = self.answer_rows(wanted.what)
        parts = whole_batches(model, rows, fitting_rows(model, rows), self.run.token_budget)
        batches = [batch_of(model, rows, part) for part in parts]
        yield batches
        riders = [WholeRows(model, batch) for batch in batches]
        yield riders
        states = (rider.normed()[rider.batch.scored_mask] for rider in riders)
        names = [text.question for text in texts]
        yield scores_of(model, rows, zip(parts, states, strict=True), names=names)

    def _states_by_block(self, wanted: Pass, model: HookedModel, budget: int) -> Iterator[Any]:
        plan, config, side = self.plan_of(wanted), self.config, row_layout(model).padding_side
        parts = plan.batches_for(model)
        batches = [plan.batch_of(rows, side) for rows in parts]
        yield batches
        how: Any = {"keep_prefix": False, "by_bridge": False, "packed": plan.packed}
        riders = [OwnPass(model, batch, **how) for batch in batches]
        yield riders
        store = StateStore(budget=budget)
        for rows, batch, rider in zip(parts, batches, riders, strict=True):
            states = cache_of(model, rider.recording.states, config.site, config.last_layer).states
            plan.require_finite(states.isfinite().all(-1).all(-1).all(-1), rows, model.name, "hidden states")
            store.put(batch, states)
        yield SourceStates(ModelRecord.of(model), store, config.site, config.last_layer)

    def _lens_by_block(self, wanted: Pass, model: HookedModel, done: dict[Pass, Any]) -> Iterator[Any]:
        own = Pass(wanted.what, "states")  # type: ignore[arg-type]
        yield []
        yield []
        yield self._lens_of(done[own] if own in done else self.results[own].value, model)

    def _states(self, wanted: Pass, model: HookedModel) -> SourceStates:
        return read_source(model.lent(), self.plan_of(wanted), role=wanted.role, config=self.config, options=self.run)

    def _lens(self, wanted: Pass, model: HookedModel) -> Float[Tensor, "example layer"]:
        return self._lens_of(self.results[Pass(wanted.what, "states")].value, model)  # type: ignore[arg-type]

    def _lens_of(self, source: SourceStates, model: HookedModel) -> Float[Tensor, "example layer"]:
        """Return a source's log-probabilities through a model's final norm and head."""
        values = torch.full((len(self.plan.rows), model.n_layers), torch.nan, dtype=torch.float64)
        for number in range(len(self.plan.batches)):
            batch = self.plan.batch(number)
            states = source.cache(batch).states.to(model.device, model.dtype)
            batch = batch.to(model.device)
            values[list(batch.rows)] = lens_logprobs(model.anatomy, states, batch.targets, batch.scored_mask).cpu()
        return values

    def _transplanted(self, wanted: Pass, model: HookedModel) -> HostScores:
        """Run a model with blocks from `retain`, which is also opened; for `retain` itself, the blocks are its own."""
        plan = make_plan(
            self.sources, self.data.with_entities, config=self.config, options=replace(self.run, engine="naive")
        )
        host = model.lent()
        donor = host if wanted.role == "retain" else self.sources["retain"]
        what = f"{wanted.role} with blocks of retain"
        return run_host(host, donor, plan, what=what, config=self.config, options=self.run)

    def _fisher(self, wanted: Pass, model: HookedModel) -> Any:
        model, rows = dequantised(model), self.plan.encoded.rows
        memory_gb, show = self.options.fisher_memory_gb, self.run.progress
        if wanted.kind == "fisher_spill":
            return spill_fisher(model, rows, memory_gb=memory_gb, show=show)
        if wanted.kind == "fisher_masks":
            retain = self.results[Pass("retain", "fisher_spill")].value
            return fisher_masks(model, retain, rows, memory_gb=memory_gb, show=show)
        masks = self.results[Pass("full", "fisher_masks")].value
        return masked_fisher(model, rows, masks, memory_gb=memory_gb, show=show)


def _openings(pending: Sequence[Pass], *, streamed: bool) -> list[list[list[Pass]]]:
    """Group the passes over one model, first by when it is opened, then by which passes share work."""
    if streamed:  # each opening allows one reading
        groups = [[p for p in pending if (p.kind == "patched") is patched] for patched in (False, True)]
        return [[group] for group in groups if group]
    groups = [list(group) for _, group in groupby(pending, key=lambda p: p.kind if p.kind in _TOGETHER else p)]
    return [groups]


def _shares(seconds: float, forwards: int, weights: Sequence[int]) -> list[tuple[float, int]]:
    """Divide a cost in proportion to weights; each part gets at least one forward pass, and a whole number of them."""
    total, before = sum(weights) or 1, 0
    parts = []
    for weight in weights:
        first, after = round(forwards * before / total), before + weight
        parts.append((seconds * weight / total, max(1, round(forwards * after / total) - first)))
        before = after
    return parts


@contextmanager
def _counted(model: HookedModel) -> Iterator[list[int]]:
    """Count the decoder's forward passes by the calls of its first block."""
    count = [0]

    def add(module: Any, args: Any) -> None:
        count[0] += 1

    with model.anatomy.layers[0].register_forward_pre_hook(add):
        yield count


def _hash(*lists: Any) -> str:
    return hashlib.blake2b(repr(lists).encode(), digest_size=16).hexdigest()


_ONCE = ("answers", "states", "lens")
"""Kinds of passes that need only one reading of a model."""

_WHY_WHOLE = {
    "generations": "generating text would read the whole model again for each token",
    "own": "what measures it runs the model as a whole",
    "transplanted": "blocks of two models are read together, as `uds_lens.transplant` does",
    **dict.fromkeys(("gradients", "fisher_spill", "fisher_masks", "fisher_sums"), "gradients need the whole model"),
}


def require_read_once(passes: Iterable[Pass]) -> None:
    """Raise `ConfigError` if a pass needs the whole model at once instead of one block at a time."""
    for p in passes:
        if p.kind not in _ONCE:
            why = _WHY_WHOLE.get(p.kind, "it needs the whole model at once")
            raise ConfigError(
                Setting("stream", True, of="RunOptions"),
                f" cannot measure {p.what or p.kind} ({p.kind}): {why}. Choose other metrics, or models that fit in "
                "memory.",
            )
