import dataclasses

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from tokenizers import normalizers, processors
from transformers import AutoTokenizer, ByT5Tokenizer

from uds_lens.data import ForgetExample, encode, load_examples
from uds_lens.data._examples import Span
from uds_lens.data._tokens import TokenSequence, entity_tokens
from uds_lens.errors import ConfigError, DataError

EXAMPLE = ForgetExample("a", "Who wrote Ash?", "It was Ada Vey.", prefix="It was", entity="Ada Vey")
OPENING = ForgetExample("b", "Who wrote Ash?", "Yes, Ada Vey.", prefix="", entity="Yes", row=1)
LOST = ForgetExample("c", "Who wrote Ash?", "It was Bo.", entity="Ada Vey", row=2)

# <unk> <bos> <eos> <pad> Question : Who ? Answer It was Ada Vey . Yes , wrote Ash
#   0     1     2     3      4     5  6  7    8    9  10  11  12 13 14 15  16   17
QUESTION = (1, 4, 5, 6, 16, 17, 7, 8, 5)


def test_a_row_computed_by_hand(words):
    (row,) = encode([EXAMPLE], words).rows
    assert row.ids == (*QUESTION, 9, 10, 11)
    assert row.targets == (11, 12)
    assert row.scored == row.patched == (10, 11)
    assert row.window == range(10, 12)
    assert row.example is EXAMPLE
    assert row.rendered.prompt == "Question: Who wrote Ash?\nAnswer: It was"
    (row,) = encode([OPENING], words).rows
    assert (row.ids, row.targets, row.scored) == (QUESTION, (14,), (8,))


@pytest.mark.parametrize(
    ("scope", "patched"),
    [("entity", (10, 11)), ("boundary", (10,)), ("answer", (8, 9, 10, 11)), ("all", tuple(range(12)))],
)
def test_scopes(words, scope, patched):
    (row,) = encode([EXAMPLE], words, scope=scope).rows
    assert row.patched == patched
    assert row.scored == (10, 11)
    assert row.window == range(patched[0], 12)


def test_scope_answer_starts_at_the_first_token_of_the_answer(tokenizers):
    """A tokenizer that gives the leading space a token of its own."""
    tokenizer = tokenizers["bytes"]
    example = ForgetExample("a", "Who?", "It was Q🦊.", prefix="It was", entity="Q🦊")
    rows = {scope: encode([example], tokenizer, scope=scope).rows[0] for scope in ("entity", "answer", "boundary")}
    n_prompt = len(tokenizer("Question: Who?\nAnswer: It was").input_ids)
    first = rows["answer"].patched[0] + 1
    assert tokenizer.decode(rows["answer"].ids[first:n_prompt]).strip() == "It was"
    assert rows["answer"].patched[-1] == rows["entity"].patched[-1]
    assert rows["entity"].patched[0] == rows["boundary"].patched[0] == n_prompt
    assert tokenizer.decode(rows["entity"].targets) == "Q🦊"
    assert len(rows["entity"].targets) > len("Q🦊")


def test_skipped_rows_carry_their_reason_and_keep_order(words):
    encoded = encode([LOST, EXAMPLE, ForgetExample("d", "Who?", "Ada.", row=3), OPENING], words)
    assert [row.example.id for row in encoded.rows] == ["a", "b"]
    assert [(row.id, row.row, row.question, row.reason) for row in encoded.skipped] == [
        ("c", 2, "Who wrote Ash?", "The entity 'Ada Vey' does not occur in the answer."),
        ("d", 3, "Who?", "No entity is given."),
    ]


def test_an_entity_without_token(fresh_words):
    tokenizer = fresh_words()
    tokenizer.backend_tokenizer.normalizer = normalizers.Replace("Ash", "")
    example = ForgetExample("a", "Who?", "It was Ash.", entity="Ash")
    (skipped,) = encode([example], tokenizer).skipped
    assert skipped.reason == "The tokenizer has no token for the entity 'Ash'."


def test_rows_past_the_tokenizers_limit_are_skipped(fresh_words):
    reason = "The row needs 12 tokens up to its entity, more than the tokenizer's limit (model_max_length) of 11."
    for limit, reasons in ((11, [reason]), (12, []), (10**30, [])):
        encoded = encode([EXAMPLE], fresh_words(model_max_length=limit))
        assert [row.reason for row in encoded.skipped] == reasons


def test_saved_padding_and_truncation_do_not_apply(fresh_words, words):
    tokenizer = fresh_words()
    tokenizer.backend_tokenizer.enable_truncation(4)
    tokenizer.backend_tokenizer.enable_padding(length=40)
    assert encode([EXAMPLE], tokenizer).ids_hash == encode([EXAMPLE], words).ids_hash


@pytest.mark.parametrize("single", ["$A <eos>", "<bos> $A <eos>"])
def test_an_appended_end_token_is_dropped(fresh_words, single):
    special = [("<bos>", 1), ("<eos>", 2)]
    tokenizer = fresh_words(post_processor=processors.TemplateProcessing(single=single, special_tokens=special))
    (row,) = encode([EXAMPLE], tokenizer).rows
    assert row.ids[-3:] == (9, 10, 11)
    assert row.ids.count(2) == 0
    assert row.ids.count(1) == single.count("<bos>")


