"""The settings of an audit: `AuditConfig`, what it measures, and `RunOptions`, how it runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal, NamedTuple

from annotated_types import Ge, Gt, Le, Lt
from pydantic.json_schema import SkipJsonSchema

from uds_lens._settings import validated
from uds_lens._types import (
    AnswerProtocol,
    Counterfactual,
    DType,
    Engine,
    EntitySpace,
    LastLayer,
    NonNegativeFloat,
    PositiveInt,
    Sampling,
    Scope,
    Site,
    StandIn,
    TemplateKwargs,
    Words,
    check_choice,
)
from uds_lens.data._prompts import CHAT_DATE, ChatStyle
from uds_lens.errors import ConfigError, Setting


class Roles(NamedTuple):
    """Names of the three models for use in sentences."""

    full: str = "full"
    retain: str = "retain"
    unlearned: str = "unlearned"  # before "model" or "states"
    retain_model: str = "retain model"
    a_retain_model: str = "a retain model"


_OF_A_CHANGE = Roles("the knowing model", "the ignorant model", "changed", "ignorant model", "an ignorant model")
"""Names for audits of an edit or a refusal."""


@validated
@dataclass(frozen=True, kw_only=True)
class AuditConfig:
    """Choose what an audit measures. Two audits are comparable if these settings are equal.

    Raises:
        ConfigError: A value is outside its range.

    Example:
        >>> AuditConfig(tau=-1)
        Traceback (most recent call last):
            ...
        uds_lens.errors.ConfigError: tau must be a number >= 0; got -1.
    """

    tau: NonNegativeFloat = 0.05
    """Threshold in nats per token: a layer encodes knowledge if patching in retain's state costs more than this."""

    site: Site = "resid_post"
    """Point in each block that is patched."""

    scope: Scope = "entity"
    """Positions that are patched; the entity's tokens are scored in every scope."""

    last_layer: LastLayer = "resid_post"
    """`post_norm` reproduces the paper's released script, which patches the normed state into the last layer."""

    protocol: AnswerProtocol = "auto"
    """How question and answer become text. `auto` follows a checkpoint's own record; without one, it uses the chat
    template if the tokenizer has one, and otherwise raw prompts (as in the UDS paper). A finished audit records the
    choice."""

    system_prompt: str | None = None
    """System prompt in chat prompts; None uses the template's own."""

    chat_date: str = CHAT_DATE
    """Date passed to chat templates that print a date."""

    template_kwargs: TemplateKwargs = None
    """Extra arguments for the chat template, as a JSON object: `{"enable_thinking": false}`; None passes nothing."""

    entity_space: EntitySpace = "answer"
    """What precedes an entity: with `answer`, the text before it in the answer; with `always`, one space. `always` is
    the UDS paper's rule, which adds a space even where models never saw one, such as after an opening quote or in
    Chinese."""

    dtype: DType = "float32"
    """Dtype of the models. Log-probabilities are always float32; half precision hardly changes means, but changes
    individual examples more (docs/results/order.md)."""

    attention: Literal["eager", "sdpa"] = "eager"
    """Attention implementation of the models: transformers' plain one (`eager`) or torch's fused one (`sdpa`). They
    differ by rounding. Models that are already loaded keep their own implementation."""

    stand_in: StandIn | None = None
    """What replaces a missing retain model: "base", the model before fine-tuning (given as `retain`; the numbers stay
    the same), or "counterfactual", full's own states without the question or about another subject (`retain` is left
    out). A stand-in changes what 1 means, so such scores can only be compared with each other. With None, `retain` is a
    retain model."""

    counterfactual: Counterfactual = "no_question"
    """Question in a counterfactual: `no_question` (it is left out), or `other` (the same question about another subject
    in the data)."""

    draws: PositiveInt = 3
    """Number of other subjects per example (all of them if the data have fewer). S1 is the mean over these subjects."""

    words: Words = "unlearning"
    """Kind of change that is audited, which affects wording but no numbers. With `edit` and `refusal`, verdicts,
    warnings, cards and reports refer to a knowing, an ignorant and a changed model; figures, files and tables keep the
    names full, retain and unlearned."""

    exact_noop: bool = True
    """Report exactly 0, rather than rounding noise, where source and target states are bitwise equal."""

    confidence: Annotated[float, Gt(0), Lt(1)] = 0.95
    """Coverage of the bootstrap interval, between 0 and 1."""

    n_bootstrap: Annotated[int, Ge(100), Le(10**7)] = 9999
    """Number of bootstrap resamples."""

    seed: Annotated[int, Ge(0), Le(2**63 - 1)] = 0
    """Seed of the bootstrap and, if there is a limit, of the sample."""

    limit: PositiveInt | None = None
    """Measure this many of the examples; None means all."""

    sample: Sampling = "random"
    """Which examples a limit keeps: a random sample spread over the subjects (`random`), or the first rows (`first`),
    which are not representative if the file is sorted."""

    def __post_init__(self) -> None:
        self.chat.require(self.protocol)
        if self.last_layer == "post_norm":
            self._require("site", "resid_post", by=Setting("last_layer", "post_norm"))
        if self.stand_in == "counterfactual" and self.scope not in ("entity", "boundary"):
            raise ConfigError(
                Setting("scope", self.scope),
                " patches positions before the entity, which a question about another subject does not share. With ",
                Setting("stand_in", "counterfactual"),
                " use ",
                Setting("scope", "entity"),
                ".",
            )
        if self.counterfactual != "no_question":
            self._require("stand_in", "counterfactual", by=Setting("counterfactual"))
        if self.draws != 3:
            self._require("counterfactual", "other", by=Setting("draws"))

    def _require(self, name: str, value: str, *, by: Setting) -> None:
        """Raise unless a setting has the value that another setting requires."""
        if (given := getattr(self, name)) != value:
            raise ConfigError(by, " belongs to ", Setting(name, value), "; got ", Setting(name, given), ".")

    @classmethod
    def preset(cls, name: Literal["paper"]) -> AuditConfig:
        """Return the settings behind a published table; `paper` is the UDS paper.

        These are raw prompts, a space before every entity, bfloat16, and the last layer patched as in the paper's
        script.

        >>> AuditConfig.preset("paper").protocol
        'raw'
        """
        check_choice("preset", name, Literal["paper"])
        return cls(protocol="raw", entity_space="always", dtype="bfloat16", last_layer="post_norm")

    @property
    def chat(self) -> ChatStyle:
        """System prompt and date of chat prompts."""
        return ChatStyle(
            system_prompt=self.system_prompt, chat_date=self.chat_date, template_kwargs=self.template_kwargs
        )

    @property
    def roles(self) -> Roles:
        """Names of the three models for use in sentences."""
        return Roles() if self.words == "unlearning" else _OF_A_CHANGE

    @property
    def resampling(self) -> dict[str, Any]:
        """Confidence, number of resamples and seed, as arguments for the interval functions."""
        return {"confidence": self.confidence, "n_resamples": self.n_bootstrap, "seed": self.seed}

    def to_dict(self) -> dict[str, Any]:
        """Return the settings by name."""
        return asdict(self)

    @classmethod
    def from_dict(cls, settings: Mapping[str, Any]) -> AuditConfig:
        """Restore settings from `to_dict`; an unknown name raises `ConfigError`."""
        return cls(**settings)


