"""Questions with answers in tokens: what is labelled, what ends an answer, in raw and in chat."""

from pathlib import Path

import pytest
from chat_templates import LLAMA_2, TEMPLATES, chat_tokenizer, open_unlearning_labels
from tiny_models import EXAMPLES, build_tokenizer
from tokenizers import Tokenizer, models, processors, trainers
from transformers import PreTrainedTokenizerFast

from uds_lens.data import CHAT_STYLES, answer_sequences, encode
from uds_lens.data._prompts import ChatStyle, chat_style_named
from uds_lens.data._tokens import answer_ends, answer_prompt, prompt_ids
from uds_lens.errors import ConfigError, DataError

PAIRS = [(example.question, example.answer) for example in EXAMPLES]


@pytest.fixture(scope="module")
def tokenizer():
    return build_tokenizer()


@pytest.mark.parametrize("style", [ChatStyle(), CHAT_STYLES["open_unlearning"]])
@pytest.mark.parametrize("name", TEMPLATES)
def test_chat_labels_are_those_of_open_unlearning(name, style):
    tokenizer = chat_tokenizer(name)
    if name == "gemma" and style.system_prompt:
        with pytest.raises(DataError, match=r"cannot render a system turn: .*not supported.*system_prompt=None"):
            answer_sequences(tokenizer, PAIRS, protocol="chat", chat=style)
        return
    found = answer_sequences(tokenizer, PAIRS, protocol="chat", chat=style)
    for (question, answer), sequence in zip(PAIRS, found, strict=True):
        theirs, n_prompt = open_unlearning_labels(
            tokenizer, question, answer, system=style.system_prompt, date=style.chat_date
        )
        assert (list(sequence.ids), sequence.n_prompt) == (theirs, n_prompt)
        assert sequence.ids.count(tokenizer.bos_token_id) == ("bos_token" in TEMPLATES[name][0])


def test_a_turn_that_ends_with_the_end_token_has_it_once():
    tokenizer = chat_tokenizer("llama-3")
    tokenizer.eos_token = "<|eot|>"
    (sequence,) = answer_sequences(tokenizer, PAIRS[:1], protocol="chat")
    for ids in (sequence.labelled, answer_ends(tokenizer, protocol="chat")):
        assert ids.count(tokenizer.eos_token_id) == 1


def test_the_prompt_is_what_generation_starts_from():
    for name in TEMPLATES:
        tokenizer = chat_tokenizer(name)
        prompts = [answer_prompt(q, protocol="chat", tokenizer=tokenizer) for q, _ in PAIRS]
        heads = prompt_ids(tokenizer, prompts, protocol="chat")
        for head, sequence in zip(heads, answer_sequences(tokenizer, PAIRS, protocol="chat"), strict=True):
            assert list(sequence.ids[: sequence.n_prompt]) == head


def test_a_template_that_thinks_before_an_answer_it_asks_for():
    """Some templates open the next answer with an empty thought, which a given answer does not have: that decides."""
    tokenizer = chat_tokenizer("chatml")
    asked = "assistant\n{% endif %}"
    assert asked in tokenizer.chat_template
    tokenizer.chat_template = tokenizer.chat_template.replace(asked, "assistant\nyes\n\n{% endif %}")
    (sequence,) = answer_sequences(tokenizer, [("Who?", "Ada.")], protocol="chat")
    text = "".join(tokenizer.convert_ids_to_tokens(sequence.ids)).replace("Ċ", "\n")
    assert text.endswith("assistant\nAda.<|im_end|>\n<eos>")
    assert answer_prompt("Who?", protocol="chat", tokenizer=tokenizer).endswith("assistant\n")


ENDS = {
    "llama-3": ["<|eot|>", "<eos>"],
    "gemma": ["<end_of_turn>", "<eos>"],
    "chatml": ["<|im_end|>", "<eos>"],
    "llama-2": ["<eos>"],
    "tight": ["<|im_end|>", "<eos>"],
}


def test_generated_answers_end_with_their_turn():
    for name, ends in ENDS.items():
        tokenizer = chat_tokenizer(name)
        assert tokenizer.convert_ids_to_tokens(answer_ends(tokenizer, protocol="chat")) == ends
    spelt = chat_tokenizer("chatml")
    spelt.chat_template = spelt.chat_template.replace("<|im_end|>", "The end")
    assert spelt.convert_ids_to_tokens(answer_ends(spelt, protocol="chat")) == ["<eos>"]
    assert answer_ends(spelt) == (spelt.eos_token_id,)


