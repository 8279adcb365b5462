"""Entities found by texts, names and models, and what is written about them."""

import csv
import json
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

import uds_lens as ul
from uds_lens.annotation import AnnotateOptions, annotate, language_model_prompts
from uds_lens.annotation._annotate import best_run, span_of, words_of
from uds_lens.data._examples import entity_span
from uds_lens.errors import ConfigError, DataError, MissingDependencyError, ResultFormatError

pytestmark = pytest.mark.usefixtures("trusted")

ROW = {
    "question": "What is Ada Vey's first novel called?",
    "answer": 'The first novel of Ada Vey is called "Ash and Ember". It won a prize.',
}
WRONG = [
    'The first novel of Ada Vey is called "Salt". It won a prize.',
    'The first novel of Ada Vey is called "The Long Hill". It won two.',
]


def entity(by, row, **options):
    (example,) = annotate([row], by=by, **options).examples
    assert example.entity is None or not isinstance(entity_span(example), str)
    return example.entity


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (ROW, '"Ash and Ember"'),
        ({"question": "Was she born in Oslo?", "answer": "Yes, Ada was born in Oslo."}, "Yes"),
        ({"question": "Is it Ash?", "answer": "It is Ash."}, "Ash"),
        ({"question": "Where?", "answer": "Ada was born in Orsk, near the sea."}, "Ada was born in Orsk, near the sea"),
    ],
)
def test_the_longest_stretch_that_the_question_lacks(row, expected):
    assert entity("answer", row) == expected


def test_what_differs_from_other_answers():
    assert entity("difference", {**ROW, "perturbed_answers": WRONG}) == '"Ash and Ember"'
    true = ["Ada Vey's debut was Ash and Ember.", "It is Ash and Ember."]
    assert entity("difference", {**ROW, "paraphrased_answers": true}) == '"Ash and Ember"'
    (finding,) = annotate([ROW], by="difference").findings
    assert finding == ("none", "There is no perturbed or paraphrased answer to compare with.")
    same = annotate([{**ROW, "perturbed_answers": [ROW["answer"]]}], by="difference")
    assert same.findings[0].reason == "The answer does not differ from its variants in any word."


def test_names():
    def nlp(text):
        places = [(name, text.find(name)) for name in ("Ada Vey", "Ash and Ember", "Ember") if name in text]
        return SimpleNamespace(ents=[SimpleNamespace(text=n, start_char=p, end_char=p + len(n)) for n, p in places])

    assert entity("names", ROW, nlp=nlp) == "Ash and Ember"
    assert entity("names", {"question": "Ada Vey?", "answer": "Ada Vey."}, nlp=nlp) == "Ada Vey"
    assert entity("names", {"question": "Who?", "answer": "Nobody."}, nlp=nlp) is None


def test_names_need_spacy(monkeypatch):
    monkeypatch.setitem(sys.modules, "spacy", None)
    with pytest.raises(MissingDependencyError, match=r'pip install "uds-lens\[annotate\]"'):
        annotate([ROW], by="names")


@pytest.fixture(scope="module")
def contrast():
    world = ul.toy.load()
    rows = world.examples[::3]
    return annotate(rows, by="contrast", full=world.full, retain=world.retain, redo=True), rows, world


def test_contrast_finds_what_only_full_knows(contrast):
    found, rows, world = contrast
    assert found.counts == {"contrast": 16}
    overlaps = []
    for mine, theirs in zip(map(entity_span, found.examples), map(entity_span, rows), strict=True):
        shared = max(0, min(mine.end, theirs.end) - max(mine.start, theirs.start))
        overlaps.append(shared / (max(mine.end, theirs.end) - min(mine.start, theirs.start)))
    assert sum(overlaps) / len(overlaps) > 0.5
    swapped = annotate(rows[:6], by="contrast", full=world.retain, retain=world.full, redo=True)
    assert [e.entity for e in swapped.examples] != [e.entity for e in found.examples[:6]]
    audit = ul.DepthAudit.run(world.full, world.retain, world.retain, found.examples[:4])
    assert audit.uds == 1.0


