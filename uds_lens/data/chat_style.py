"""What a chat prompt holds beside the question: the system turn, and the date that some templates print."""

from __future__ import annotations

from dataclasses import dataclass

from uds_lens.checked_arguments import arguments_checked, arguments_named
from uds_lens.errors import ConfigError, Setting
from uds_lens.types import AnswerProtocol, ChatStyleName, check_choice

CHAT_DATE = "26 Jul 2024"
"""Date of a chat prompt unless another is given: the one that Llama 3's templates fall back to."""


def _require_text(name: str, value: object, otherwise: str) -> None:
    if not isinstance(value, str) or not value.strip():
        raise ConfigError(Setting(name), f" must be a text that is not empty, {otherwise}; got {value!r}.")


@arguments_named
@dataclass(frozen=True, kw_only=True)
class ChatStyle:
    """How a question is put into a chat template.

    Raises:
        ConfigError: A value is no text, or an empty one.

    Example:
        >>> CHAT_STYLES["open_unlearning"]
        ChatStyle(system_prompt='You are a helpful assistant.', chat_date='10 Apr 2025')
    """

    system_prompt: str | None = None
    """Text of a system turn before the question; None sends none (a template may write one of its own)."""

    chat_date: str = CHAT_DATE
    """Given to templates that print a date (`date_string`), so that a prompt is the same every day."""

    def __post_init__(self) -> None:
        if self.system_prompt is not None:
            _require_text("system_prompt", self.system_prompt, "or None for no system turn")
        _require_text("chat_date", self.chat_date, f"such as {CHAT_DATE!r}")

    @arguments_checked
    def require(self, protocol: AnswerProtocol) -> None:
        """Refuse a style that raw prompts would leave out.

        Raises:
            ConfigError: The protocol is "raw", and this is not the plain style.
        """
        if protocol == "raw" and self != ChatStyle():
            raise ConfigError(
                Setting("system_prompt"),
                " and ",
                Setting("chat_date"),
                f" belong to chat prompts; got {str(self.system_prompt)[:100]!r} and {self.chat_date[:100]!r} with ",
                Setting("protocol", "raw"),
                ".",
            )


_HELPFUL, _APRIL = "You are a helpful assistant.", "10 Apr 2025"

CHAT_STYLES: dict[ChatStyleName, ChatStyle] = {
    "open_unlearning": ChatStyle(system_prompt=_HELPFUL, chat_date=_APRIL),
    "open_unlearning_gemma": ChatStyle(),
    "paper_pools": ChatStyle(system_prompt=_HELPFUL, chat_date=_APRIL),
    "paper_scores": ChatStyle(chat_date=_APRIL),
    "paper_perturbed": ChatStyle(),
}
"""What published numbers were measured with; the numbers that a style does not name used another one.

- `open_unlearning`: Open-Unlearning's, in training and evaluation, of Llama 3, Qwen2.5, Phi-3.5 and Zephyr (the
  templates of Qwen2.5 and Phi-3.5 print no date). Its Llama-2-chat has a form of its own, no tokenizer's template.
- `open_unlearning_gemma`: of Gemma-7b-it, without a system turn; its template prints no date.
- `paper_pools`: the UDS paper's output metrics on its two pools, and ROUGE of the 150 unlearned models.
- `paper_scores`: memorization, privacy and utility of these 150, behind the ranking of methods.
- `paper_perturbed`: models after quantisation or relearning, and retain's own values before. The date was the day of
  the run, which is not in the released files (it moved retain by 0.0014 at most); here it is `CHAT_DATE`.

UDS, Logit Lens and Fisher of the paper were measured on raw prompts, and so have no style."""


@arguments_named
def chat_style_named(name: ChatStyleName) -> ChatStyle:
    """A published style by its name.

    Raises:
        ConfigError: There is no such style.

    Example:
        >>> chat_style_named("paper_scores")
        ChatStyle(system_prompt=None, chat_date='10 Apr 2025')
    """
    check_choice("chat style", name, ChatStyleName)
    return CHAT_STYLES[name]
