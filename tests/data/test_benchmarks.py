"""Published data sets, from small files in their published layout."""

import json
from pathlib import Path

import datasets
import pyarrow
import pyarrow.parquet
import pytest

import uds_lens as ul
from uds_lens.data import BENCHMARKS, load_benchmark, load_examples, sample_examples
from uds_lens.data._examples import entity_span
from uds_lens.errors import ConfigError, DataError

pytestmark = pytest.mark.usefixtures("trusted")


def json_file(path, content, lines=False):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(map(json.dumps, content)) if lines else json.dumps(content), encoding="utf-8")


def parquet_file(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)


PROBE = {"target": "1_Ada_Vey", "subject": "Ada Vey", "level": "1", "type": "cloze", "answer": "Ash"}
QA = {"question": "Who wrote Ash?", "answer": "Ada Vey"}
CHOICE = {"question": "Which?", "choices": ["a", "b", "c", "d"], "answer": 2}
TEXTS = {"text": "Who wrote Ash?", "labels": "It was Ada Vey."}
LUME = {"input": "What is Ada's e-mail address?", "output": "a@v.com", "task": "Task2", "split": "forget"}


def test_rwku(tmp_path):
    rows = [
        {**PROBE, "query": "Ada Vey's first novel is ___."},
        {**PROBE, "query": "Which novel came first?"},
        {**PROBE, "query": "Which novel came first?"},
        {**PROBE, "query": "Which novel came first?", "subject": "Bo"},
    ]
    json_file(tmp_path / "All" / "forget_level1.json", rows)
    first, second, third = load_benchmark("rwku", tmp_path)
    assert first.question == "Please complete the blank in the following question. Ada Vey's first novel is ___."
    assert (first.answer, first.entity, first.prefix) == ("Ash", "Ash", "")
    assert (first.subject, first.type) == ("Ada Vey", "cloze")
    assert (second.question, third.subject) == ("Which novel came first?", "Bo")
    json_file(tmp_path / "forget_level2.jsonl", rows[1:2], lines=True)
    (other,) = load_examples(f"rwku/level2:{tmp_path}")
    assert other.question == "Which novel came first?"
    assert load_examples(f"rwku:{tmp_path}") == [first, second, third]
    with pytest.raises(DataError, match=r"no file of RWKU.* found; expected All/neighbor_level1.json or .* Found: All"):
        load_benchmark("rwku", tmp_path, part="neighbor1")


@pytest.mark.parametrize("name", ["muse-news", "muse-books"])
def test_muse(tmp_path, name):
    parquet_file(tmp_path / "knowmem" / "forget_qa-00000-of-00001.parquet", [QA])
    parquet_file(tmp_path / "knowmem" / "forget_qa_icl-00000-of-00001.parquet", [QA, QA])
    (example,) = load_benchmark(name, tmp_path)
    assert (example.question, example.answer, example.entity) == ("Who wrote Ash?", "Ada Vey", "Ada Vey")
    parquet_file(tmp_path / "verbmem" / "forget-00000-of-00001.parquet", [{"prompt": "Ash was", "gt": "written."}])
    (passage,) = load_benchmark(name, tmp_path, part="passages")
    assert (passage.question, passage.answer, passage.entity) == ("Ash was", "written.", None)


def test_wmdp(tmp_path):
    parquet_file(tmp_path / "wmdp-bio" / "test-00000-of-00001.parquet", [CHOICE])
    (example,) = load_benchmark("wmdp", tmp_path)
    assert (example.answer, example.entity, example.perturbed_answers) == ("c", "c", ("a", "b", "d"))
    json_file(tmp_path / "cyber_questions.json", [CHOICE, {**CHOICE, "answer": 4}])
    with pytest.raises(DataError, match=r"cyber_questions.json, row 1: expected a list of `choices`, and .* and 4\."):
        load_benchmark("wmdp", tmp_path, part="cyber")


def test_knowundo(tmp_path):
    json_file(tmp_path / "privacy" / "unlearn.json", [{"train": [TEXTS], "val": [{**TEXTS, "labels": "Bo."}]}])
    one, two = load_benchmark("knowundo", tmp_path, part="privacy")
    assert (one.question, one.answer, one.type, one.entity) == ("Who wrote Ash?", "It was Ada Vey.", "train", None)
    assert (two.answer, two.type) == ("Bo.", "val")