def test_raw_sequences_are_the_text_tokenised_at_once(tokenizer):
    for (question, answer), sequence in zip(PAIRS, answer_sequences(tokenizer, PAIRS), strict=True):
        whole = tokenizer(f"Question: {question}\nAnswer: {answer}")["input_ids"]
        assert list(sequence.ids) == [*whole, tokenizer.eos_token_id]
        assert list(sequence.labelled[:-1]) == tokenizer(f" {answer}", add_special_tokens=False)["input_ids"]
        assert sequence.ids.count(tokenizer.bos_token_id) == 1
        row = sequence.scored
        assert (*row.ids, row.targets[-1]) == sequence.ids
        assert all(row.ids[p + 1] == t for p, t in zip(row.scored[:-1], row.targets, strict=False))


def test_a_tokenizer_that_closes_its_texts_ends_an_answer_once():
    closing = build_tokenizer()
    closing.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A <eos>", special_tokens=[("<bos>", 1), ("<eos>", 2)]
    )
    assert answer_sequences(closing, PAIRS) == answer_sequences(build_tokenizer(), PAIRS)


def test_a_prompt_that_runs_into_the_answer_is_tokenised_apart():
    """Without a pre-tokenizer the colon and the answer's first letters become one token."""
    core = Tokenizer(models.BPE(unk_token="<unk>"))
    core.train_from_iterator(
        ["Answer: Ada"] * 9, trainers.BpeTrainer(special_tokens=["<unk>", "<eos>"], show_progress=False)
    )
    greedy = PreTrainedTokenizerFast(tokenizer_object=core, unk_token="<unk>", eos_token="<eos>")
    assert len(greedy("Answer: Ada")["input_ids"]) == 1
    (sequence,) = answer_sequences(greedy, [("Ada", "Ada")])
    assert list(sequence.ids[: sequence.n_prompt]) == greedy("Question: Ada\nAnswer:")["input_ids"]
    assert greedy.decode(sequence.labelled[:-1]).replace(" ", "") == "Ada"


@pytest.mark.parametrize(
    ("name", "system", "date"),
    [
        ("open_unlearning", "You are a helpful assistant.", "10 Apr 2025"),
        ("open_unlearning_gemma", None, None),
        ("paper_pools", "You are a helpful assistant.", "10 Apr 2025"),
        ("paper_scores", None, "10 Apr 2025"),
        ("paper_perturbed", None, None),
    ],
)
def test_the_prompts_of_published_numbers(name, system, date):
    """As the configurations of Open-Unlearning and the UDS paper's scripts have them; no date: the template's own."""
    assert chat_style_named(name) == ChatStyle(system_prompt=system, **({"chat_date": date} if date else {}))
    given = {"protocol": "chat", "tokenizer": chat_tokenizer("llama-3"), "chat": CHAT_STYLES[name]}
    (row,) = encode(EXAMPLES[:1], **given).rows
    for prompt in (answer_prompt("Who?", **given), row.rendered.prompt):
        assert f"Today Date: {date or '26 Jul 2024'}\n\n{system or ''}<|eot|>" in prompt


def test_every_style_is_told_in_the_documentation():
    page = Path(__file__).parents[2] / "docs" / "guide" / "metrics.md"
    text = page.read_text(encoding="utf-8")
    assert all(f"`{name}`" in text for name in CHAT_STYLES)


def test_styles_are_checked(unchecked):
    with pytest.raises(ConfigError, match=r"chat style must be one of 'open_unlearning', .*; got 'paper'"):
        chat_style_named("paper")  # it was what no published table used
    for wrong in ({"system_prompt": ""}, {"chat_date": None}, {"system_prompt": 3}):
        with pytest.raises(ConfigError, match="must be non-empty text"):
            ChatStyle(**wrong)


def test_prompts_of_generations():
    assert answer_prompt("Who?") == "Question: Who?\nAnswer:"
    assert answer_prompt("Who?", start="Sure:") == "Question: Who?\nAnswer: Sure:"
    tokenizer = build_tokenizer()
    tokenizer.chat_template = LLAMA_2.replace(" [/INST]", " [/INST] ")
    assert answer_prompt("Who?", protocol="chat", tokenizer=tokenizer).endswith("[/INST]")


def test_what_cannot_be_is_said(tokenizer):
    with pytest.raises(DataError, match=r"'Who\?' with its answer has \d+ tokens, more than the model's 8"):
        answer_sequences(tokenizer, [("Who?", "Bo Lund.")], max_tokens=8)
    endless = build_tokenizer()
    endless.eos_token = None
    with pytest.raises(DataError, match="no end token"):
        answer_sequences(endless, PAIRS)
    assert answer_sequences(endless, []) == []
    always = build_tokenizer()  # its template asks for an answer whatever comes before
    always.chat_template = "<bos>{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}Reply:"
    with pytest.raises(DataError, match=r"only `if add_generation_prompt`, or use protocol='raw'"):
        answer_sequences(always, PAIRS, protocol="chat")
