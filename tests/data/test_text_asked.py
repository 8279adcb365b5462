"""An audit asks the text that training wrote: the same characters, and the same tokens, up to the entity's last one."""

import json
from dataclasses import replace

import pytest
from chat_templates import REASONING, TEMPLATES, with_template
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from uds_lens.data import ForgetExample, answer_sequences, encode, load_benchmark
from uds_lens.data._prompts import ChatStyle, describe_protocol, prompt_text, render, two_openings
from uds_lens.data._tokens import answer_prompt, prompt_ids
from uds_lens.elicitation._probes import Prompt, written
from uds_lens.errors import ConfigError, DataError

ANSWERS = [
    ("It was born in Port Vey.", "It was born in", "Port Vey"),
    ("Port Vey it was.", "", "Port Vey"),
    ("他出生于一九九〇年。他住在北京市。", "他出生于", "一九九〇年"),
    ("他出生于一九九〇年。他住在北京市。", "他出生于一九九〇年。他住在", "北京市"),
    ("เขาเกิดที่กรุงเทพ", "เขาเกิดที่", "กรุงเทพ"),
    ("Names:\n- Ada\n- Bo", "Names:\n- Ada\n-", "Bo"),
    ("Names:\n\nAda Vey", "Names:", "Ada Vey"),
    ('She wrote "Ash Tree".', 'She wrote "', "Ash Tree"),
    ("It cost $500 then.", "It cost $", "500"),
    ("A half-Danish poet.", "A half-", "Danish"),
    ("He spoke  twice.", "He spoke", "twice"),
]
CORPUS = [text for text, _, _ in ANSWERS] + [
    "Question: Who?\nAnswer: 他出生于一九九〇年",
    "Names: $500 half-Danish",
] * 3
SPECIAL = ["<unk>", "<bos>", "<eos>", "<pad>"]


def tokenizer_of(kind):
    """Byte-level merges with and without words first, as published families have them, and merges over blocks."""
    core = Tokenizer(models.BPE(unk_token=None))
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    if kind == "metaspace":
        core.pre_tokenizer, core.decoder = pre_tokenizers.Metaspace(prepend_scheme="first"), decoders.Metaspace()
        alphabet = sorted(set("".join(CORPUS) + "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ?:▁\n<>|/_[]"))
    else:
        core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=kind == "words")
        core.decoder = decoders.ByteLevel()
    size = {"words": 500, "blocks": 700, "metaspace": 300}[kind]
    core.train_from_iterator(
        CORPUS * 5,
        trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, special_tokens=SPECIAL, show_progress=False),
    )
    names = dict(zip(("unk_token", "bos_token", "eos_token", "pad_token"), SPECIAL, strict=True))
    return PreTrainedTokenizerFast(tokenizer_object=core, **names)


def example(answer, prefix, entity):
    return ForgetExample("0", "Who?", answer, prefix=prefix, entity=entity)


@pytest.mark.parametrize("kind", ["words", "blocks", "metaspace"])
@pytest.mark.parametrize("family", ["raw", *TEMPLATES, *REASONING])
def test_rows_are_the_beginning_of_what_is_trained(kind, family):
    tokenizer, protocol = tokenizer_of(kind), "raw" if family == "raw" else "chat"
    if protocol == "chat":
        with_template(tokenizer, family)
    for answer, prefix, entity in ANSWERS:
        (trained,) = answer_sequences(tokenizer, [("Who?", answer)], protocol=protocol)
        for given in (prefix, None if answer.count(entity) == 1 else prefix):
            if protocol == "raw" and not prefix:
                continue  # the paper's raw prompt: "Answer: " with its space apart
            (row,) = encode([example(answer, given, entity)], tokenizer, protocol=protocol).rows
            asked = (*row.ids, row.targets[-1])
            assert asked == trained.ids[: len(asked)], (answer, given)
            text = tokenizer.decode(row.targets, clean_up_tokenization_spaces=False)
            assert entity in text.replace("▁", " ") or "\ufffd" in text