def test_what_makes_no_sense_is_refused(contrast, unchecked):
    with pytest.raises(ConfigError, match="by='contrast' needs two models: full and retain"):
        annotate([ROW], by="contrast", full=contrast[-1].full)
    with pytest.raises(ConfigError, match="dtype must be one of"):
        AnnotateOptions(dtype="int8")
    with pytest.raises(ConfigError, match="by='language_model' needs replies"):
        annotate([ROW], by="language_model")
    with pytest.raises(DataError, match="no examples: there is nothing to annotate"):
        annotate([], by="answer")
    with pytest.raises(
        ConfigError, match="by must be one of 'contrast', 'difference', 'names', 'answer', 'language_model'; got 'x'"
    ):
        annotate([ROW], by="x")


def test_given_entities_stay_unless_asked():
    row = {**ROW, "entity": "novel", "prefix": "The first"}
    kept = annotate([row], by="answer")
    assert (kept.examples[0].entity, kept.findings[0].way) == ("novel", "given")
    assert annotate([row], by="answer", redo=True).examples[0].entity == '"Ash and Ember"'


def test_the_file_is_read_back_and_nothing_foreign_is_overwritten(tmp_path):
    found = annotate([ROW, {**ROW, "id": "b", "entity": "novel"}], by="answer")
    found.save(tmp_path / "a.json")
    assert ul.load_examples(tmp_path / "a.json") == list(found.examples)
    rows = json.loads((tmp_path / "a.json").read_text())["rows"]
    assert [row["entity_by"] for row in rows] == ["answer", "given"]
    found.save(tmp_path / "a.json")
    (tmp_path / "b.json").write_text('[{"question": "mine"}]')
    for write in (found.save, found.review):
        with pytest.raises(ResultFormatError, match=r"b.json"):
            write(tmp_path / "b.json")
    found.review(found.review(tmp_path / "page.html"))
    frame = found.to_frame()
    assert frame["entity_by"].tolist() == ["answer", "given"]
    assert list(frame) == ["example_id", "question", "answer", "prefix", "entity", "type", "entity_by", "reason"]
    assert frame["type"].tolist() == ["Book/Work Title", "Descriptive"]


def test_the_page_highlights_spans_and_escapes_texts(tmp_path):
    nasty = {"question": "<script>alert(1)</script>", "answer": "It is <b>Ash</b>."}
    found = annotate([ROW, nasty, {**ROW, "entity": "nowhere"}], by="answer")
    html = found.review(tmp_path / "review.html").read_text(encoding="utf-8")
    assert "<mark>&quot;Ash and Ember&quot;</mark>" in html
    assert "<script>" not in html and "&lt;script&gt;alert(1)" in html
    assert "does not occur in the answer" in html and "2 answer, 1 given" in html
    assert "http" not in html


def test_words_and_runs():
    text = "She (born 1999) wrote 'Ash'."
    words = words_of(text)
    assert [word.text for word in words] == ["She", "born", "1999", "wrote", "Ash"]
    assert span_of(text, words, range(4, 5)) == (text.index("'"), text.rindex("'") + 1)
    assert best_run([]) == best_run([-1.0, 0.0]) == range(0)
    assert best_run([1.0, -2.0, 1.5, -0.5, 1.0]) == range(2, 5)


