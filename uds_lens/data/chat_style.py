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


CHAT_STYLES: dict[ChatStyleName, ChatStyle] = {
    "open_unlearning": ChatStyle(system_prompt="You are a helpful assistant.", chat_date="10 Apr 2025"),
    "paper": ChatStyle(),
}
"""`open_unlearning`: what Open-Unlearning trains and evaluates with. `paper`: the UDS paper's scripts for unlearned
models, which set neither; their date was the day's, here it is the template's own, `CHAT_DATE`."""


@arguments_named
def chat_style_named(name: ChatStyleName) -> ChatStyle:
    """A published style by its name.

    Raises:
        ConfigError: There is no such style.

    Example:
        >>> chat_style_named("paper").system_prompt is None
        True
    """
    check_choice("chat style", name, ChatStyleName)
    return CHAT_STYLES[name]