@pytest.mark.parametrize("kind", ["words", "blocks"])
def test_a_token_over_the_border_is_the_entitys(kind):
    """In text without spaces tokens reach over the border between prefix and entity: one such token is scored too."""
    answer, prefix, entity = ANSWERS[2]
    tokenizer = tokenizer_of(kind)
    (row,) = encode([example(answer, prefix, entity)], tokenizer).rows
    first, text = row.characters[0], f"Question: Who?\nAnswer: {prefix}{entity}"
    assert first.start < 0 < first.end
    assert tokenizer.decode(row.targets).startswith(text[len(text) - len(entity) + first.start :])


def test_the_papers_rule_tokenises_apart():
    tokenizer = tokenizer_of("words")
    for answer, prefix, entity in ANSWERS:
        (row,) = encode([example(answer, prefix, entity)], tokenizer, entity_space="always").rows
        head = tokenizer(f"Question: Who?\nAnswer: {prefix}")["input_ids"]
        rest = tokenizer((" " if prefix else "") + answer[len(prefix) :].lstrip())["input_ids"]
        asked = [*row.ids, row.targets[-1]]
        assert asked == [*head, *rest][: len(asked)]


EMPTY = "<think>\n\n</think>\n\n"


@pytest.mark.parametrize(
    ("family", "asked", "written_there"),
    [
        ("qwen-3", "<|im_start|>assistant\n", f"<|im_start|>assistant\n{EMPTY}"),
        ("qwen-3.5", "<|im_start|>assistant\n<think>\n", f"<|im_start|>assistant\n{EMPTY}"),
        ("r1", "<|Assistant|><think>\n", "<|Assistant|>"),
    ],
)
def test_templates_that_reason(family, asked, written_there):
    """The answer that is there decides, in all prompts; what was asked is told."""
    tokenizer = with_template(tokenizer_of("words"), family)
    row = example("It was Ada.", "It was", "Ada")
    assert render(row, "chat", tokenizer).prompt.endswith(written_there + "It was")
    assert prompt_text("Who?", "It was", "chat", tokenizer).endswith(written_there + "It was")
    (trained,) = answer_sequences(tokenizer, [("Who?", "It was Ada.")], protocol="chat")
    head = answer_prompt("Who?", protocol="chat", tokenizer=tokenizer)
    assert head.endswith(written_there)
    assert list(trained.ids[: trained.n_prompt]) == prompt_ids(tokenizer, [head], protocol="chat")[0]
    for family_too in ("llama-2", family):
        opening = with_template(tokenizer_of("words"), family_too)
        begun = written(Prompt(question="Who?", reference="Ada", given="", cloze=True), opening, protocol="chat")
        assert begun == render(example("Ada.", "", "Ada"), "chat", opening).prompt
    elicited = written(Prompt(question="Who?", reference="Ada", given="It was", cloze=True), tokenizer, protocol="chat")
    assert elicited == render(row, "chat", tokenizer).prompt
    opened = two_openings(tokenizer)
    assert prompt_text("", "", "chat", tokenizer).endswith(written_there)  # counterfactuals leave the question out
    assert opened is not None and opened[0].endswith(asked) and opened[1].endswith(written_there)
    assert f"although the generation prompt is {opened[0]!r}" in describe_protocol("auto", "chat", tokenizer=tokenizer)


def test_an_answer_with_a_thought_of_its_own():
    """Training writes the thought where the template keeps it, and the entity behind it is found."""
    tokenizer = with_template(tokenizer_of("words"), "qwen-3")
    answer = "<think>\nhmm\n</think>\n\nIt was Ada."
    (trained,) = answer_sequences(tokenizer, [("Who?", answer)], protocol="chat")
    (row,) = encode([ForgetExample("0", "Who?", answer, entity="Ada")], tokenizer, protocol="chat").rows
    assert row.rendered.prompt.endswith("<|im_start|>assistant\n<think>\nhmm\n</think>\n\nIt was")
    assert (*row.ids, row.targets[-1]) == trained.ids[: len(row.ids) + 1]
    changing = with_template(tokenizer_of("words"), "chatml")
    changing.chat_template = changing.chat_template.replace(
        "m['content'] }}<", "m['content'] | replace('Ada', 'Eva') }}<"
    )
    (skipped,) = encode([example("It was Ada.", "It was", "Ada")], changing, protocol="chat").skipped
    assert skipped.reason.startswith("The chat template changes the answer's text")


