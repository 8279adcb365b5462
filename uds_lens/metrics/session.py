"""The passes of one evaluation: which model runs when, what is reused, what each pass costs."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from typing import Any, TypeAlias

from uds_lens import __version__
from uds_lens.audit.plan import Plan, make_plan
from uds_lens.data import (
    TokenSequence,
    answer_prompt,
    answer_sequences,
    chosen_protocol,
    prompt_ids,
)
from uds_lens.metrics.declaration import Pass
from uds_lens.metrics.metric_cache import MetricCache, PassResult
from uds_lens.metrics.metric_data import AnswerText, MetricData
from uds_lens.metrics.metric_options import MetricOptions
from uds_lens.models import (
    CheckpointInfo,
    HookedModel,
    ModelSource,
    check_compatible,
    open_model,
    read_checkpoint_info,
)
from uds_lens.patching import row_layout
from uds_lens.results import AuditConfig, ModelRecord, RunOptions
from uds_lens.types import Protocol

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
            measure: Runs one of them on an open model (`uds_lens.metrics.measuring.measure`).
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
