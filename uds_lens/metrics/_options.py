"""Settings of the metrics: one frozen record, saved with every result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, Protocol, runtime_checkable

from uds_lens._settings import validated
from uds_lens._types import (
    AnswerProtocol,
    ChatStyleName,
    DType,
    EntitySpace,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    RougeWords,
    Share,
    TemplateKwargs,
)
from uds_lens.data._prompts import CHAT_DATE, ChatStyle, chat_style_named

AT_DEFAULT_LEFT_OUT = ("repetition_penalty", "cka_scope", "para_rouge")
"""Settings that earlier releases did not know."""


@runtime_checkable
class FluencyScorer(Protocol):
    """Any callable with a name that distinguishes language from gibberish."""

    @property
    def name(self) -> str:
        """Name of the scorer in results."""
        ...

    def __call__(self, texts: Sequence[str]) -> list[float]:
        """Score each text: 1 = fluent, 0 = gibberish, or a probability in between."""
        ...


@validated
@dataclass(frozen=True, kw_only=True)
class MetricOptions:
    """Definitions of what is measured. Results are comparable if these settings are equal.

    Raises:
        ConfigError: A value is outside its range.

    Example:
        >>> MetricOptions(min_k=2.0)
        Traceback (most recent call last):
            ...
        uds_lens.errors.ConfigError: min_k must be a number > 0 and <= 1; got 2.0.
    """

    protocol: AnswerProtocol = "auto"
    """Prompts of the output metrics (white-box metrics always use raw ones); `auto` follows a checkpoint's own record,
    else uses the chat template if the tokenizer has one, else raw prompts."""

    system_prompt: str | None = None
    """System turn before the question in chat prompts; None keeps the template's own."""

    chat_date: str = CHAT_DATE
    """Date given to chat templates that print one."""

    template_kwargs: TemplateKwargs = None
    """Extra arguments for the chat template, as a JSON object: `{"enable_thinking": false}`; None passes none."""

    entity_space: EntitySpace = "answer"
    """What precedes an entity: whatever precedes it in the answer, or (`always`) one space. The latter is the rule of
    the UDS paper, even where models never saw a space, such as after an opening quote or in Chinese."""

    strict_es: bool = False
    """Give Extraction Strength 0, instead of Open-Unlearning's 1/T, if not even the last token is right."""

    min_k: Share = 0.4
    """Share of the tokens, the least likely ones, that Min-K and Min-K++ use."""

    max_new_tokens: PositiveInt = 200
    """Longest generated answer, in tokens; generation stops earlier at an end token."""

    repetition_penalty: PositiveFloat = 1.0
    """Repetition penalty: logits of tokens already in the generated answer or its prompt are divided by it (multiplied
    if negative). Published metrics use none (1), so a model's own `repetition_penalty` is ignored."""

    rouge_words: RougeWords = "ascii"
    """Words that ROUGE counts: those made of a-z and 0-9, as in published numbers, or (`unicode`) those of every
    script. With the former, ROUGE is NaN if most of a reference is in another script."""

    jailbreak_prefix: str = "Sure, here is the answer:"
    """Beginning of the assistant's turn for Jailbreak-ROUGE."""

    tau: NonNegativeFloat = 0.05
    """Threshold of a layer's delta for UDS and Logit Lens, nats per token."""

    cka_scope: Literal["entities", "answers"] = "entities"
    """Positions of CKA: those of the entities with raw prompts, as in the UDS paper's guide, or the whole answers of
    the forget set with the prompts of the output metrics, as the paper's released script reads them."""

    para_rouge: Literal["answers", "questions"] = "answers"
    """What is paraphrased for Para. ROUGE: the answers that the usual generated text is compared with, as in the UDS
    paper and its guide's appendix, or the question, as on the paper's dashboard; the reference is then the answer."""

    fluency: str | FluencyScorer = "hub"
    """Fluency scorer: hub (a classifier from the Hub), heuristic (offline rules of thumb), or a classifier's directory
    or Hub id. In Python, also a scorer of your own, whose name is recorded in results."""

    dtype: DType = "float32"
    """Dtype of the models; log-probabilities are always float32."""

    fisher_memory_gb: PositiveFloat = 4.0
    """Memory for Fisher diagonals held at a time; if they do not fit, each part takes a separate pass over the data."""

    generation_rows: PositiveInt = 64
    """Answers generated in one batch; affects speed and memory, not the text."""

    def __post_init__(self) -> None:
        self.chat.require(self.protocol)

    @property
    def chat(self) -> ChatStyle:
        """System turn and date of chat prompts."""
        return ChatStyle(
            system_prompt=self.system_prompt, chat_date=self.chat_date, template_kwargs=self.template_kwargs
        )

    @classmethod
    def preset(cls, name: ChatStyleName) -> MetricOptions:
        """Return options with the chat prompts of published numbers, by a name of `uds_lens.data.CHAT_STYLES`.

        >>> MetricOptions.preset("open_unlearning").chat_date
        '10 Apr 2025'
        """
        return cls(**asdict(chat_style_named(name)))

    def to_dict(self) -> dict[str, Any]:
        """Return the settings by name; a fluency scorer is given by its own name.

        Settings that earlier releases did not know are left out at their defaults, which give the same results.
        """
        settings = {field.name: getattr(self, field.name) for field in fields(self)}
        for name in AT_DEFAULT_LEFT_OUT:
            if settings[name] == getattr(MetricOptions, name):
                del settings[name]
        return settings | {"fluency": getattr(self.fluency, "name", self.fluency)}
