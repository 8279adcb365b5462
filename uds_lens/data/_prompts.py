"""The two prompt protocols: how a question and the start of its answer become the text that a model reads."""

from __future__ import annotations

import ctypes
import json
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from uds_lens._progress import tell
from uds_lens._types import (
    AnswerProtocol,
    ChatStyleName,
    EntitySpace,
    Protocol,
    TemplateKwargs,
    check_choice,
    template_kwargs,
)
from uds_lens.data._examples import ForgetExample, Span, entity_span
from uds_lens.errors import ConfigError, DataError, Setting

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


CHAT_DATE = "26 Jul 2024"
"""Default date of chat prompts, which is also the default in Llama 3's templates."""


@dataclass(frozen=True, kw_only=True)
class ChatStyle:
    """Settings for rendering a question with a chat template.

    Raises:
        ConfigError: A value is not text, or is empty.

    Example:
        >>> CHAT_STYLES["open_unlearning"].chat_date
        '10 Apr 2025'
    """

    system_prompt: str | None = None
    """System prompt; None keeps the template's default, if it has one."""

    chat_date: str = CHAT_DATE
    """Date for templates that include one (`date_string`), so that prompts do not change from day to day."""

    template_kwargs: TemplateKwargs = None
    """Other arguments for the template, as a JSON object (for example `{"enable_thinking": false}`); None for none."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "template_kwargs", template_kwargs(self.template_kwargs))
        for name, example in (("system_prompt", "or None for the default"), ("chat_date", f"such as {CHAT_DATE!r}")):
            value = getattr(self, name)
            if not (isinstance(value, str) and value.strip()) and (name, value) != ("system_prompt", None):
                raise ConfigError(Setting(name), f" must be non-empty text, {example}; got {value!r}.")

    def require(self, protocol: AnswerProtocol) -> None:
        """Raise an error if raw prompts would ignore this style.

        Raises:
            ConfigError: The protocol is "raw", and this is not the default style.
        """
        if protocol == "raw" and self != ChatStyle():
            raise ConfigError(
                Setting("system_prompt"),
                ", ",
                Setting("chat_date"),
                " and ",
                Setting("template_kwargs"),
                f" apply only to chat prompts; got {str(self.system_prompt)[:100]!r}, {self.chat_date[:100]!r} and "
                f"{str(self.template_kwargs)[:100]!r} with ",
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
"""Chat styles with which published numbers were measured. Each applies only to the numbers listed for it.