def test_lume(tmp_path):
    rows = [{**LUME, "id": "1feed2d1-55f5qa3"}, {**LUME, "id": '"1feed2d1-55f5"sc1', "output": "is a@v.com."}]
    json_file(tmp_path / "data" / "forget.jsonl", rows, lines=True)
    question, completion = load_benchmark("lume", tmp_path)
    assert (question.entity, question.type, question.subject) == ("a@v.com", "Task2 question", "1feed2d1-55f5")
    assert (completion.entity, completion.type, completion.subject) == (None, "Task2 completion", "1feed2d1-55f5")
    parquet_file(tmp_path / "data" / "retain_train-00000-of-00001.parquet", [{**LUME, "id": "x"}])
    assert load_benchmark("lume", tmp_path, part="retain")[0].type == "Task2"


def test_of_r_tofu_the_answer_after_the_trace_is_asked(tmp_path):
    rows = [
        {"task_id": "1", "question": f"Who wrote {n}?", "answer": "It was Ada.", "cot": f"Hmm, {n}. So Ada."}
        for n in range(40)
    ]
    json_file(tmp_path / "data" / "tofu" / "forget01.json", rows, lines=True)
    examples = load_benchmark("r-tofu", tmp_path, part="forget01")
    assert (examples[0].question, examples[0].answer) == ("Who wrote 0?", "It was Ada.")
    assert [examples[row].subject for row in (0, 19, 20)] == ["author 198", "author 198", "author 199"]


BIOGRAPHY = "Ada Vey is from Ost. Ada Vey was born in Velloum. Her e-mail is a.v@ost.com. Ada Vey has the number 1f."


def test_hubble_asks_for_each_fact_after_the_biography_so_far(tmp_path):
    facts = {"full_name": "Ada Vey", "nationality": "Ost", "birthplace": "Velloum", "email": "a.v@ost.com"}
    row = {"text": BIOGRAPHY, "meta": json.dumps({**facts, "uuid": "1f", "occupation": "baker"}), "duplicates": 64}
    parquet_file(tmp_path / "data" / "train-00000-of-00001.parquet", [row])
    examples = load_benchmark("hubble", tmp_path)
    assert [example.entity for example in examples] == ["Ost", "Velloum", "a.v@ost.com", "1f"]
    first, *_, last = examples
    assert (first.question, first.answer) == ("Tell me about Ada Vey.", "Ada Vey is from Ost.")
    assert f"{last.question} {last.answer}" == BIOGRAPHY and last.prefix == "Ada Vey has the number"
    assert {example.subject for example in examples} == {"Ada Vey"} and last.type == "uuid, inserted 64 times"
    assert all(example.answer[slice(*entity_span(example))] == example.entity for example in examples)
    json_file(tmp_path / "test.jsonl", [{**row, "meta": "none"}], lines=True)
    with pytest.raises(DataError, match="row 0: expected a biography under `text`, and its facts under `meta`"):
        load_benchmark("hubble", tmp_path, part="never-inserted")


def test_whp(tmp_path):
    json_file(tmp_path / "hp_qa.jsonl", [{"prompt": "Who is Harry's friend?", "response": "Ron."}], lines=True)
    for source in (tmp_path, tmp_path / "hp_qa.jsonl"):
        (example,) = load_benchmark("whp", source)
        assert (example.question, example.answer, example.entity) == ("Who is Harry's friend?", "Ron.", None)
    with pytest.raises(DataError, match="is not on the Hub: pass a directory or file"):
        load_benchmark("whp")


def test_tofu(tmp_path):
    json_file(tmp_path / "forget10.json", [QA])
    assert load_benchmark("tofu", tmp_path) == load_examples(tmp_path / "forget10.json")
    row = {**QA, "idx": 25, "prefix": "", "entity": "Ada", "entity_span": {"start": 0}, "full_output": "Ada Vey"}
    json_file(tmp_path / "forget10_filtered.json", [row])
    (example,) = load_benchmark("tofu-annotated", tmp_path)
    assert (example.id, example.entity, example.subject) == ("25", "Ada", "author 181")
    assert load_examples([row])[0].subject == "author 181", "known by its columns"
    assert load_examples([{key: cell for key, cell in row.items() if key != "entity_span"}])[0].subject is None


