"""Inputs of an audit: models and examples are checked before a model is opened; examples are tokenised once."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, cast

from jaxtyping import Bool
from torch import Tensor

from uds_lens._compat.transformers import rope_limit
from uds_lens._progress import tell
from uds_lens._types import Engine, PaddingSide, Protocol, Site
from uds_lens.data import (
    Encoded,
    ForgetExample,
    SkippedExample,
    TokenBatch,
    counterfactuals,
    encode,
    make_batch,
    sample_examples,
)
from uds_lens.data._prompts import announce_protocol, describe_protocol, two_openings
from uds_lens.data._readers import ExamplesLike, as_examples, sorted_by
from uds_lens.data._tokens import TokenRow
from uds_lens.errors import ConfigError, DataError, ModelError, Setting
from uds_lens.models import HookedModel, read_checkpoint_info
from uds_lens.models._compatibility import check_compatible, deciding_record, protocol_of, require_embedded
from uds_lens.models._hooked import ModelSource, RetainSource, pick_device
from uds_lens.patching import row_layout
from uds_lens.patching._costs import BFLOAT16_COSTS, ModelCosts, bfloat16_gain
from uds_lens.patching._engines import choose_reading, fall_back, tried_once
from uds_lens.patching._side_by_side import may_be_packable
from uds_lens.results._settings import AuditConfig, RunOptions

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from uds_lens.data._readers import ExampleSource


Drawn: TypeAlias = "tuple[ForgetExample, ...] | str"
"""Counterfactuals of an example, or the reason why it has none."""


class ForgetSet(NamedTuple):
    """Examples to measure, and how they were chosen."""

    examples: list[ForgetExample]  # in their original order
    # Limit, total, sampling method and seed, for the provenance; None if all examples are measured. If the first rows
    # are taken, also what the file is sorted by: `subject`, `type`, None if it is mixed, or `unknown`.
    sample: dict[str, Any] | None


def forget_set(examples: ExampleSource | Iterable[ForgetExample | Mapping[str, Any]], config: AuditConfig) -> ForgetSet:
    """Read the examples, check that some have an entity, and keep as many as `config.limit` allows."""
    rows = as_examples(examples)
    if not rows:
        raise DataError("no examples: an audit needs at least one row with question, answer and entity.")
    if not any((example.entity or "").strip() for example in rows):
        raise DataError(
            f"none of the {len(rows)} examples has an `entity`, the words of the answer that carry the knowledge, so "
            "nothing can be measured. Use data with entities (TOFU's forget10: jaeunglee/uds-annotated-tofu on "
            "the Hub), mark the entities (uds-lens annotate, or ul.annotate), or add a column `entity`."
        )
    if config.limit is None or config.limit >= len(rows):
        return ForgetSet(rows, None)
    kept = sample_examples(rows, config.limit, seed=config.seed, sample=config.sample)
    sample = {"limit": config.limit, "of": len(rows), "sample": config.sample, "seed": config.seed}
    return ForgetSet(kept, sample | ({"sorted_by": sorted_by(rows)} if config.sample == "first" else {}))


class AuditInputs(NamedTuple):
    """The examples to measure."""

    forget: ForgetSet  # the forget set, or a sample of it
    control: ForgetSet | None  # facts that should have been kept, or a sample of them; None without a control
    drawn: Sequence[Drawn] | None = None  # counterfactuals of each forget example; None if none are used

    @property
    def control_examples(self) -> list[ForgetExample] | None:
        """The control facts, or None."""
        return None if self.control is None else self.control.examples


def audit_inputs(examples: ExamplesLike, control: ExamplesLike | None, config: AuditConfig) -> AuditInputs:
    """Read both sets and check them before a model is opened; `config.limit` applies to each set."""
    forget = forget_set(examples, config)
    if control is None:
        return AuditInputs(forget, None, _drawn(forget.examples, (), config))
    try:
        facts = forget_set(control, config)
    except DataError as error:
        raise DataError(Setting("control"), ": ", *error.args) from error
    forgotten = {(example.question, example.answer) for example in forget.examples}
    both = sum((example.question, example.answer) in forgotten for example in facts.examples)
    if both:
        raise DataError(
            Setting("control"),
            f" contains {both} of the examples to forget, but must contain facts that full and retain both know.",
        )
    return AuditInputs(forget, facts, _drawn(forget.examples, facts.examples, config))


def _drawn(
    examples: Sequence[ForgetExample], control: Sequence[ForgetExample], config: AuditConfig
) -> list[Drawn] | None:
    if config.stand_in != "counterfactual":
        return None
    return counterfactuals(examples, config.counterfactual, draws=config.draws, seed=config.seed, more=control)


@dataclass(frozen=True)
class Source:
    """A model whose states are patched into `full`."""

    role: Literal["retain", "unlearned"]  # its role in the audit
    index: int  # number among the models in that role, from 1; 0 if it is the only one
    model: ModelSource  # where to open it from

    @property
    def name(self) -> str:
        """The role as it appears in results and messages.

        >>> Source("retain", 0, "ckpt/a").name, Source("retain", 2, "ckpt/b").name
        ('retain', 'retain 2')
        """
        return f"{self.role} {self.index}" if self.index else self.role


def sources_of(role: Literal["retain", "unlearned"], models: ModelSource | Sequence[Any]) -> list[Source]:
    """Make the sources for one model or several."""
    if not isinstance(models, list | tuple):
        return [Source(role, 0, cast("ModelSource", models))]
    if not models:
        raise ConfigError(Setting(role), " must name at least one model; got an empty list.")
    return [Source(role, i, model) for i, model in enumerate(models, start=int(len(models) > 1))]


def retain_sources(retain: RetainSource | None, config: AuditConfig) -> list[Source]:
    """Make the sources for the retain models; empty if counterfactuals replace them."""
    if config.stand_in == "counterfactual":
        if retain is None:
            return []
        raise ConfigError(Setting("stand_in", "counterfactual"), " needs no ", Setting("retain"), ": leave it out.")
    if retain is None:
        raise ConfigError(
            Setting("retain"),
            " is missing: a model that never saw the forget set. If there is no such model, use ",
            Setting("stand_in", "counterfactual"),
            ", or ul.audit.depth_map for the plain loss by layer (S2), which is not a score.",
        )
    return sources_of("retain", retain)


@dataclass(frozen=True, eq=False)
class Plan:
    """The tokenised forget set, the control facts (if any), and their batches."""

    encoded: Encoded  # the forget set: encoded and skipped rows
    batches: list[list[int]]  # row indices of each batch
    tokenizer: Any  # shared by all models; its padding token is masked everywhere
    control: Encoded | None = None  # control facts: encoded and skipped rows; None without a control
    protocol: Protocol = "raw"  # how the prompts were written
    prompts: str = "raw"  # the protocol in words, including the text that a chat template puts before each question
    opened: tuple[str, str] | None = (
        None  # how the chat template starts a generated and a given answer, if these differ
    )
    packed: bool = False  # whether all models run on packed rows (see `uds_lens.patching._packing`)
    counterfactual: CounterfactualPlan | None = (
        None  # rows that replace a retain model; None if there is a retain model
    )
    # Batches made so far, shared by all models. Making them again took 6% of the time of an audit with a recording.
    _made: dict[tuple[PaddingSide, tuple[int, ...]], TokenBatch] = field(default_factory=dict, repr=False)
    # The engine that reads each kind of model, chosen once per kind.
    _readings: dict[tuple[object, ...], Engine] = field(default_factory=dict, repr=False)
    # Names of models for which the fast engine was chosen but then failed.
    fallen: list[str] = field(default_factory=list, repr=False)

    @cached_property
    def rows(self) -> list[TokenRow]:
        """All rows to run, forget set first; batches contain indices into this list."""
        return [*self.encoded.rows, *(self.control.rows if self.control else ())]

    @cached_property
    def lengths(self) -> list[int]:
        """Number of tokens of each row."""
        return [len(row.ids) for row in self.rows]

    def reading(self, model: HookedModel, weights: str, *, site: Site, packed: bool, engine: Engine) -> Engine:
        """Return the engine that reads the model's states; `auto` tests the fast one on two rows first.

        The test runs once per kind of model. It is skipped if these `weights` (a fingerprint) have already passed it in
        this process.
        """
        if engine != "auto" or site != "resid_post" or not self.rows or not model.is_resident:
            return "naive" if engine == "naive" else "wavefront"
        kind = kind_of(model, packed)
        if kind not in self._readings:
            rows = sorted({self.lengths.index(max(self.lengths)), self.lengths.index(min(self.lengths))})
            choose = partial(choose_reading, model, self.batch_to_try(model, rows), packed=packed)
            self._readings[kind] = tried_once(choose, ("reading", weights, *kind), self.rows)
        return self._readings[kind]

    def read_plainly(self, model: HookedModel, why: Exception, *, packed: bool) -> Engine:
        """Warn that the fast engine failed, and read models of this kind with the plain engine from now on."""
        self._readings[kind_of(model, packed)] = engine = fall_back(model, why)
        self.fallen.append(model.name)
        return engine

    def batches_for(self, model: HookedModel) -> list[list[int]]:
        """Return the rows of each batch, split where batching would change the model's numbers."""
        return row_layout(model).split(self.batches, self.lengths)

    def batch_to_try(self, model: HookedModel, rows: Sequence[int]) -> TokenBatch:
        """Make a batch of the given rows, leaving out rows that cannot be batched with the first row."""
        layout = row_layout(model)
        return self.batch_of(layout.split([rows], self.lengths)[0], layout.padding_side)

    def batch(self, number: int) -> TokenBatch:
        """Make one of the planned batches."""
        return self.batch_of(self.batches[number])

    def batch_of(self, rows: Sequence[int], side: PaddingSide = "left") -> TokenBatch:
        """Make a batch of some rows, padded on one side."""
        key = (side, tuple(rows))
        if key not in self._made:
            self._made[key] = make_batch(
                self.rows, indices=rows, pad_token_id=self.tokenizer.pad_token_id, padding_side=side
            )
        return self._made[key]

    def require_embedded(self, model: HookedModel) -> None:
        """Raise `ModelError` unless the model's embedding covers all tokens."""
        require_embedded(model.hf, ((row.example.question, row.ids) for row in self.rows), name=model.name)

    def require_finite(self, finite: Bool[Tensor, "batch"], rows: Sequence[int], name: str, what: str) -> None:
        """Raise `ModelError` if a row is marked as not finite."""
        if bool(finite.all()):
            return
        example = self.rows[rows[int((~finite).nonzero()[0, 0])]].example
        raise ModelError(
            f"{name!r} gives NaN or infinite {what}, first for example {example.id!r} ({example.question[:60]!r}): "
            "either its weights are broken or its dtype overflows. Check the checkpoint, or use ",
            Setting("dtype", "float32"),
            ".",
        )


