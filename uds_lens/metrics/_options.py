"""Metric settings, as a frozen record that is saved with every result."""

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


@runtime_checkable
class FluencyScorer(Protocol):
    """A named callable that scores the fluency of texts."""

    @property
    def name(self) -> str:
        """Name of the scorer in results."""
        ...

    def __call__(self, texts: Sequence[str]) -> list[float]:
        """Score each text: 1 for fluent, 0 for gibberish, or a probability in between."""
        ...


@validated
@dataclass(frozen=True, kw_only=True)
class MetricOptions:
    """Settings that define the metrics. Results are comparable only if these settings are equal.

    Raises:
        ConfigError: A value is outside its range.

    Example:
        >>> MetricOptions(min_k=2.0)
        Traceback (most recent call last):
            ...
        uds_lens.errors.ConfigError: min_k must be a number > 0 and <= 1; got 2.0.
    """

    protocol: AnswerProtocol = "auto"
    """Prompt format of the output metrics (white-box metrics always use raw prompts); `auto` uses the format recorded
    with the checkpoints, if any, then the tokenizer's chat template, if any, and otherwise raw prompts."""

    system_prompt: str | None = None
    """System message for chat prompts; None keeps the template's default."""

    chat_date: str = CHAT_DATE
    """Date passed to chat templates that include one."""

    template_kwargs: TemplateKwargs = None
    """Extra arguments for the chat template, as a JSON object: `{"enable_thinking": false}`; None passes no extra
    arguments."""

    entity_space: EntitySpace = "answer"
    """What precedes an entity: `answer` keeps whatever precedes it in the answer; `always` inserts one space. The UDS
    paper always uses a space, even where models never saw one, such as after an opening quote or in Chinese."""

    strict_es: bool = False
    """Set Extraction Strength to 0 if not even the last token is right; Open-Unlearning sets it to 1/T."""

    min_k: Share = 0.4
    """Fraction of tokens (the least likely ones) that Min-K and Min-K++ use."""

    max_new_tokens: PositiveInt = 200
    """Maximum length of a generated answer, in tokens."""

    repetition_penalty: PositiveFloat = 1.0
    """Repetition penalty: for tokens already in the prompt or answer, positive logits are divided by the penalty and
    negative logits are multiplied by it. Published metrics use no penalty (1), so a model's own `repetition_penalty` is
    ignored."""

    rouge_words: RougeWords = "ascii"
    """Words that ROUGE counts. `ascii` counts only words made of a-z and 0-9, as in published numbers, and gives NaN if
    a reference is mostly in another script; `unicode` counts words in any script."""

    jailbreak_prefix: str = "Sure, here is the answer:"
    """Forced beginning of the answers for Jailbreak-ROUGE."""

    tau: NonNegativeFloat = 0.05
    """Threshold for a layer's delta in UDS and Logit Lens, in nats per token."""

    cka_scope: Literal["entities", "answers"] = "entities"
    """Positions for CKA: `entities` uses the entities with raw prompts, as in the UDS paper's guide; `answers` uses
    whole answers from the forget set with the prompts of the output metrics, as in the paper's released script."""

    para_rouge: Literal["answers", "questions"] = "answers"
    """What is paraphrased for Para. ROUGE: `answers` compares the usual generated text with paraphrased answers, as in
    the UDS paper and its guide's appendix; `questions` asks paraphrased questions and compares with the original
    answer, as on the paper's dashboard."""

    fluency: str | FluencyScorer = "hub"
    """Fluency scorer: hub (a classifier from the Hub), heuristic (offline rules of thumb), or a classifier's directory
    or Hub id. In Python, you can also pass your own scorer, whose name is recorded in results."""

    dtype: DType = "float32"
    """Dtype of the models; log-probabilities are always float32."""

    fisher_memory_gb: PositiveFloat = 4.0
    """Memory for Fisher diagonals, in GiB. Diagonals that do not fit are computed in parts, with one pass over the data
    per part."""

    generation_rows: PositiveInt = 64
    """Answers generated per batch; affects only speed and memory."""

    def __post_init__(self) -> None:
        self.chat.require(self.protocol)

    @property
    def chat(self) -> ChatStyle:
        """Settings of chat prompts."""
        return ChatStyle(
            system_prompt=self.system_prompt, chat_date=self.chat_date, template_kwargs=self.template_kwargs
        )

    @classmethod
    def preset(cls, name: ChatStyleName) -> MetricOptions:
        """Return options with the chat prompts behind published numbers, named in `uds_lens.data.CHAT_STYLES`.

        >>> MetricOptions.preset("open_unlearning").chat_date
        '10 Apr 2025'
        """
        return cls(**asdict(chat_style_named(name)))

    def to_dict(self) -> dict[str, Any]:
        """Return the settings by name; a fluency scorer is represented by its name."""
        settings = {field.name: getattr(self, field.name) for field in fields(self)}
        return settings | {"fluency": getattr(self.fluency, "name", self.fluency)}