def roles_of(audits: Iterable[Any]) -> Roles:
    """Return the names that all audits share, or the names for unlearning if they differ."""
    found = {audit.config.roles for audit in audits}
    return found.pop() if len(found) == 1 else Roles()


@validated
@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Choose how an audit runs: device, speed, memory. Beyond rounding, results do not depend on these options."""

    device: str = "auto"
    """`auto` (CUDA if there is one), `cpu`, `cuda:1` ..."""

    device_map: str | dict[str, Any] | None = None
    """accelerate's placement of the model on several devices; replaces `device`."""

    engine: Engine = "auto"
    """`auto` uses `wavefront` if its first batch agrees with `naive` (one forward pass per layer), and `naive`
    otherwise."""

    stream: bool | Literal["auto"] = "auto"
    """Load models one block at a time, so that they may be larger than memory. The numbers are the same, but each audit
    reads all weights from disk. `auto` streams if a model does not fit."""

    stage_2: Literal["auto", "all", "knowledge"] = "auto"
    """Layers whose unlearned states are patched in: all, or for each example only those that count in the score (S1
    above tau). With `knowledge`, the score, its interval and its shares are the same, and much time is saved if only
    late layers count, but S2 is NaN at the other layers, and a lower tau needs a new measurement. `auto` means
    `knowledge` in sweeps, for published models and during training, and `all` otherwise. With control facts, all layers
    are always patched, since damage covers all of them."""

    token_budget: PositiveInt = 4096
    """Maximum number of tokens per batch, including padding; on a CPU, batches of wide models are smaller. Lower it if
    memory runs out."""

    memory_gib: NonNegativeFloat = 4.0
    """Memory for states and recordings, in GiB. States that do not fit go to temporary files; recordings that do not
    fit are repeated."""

    check_memory: bool = True
    """Estimate the memory needed before the run, and stop if there is not enough even for a streamed audit."""

    revision: str | None = None
    """Branch, tag or commit, for checkpoints on the Hub."""

    offline: bool = False
    """Use only files already downloaded."""

    trust_remote_code: bool = False
    """Run the checkpoints' own Python code."""

    progress: SkipJsonSchema[bool | None] = None
    """Show progress bars; None shows them in terminals and notebooks."""