def kind_of(model: HookedModel, packed: bool) -> tuple[object, ...]:
    """Return a key for the code path: models with equal keys are read by the same code."""
    return (type(model.hf), model.dtype, model.device.type, packed, model.is_wrapped, model.runs_hooks)


def where_of(options: RunOptions) -> dict[str, Any]:
    """Return the options that determine how checkpoints are found."""
    return {"revision": options.revision, "offline": options.offline, "trust_remote_code": options.trust_remote_code}


@dataclass(frozen=True, eq=False)
class CounterfactualPlan:
    """Rows with counterfactuals, whose states in `full` replace those of a retain model."""

    plan: Plan  # tokens and batches of the counterfactuals, followed by the unchanged control facts
    places: list[list[int]]  # for each row of the audit, the indices of its counterfactuals in `plan`

    @property
    def draws(self) -> int:
        """The largest number of counterfactuals of any example; 1 if there are no examples."""
        return max(map(len, self.places), default=1)

    def fingerprint(self, full: str) -> str:
        """Hash of what the states depend on: the weights of `full`, the tokens, and which example each row is for."""
        parts = [full, self.plan.encoded.ids_hash, str(self.places)]
        return hashlib.blake2b("\n".join(parts).encode(), digest_size=16).hexdigest()


def make_plan(
    models: Mapping[str, ModelSource],
    examples: Sequence[ForgetExample],
    *,
    control: Sequence[ForgetExample] | None = None,
    drawn: Sequence[Drawn] | None = None,
    config: AuditConfig,
    options: RunOptions,
    report: bool = True,
) -> Plan:
    """Check that the checkpoints match, and tokenise the examples with their tokenizer."""
    infos = {role: read_checkpoint_info(model, **where_of(options)) for role, model in models.items()}
    tokenizer: PreTrainedTokenizerFast = check_compatible(infos)
    protocol = protocol_of(config.protocol, infos, tokenizer)
    recorded = deciding_record(infos) is not None
    words = describe_protocol(config.protocol, protocol, recorded, tokenizer=tokenizer, chat=config.chat)
    opened = two_openings(tokenizer, chat=config.chat) if protocol == "chat" else None
    if report and config.protocol == "auto":
        stage_1 = any(role.startswith("retain") for role in models)  # a baseline's prompts are already fixed
        if stage_1:
            announce_protocol(config.protocol, protocol, recorded, tokenizer=tokenizer, chat=config.chat)
        else:
            tell(f"prompts: {words}")
    full = next(iter(infos.values()))
    if report:
        _tell_of_bfloat16(full.config.get_text_config(), config, options)
    as_tokens = partial(
        encode,
        tokenizer=tokenizer,
        protocol=protocol,
        scope=config.scope,
        chat=config.chat,
        entity_space=config.entity_space,
        last_token=rope_limit(full.config) is not None,
    )
    encoded, facts = as_tokens(examples), None if control is None else as_tokens(control)
    drawn_rows: list[list[TokenRow]] = []
    if drawn is not None:
        encoded, drawn_rows = _with_draws(encoded, dict(zip(map(id, examples), drawn, strict=True)), as_tokens)
    plain = not options.trust_remote_code and options.device_map is None and options.engine != "naive"
    packed = (
        plain
        and (config.site, config.attention) == ("resid_post", "eager")
        and all(may_be_packable(model, full.shape["architecture"]) for model in models.values())
    )
    costs = ModelCosts.of(full.config, pick_device(options.device))

    readings: dict[tuple[object, ...], Engine] = {}
    fallen: list[str] = []  # shared by both plans: counterfactuals are read like all other rows

    def plan_of(encoded: Encoded, counterfactual: CounterfactualPlan | None = None) -> Plan:
        rows = [*encoded.rows, *(facts.rows if facts else ())]
        batches = costs.batches(rows, token_budget=options.token_budget, packed=packed)
        return Plan(
            encoded,
            batches,
            tokenizer,
            control=facts,
            protocol=protocol,
            prompts=words,
            opened=opened,
            packed=packed,
            counterfactual=counterfactual,
            _readings=readings,
            fallen=fallen,
        )

    if drawn is None:
        return plan_of(encoded)
    numbers = itertools.count()
    places = [[next(numbers) for _ in rows] for rows in drawn_rows]
    places += [[next(numbers)] for _ in (facts.rows if facts else ())]
    other = plan_of(replace(encoded, rows=[row for rows in drawn_rows for row in rows], skipped=[]))
    return plan_of(encoded, CounterfactualPlan(other, places))


