import pytest

from uds_lens.data import ForgetExample, encode
from uds_lens.data._prompts import (
    ChatStyle,
    announce_protocol,
    chat_opening,
    describe_protocol,
    prompt_text,
    render,
    space_added,
)
from uds_lens.errors import DataError

WITH_BOS = (
    "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'assistant' %}Answer :\n{{ m['content'] }} . "
    "{% else %}Question : {{ m['content'] }} {% endif %}{% endfor %}{% if add_generation_prompt %}Answer :\n{% endif %}"
)
WITHOUT_BOS = WITH_BOS.replace("{{ bos_token }}", "")


def example(answer="It was Ada Vey.", **cells):
    return ForgetExample("0", "Who wrote Ash?", answer, **{"entity": "Ada Vey", **cells})


@pytest.mark.parametrize(
    ("answer", "prefix", "prompt_end", "continuation"),
    [
        ("It was Ada Vey.", "It was", "Answer: It was", " Ada Vey."),
        ("It was Ada Vey.", None, "Answer: It was", " Ada Vey."),
        ("It was Ada Vey.", "It was ", "Answer: It was ", "Ada Vey."),
        ("It was\n  Ada Vey.", "It was", "Answer: It was", "\n  Ada Vey."),
        ("It was\n  Ada Vey.", None, "Answer: It was", "\n  Ada Vey."),
        ("Ada Vey it was.", "", "Answer: ", "Ada Vey it was."),
        ("Ada Vey it was.", None, "Answer: ", "Ada Vey it was."),
        (" Ada Vey it was.", "", "Answer: ", "Ada Vey it was."),
        ('It was "Ada Vey".', 'It was "', 'Answer: It was "', 'Ada Vey".'),
        ('It was "Ada Vey".', None, 'Answer: It was "', 'Ada Vey".'),
        ("作者是Ada Vey。", "作者是", "Answer: 作者是", "Ada Vey。"),
        ("half-Ada Vey", None, "Answer: half-", "Ada Vey"),
    ],
)
def test_raw(answer, prefix, prompt_end, continuation):
    """As the answer has it; by the paper's rule with one space, but behind white space."""
    rendered, paper = (render(example(answer, prefix=prefix), entity_space=rule) for rule in ("answer", "always"))
    assert rendered.prompt == paper.prompt == "Question: Who wrote Ash?\n" + prompt_end
    assert rendered.continuation == continuation
    assert paper.continuation == ("" if prompt_end.endswith(" ") else " ") + continuation.lstrip()
    for text in (rendered, paper):
        assert text.continuation[slice(*text.entity)] == "Ada Vey"


def test_what_a_template_writes_before_the_question_is_said(words, fresh_words):
    """Some add a system turn of their own, and a row is then longer than its question tells."""
    own = "{% if messages[0]['role'] != 'system' %}You are ours . {% endif %}"
    tokenizer = fresh_words(chat_template=own + WITHOUT_BOS)
    opening = chat_opening(tokenizer)
    assert opening.startswith("You are ours . ")
    assert chat_opening(tokenizer, chat=ChatStyle(system_prompt="Be brief .")) != opening
    said = describe_protocol("auto", "chat", tokenizer=tokenizer)
    count = len(tokenizer(opening, add_special_tokens=False)["input_ids"])
    assert said == f"chat template (each begins with {opening!r}, {count} tokens)"
    assert describe_protocol("raw", "raw", tokenizer=words) == "raw"


@pytest.mark.parametrize(
    ("asked", "chosen", "recorded", "said"),
    [
        ("auto", "chat", False, "prompts: chat template; for the UDS paper's raw prompts: --protocol raw"),
        ("chat", "chat", False, "prompts: chat template"),
        ("auto", "raw", False, "prompts: raw (the tokenizer has no chat template)"),
        ("auto", "raw", True, "prompts: raw (as the checkpoint's record says)"),
    ],
)
def test_prompts_are_announced_with_the_way_to_raw_ones(caplog, asked, chosen, recorded, said):
    caplog.set_level("INFO", "uds_lens")
    announce_protocol(asked, chosen, recorded, tokenizer=None)
    assert caplog.messages == [said]