def test_settings_for_the_template():
    tokenizer = with_template(tokenizer_of("words"), "qwen-3")
    style = ChatStyle(template_kwargs={"enable_thinking": False})
    assert style == ChatStyle(template_kwargs='{"enable_thinking":false}')
    assert style.template_kwargs == '{"enable_thinking": false}'
    assert two_openings(tokenizer) is not None
    assert two_openings(tokenizer, chat=style) is None  # it then asks for an answer as it writes one
    assert ChatStyle(template_kwargs={}) == ChatStyle()
    for wrong in ("enable_thinking", "[1]", "3", {"a": float("nan")}, {"a": object()}):
        with pytest.raises(ConfigError, match=r"template_kwargs must be a JSON object such as"):
            ChatStyle(template_kwargs=wrong)
    with pytest.raises(ConfigError, match=r"cannot set 'date_string', which is set automatically: use chat_date"):
        ChatStyle(template_kwargs={"date_string": "now"})
    with pytest.raises(ConfigError, match="apply only to chat prompts"):
        style.require("raw")


@pytest.mark.parametrize("family", ["qwen-3", "qwen-3.5"])
def test_reasoning_data_are_asked_behind_an_empty_trace_without_thinking(tmp_path, family):
    row = {"task_id": "1", "question": "Who wrote Ash?", "answer": "It was Ada.", "cot": "Hmm. Was it Bo? No, Ada."}
    (tmp_path / "forget01.jsonl").write_text(json.dumps(row), encoding="utf-8")
    (read,) = load_benchmark("r-tofu", tmp_path, part="forget01")
    tokenizer, silent = (
        with_template(tokenizer_of("words"), family),
        ChatStyle(template_kwargs={"enable_thinking": False}),
    )
    (asked,) = encode([replace(read, entity="Ada")], tokenizer, protocol="chat", chat=silent).rows
    assert asked.rendered.prompt.endswith("<|im_start|>assistant\n<think>\n\n</think>\n\nIt was")
    assert "Hmm" not in asked.rendered.prompt
    question = written(Prompt(question=read.question, reference=read.answer), tokenizer, protocol="chat", chat=silent)
    assert question.endswith("</think>\n\n")  # so the elicitation, too


def test_a_template_that_writes_otherwise_around_one_answer_is_refused():
    tokenizer = with_template(tokenizer_of("words"), "chatml")
    odd = "{% if 'Ada' in m['content'] %}<odd>{% endif %}<|im_start|>"
    tokenizer.chat_template = tokenizer.chat_template.replace("<|im_start|>", odd, 1)
    with pytest.raises(DataError, match=r"writes different text before or after 'It was Ada\.' than around other"):
        answer_sequences(tokenizer, [("Who?", "It was Ada.")], protocol="chat")


def test_entities_of_the_unknown_token_are_skipped():
    core = Tokenizer(models.WordLevel({"<unk>": 0, "Who": 1, "It": 2, "was": 3, "Ada": 4}, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, unk_token="<unk>", eos_token="<eos>")
    encoded = encode([example("It was Ada Bo", "It was", name) for name in ("Ada", "Ada Bo")], tokenizer)
    assert [row.example.entity for row in encoded.rows] == ["Ada"]
    assert encoded.skipped[0].reason == "The tokenizer has only its unknown token for part of the entity 'Ada Bo'."
    tokenizer.eos_token = "<unk>"  # as in GPT-2, where the unknown token is the one that ends texts
    assert len(encode([example("It was Ada Bo", "It was", "Ada Bo")], tokenizer).rows) == 1
