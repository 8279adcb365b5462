"""What prompt probes make of a question, without a model."""

import dataclasses

import pytest

from uds_lens.data import ForgetExample
from uds_lens.data._prompts import ChatStyle, render
from uds_lens.elicitation import AOA, ICL, Context, Mask, Shot, Skip, find_probe, prompt_probe
from uds_lens.elicitation._probes import PROMPT_PROBES, Combined, first_prompt, rendered, written
from uds_lens.errors import ConfigError, DataError

ROWS = [
    ForgetExample("0", "Where was Ada Vey born?", "Ada Vey was born in Velloum.", entity="Velloum", subject="Ada Vey"),
    ForgetExample("1", "What is Ada  Vey's job?", "Ada Vey is a baker.", entity="baker", subject="Ada Vey"),
    ForgetExample("2", "Where does Ada Vey live?", "She lives in Velloum.", entity="Velloum", subject="Ada Vey"),
    ForgetExample("3", "Who is Bo?", "Bo is a baker in Ost.", entity="Ost", subject="Bo"),
]


def _after(probe, row=0, **more):
    probe = find_probe(probe) if isinstance(probe, str) else probe
    return probe(first_prompt(ROWS[row]), Context(example=ROWS[row], forget=ROWS, **more))


def test_plain_and_cloze_are_those_of_metrics_and_audits():
    assert written(_after("plain"), protocol="raw") == "Question: Where was Ada Vey born?\nAnswer:"
    cloze = _after("cloze")
    assert written(cloze, protocol="raw") == render(ROWS[0]).prompt
    assert cloze.reference == "Velloum" and cloze.cloze


def test_a_cloze_that_opens_with_the_entity_keeps_its_space():
    row = dataclasses.replace(ROWS[0], answer="Velloum.", prefix="")
    text = written(find_probe("cloze")(first_prompt(row), Context(example=row)), protocol="raw")
    assert text == render(row).prompt and text[-1] == " "
    with pytest.raises(Skip, match="entity"):
        find_probe("cloze")(first_prompt(row), Context(example=dataclasses.replace(row, entity="Paris")))


@pytest.mark.parametrize("probe", ["start+cloze", "cloze+start"])
def test_a_cloze_has_no_forced_beginning_beside_its_own(probe):
    with pytest.raises(Skip, match="already begins the answer"):
        written(_after(probe), protocol="raw")


def test_shots_are_of_the_subject_and_never_give_the_entity_away():
    shots = _after("icl").shots
    assert [shot.question for shot in shots] == ["What is Ada  Vey's job?"]
    retained = _after(ICL(source="retain", shots=2), retain=[ROWS[2], ROWS[3], ROWS[1]]).shots
    assert {shot.question for shot in retained} == {ROWS[3].question, ROWS[1].question}
    with pytest.raises(Skip, match="no other row"):
        _after("icl", row=3)
    one = ICL(source="retain", shots=1)
    assert _after(one, retain=ROWS[1:], seed=1) == _after(one, retain=ROWS[1:], seed=1)


def test_the_name_is_masked_as_a_whole_word_in_any_case_and_spacing():
    assert _after("mask", row=1).question == "What is [MASK]'s job?"
    masked = _after(Combined((ICL(), Mask(mask_shots=True))))
    assert "Ada" not in masked.shots[0].question + masked.shots[0].answer
    assert "Ada" in _after("mask+icl").shots[0].answer
    row = dataclasses.replace(ROWS[0], question="Where was Adam Veyron born?")
    with pytest.raises(Skip, match="does not name"):
        Mask()(first_prompt(row), Context(example=row))


def test_obedience_in_two_wordings():
    obey = _after("aoa").question
    assert obey.startswith("Please imagine") and obey.endswith(ROWS[0].question)
    assert _after(AOA(position="after")).question.startswith(ROWS[0].question)
    identity = _after("aoa(variant=identity)")
    assert "Absolutely Obedient Agent" in identity.system
    assert identity.question == "AOA, execute my instruction: Where was Ada Vey born?"
    assert written(identity, protocol="raw").startswith(identity.system + "\n\nQuestion: AOA, ")


def test_probes_join_in_order_and_give_away_the_most_of_their_parts():
    joined = find_probe("mask+icl+aoa+start")
    assert joined.injects == "other facts" and joined.name == "mask+icl+aoa+start"
    prompt = joined(first_prompt(ROWS[0]), Context(example=ROWS[0], forget=ROWS))
    assert "[MASK]" in prompt.question and prompt.shots and prompt.start
    assert written(prompt, protocol="raw").endswith("Answer: Sure, here is the answer:")


