"""What a study is: the models there are or shall be made, and what is measured of them. One record per TOML table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from uds_lens.checked_settings import names_checked

Answers: TypeAlias = Literal["own", "paraphrased", "wrong", "biography"]
"""What is learnt: the answer, the first true one in other words, the first wrong one, or all of a subject joined."""

PlannedSampling: TypeAlias = Literal["random", "first", "first_of_each"]
"""Which rows a limit keeps in a study."""

Role: TypeAlias = Literal["full", "retain", "pool", "unlearned", "other"]
"""What a model is in a study."""


@names_checked
@dataclass(frozen=True, kw_only=True)
class TrainingRows:
    """Questions and answers to train on."""

    source: str
    """File, `toy:forget`, `toy:retain`, `toy:holdout`, or with `split` a TOFU directory or Hub id."""

    split: str | None = None
    """Split of TOFU, for example "forget10"; its paraphrased and wrong answers are joined in."""

    answers: Answers = "own"
    """Which answers."""

    answers_per_row: int | None = None
    """Of a biography: how many answers one row joins, where all of them would be longer than what the model can read;
    None joins all."""

    sample: int | None = None
    """That many rows, drawn without replacement; None takes all."""

    seed: int = 0
    """Of the draw."""


@names_checked
@dataclass(frozen=True, kw_only=True)
class AskedSets:
    """What the metrics ask: one place with all TOFU sets, or single files. See `uds_lens.metrics.MetricData`."""

    tofu: str | None = None
    """TOFU directory or Hub id; then no other set is named."""

    split: str = "forget10"
    """Its forget split."""

    forget: str | None = None
    """File of the forget set."""

    holdout: str | None = None
    """File of questions no model has seen."""

    retain: str | None = None
    """File of questions about what is kept."""

    real_authors: str | None = None
    """File of related facts."""

    world_facts: str | None = None
    """File of unrelated facts."""

    entities: str | None = None
    """File of the forget set with entities; None takes `forget`."""

    limit: int | None = None
    """Ask this many of each set; `entities` keeps the rows of the questions drawn from `forget`."""

    sample: PlannedSampling = "random"
    """Which: "random", spread over the subjects; "first" for the first ones, which in a sorted file stand for
    themselves only; or "first_of_each" for the first ones of each file by itself, `entities` too, as every study took
    them before samples were random: white-box metrics are then measured on other questions than the rest."""

    seed: int = 0
    """Of the random sample."""


@names_checked
@dataclass(frozen=True, kw_only=True)
class TrainingSets:
    """What unlearning trains on."""

    forget: tuple[TrainingRows, ...] = ()
    """To forget; relearning takes it too."""

    retain: tuple[TrainingRows, ...] = ()
    """To keep."""


@names_checked
@dataclass(frozen=True, kw_only=True)
class GivenModel:
    """A model that exists."""

    name: str
    """Its name in the tables."""

    path: str
    """Directory, Hub id, or a checkpoint of the toy world such as `toy:npo`."""

    role: Role = "unlearned"
    """What it is."""

    knows: bool | None = None
    """Pool of a pool model: True was trained on the forget set, False never saw it."""

    variant: str | None = None
    """Kind of training, of a pool model."""

    run: str | None = None
    """Training run, of a pool model; None is a run of its own."""

    method: str | None = None
    """Unlearning method."""

    config: str | None = None
    """Its settings, as text."""

    revision: str | None = None
    """Branch, tag or commit on the Hub."""


@names_checked
@dataclass(frozen=True, kw_only=True)
class PoolRuns:
    """Models of a pool: fine-tuned from one start, once per combination of settings."""

    variant: str
    """Name of this kind of training."""

    knows: bool
    """True: trained on the forget set; False: never saw it."""

    start: str
    """Where each run starts: directory, Hub id or `toy:NAME`."""

    data: tuple[TrainingRows, ...]
    """What is learnt, all parts together."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings of `RelearnConfig`; a list is an axis of the grid."""


@names_checked
@dataclass(frozen=True, kw_only=True)
class UnlearningRuns:
    """Unlearned models: one method, once per combination of settings, or a published grid."""

    method: str | None = None
    """A word of `uds_lens.unlearning.METHODS`."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    """Its settings; a list is an axis of the grid."""

    grid: str | None = None
    """Instead of a method: "paper"."""

    start: str | None = None
    """Where each run starts; None is the plan's `full`."""


@names_checked
@dataclass(frozen=True, kw_only=True)
class Relearning:
    """Fine-tuning on the forget set again."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings of `RelearnConfig`, one value each."""

    seeds: tuple[int, ...] = (0,)
    """One relearning per seed of full and each unlearned model."""

    retain_seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    """One relearning per seed of each retain model: all other models are compared with their mean."""


@names_checked
@dataclass(frozen=True, kw_only=True)
class Perturbations:
    """What is done to full, retain and each unlearned model after they were measured."""

    quantise: bool = False
    """Measure them in 4 bits too (NF4, unpacked to the dtype of the others)."""

    relearn: Relearning | None = None
    """Measure them after relearning too."""


@names_checked
@dataclass(frozen=True, kw_only=True)
class Measurement:
    """What is measured."""

    metrics: tuple[str, ...] = ()
    """Names from `uds_lens.metrics.METRICS`, of every model in every state."""

    utility: tuple[str, ...] = ()
    """Metrics of usefulness, of full, retain and unlearned models before they are perturbed."""

    options: Mapping[str, Any] = field(default_factory=dict)
    """Settings of `MetricOptions`."""

    fluency: str = "heuristic"
    """Scorer of the metric `fluency`: "heuristic", "hub", or a classifier."""

    audit: Mapping[str, Any] | None = None
    """Settings of `AuditConfig`: audit every model in every state and save the audits; None audits nothing."""

    elicitation: Mapping[str, Any] | None = None
    """`audits`, a list or a preset, beside settings of `ElicitOptions`: ask the unlearned models; None asks nothing."""


@names_checked
@dataclass(frozen=True, kw_only=True)
class StudyPlan:
    """A whole study. `uds_lens.study.plan` reads one from TOML and checks it."""

    name: str
    """What it is called."""

    full: str
    """Model that knows: directory, Hub id or `toy:full`."""

    retain: str
    """Model that never saw the forget set."""

    data: AskedSets = field(default_factory=AskedSets)
    """What the metrics ask."""

    train: TrainingSets = field(default_factory=TrainingSets)
    """What unlearning trains on."""

    model: tuple[GivenModel, ...] = ()
    """Models that exist, beside full and retain."""

    pool: tuple[PoolRuns, ...] = ()
    """Models that know or never knew, to be made."""

    unlearn: tuple[UnlearningRuns, ...] = ()
    """Unlearned models, to be made."""

    perturb: Perturbations = field(default_factory=Perturbations)
    """What is done to them."""

    measure: Measurement = field(default_factory=Measurement)
    """What is measured."""

    training: Mapping[str, Any] = field(default_factory=dict)
    """Settings of `uds_lens.unlearning.TrainOptions`."""

    running: Mapping[str, Any] = field(default_factory=dict)
    """Settings of `uds_lens.RunOptions`."""

    keep_models: bool = True
    """Keep the weights of models that were made; False deletes them once all their states are measured."""

    seed: int = 0
    """Of the order in which models are taken."""