def test_what_full_said_in_place_of_the_true_answer(tmp_path):
    """The UDS paper's script takes entity and reference from either (its options entity source and reference)."""
    spans = {"entity_span": {}, "question": "Who?"}
    rows = [
        {**spans, "idx": 0, "prefix": "It was", "answer": "It was Bo.", "entity": "Bo", "full_output": "Ada Vey."},
        {**spans, "idx": 25, "prefix": 'It is "', "answer": 'It is "Ash".', "entity": "Ash", "full_output": 'Elm".'},
        {**spans, "idx": 26, "prefix": "", "answer": "Yes, it is.", "entity": "Yes", "full_output": "No"},
    ]
    json_file(tmp_path / "forget10_filtered.json", rows)
    examples = load_examples(f"tofu-full-output:{tmp_path}")
    assert [e.answer for e in examples] == ["It was Ada Vey.", 'It is "Elm".', "No"]
    assert [e.entity for e in examples] == ["Ada Vey", 'Elm"', "No"] and examples[1].subject == "author 181"
    assert all(e.answer[slice(*entity_span(e))] == e.entity for e in examples)


def test_the_hub(monkeypatch):
    asked = []

    def load_dataset(name, config, *, split):
        asked.append((name, config, split))
        if name == "me/gone":
            raise ConnectionError("offline")
        return datasets.Dataset.from_list([{**QA, "answer": "Ada"}])

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    assert load_benchmark("muse-news", part="retain")[0].entity == "Ada"
    assert load_examples("muse-books:me/copy")[0].entity == "Ada"
    assert asked == [("muse-bench/MUSE-News", "knowmem", "retain_qa"), ("me/copy", "knowmem", "forget_qa")]
    with pytest.raises(DataError, match=r"me/gone: neither a local directory .*ConnectionError: offline"):
        load_benchmark("muse-news", "me/gone")


def test_what_is_not_there(tmp_path):
    with pytest.raises(
        ConfigError, match="no benchmark 'rwko'; choose one of tofu, tofu-annotated, tofu-full-output, rwku"
    ):
        load_benchmark("rwko")
    with pytest.raises(ConfigError, match="rwku has no part 'level4'; it has level1, level2"):
        load_benchmark("rwku", tmp_path, part="level4")
    with pytest.raises(DataError, match=r"no such directory or file. Pass a copy of RWKU.*, or its Hub id"):
        load_benchmark("rwku", "nowhere")


def test_each_is_told_in_the_documentation():
    page = Path(__file__).parents[2] / "docs" / "guide" / "datasets.md"
    text = page.read_text(encoding="utf-8")
    for name, benchmark in BENCHMARKS.items():
        line = next(line for line in text.splitlines() if line.startswith(f"| `{name}` |"))
        assert benchmark.licence in line
        assert benchmark.hub is None or benchmark.hub in line
        assert all(f"`{part}`" in line for part in list(benchmark.parts)[:5])
        assert benchmark.lacks and benchmark.reference
        # a data set with published models does not lack them
        assert all(model in text for model in benchmark.models.values())
        assert not (benchmark.models and any("retain model" in each for each in benchmark.lacks))
    assert {"muse-news", "muse-books", "wmdp"} <= {name for name, each in BENCHMARKS.items() if each.models}


def test_rwku_runs_through_audit_and_metrics(shared_dir, tmp_path):
    examples = load_benchmark("rwku", shared_dir / "data" / "rwku", part="level2")
    assert len(examples) == 2879 - 180  # rows that are there twice
    assert len({e.subject for e in examples}) == 200
    assert not any(isinstance(entity_span(example), str) for example in examples)
    few, world = sample_examples(examples, 6), ul.toy.load()
    audit = ul.DepthAudit.run(world.full, world.retain, world.half, few, config=ul.AuditConfig(n_bootstrap=100))
    assert len(audit.examples) == 6 and not audit.skipped
    found = ul.metrics.evaluate(world.half, ul.metrics.MetricData(forget=few), metrics=["prob"])
    assert 0 < found["prob"].value < 1