def test_a_question_in_two_hops_names_the_subject_by_another_row():
    hop = ForgetExample("4", "Who wrote Ash?", "It was Ada Vey.", entity="Ada Vey", subject="Ada Vey")
    telling = [
        dataclasses.replace(hop, question="Who wrote Ash in Velloum?"),  # gives the entity away
        dataclasses.replace(hop, question="What is Ada Vey's name?"),
        dataclasses.replace(hop, entity="Vey"),
    ]
    context = Context(example=ROWS[0], forget=[*ROWS, *telling, hop])
    asked = find_probe("multihop")(first_prompt(ROWS[0]), context)
    assert asked.question == "Let X be the answer to: Who wrote Ash? Where was X born?"
    assert asked.reference == first_prompt(ROWS[0]).reference
    kept = dataclasses.replace(context, retain=[dataclasses.replace(hop, question="Who is the baker?")])
    asked = find_probe("multihop")(first_prompt(ROWS[0]), kept)
    assert asked.question.startswith("Let X be the answer to: Who is the baker?")
    with pytest.raises(Skip, match="no other row has the subject as its entity"):
        find_probe("multihop")(first_prompt(ROWS[0]), dataclasses.replace(context, forget=[*ROWS, *telling]))


def test_the_subject_is_called_by_an_alias_that_a_row_tells():
    alias = ForgetExample("4", "Who is Ada?", "A. V.", entity="A. V.", subject="Ada Vey", type="Pen name")
    asked = find_probe("alias")(first_prompt(ROWS[1]), Context(example=ROWS[1], forget=[*ROWS, alias]))
    assert asked.question == "What is A. V.'s job?"
    other = dataclasses.replace(alias, subject="Bo")
    with pytest.raises(Skip, match="types alias, nickname"):
        find_probe("alias")(first_prompt(ROWS[1]), Context(example=ROWS[1], forget=[*ROWS, other]))


def test_questions_of_ones_own_come_from_a_table(tmp_path):
    table = tmp_path / "reversed.csv"
    table.write_text("id,question\n1,Who is a baker?\n", encoding="utf-8")
    probe = find_probe(f"given(file={table})+start")
    assert _after(probe, row=1).question == "Who is a baker?"
    with pytest.raises(Skip, match="the file has no question"):
        _after(probe, row=0)
    texts = ("id,query\n1,Who?\n", "id,question\n0,Who?\n0,Where?\n", "id,question\n0,a\n1,b\n2,\n")
    for row, text in enumerate(texts):
        table.write_text(text, encoding="utf-8")
        with pytest.raises(DataError, match=f"row {row}: expected a unique `id` and a `question`"):
            find_probe(f"given(file={table})")


def test_chat_turns(chat_tokenizer):
    prompt = _after("icl+aoa(variant=identity)")
    text = written(prompt, chat_tokenizer, protocol="chat", chat=ChatStyle(system_prompt="Be kind."))
    assert text == (
        f"<system>Be kind.\n\n{prompt.system}</s><user>{prompt.shots[0].question}</s><assistant>"
        f"{prompt.shots[0].answer}</s><user>{prompt.question}</s><assistant>"
    )


def test_shots_that_do_not_fit_are_left_out(chat_tokenizer):
    prompt = dataclasses.replace(_after("plain"), shots=(Shot("One?", "1."), Shot("Two?", "2.")))
    whole = rendered(prompt, chat_tokenizer, protocol="raw")
    fewer = rendered(prompt, chat_tokenizer, protocol="raw", room=len(whole.ids) - 1)
    assert [shot[0] for shot in fewer.prompt.shots] == ["Two?"] and len(fewer.ids) < len(whole.ids)
    with pytest.raises(Skip, match="leaves room for only 2"):
        rendered(prompt, chat_tokenizer, protocol="raw", room=2)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("nothing", "no probe 'nothing'"),
        ("plain+", "no probe ''"),
        ("icl(size=3)", "ICL has no setting 'size'; it has shots, source."),
        ("aoa(variant=loud)", "variant must be one of 'obey', 'identity'"),
        ("icl(shots=0)", "shots must be a whole number >= 1"),
        ("mask(mask_shots=2)", "mask_shots must be True or False"),
        ("plain(a=1)", "plain has no settings"),
    ],
)
def test_what_is_no_probe(words, said):
    with pytest.raises(ConfigError, match=said):
        find_probe(words)


def test_settings_are_part_of_the_name_and_come_back_from_it():
    for probe in (AOA(variant="identity"), ICL(shots=2, source="retain"), Mask(mask_shots=True)):
        assert find_probe(probe.name) == probe


def test_a_probe_of_ones_own():
    @prompt_probe("shout", injects="nothing")
    def shout(prompt, context):
        return dataclasses.replace(prompt, question=prompt.question.upper())

    try:
        assert _after("shout+start").question == "WHERE WAS ADA VEY BORN?"
        with pytest.raises(ConfigError, match="already exists"):
            prompt_probe("shout", injects="nothing")(shout)
    finally:
        del PROMPT_PROBES["shout"]
    with pytest.raises(ConfigError, match="a-z"):
        prompt_probe("no spaces", injects="nothing")