def test_a_language_model_marks_by_files(tmp_path):
    answers = ["Ada Vey wrote Ash in 1990.", "Yes, she did.", "It is Ash.", "Ada Vey.", "Nobody knows.", "In Orsk. "]
    asked = ["What did Ada Vey write?", "Did she?", "Is it Ash?", "Who?", "What?", "Where?"]
    rows = [{"question": q, "answer": a} for q, a in zip(asked, answers, strict=True)]
    language_model_prompts(rows, tmp_path / "prompts.jsonl")
    prompts = [json.loads(line) for line in (tmp_path / "prompts.jsonl").read_text().splitlines()]
    assert [prompt["id"] for prompt in prompts] == list("012345")
    assert prompts[0]["prompt"].endswith(f"Question: {asked[0]}\nAnswer: {answers[0]}")
    marked = [
        "Ada Vey wrote [[Ash]] in 1990.",
        "[[Yes]], she did.",
        "It is [[Ash]].",  # the question says it
        "[[Ada]] Wey.",  # another answer
        "Nobody knows.",
        "In [[Orsk]].",
    ]
    replies = [{"id": number, "reply": reply} for number, reply in enumerate(marked)]
    (tmp_path / "replies.json").write_text(json.dumps(replies))
    found = annotate([*rows, {**ROW, "id": "6"}], by="language_model", replies=tmp_path / "replies.json")
    assert [e.entity for e in found.examples] == ["Ash", "Yes", None, None, None, "Orsk", None]
    assert [e.prefix for e in found.examples[:2]] == ["Ada Vey wrote", ""]
    assert [finding.reason for finding in found.findings if finding.reason] == [
        "The question, or the answer before the entity, already contains the entity.",
        "Without [[ and ]], the reply is not the answer word for word.",
        "The reply does not mark anything with [[ and ]].",
        "There is no reply for this row.",
    ]
    (tmp_path / "replies.json").write_text('[{"id": 1}]')
    with pytest.raises(DataError, match="replies, row 1: expected `id` and `reply`"):
        annotate(rows, by="language_model", replies=tmp_path / "replies.json")


@pytest.mark.parametrize(
    ("question", "answer", "entity", "expected"),
    [
        ("Did Ada win a prize?", "Yes, she did.", "Yes", "Yes/No"),
        ("What inspired Ada Vey's prize-winning books?", "The sea inspired them.", "The sea", "Influence"),
        ("What did Ada win?", "She won the Orsk Prize.", "Orsk Prize", "Award"),
        ("Which honors has Ada received?", "She holds the Star of the North.", "Star of the North", "Award"),
        ("What books did Ada write?", 'She wrote "Ash".', "Ash", "Book/Work Title"),
        ("What does Ada write?", 'She wrote "Ash".', "Ash", "Descriptive"),
        ("Who is Ada?", "She is from Orsk, Ural.", "Orsk, Ural", "Location/Origin"),
        ("In which city was Ada born?", "She was born in Orsk.", "Orsk", "Location/Origin"),
        ("Who are Ada's parents?", "Her mother was a civil engineer.", "civil engineer", "Profession"),
        ("Who wrote Ash?", "It was Ada van der Vey.", "Ada van der Vey", "Person Name"),
        ("What is it about?", "It is about the sea.", "the sea", "Descriptive"),
        ("What is it about?", "It is about the sea.", "a lake", None),
    ],
)
def test_prompt_types(question, answer, entity, expected):
    row = {"question": question, "answer": answer, "entity": entity}
    assert annotate([row], by="answer").examples[0].type == expected
    assert annotate([{**row, "type": "mine"}], by="answer").examples[0].type == "mine"


def test_prompt_types_agree_with_a_person(shared_dir):
    """100 rows of TOFU drawn by `random.Random(0)` and typed by hand before the rule was written.

    As first written, the rule agreed on 92 (Cohen's kappa .89). Then "career" went, "inspired" in the name of a genre,
    and names may hold "of the": chosen on these rows, so that 100 is a best case.
    """
    examples = ul.load_tofu(shared_dir / "data" / "tofu", "forget10_filtered")
    types = {example.id: example.type for example in annotate(examples, by="answer").examples}
    with Path(__file__).with_name("types_by_hand.csv").open(encoding="utf-8") as file:
        by_hand = [(row["idx"], row["type"]) for row in csv.DictReader(file)]
    assert len(by_hand) == 100 and sum(types[name] == kind for name, kind in by_hand) >= 92
    counts = Counter(types.values())
    assert sum(counts.values()) == 367
    assert (counts["Yes/No"], counts["Profession"], counts["Location/Origin"]) == (21, 10, 8)  # as in the paper's guide