def _tell_of_bfloat16(shape: Any, config: AuditConfig, options: RunOptions) -> None:
    """Log a hint if bfloat16 would be much faster than the default float32 for a large model on this CPU."""
    weights = 12 * shape.num_hidden_layers * shape.hidden_size**2
    if config.dtype != "float32" or weights < 1e8 or options.device_map or pick_device(options.device) != "cpu":
        return
    if (gain := bfloat16_gain("cpu")) is not None:
        tell(f"{gain}: dtype bfloat16 is enough for a first look ({BFLOAT16_COSTS})")


def _with_draws(
    encoded: Encoded, drawn: Mapping[int, Drawn], as_tokens: Callable[[Sequence[ForgetExample]], Encoded]
) -> tuple[Encoded, list[list[TokenRow]]]:
    """Tokenise the counterfactuals of each row; skip rows for which none keeps the entity's tokens."""
    rows, skipped, kept = [], list(encoded.skipped), []
    for row in encoded.rows:
        draws = drawn[id(row.example)]
        reason = draws if isinstance(draws, str) else "No counterfactual keeps the entity's tokens."
        same = [] if isinstance(draws, str) else [r for r in as_tokens(draws).rows if r.targets == row.targets]
        if same:
            rows.append(row)
            kept.append(same)
        else:
            skipped.append(SkippedExample(row.example.id, row.example.row, reason, row.example.question))
    return replace(encoded, rows=rows, skipped=skipped), kept