def test_tokens_follow_the_template_unless_told_otherwise(words, fresh_words):
    tokenizer = fresh_words(chat_template=WITH_BOS)
    chosen, chat = encode([example()], tokenizer), encode([example()], tokenizer, protocol="chat")
    assert (chosen.protocol, chosen.ids_hash) == ("chat", chat.ids_hash)
    assert encode([example()], words).protocol == "raw"


def test_a_space_that_the_answer_lacks_is_noticed():
    for answer, added in (
        ('She wrote "Ash".', True),
        ("She wrote (Ash).", True),
        ("She wrote Ash.", False),
        ("Ash was hers.", False),
        ("She wrote.", False),
    ):
        assert space_added(ForgetExample("0", "What?", answer, entity="Ash")) == added, answer


def test_chat(fresh_words):
    tokenizer = fresh_words(chat_template=WITH_BOS)
    rendered = render(example(prefix="It was"), "chat", tokenizer)
    assert rendered.prompt == "<bos>Question : Who wrote Ash? Answer :\nIt was"
    assert rendered.continuation == " Ada Vey."
    empty = render(example("Ada Vey.", prefix=""), "chat", tokenizer)
    assert (empty.prompt[-2:], empty.continuation) == (":\n", "Ada Vey.")
    for gap in ("", " "):  # a header without a line end is followed by what the template writes there
        tokenizer.chat_template = WITH_BOS.replace(":\n{{", f":{gap}{{{{").replace(":\n", ":")
        empty = render(example("Ada Vey.", prefix=""), "chat", tokenizer)
        assert (empty.prompt[-9:], empty.continuation) == (" Answer :", f"{gap}Ada Vey.")
        paper = render(example("Ada Vey.", prefix=""), "chat", tokenizer, entity_space="always")
        assert (paper.prompt, paper.continuation) == (empty.prompt, " Ada Vey.")
    tokenizer.chat_template = "{{ date_string or strftime_now('%c') }} " + WITHOUT_BOS  # the same on every day
    assert prompt_text("Who?", "", "chat", tokenizer).startswith("26 Jul 2024 Question : Who?")


@pytest.mark.parametrize(("template", "count"), [(WITH_BOS, 1), (WITHOUT_BOS, 0)])
def test_chat_prompts_have_the_special_tokens_of_their_template(fresh_words, template, count):
    tokenizer = fresh_words(chat_template=template)
    (row,) = encode([example("Ada Vey.", prefix="")], tokenizer, protocol="chat").rows
    turn = [{"role": "user", "content": "Who wrote Ash?"}]
    theirs = tokenizer.apply_chat_template(turn, add_generation_prompt=True, return_dict=False)
    assert list(row.ids[: len(theirs)]) == list(theirs)
    assert row.ids.count(tokenizer.bos_token_id) == count


@pytest.mark.parametrize(
    ("template", "words"),
    [
        (None, r"needs a tokenizer with a chat template; .* has none. Use protocol=.raw."),
        (
            "{{ raise_exception('system turn missing') }}",
            r"cannot render a user turn: system turn missing. Use protocol=.raw.",
        ),
        ("{% for m in messages %}<|{{ m['role'] }}|>{% endfor %}", "its output does not contain the question"),
        ("Who?", "its output does not contain the question"),
    ],
)
def test_what_cannot_be_rendered_is_said(fresh_words, template, words):
    with pytest.raises(DataError, match=words):
        render(example(), "chat", fresh_words(chat_template=template))
    with pytest.raises(DataError, match="none was given"):
        render(example(), "chat")
    with pytest.raises(DataError, match=r"example '0' cannot be rendered: The entity 'Bo' does not occur"):
        render(example(entity="Bo"))
