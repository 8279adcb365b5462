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
    """Name the three models in sentences."""

    full: str = "full"
    retain: str = "retain"
    unlearned: str = "unlearned"  # before "model" or "states"
    retain_model: str = "retain model"
    a_retain_model: str = "a retain model"


_OF_A_CHANGE = Roles("the knowing model", "the ignorant model", "changed", "ignorant model", "an ignorant model")
"""Names of the models of an edit or a refusal."""


@validated
@dataclass(frozen=True, kw_only=True)
class AuditConfig:
    """Choose what an audit measures. Two audits are comparable when these settings are equal.

    Raises:
        ConfigError: A value is outside its range.

    Example:
        >>> AuditConfig(tau=-1)
        Traceback (most recent call last):
            ...
        uds_lens.errors.ConfigError: tau must be a number >= 0; got -1.
    """

    tau: NonNegativeFloat = 0.05
    """Threshold of knowledge-encoding layers: those where patching in retain's state costs more than this, in nats per
    token."""

    site: Site = "resid_post"
    """Point of each block that is patched."""

    scope: Scope = "entity"
    """Positions that are patched; the entity's tokens are scored in every scope."""

    last_layer: LastLayer = "resid_post"
    """`post_norm` reproduces the paper's released script, which patches the normed state into the last layer."""

    protocol: AnswerProtocol = "auto"
    """How question and answer become text; `auto`: as a checkpoint's own record says, else the chat template where the
    tokenizer has one, else raw (the UDS paper's prompts). A finished audit holds what was chosen."""

    system_prompt: str | None = None
    """System turn before the question, in chat prompts; None uses the template's own."""

    chat_date: str = CHAT_DATE
    """Date given to chat templates that print one."""

    template_kwargs: TemplateKwargs = None
    """Extra arguments for the chat template, as a JSON object: `{"enable_thinking": false}`; None passes nothing."""

    entity_space: EntitySpace = "answer"
    """What precedes an entity: the characters of the answer, or `always` one space. The latter is the UDS paper's rule,
    even where models never saw a space, such as after an opening quote or in Chinese."""

    dtype: DType = "float32"
    """Dtype of the models. Log-probabilities are always float32; half precision hardly changes means, but it changes
    single examples more (docs/results/order.md)."""

    attention: Literal["eager", "sdpa"] = "eager"
    """Implementation of attention that the models run: transformers' plain one, or torch's fused one. The two differ by
    rounding; a caller's open models keep their own."""

    stand_in: StandIn | None = None
    """What replaces a missing retain model: "base", the model before fine-tuning (given as `retain`; the numbers stay
    the same), or "counterfactual", full's own states without the question or about another subject (`retain` is left
    out). It changes what 1 means, so such scores can only be compared with each other. None:
    `retain` is a retain model."""

    counterfactual: Counterfactual = "no_question"
    """What a counterfactual asks: nothing (the question is left out), or the same about another subject in the data."""

    draws: PositiveInt = 3
    """Number of other subjects per example; S1 is the mean over them. Fewer are used if the data have too few."""

    words: Words = "unlearning"
    """Kind of change that is audited. With `edit` and `refusal`, verdicts, warnings, cards and reports refer to a
    knowing, an ignorant and a changed model; figures, files and tables keep full, retain and unlearned. It does not
    affect numbers."""

    exact_noop: bool = True
    """Report exactly 0, rather than rounding noise, where source and target states are bitwise equal."""

    confidence: Annotated[float, Gt(0), Lt(1)] = 0.95
    """Coverage of the bootstrap interval, between 0 and 1."""

    n_bootstrap: Annotated[int, Ge(100), Le(10**7)] = 9999
    """Resamples of the bootstrap."""

    seed: Annotated[int, Ge(0), Le(2**63 - 1)] = 0
    """Seed of the bootstrap, and of the sample if there is a limit."""

    limit: PositiveInt | None = None
    """Measure this many of the examples; None means all."""

    sample: Sampling = "random"
    """Which examples a limit keeps: a random sample spread over the subjects, or the first, which do not represent the
    rest of a sorted file."""

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
        """Raise unless a setting has the value that another setting depends on."""
        if (given := getattr(self, name)) != value:
            raise ConfigError(by, " belongs to ", Setting(name, value), "; got ", Setting(name, given), ".")

    @classmethod
    def preset(cls, name: Literal["paper"]) -> AuditConfig:
        """Return the settings of a published table; `paper`: those of the UDS paper.

        They are raw prompts, a space before every entity, bfloat16, and the last layer patched as in the paper's
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
        """Confidence, number of resamples and seed, as the interval functions take them."""
        return {"confidence": self.confidence, "n_resamples": self.n_bootstrap, "seed": self.seed}

    def to_dict(self) -> dict[str, Any]:
        """Return the settings by name."""
        return asdict(self)

    @classmethod
    def from_dict(cls, settings: Mapping[str, Any]) -> AuditConfig:
        """Restore settings from `to_dict`; an unknown name raises `ConfigError`."""
        return cls(**settings)


def roles_of(audits: Iterable[Any]) -> Roles:
    """Return the names that audits share, or those of unlearning if they differ."""
    found = {audit.config.roles for audit in audits}
    return found.pop() if len(found) == 1 else Roles()


@validated
@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Choose how an audit runs: device, speed, memory. Beyond rounding, results do not depend on these options."""

    device: str = "auto"
    """`auto` (CUDA if there is one), `cpu`, `cuda:1` ..."""

    device_map: str | dict[str, Any] | None = None
    """accelerate's placement over several devices; replaces `device`."""

    engine: Engine = "auto"
    """`auto` checks `wavefront` on a first batch against `naive` (one forward pass per layer), and falls back to it."""

    stream: bool | Literal["auto"] = "auto"
    """Read models a block at a time, so that they may be larger than memory; the numbers are the same, but each audit
    reads all weights from disk. `auto` does so if a model does not fit."""

    stage_2: Literal["auto", "all", "knowledge"] = "auto"
    """Layers at which an unlearned model is patched: all, or in each example only those that the score counts (S1 above
    tau). The score, its interval and its shares are the same, S2 is NaN at the other layers, and a lower tau has to be
    measured again. If only late layers count, this costs much less. `auto` means all, but `knowledge` in sweeps, for
    published models and while training. With control facts, all layers are always patched, since damage covers all of
    them."""

    token_budget: PositiveInt = 4096
    """Maximum number of tokens per batch, padding included; wide models take fewer on a CPU. Lower it when memory runs
    out."""

    memory_gib: NonNegativeFloat = 4.0
    """Memory for states and recordings, GiB. States beyond it go to temporary files; recordings are repeated."""

    check_memory: bool = True
    """Estimate the memory needed before the run, and stop if it is not available, even streamed."""

    revision: str | None = None
    """Branch, tag or commit, for checkpoints on the Hub."""

    offline: bool = False
    """Use only files already downloaded."""

    trust_remote_code: bool = False
    """Run the checkpoints' own Python code."""

    progress: SkipJsonSchema[bool | None] = None
    """Show progress bars; None shows them in terminals and notebooks."""
