"""`transplant`: run `full`, the retain models and an unlearned model with each other's blocks."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from uds_lens._progress import tell
from uds_lens._settings import as_settings
from uds_lens.audit._baseline import Baseline
from uds_lens.audit._inputs import Plan, Source, audit_inputs, make_plan, retain_sources, sources_of, where_of
from uds_lens.audit._memory import memory_of_audit
from uds_lens.audit._runner import require_streamable
from uds_lens.data._readers import ExamplesLike
from uds_lens.errors import ConfigError, Setting
from uds_lens.models import HookedModel, read_checkpoint_info
from uds_lens.models._hooked import ModelSource, RetainSource, pick_device
from uds_lens.patching._side_by_side import why_not_streamed
from uds_lens.results import AuditConfig, ModelRecord, RunOptions
from uds_lens.results._comparing import STAGE_1_SETTINGS
from uds_lens.results._records import provenance
from uds_lens.results._stage_1 import Exchanged
from uds_lens.transplants._candidates import Candidate, candidates_of, passes_of
from uds_lens.transplants._results import Answers, Transplant
from uds_lens.transplants._running import HostScores, kept_open, run_host


def transplant(
    full: ModelSource,
    retain: RetainSource,
    unlearned: ModelSource,
    examples: ExamplesLike,
    *,
    control: ExamplesLike | None = None,
    config: AuditConfig | None = None,
    options: RunOptions | None = None,
    baseline: Baseline | None = None,
) -> Transplant:
    """Replace blocks of an unlearned model with those of `retain` and `full`, and see what it answers.

    The blocks of `retain` have never seen the forget set. If an answer returns when they replace some blocks of the
    unlearned model, its remaining blocks still held that answer (host depth). The blocks of `full` hold the facts
    themselves. If a few of them bring an answer back, the change was confined to the blocks that they replace
    (localisation). Nothing is trained, and no gradients are needed. `docs/guide/transplant.md` explains what these
    scores cannot show.

    Args:
        full: The model that was trained on everything: directory, Hub id, transformers model or `TransformerBridge`.
        retain: A model that never saw the forget set, or a list of such models with different seeds, each of which is
            then a donor. The base model can be used instead (`AuditConfig(stand_in="base")`).
        unlearned: `full` after unlearning; or another retain model, to see the scores of a model that really never saw
            the facts.
        examples: The forget set, with entity spans, in any form that `DepthAudit.run` accepts.
        control: Facts that `full` and `retain` both know; candidates that lose these are not admitted.
        config: Prompts, dtype, tau, sample and resampling; default `AuditConfig()`. Site and scope are ignored.
        options: How to run it; default `RunOptions()`. Two models are in memory at a time, or one block of each.
        baseline: A `Baseline` with the same models, examples, control facts and settings. Results that depend only on
            `full` and `retain` are taken from the baseline, or added to it by the first transplant. `Baseline.save`
            includes them.

    Returns:
        The measurement, with a score for each example and candidate.

    Raises:
        ConfigError: Counterfactuals (which have no weights) replace `retain`, or the baseline does not match.
        IncompatibleModelsError: The checkpoints differ in architecture, size or tokenizer.
        ModelError: A checkpoint cannot be opened, produces NaN, or needs more memory than is available.
        DataError: No examples.

    Example:
        >>> import uds_lens as ul
        >>> world = ul.toy.load()
        >>> few = world.examples[:6]
        >>> found = ul.transplant(world.full, world.retain, world.unlearned["idkdpo"], few)
        >>> found.host_depth < found.output_depth
        True
    """
    settings: dict[str, Any] = {"control": control, "config": config, "options": options, "baseline": baseline}
    return transplant_all(full, retain, [unlearned], examples, **settings)[0]


def transplant_all(
    full: ModelSource,
    retain: RetainSource,
    models: Sequence[ModelSource],
    examples: ExamplesLike,
    *,
    control: ExamplesLike | None = None,
    config: AuditConfig | None = None,
    options: RunOptions | None = None,
    baseline: Baseline | None = None,
) -> list[Transplant]:
    """Measure several unlearned models; whatever depends only on `full` and `retain` is run once.

    Args:
        full: As for `transplant`, like all other arguments.
        retain: One or several models.
        models: The unlearned models.
        examples: The forget set.
        control: Facts that `full` and `retain` both know.
        config: What to measure.
        options: How to run it.
        baseline: Where to keep the results that depend only on `full` and `retain`.

    Returns:
        One transplant per model, in the given order.
    """
    settings: dict[str, Any] = {"control": control, "config": config, "options": options, "baseline": baseline}
    return list(each_transplant(full, retain, models, examples, **settings))


def each_transplant(
    full: ModelSource,
    retain: RetainSource | None,
    models: Sequence[ModelSource],
    examples: ExamplesLike,
    *,
    control: ExamplesLike | None,
    config: AuditConfig | None,
    options: RunOptions | None,
    baseline: Baseline | None = None,
) -> Iterator[Transplant]:
    """Yield one transplant at a time, like `transplant_all`, so that each can be saved as soon as it is done."""
    config = as_settings(AuditConfig, config, name="config")
    options = as_settings(RunOptions, options, name="options")
    if config.stand_in == "counterfactual":
        raise ConfigError(
            "a transplant takes blocks from ",
            Setting("retain"),
            ", but counterfactuals have no weights: use a model that never saw the forget set, or the base model with ",
            Setting("stand_in", "base"),
            ".",
        )
    started = time.perf_counter()
    retains = retain_sources(retain, config)
    hosts = sources_of("unlearned", list(models))
    inputs = audit_inputs(examples, control, config)
    places = {"full": full, **{source.name: source.model for source in (*retains, *hosts)}}
    plan = make_plan(
        places,
        inputs.forget.examples,
        control=inputs.control_examples,
        config=config,
        options=replace(options, engine="naive"),  # whole rows, padded
    )
    config = replace(config, protocol=plan.protocol)
    n_layers = int(read_checkpoint_info(full, **where_of(options)).config.get_text_config().num_hidden_layers)
    passes, k = passes_of(candidates_of(n_layers), n_layers), len(retains)
    kept = None if baseline is None else _kept(baseline, plan, config, n_layers)
    first, each = 0 if kept else 2 * k + k * (k - 1), k + 1  # host runs shared by all models, and per model
    run = _Run(plan, config, _settled(places, plan, config, options), first + each * len(hosts))
    rows = f"{len(plan.rows)} rows ({sum(plan.lengths)} tokens)"
    tell(f"transplant: {run.n_hosts * passes:.1f} forward passes over {rows}, with two models in memory")
    references = kept or run.references(full, retains)
    if baseline is not None and kept is None:
        _References(references.said, *_records(baseline)).require([*references.retains, references.full])
        object.__setattr__(baseline, "exchanged", references.said)  # set once, like a cached property
    for number, host in enumerate(hosts):
        by_retain, by_full = run.unlearned(host.model, full, retains, references)
        seconds, cost = time.perf_counter() - started, passes * (each if number else first + each)
        tell(f"transplant: {cost:.1f} forward passes took {seconds:.1f} s")
        yield run.joined(retains, references, by_retain, by_full, sample=inputs.forget.sample, cost=(cost, seconds))
        started = time.perf_counter()


def _settled(models: Mapping[str, ModelSource], plan: Plan, config: AuditConfig, options: RunOptions) -> RunOptions:
    """Check that there is enough memory for two models, and decide whether they are streamed."""
    if options.stream is True:
        require_streamable(list(models.values()), options)
        return options
    full = models["full"]
    estimate = memory_of_audit(full, plan, n_sources=1, config=config, options=options)
    if estimate is None:
        return replace(options, stream=False)
    both = replace(estimate, weights=2 * estimate.weights)
    if options.stream is False or both.fits:
        both.require()
        return replace(options, stream=False)
    for name, model in models.items():
        if (why := why_not_streamed(model, revision=options.revision, offline=options.offline)) is not None:
            both.require(f"A transplant needs two models in memory, and {name} cannot be streamed: {why}. ")
    tell(f"two models do not fit into memory ({both}), so they are read one block at a time")
    return replace(options, stream=True)


@dataclass(frozen=True, eq=False)
class _References:
    """Results that depend only on `full` and the retain models."""

    said: Exchanged
    full: ModelRecord
    retains: Sequence[ModelRecord]

    def require(self, measured: Sequence[ModelRecord]) -> None:
        """Raise `ConfigError` unless the weights are those of the retain models and (at the end) of `full`."""
        for now, known in zip(measured, [*self.retains, self.full], strict=True):
            if now.fingerprint != known.fingerprint:
                raise ConfigError(
                    f"the weights of {now.name!r} differ from those that the baseline was measured with "
                    f"({known.name!r}): measure the baseline again, or leave out the baseline."
                )


def _kept(baseline: Baseline, plan: Plan, config: AuditConfig, n_layers: int) -> _References | None:
    """Return the results that a baseline keeps from earlier transplants; None if there are none.

    Raises `ConfigError` if the baseline has other settings or was measured on other examples.
    """
    asked = baseline.provenance.get("ids_hash"), None if baseline.control is None else baseline.control.ids_hash
    now = plan.encoded.ids_hash, None if plan.control is None else plan.control.ids_hash
    unused = ("site", "scope", "last_layer")
    names = [
        *(("examples", "control facts")[i] for i in range(2) if asked[i] != now[i]),
        *(name for name in STAGE_1_SETTINGS if getattr(config, name) != getattr(baseline.config, name)),
    ]
    if differing := [name for name in names if name not in unused]:
        raise ConfigError(
            f"the baseline was measured with other {', '.join(differing)}: use the same ones, or leave out the "
            "baseline."
        )
    said, known = baseline.exchanged, [candidates_of(n_layers, attention=has) for has in (True, False)]
    return None if said is None or said.candidates not in known else _References(said, *_records(baseline))


def _records(baseline: Baseline) -> tuple[ModelRecord, list[ModelRecord]]:
    """Return the records of `full` and of the retain models."""
    return baseline.models["full"], [record for role, record in baseline.roles.items() if role != "full"]


@dataclass(frozen=True, eq=False)
class _Run:
    """One measurement: rows, settings and options."""

    plan: Plan
    config: AuditConfig
    options: RunOptions
    n_hosts: int  # number of runs, each of one host with all candidates from one donor

    def host(self, host: ModelSource, donor: ModelSource, what: str) -> HostScores:
        return run_host(host, donor, self.plan, what=what, config=self.config, options=self.options)

    def _kept_open(self, source: ModelSource) -> AbstractContextManager[ModelSource]:
        return kept_open(source, self.plan, self.config, self.options)

    def references(self, full: ModelSource, retains: Sequence[Source]) -> _References:
        """Run `full` with blocks of each retain model, and each retain model with blocks of `full`."""
        hosts: list[HostScores] = []
        others: list[HostScores] = []
        with self._kept_open(full) as first:
            for retain in retains:
                with self._kept_open(retain.model) as second:
                    started = time.perf_counter()
                    hosts.append(self.host(first, second, f"full with blocks of {retain.name}"))
                    if len(hosts) == 1:
                        tell(f"transplant: about {(time.perf_counter() - started) * self.n_hosts:.0f} s in all")
                    others.append(self.host(second, first, f"{retain.name} with blocks of full"))
        said = Exchanged(
            candidates=tuple((c.first, c.width, c.attention) for c in hosts[0].candidates),
            s_full=hosts[0].own,
            s_retain=torch.stack([host.own for host in others]),
            full_with_retain=torch.stack([host.mixed for host in hosts]),
            retain_with_full=torch.stack([host.mixed for host in others]),
            retain_with_retain=self._among(retains, hosts[0].mixed),
        )
        return _References(said, hosts[0].record, [host.record for host in others])

    def _among(
        self, retains: Sequence[Source], like: Float[Tensor, "row candidate"]
    ) -> Float[Tensor, "host donor row candidate"] | None:
        """Run each retain model with blocks of the other retain models; None if there is only one model."""
        if len(retains) == 1:
            return None
        mixed = torch.full((len(retains), len(retains), *like.shape), torch.nan, dtype=torch.float64)
        for i, host in enumerate(retains):
            with self._kept_open(host.model) as first:
                for k, donor in enumerate(retains):
                    if k != i:
                        with self._kept_open(donor.model) as second:
                            mixed[i, k] = self.host(first, second, f"{host.name} with blocks of {donor.name}").mixed
        return mixed

    def unlearned(
        self, unlearned: ModelSource, full: ModelSource, retains: Sequence[Source], references: _References
    ) -> tuple[list[HostScores], HostScores]:
        """Run the unlearned model with blocks of each retain model and of `full`."""
        with self._kept_open(unlearned) as host:
            if (known := self._known(host, references)) is not None:
                return known
            hosts = []
            for donor, name in [*((retain.model, retain.name) for retain in retains), (full, "full")]:
                with self._kept_open(donor) as other:
                    hosts.append(self.host(host, other, f"unlearned with blocks of {name}"))
            references.require([host.donor for host in hosts])
            return hosts[:-1], hosts[-1]

    def _known(self, host: ModelSource, references: _References) -> tuple[list[HostScores], HostScores] | None:
        """Return the known scores of a host with the same weights as a reference; None for other hosts."""
        if not (self.config.exact_noop and isinstance(host, HookedModel)):
            return None
        said, record = references.said, ModelRecord.of(host)
        among, candidates = said.retain_with_retain, tuple(Candidate(*of) for of in said.candidates)
        for k, known in enumerate([references.full, *references.retains], start=-1):
            if known.fingerprint != record.fingerprint:
                continue
            own = said.s_full if k < 0 else said.s_retain[k]
            itself = own[:, None].expand_as(said.full_with_retain[0])  # with its own blocks, nothing changes
            with_full, with_retain = itself, list(said.full_with_retain)
            if k >= 0:
                with_full, with_retain = said.retain_with_full[k], [itself] if among is None else list(among[k])
                with_retain[k] = itself
            donors = zip(with_retain, references.retains, strict=True)
            by_retain = [HostScores(own, mixed, candidates, record, donor) for mixed, donor in donors]
            return by_retain, HostScores(own, with_full, candidates, record, references.full)
        return None

    def joined(
        self,
        retains: Sequence[Source],
        references: _References,
        by_retain: Sequence[HostScores],
        by_full: HostScores,
        *,
        sample: dict[str, Any] | None,
        cost: tuple[float, float],
    ) -> Transplant:
        """Build the `Transplant` from the measurements."""
        plan = self.plan
        n, rows = len(plan.encoded.rows), plan.encoded.rows

        def answers(part: slice) -> Answers:
            return Answers(
                **references.said.of_rows(part),
                s_unlearned=by_full.own[part],
                unlearned_with_retain=torch.stack([host.mixed[part] for host in by_retain]),
                unlearned_with_full=by_full.mixed[part],
            )

        origin = provenance(
            engine="blocks",
            device=pick_device(self.options.device),
            rows=None,
            rendered_prompt=rows[0].rendered.prompt if rows else None,
            ids_hash=plan.encoded.ids_hash,
        )
        return Transplant(
            config=self.config,
            models={
                "full": references.full,
                **{source.name: record for source, record in zip(retains, references.retains, strict=True)},
                "unlearned": by_full.record,
            },
            candidates=by_full.candidates,
            examples=tuple(row.example for row in rows),
            answers=answers(slice(0, n)),
            control_examples=() if plan.control is None else tuple(row.example for row in plan.control.rows),
            control=None if plan.control is None else answers(slice(n, None)),
            skipped=tuple(plan.encoded.skipped),
            provenance={**origin, "sample": sample, "passes": cost[0], "seconds": cost[1]},
        )