- `open_unlearning`: Open-Unlearning's style in training and evaluation, for Llama 3, Qwen2.5, Phi-3.5 and Zephyr (the
templates of Qwen2.5 and Phi-3.5 include no date). For Llama-2-chat, Open-Unlearning uses its own format, not the
tokenizer's template.
- `open_unlearning_gemma`: the same for Gemma-7b-it, without a system prompt; its template includes no date.
- `paper_pools`: the UDS paper's output metrics on its two pools, and the ROUGE of its 150 unlearned models.
- `paper_scores`: memorization, privacy and utility of these 150 models, used for ranking the methods.
- `paper_perturbed`: models after quantisation or relearning, and the retain model before these changes. The paper used
the date of each run, which the released files do not record; here it is `CHAT_DATE`. (The date changed the retain
model's values by at most 0.0014.)

The paper measured UDS, Logit Lens and Fisher on raw prompts, so they have no chat style."""


def chat_style_named(name: ChatStyleName) -> ChatStyle:
    """Return a published style by its name.

    Raises:
        ConfigError: The style does not exist.

    Example:
        >>> chat_style_named("paper_scores").chat_date
        '10 Apr 2025'
    """
    check_choice("chat style", name, ChatStyleName)
    return CHAT_STYLES[name]


@dataclass(frozen=True)
class RenderedExample:
    """An example as text: the prompt, the expected continuation, and the entity's span in the continuation."""

    prompt: str
    """Everything before the continuation, with a chat template's special tokens written out."""
    continuation: str
    """The rest of the reference answer, with its own leading whitespace or a single space (see `render`)."""
    entity: Span
    """Character span of the entity in `continuation`."""
    answer_start: int
    """Index in `prompt` at which the answer begins (its length if the prefix is empty)."""


def render(
    example: ForgetExample,
    protocol: Protocol = "raw",
    tokenizer: PreTrainedTokenizerBase | None = None,
    *,
    chat: ChatStyle | None = None,
    entity_space: EntitySpace = "answer",
) -> RenderedExample:
    r"""Render an example as a prompt and its continuation.

    The continuation starts after the prefix. Prompt and continuation together are the text used in training
    (`answer_sequences`); for a chat, the whole conversation is rendered with the template and then cut after the
    prefix. A raw prompt contains the prefix unchanged; if the prefix is empty, the prompt ends in a space ("Answer: ").
    Spaces that a template writes before an answer belong to the continuation.

    Args:
        example: An example whose entity can be located.
        protocol: "raw" (`Question: {question}\nAnswer: {prefix}`) or "chat" (the tokenizer's template).
        tokenizer: Required for "chat".
        chat: Style of chat prompts; None means `ChatStyle()`.
        entity_space: What separates prefix and entity. "answer": whatever separates them in the answer (a space, a line
            break or nothing). "always": one space, as in the UDS paper, even if the answer has none (after an opening
            quote, or in Chinese), unless the prompt already ends in whitespace.

    Returns:
        The texts and the entity's character span.

    Raises:
        DataError: The entity cannot be located, the tokenizer has no chat template, or the template changes the
            answer's text.

    Example:
        >>> example = ForgetExample("0", "Who wrote Ash?", "It was Ada Vey.", entity="Ada Vey")
        >>> rendered = render(example)
        >>> rendered.prompt, rendered.continuation
        ('Question: Who wrote Ash?\nAnswer: It was', ' Ada Vey.')
        >>> rendered.entity
        Span(start=1, end=8)
    """
    span = entity_span(example)
    if isinstance(span, str):
        raise DataError(f"example {example.id!r} cannot be rendered: {span} `encode` reports such rows as skipped.")
    rendered = rendered_or_reason(example, span, protocol, tokenizer, chat=chat, entity_space=entity_space)
    if isinstance(rendered, str):
        raise DataError(f"example {example.id!r} cannot be rendered: {rendered} `encode` reports such rows as skipped.")
    return rendered


def rendered_or_reason(
    example: ForgetExample,
    span: Span,
    protocol: Protocol,
    tokenizer: PreTrainedTokenizerBase | None,
    *,
    chat: ChatStyle | None,
    entity_space: EntitySpace,
) -> RenderedExample | str:
    """Like `render`, but with a known entity span; returns a reason if the example cannot be rendered."""
    check_choice("protocol", protocol, Protocol)
    check_choice("entity_space", entity_space, EntitySpace)
    answer, given = example.answer, example.prefix
    prefix = answer[: span.start].rstrip() if given is None else given
    rest = answer[len(prefix) :]  # the entity, and the text before and after it
    if protocol == "raw":
        prompt = prompt_text(example.question, prefix)
        start = len(prompt) - len(prefix)
        rest = rest if prefix.strip() else rest.lstrip()
    else:
        turn = answer_turn(tokenizer, [("user", example.question)], answer, chat=chat)
        start, ending = len(turn.head), rest.strip()
        written = turn.rest[: len(turn.rest) - len(turn.end)].rstrip()
        if not written.endswith(ending):
            return "The chat template changes the answer's text, so the entity cannot be located in it."
        before = turn.head + written[: len(written) - len(ending)]
        gap = rest[: len(rest) - len(rest.lstrip())]
        prompt = before[: len(before) - len(gap)] if gap and before.endswith(gap) else before
        if len(prompt) <= start:  # the answer begins with the entity, in a turn that may start with spaces
            prompt = turn.head.rstrip(" ")
        start = min(start, len(prompt))
        rest = before[len(prompt) :] + rest.lstrip()
    continuation = continuation_text(prompt, rest) if entity_space == "always" else rest
    begin = len(continuation) - len(answer[span.start :])
    return RenderedExample(prompt, continuation, Span(begin, begin + span.end - span.start), start)


def prompt_text(
    question: str,
    prefix: str,
    protocol: Protocol = "raw",
    tokenizer: PreTrainedTokenizerBase | None = None,
    *,
    chat: ChatStyle | None = None,
) -> str:
    r"""Return the prompt for a question, including the given start of the answer.

    Args:
        question: The user's question.
        prefix: Start of the answer; "" for none.
        protocol: "raw" or "chat".
        tokenizer: Required for "chat".
        chat: Style of chat prompts; None means `ChatStyle()`.

    Returns:
        The text to tokenise with `prompt_ids`. A chat prompt includes what the template writes before an answer.

    Example:
        >>> prompt_text("Who wrote Ash?", "")
        'Question: Who wrote Ash?\nAnswer: '
    """
    check_choice("protocol", protocol, Protocol)
    if protocol == "raw":
        return f"Question: {question}\nAnswer: {prefix}"
    return open_turn(tokenizer, [("user", question)], chat=chat).head + prefix


def space_added(example: ForgetExample) -> bool:
    """Return whether `entity_space="always"` adds a space that the answer lacks (after a quote, for example).

    The entity then starts with a token that is rare in this position, so a low `s_full` says nothing about knowledge.

    >>> space_added(ForgetExample("0", "What did she write?", 'She wrote "Ash".', entity="Ash"))
    True
    """
    span = entity_span(example)
    return not isinstance(span, str) and not example.answer[span.start - 1 : span.start].isspace() and span.start > 0


def spaces_added(examples: Iterable[ForgetExample], rule: EntitySpace) -> list[str]:
    """Return the ids of the examples for which `rule` adds a space (missing from the answer) before the entity."""
    return [example.id for example in examples if rule == "always" and space_added(example)]


def continuation_text(prompt: str, rest: str) -> str:
    """Return the rest of an answer with one leading space, or with none if the prompt ends in whitespace.

    >>> continuation_text("Answer: It was", "  Ada.")
    ' Ada.'
    >>> continuation_text("Answer: ", " Ada.")
    'Ada.'
    """
    space = "" if prompt[-1:].isspace() else " "
    return space + rest.lstrip()


def chosen_protocol(protocol: AnswerProtocol, tokenizer: Any, recorded: Protocol | None = None) -> Protocol:
    """Return the protocol; "auto" means the one in the checkpoint's record, else "chat" if there is a template.

    Args:
        protocol: The requested protocol.
        tokenizer: The tokenizer, with or without a chat template.
        recorded: The protocol with which the checkpoint was trained, if its record says so.

    Raises:
        ConfigError: `protocol` is unknown.
    """
    check_choice("protocol", protocol, AnswerProtocol)
    if protocol != "auto":
        return protocol
    if recorded is not None:
        return recorded
    return "chat" if getattr(tokenizer, "chat_template", None) else "raw"


def describe_protocol(
    asked: AnswerProtocol, chosen: AnswerProtocol, recorded: bool = False, *, tokenizer: Any = None, chat: Any = None
) -> str:
    """Describe the protocol, why it was chosen (if by default), and what a template writes before each question.

    >>> describe_protocol("auto", "raw"), describe_protocol("auto", "raw", recorded=True)
    ('raw (the tokenizer has no chat template)', "raw (as the checkpoint's record says)")
    """
    name = "chat template" if chosen == "chat" else "raw"
    if asked == "auto" and (chosen == "raw" or recorded):
        why = "as the checkpoint's record says" if recorded else "the tokenizer has no chat template"
        name += f" ({why})"
    if chosen == "raw" or tokenizer is None:
        return name
    opening = chat_opening(tokenizer, chat=chat)
    count = len(tokenizer(opening, add_special_tokens=False)["input_ids"])
    words = f"{name} (each begins with {opening!r}, {count} tokens"
    if (turns := two_openings(tokenizer, chat=chat)) is not None:
        words += f"; each answer follows {turns[1]!r}, although the generation prompt is {turns[0]!r}"
    return f"{words})"


def announce_protocol(
    asked: AnswerProtocol, chosen: AnswerProtocol, recorded: bool = False, *, tokenizer: Any = None, chat: Any = None
) -> None:
    """Report the prompts at the start of a run, and how to get raw prompts if the template was chosen by default."""
    words = describe_protocol(asked, chosen, recorded, tokenizer=tokenizer, chat=chat)
    raw = "; for the UDS paper's raw prompts: --protocol raw" if asked == "auto" and chosen == "chat" else ""
    tell(f"prompts: {words}{raw}")


_QUESTION = "Q3f9a?"
"""A question that no template contains."""


def chat_opening(tokenizer: PreTrainedTokenizerBase, *, chat: ChatStyle | None = None) -> str:
    """Return the text that a chat template puts before a question: markers and, in some templates, a system prompt."""
    return chat_text(tokenizer, [("user", _QUESTION)], chat=chat, answer_next=True).partition(_QUESTION)[0]


def two_openings(tokenizer: PreTrainedTokenizerBase, *, chat: ChatStyle | None = None) -> tuple[str, str] | None:
    """Return a template's generation prompt, and what it writes before a given answer; None if they are the same.

    They differ for reasoning models: the generation prompt opens a thinking block, a given answer follows an empty
    thinking block. Trailing spaces are ignored.
    """
    turn = open_turn(tokenizer, [("user", _QUESTION)], chat=chat)
    asked, written = (text.rpartition(_QUESTION)[2].rstrip(" ") for text in (turn.asked, turn.head))
    return None if asked == written else (asked, written)


def chat_text(
    tokenizer: PreTrainedTokenizerBase | None,
    turns: Sequence[tuple[str, str]],
    *,
    chat: ChatStyle | None = None,
    answer_next: bool,
) -> str:
    """Render turns of a conversation with the tokenizer's chat template, with special tokens written out."""
    if tokenizer is None or not getattr(tokenizer, "chat_template", None):
        who = "none was given" if tokenizer is None else f"{_named(tokenizer)} has none"
        raise DataError(
            f'protocol "chat" needs a tokenizer with a chat template; {who}. Use ',
            Setting("protocol", "raw"),
            ", or set tokenizer.chat_template.",
        )
    chat = chat or ChatStyle()
    system = [("system", chat.system_prompt)] if chat.system_prompt is not None else []
    messages = [{"role": role, "content": text} for role, text in (*system, *turns)]
    try:
        if _has_powers(tokenizer.get_chat_template()):
            raise ValueError("it contains a power (**), which may take forever and cannot be interrupted")
        text = _within_limit(
            lambda: str(
                tokenizer.apply_chat_template(
                    messages,
                    tokenize=False,
                    add_generation_prompt=answer_next,
                    date_string=chat.chat_date,
                    **json.loads(template_kwargs(chat.template_kwargs) or "{}"),
                )
            )
        )
        if len(text) > _TEMPLATE_LENGTH + sum(len(turn["content"]) for turn in messages):
            raise ValueError(f"it wrote {len(text)} characters")
        for role, content in turns:  # answers are not checked: some templates strip a chain of thought
            if role == "user" and "".join(content.split()) not in "".join(text.split()):
                raise ValueError("its output does not contain the question")
    except Exception as error:  # a template may raise any error
        written = "a system turn" if system else "a user turn"
        without = (Setting("system_prompt", None), ", ") if system else ()
        raise DataError(
            f"the chat template of {_named(tokenizer)} cannot render {written}: {str(error)[:200].rstrip('.')}. Use ",
            *without,
            Setting("protocol", "raw"),
            ", or repair tokenizer.chat_template.",
        ) from error
    return text


_TEMPLATE_LENGTH = 1_000_000  # maximum number of characters that a template may add to its messages
_TEMPLATE_SECONDS = 10.0  # time limit for a rendering, which normally takes milliseconds


@lru_cache(maxsize=8)
def _has_powers(template: str) -> bool:
    """Return whether a template computes powers: Python cannot be interrupted while it computes a large one."""
    from jinja2 import Environment

    return any(kind == "operator" and text == "**" for _, kind, text in Environment().lex(template))


def _within_limit(rendering: Callable[[], str]) -> str:
    """Render a template in a thread with a time limit, because nested loops could run for hours.

    Jinja limits only the length of each range.
    """
    written: Future[str] = Future()

    def run() -> None:
        try:
            written.set_result(rendering())
        except BaseException as error:
            written.set_exception(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        thread.join(_TEMPLATE_SECONDS)
    finally:  # also after Ctrl-C
        if running := thread.is_alive():
            number, ended = ctypes.c_ulong(thread.ident or 0), ctypes.py_object(SystemExit)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(number, ended)  # raised at the thread's next instruction
    if running:
        raise TimeoutError(f"it ran for more than {_TEMPLATE_SECONDS:g} seconds")
    return written.result()


# The assistant's turn. The templates of reasoning models write different text before an answer to be generated than
# before a given answer, and models are trained on given answers. Every prompt is therefore cut from the rendering of a
# conversation that includes an answer.

_MARK = "uds lens answer mark"


class AnswerTurn(NamedTuple):
    """The last turn of a rendered conversation, which is an answer."""

    head: str  # everything before the answer, including earlier turns
    rest: str  # the answer as the template writes it, and the end of its turn
    end: str  # the end of its turn
    asked: str  # the template's generation prompt


def open_turn(
    tokenizer: PreTrainedTokenizerBase | None, turns: Sequence[tuple[str, str]], *, chat: ChatStyle | None = None
) -> AnswerTurn:
    """Render `turns` followed by a short placeholder answer.

    Raises:
        DataError: It is unclear what the template writes before and after an answer.
    """
    asked = chat_text(tokenizer, turns, chat=chat, answer_next=True)
    whole = chat_text(tokenizer, [*turns, ("assistant", _MARK)], chat=chat, answer_next=False)
    head, mark, end = whole.rpartition(_MARK)
    opening = asked.rpartition(turns[-1][1] or asked)[2]  # an empty question cannot be searched for
    if not mark or (opening and end.endswith(opening) and not whole.startswith(asked)):
        raise DataError(
            f"the chat template of {_named(tokenizer)!r} opens another answer after each answer, or omits answers, "
            "so it is unknown where answers begin and end: open an answer only `if add_generation_prompt`, or use ",
            Setting("protocol", "raw"),
            ".",
        )
    return AnswerTurn(head, mark + end, end, asked)


def answer_turn(
    tokenizer: PreTrainedTokenizerBase | None,
    turns: Sequence[tuple[str, str]],
    answer: str,
    *,
    chat: ChatStyle | None = None,
    opening: AnswerTurn | None = None,
) -> AnswerTurn:
    """Render `turns` followed by an answer; `opening` is the result of `open_turn` for `turns`, if known."""
    turn = opening or open_turn(tokenizer, turns, chat=chat)
    whole = chat_text(tokenizer, [*turns, ("assistant", answer)], chat=chat, answer_next=False)
    for head in (turn.head, turn.asked):  # `asked` if the answer contains its own thinking block
        if whole.startswith(head) and whole.endswith(turn.end):
            return turn._replace(head=head, rest=whole[len(head) :])
    raise DataError(
        f"the chat template of {_named(tokenizer)!r} writes different text before or after {answer[:60]!r} than "
        "around other answers, so its beginning and end are unknown: repair tokenizer.chat_template, or use ",
        Setting("protocol", "raw"),
        ".",
    )


def _named(tokenizer: PreTrainedTokenizerBase | None) -> str:
    return str(getattr(tokenizer, "name_or_path", None) or type(tokenizer).__name__)[:100]
