"""Tasks of lm-evaluation-harness as metrics: one made here, its accuracy against plain logits."""

import json
import sys

import numpy as np
import pytest
import torch
from metrics.conftest import ask
from tiny_models import load_plain

from uds_lens import metrics as m
from uds_lens.errors import ConfigError, MissingDependencyError
from uds_lens.metrics._catalogue import resolve
from uds_lens.metrics._declaration import Evidence, Pass
from uds_lens.metrics._harness import _outcome

QUESTIONS = [
    ("Who wrote the Ash Ledger?", ["Ada Veylin", "Bram Tolley"], 0),
    ("Where was Ada Veylin born?", ["Orsk", "the harbour town"], 0),
    ("What does her father do?", ["painter", "cooper", "poet"], 1),
    ("Which prize?", ["Salt and Slow Water", "Glass Quill"], 1),
    ("Who is her rival?", ["Ada Veylin", "Bram Tolley"], 1),
]
TASK = r"""
task: ledger
dataset_path: json
dataset_kwargs: {{data_files: {{test: {rows}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "Question: {{{{question}}}}\nAnswer:"
doc_to_target: answer
doc_to_choice: "{{{{choices}}}}"
metric_list: [{{metric: acc, aggregation: mean, higher_is_better: true}}]
metadata: {{version: 2.0}}
"""


@pytest.fixture
def tasks(tmp_path):
    rows = tmp_path / "rows.jsonl"
    named = [dict(zip(("question", "choices", "answer"), each, strict=True)) for each in QUESTIONS]
    rows.write_text("\n".join(map(json.dumps, named)))
    (tmp_path / "ledger.yaml").write_text(TASK.format(rows=rows))
    yield tmp_path
    for name in [name for name in m.METRICS if name.startswith("lm_eval.")]:
        m.withdraw_metric(name)


def accuracy(folder):
    model, tokenizer = load_plain(folder)
    right = 0
    for question, choices, answer in QUESTIONS:
        prompt = f"Question: {question}\nAnswer:"
        first, sums = len(tokenizer(prompt)["input_ids"]), []
        for choice in choices:
            ids = torch.tensor([tokenizer(f"{prompt} {choice}")["input_ids"]])
            with torch.no_grad():
                logp = model(ids).logits[0, first - 1 : -1].log_softmax(-1)
            sums.append(float(logp.gather(-1, ids[0, first:, None]).sum()))
        right += int(np.argmax(sums)) == answer
    return right / len(QUESTIONS)


@pytest.mark.filterwarnings("ignore")
def test_accuracy_is_that_of_plain_logits(trio, data, tasks, tmp_path):
    pytest.importorskip("lm_eval")
    models, name = trio("llama"), m.harness_metric("ledger", tasks=tasks, batch_size=2)
    assert name == "lm_eval.ledger" and m.METRICS[name].group == "utility"
    for folder in (models.retain, models.full):
        found = ask(folder, data, [name])
        assert found[name].value == pytest.approx(accuracy(folder))
    assert found[name].details["n"] == 5 and found[name].details["version"] == 2.0
    assert found[name].details["standard_error"] >= 0
    found.save(tmp_path / "m.json")
    assert m.MetricResults.load(tmp_path / "m.json")[name] == found[name]
    assert m.harness_metric("ledger", tasks=tasks, limit=2) == name  # declared again, with other settings
    assert ask(models.full, data, [name])[name].details["n"] == 2
    with pytest.raises(ConfigError, match=r"ledger of lm-evaluation-harness has no score 'f1,none'; it has acc,none"):
        ask(models.full, data, [m.harness_metric("ledger", tasks=tasks, score="f1")])
    with pytest.raises(ConfigError, match="lm-evaluation-harness has no task 'leger'"):
        ask(models.full, data, [m.harness_metric("leger", tasks=tasks)])


def test_a_tag_has_no_score_of_its_own():
    found = {"results": {"arc_easy": {"acc,none": 0.5, "acc_stderr,none": 0.1}, "arc_challenge": {"acc,none": 0.25}}}

    class Measured(Evidence):
        def __init__(self):
            pass

        def measured(self, own):
            return found

    own = Pass("model", "own", "ai2_arc")
    with pytest.raises(ConfigError, match=r"has no score 'acc,none'; declare each of its tasks: arc_easy, arc_chal"):
        _outcome(Measured(), own=own, task="ai2_arc", score="acc,none")


def test_without_the_extra_it_says_so_before_a_model_is_opened(data, tasks, monkeypatch):
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    name = m.harness_metric("wmdp-bio", meaning=m.Meaning("knowledge", "nothing left", "all known"))
    assert name == "lm_eval.wmdp_bio" and m.METRICS[name].group == "memorization"
    assert m.METRICS[name].needs == ("output",) and m.METRICS[name].sets == ()
    from uds_lens.metrics._catalogue import require_packages

    with pytest.raises(MissingDependencyError, match=r'lm-eval: pip install "uds-lens\[lm-eval\]"'):
        require_packages(resolve([name]))