def test_slow_tokenizers_are_refused():
    words = r"a fast tokenizer is needed, .* got ByT5Tokenizer. Load it with AutoTokenizer"
    with pytest.raises(DataError, match=words):
        encode([EXAMPLE], ByT5Tokenizer())


def test_hash_follows_what_the_models_see_and_nothing_else(words):
    base = encode([EXAMPLE, OPENING], words).ids_hash
    assert base == encode([dataclasses.replace(EXAMPLE, id="z", row=9, type="t"), OPENING], words).ids_hash
    assert len(base) == 32
    others = [
        encode([EXAMPLE], words),
        encode([OPENING, EXAMPLE], words),
        encode([EXAMPLE, OPENING], words, scope="boundary"),
        encode([dataclasses.replace(EXAMPLE, question="Who?"), OPENING], words),
    ]
    assert len({base, *(other.ids_hash for other in others)}) == 5
    # the same in every process
    assert encode([EXAMPLE], words).ids_hash == "26fc3ee27363f1feac55d3fef4fb0d22"


@pytest.mark.parametrize(
    ("offsets", "entity", "expected"),
    [
        ([(0, 4), (4, 8), (8, 9)], (1, 8), range(2)),
        ([(0, 1), (1, 4), (4, 8)], (1, 8), range(1, 3)),
        ([(0, 0), (1, 2), (1, 2), (1, 2), (2, 3)], (1, 2), range(1, 4)),
        ([(0, 1), (1, 2), (2, 2), (2, 3), (3, 4)], (1, 3), range(1, 4)),
        ([(0, 1), (1, 2), (3, 4)], (2, 3), range(0)),
        ([(0, 2), (2, 2), (5, 6), (3, 4)], (3, 6), range(2, 4)),
        ([], (0, 1), range(0)),
    ],
)
def test_entity_tokens(offsets, entity, expected):
    assert entity_tokens(offsets, Span(*entity)) == expected


@pytest.mark.parametrize(
    "cells",
    [
        {"targets": (1,)},
        {"scored": (0, 2)},
        {"scored": (2, 3)},
        {"patched": (-1, 0)},
        {"patched": (1, 0)},
        {"targets": (), "scored": (), "patched": ()},
    ],
)
def test_sequences_are_checked(cells):
    good = {"ids": (5, 6, 7), "targets": (6, 7), "scored": (0, 1), "patched": (1,)}
    TokenSequence(**good)
    with pytest.raises(
        ConfigError,
        match=r"positions must be (a contiguous run|increasing) within 0..2|a sequence needs at least one scored",
    ):
        TokenSequence(**{**good, **cells})


TEXT = st.text(st.characters(codec="utf-8"), max_size=12)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=50)
@given(prefix=TEXT, entity=TEXT.filter(str.strip), suffix=TEXT)
def test_target_tokens_spell_the_entity(subwords, prefix, entity, suffix):
    example = ForgetExample("0", "Who?", prefix + entity + suffix, prefix=prefix, entity=entity)
    encoded = encode([example], subwords)
    (row,) = encoded.rows
    assert len(row.ids) == row.scored[-1] + 1
    assert row.scored == tuple(range(row.scored[0], row.scored[0] + len(row.targets)))
    assert row.ids[row.scored[0] + 1 :] == row.targets[:-1]
    assert row.ids[0] == subwords.bos_token_id
    if "▁" not in entity:
        assert entity.strip() in subwords.decode(row.targets, clean_up_tokenization_spaces=False)


@pytest.mark.parametrize("entity", ["東京", "🎉🦊", "👩‍👩‍👧", "café", "é́", "Ada Vey"])
def test_entities_of_many_bytes(subwords, entity):
    example = ForgetExample("0", "Who?", f"It was {entity}, yes.", prefix="It was", entity=entity)
    (row,) = encode([example], subwords).rows
    text = subwords.decode(row.targets)
    assert text.strip(" ,") == entity


def test_the_real_forget_set(shared_dir):
    tokenizer = AutoTokenizer.from_pretrained(shared_dir / "models" / "tofu-small" / "full")
    examples = load_examples(shared_dir / "data" / "tofu" / "forget10_filtered.json")
    encoded = encode(examples, tokenizer)
    assert (len(encoded.rows), len(encoded.skipped)) == (367, 0)
    assert [row.example for row in encoded.rows] == examples
    for row in encoded.rows:
        assert row.example.entity in tokenizer.decode(row.targets)
        assert row.ids.count(tokenizer.bos_token_id) == 1
        gap = "" if row.example.prefix == "" or row.example.prefix[-1] in "\"'" else " "
        assert row.rendered.continuation.startswith(gap + row.example.entity)
    assert sum(row.example.prefix == "" for row in encoded.rows) == 21
    paper = encode(examples, tokenizer, entity_space="always").rows
    moved = [i for i, (row, theirs) in enumerate(zip(encoded.rows, paper, strict=True)) if row.ids != theirs.ids]
    assert [examples[i].prefix[-1] for i in moved] == ["'", '"', '"', '"']  # behind an opening quote, and nowhere else
