"""Auditing a run of Open-Unlearning, and the evaluator that they can take, against stubs of their interface."""

import importlib.util
import json
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from cli.conftest import uds_lens  # noqa: F401 - a fixture
from open_unlearning_saves import training_config, write_config

import uds_lens as ul
from uds_lens.errors import ResultFormatError
from uds_lens.meta import read_open_unlearning
from uds_lens.sharing import open_unlearning_run, write_uds_eval

WORLD = ul.toy.load()
BASE = "Llama-3.2-1B-Instruct"
INTEGRATION = Path(__file__).parents[2] / "integrations" / "open_unlearning"


def task_in(root: Path, *, split: str = "forget10", **changes) -> Path:
    """A run with two checkpoints and the last weights, those of a toy model; its retain is trained beside it."""
    name = f"tofu_{BASE}_{split}_NPO"
    task = root / "saves" / "unlearn" / name
    config = training_config(BASE, split, "NPO", full=str(WORLD.full))
    config["model"]["template_args"].update(changes)
    write_config(task, config)
    for place in (task / "checkpoint-80", task):
        shutil.copytree(WORLD.unlearned["npo"], place, dirs_exist_ok=True)
    (task / "checkpoint-100" / "evals").mkdir(parents=True)  # evaluated by the Trainer, never saved
    shutil.copytree(WORLD.retain, root / "saves" / "finetune" / f"tofu_{BASE}_retain90")
    return task


def test_a_run_says_what_to_audit(tmp_path: Path) -> None:
    task = task_in(tmp_path)
    run = open_unlearning_run(task)
    assert list(run.checkpoints) == ["checkpoint-80", task.name]
    assert (run.base, run.split, run.full) == (BASE, "forget10", str(WORLD.full))
    assert run.retain == str(tmp_path / "saves" / "finetune" / f"tofu_{BASE}_retain90")
    assert (run.protocol, run.chat) == ("chat", ul.data.CHAT_STYLES["open_unlearning"])
    shutil.rmtree(tmp_path / "saves" / "finetune")
    assert open_unlearning_run(task).retain == f"open-unlearning/tofu_{BASE}_retain90"
    config = training_config("Phi-9", "forget05", "NPO")
    config["model"]["template_args"] = {"apply_chat_template": False, "user_start_tag": "[INST] "}
    write_config(task, config)
    run = open_unlearning_run(task)
    assert (run.retain, run.examples, run.protocol) == (None, None, None)
    muse = {
        "mode": "unlearn",
        "data_split": "Books",
        "forget_split": "forget",
        "model": {
            "model_args": {"pretrained_model_name_or_path": "muse-bench/MUSE-${data_split}_target"},
            "tokenizer_args": {"pretrained_model_name_or_path": "meta-llama/Llama-2-7b-hf"},
        },
    }
    write_config(task, muse)
    run = open_unlearning_run(task)
    assert (run.full, run.retain) == ("muse-bench/MUSE-Books_target", "muse-bench/MUSE-Books_retrain")


def test_folders_that_are_no_run(tmp_path: Path) -> None:
    with pytest.raises(ResultFormatError, match="of a training run in"):
        open_unlearning_run(tmp_path)
    write_config(tmp_path, {"mode": "eval"})
    with pytest.raises(ResultFormatError, match="of a training run in"):
        open_unlearning_run(tmp_path)
    write_config(tmp_path, training_config(BASE, "forget10", "NPO"))
    with pytest.raises(ResultFormatError, match="no weights in"):
        open_unlearning_run(tmp_path)


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rows = [
        {"id": f"row{e.id}", "question": e.question, "answer": e.answer, "prefix": e.prefix, "entity": e.entity}
        for e in WORLD.examples[:4]
    ]
    file = tmp_path_factory.mktemp("examples") / "forget.json"
    file.write_text(json.dumps(rows))
    return file


def test_every_checkpoint_is_audited_and_both_readers_read_it(examples: Path, tmp_path: Path, uds_lens) -> None:  # noqa: F811
    task = task_in(tmp_path, apply_chat_template=False)
    words = ("audit", "--open-unlearning", task, "--examples", examples, "--device", "cpu")
    code, _, err = uds_lens(*words)
    assert code == 1 and "do not come from the tokenizer" in err and "--protocol raw" in err
    code, out, err = uds_lens(*words, "--protocol", "raw", "--json")
    assert code == 0, err
    audits = {row["name"]: row for row in json.loads(out)["audits"]}
    assert list(audits) == ["checkpoint-80", task.name]
    for place in (task / "checkpoint-80" / "evals", task / "evals"):
        logs = json.loads((place / "UDS_EVAL.json").read_text())
        summary = json.loads((place / "UDS_SUMMARY.json").read_text())
        assert summary == their_summary(logs, metrics=logs)
        assert summary["uds"] == audits[task.name]["uds"] and summary["uds_low"] == audits[task.name]["uds_low"]
        scores = logs["uds"]["value_by_index"]
        assert scores.keys() == {f"row{e.id}" for e in WORLD.examples[:4]}
        known = [entry["score"] for entry in scores.values() if entry["score"] is not None]
        assert sum(known) / len(known) == pytest.approx(summary["uds"])
    table = read_open_unlearning(task, examples=True, checkpoints=True)
    assert table.frame["uds"].tolist() == [summary["uds"]] * 2
    assert (table.frame["method"].tolist(), table.frame["split"].tolist()) == (["npo"] * 2, ["forget10"] * 2)
    assert set(table.examples["example_id"]) == set(scores)
    # called again it measures nothing anew, and replaces its own files only
    uds_lens(*words, "--protocol", "raw")
    assert any("Already measured" in line for line in uds_lens.doing)
    (task / "evals" / "UDS_EVAL.json").write_text("{}")
    with pytest.raises(ResultFormatError, match="was not written by uds_lens"):
        write_uds_eval(ul.DepthAudit.load(task / "uds" / task.name), task / "evals")


def their_summary(logs, metrics):
    """The rule of their summariser: entries of known metrics that have an aggregate."""
    return {
        name: entry["agg_value"] for name, entry in logs.items() if name in metrics and entry["agg_value"] is not None
    }


def test_what_the_record_does_not_answer_is_asked_for(tmp_path: Path, uds_lens) -> None:  # noqa: F811
    task = task_in(tmp_path, split="forget05")
    shutil.rmtree(tmp_path / "saves" / "finetune")
    write_config(task, training_config("Phi-9", "forget05", "NPO"))
    for words, message in (
        ((), "is of Phi-9, forget05: give --retain (neither next to the run nor published); --examples"),
        (("--model", "x/y"), "leave out --model and --name"),
    ):
        err = uds_lens("audit", "--open-unlearning", task, *words).err
        assert message in err and err.count("\n") == 1


# The evaluator: their base class and registry are stubs with the names, arguments and files of their interface.

STUB = """
import json, os

class Evaluator:
    def get_logs_file_path(self, output_dir, suffix="EVAL"):
        return os.path.join(output_dir, f"{self.name}_{suffix}.json")

    def load_logs_from_file(self, file):
        if not os.path.exists(file):
            return {}
        with open(file) as f:
            return json.load(f)

    def save_logs(self, logs, file):
        os.makedirs(os.path.dirname(file), exist_ok=True)
        with open(file, "w") as f:
            json.dump(dict(sorted(logs.items())), f, indent=4)

    def summarize(self, logs):
        kept = {name: entry for name, entry in logs.items() if name in self.metrics}
        return {name: entry["agg_value"] for name, entry in kept.items() if entry.get("agg_value") is not None}
"""

COMMAND = """
import json, pathlib, sys
folder = pathlib.Path(sys.argv[sys.argv.index("--open-unlearning") + 1], "evals")
folder.mkdir(exist_ok=True)
logs = {"uds": {"agg_value": 0.25, "argv": sys.argv[1:]}, "damage": {"agg_value": None}}
(folder / "UDS_EVAL.json").write_text(json.dumps(logs))
"""


@pytest.fixture
def evaluator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The class, loaded as their package would."""
    (tmp_path / "evals").mkdir()
    (tmp_path / "evals" / "__init__.py").write_text("")
    (tmp_path / "evals" / "base.py").write_text(STUB)
    (tmp_path / "fake.py").write_text(COMMAND)
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("evals", "evals.base"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    spec = importlib.util.spec_from_file_location("evals_uds", INTEGRATION / "uds.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    class Cfg(dict):
        __getattr__ = dict.__getitem__

    def make(**settings):
        config = yaml.safe_load((INTEGRATION / "uds.yaml").read_text())
        return module.UDSEvaluator(Cfg(config, command=f"{sys.executable} {tmp_path / 'fake.py'}", **settings))

    yield make
    for name in ("evals", "evals.base"):
        sys.modules.pop(name, None)


def test_the_evaluator_calls_the_command_on_the_saved_checkpoint(evaluator, tmp_path: Path) -> None:
    task = tmp_path / "saves" / "unlearn" / "task"
    write_config(task, {"mode": "unlearn"})
    model = SimpleNamespace(name_or_path=str(task))
    place = tmp_path / "saves" / "eval" / "task"
    ours = evaluator(output_dir=str(place), retain="a/b", arguments="--limit 4 --device cpu")
    assert ours.evaluate(model=model, template_args={}, tokenizer=None) == {"uds": 0.25}
    argv = json.loads((place / "UDS_EVAL.json").read_text())["uds"]["argv"]
    assert argv == ["audit", "--open-unlearning", str(task), "--retain", "a/b", "--limit", "4", "--device", "cpu"]
    assert json.loads((place / "UDS_SUMMARY.json").read_text()) == {"uds": 0.25}
    (tmp_path / "fake.py").write_text(COMMAND + "\nraise SystemExit(3)")  # measured; the verdict is withheld
    assert ours.evaluate(model=model, overwrite=True) == {"uds": 0.25}
    (tmp_path / "fake.py").write_text("raise SystemExit(1)")
    assert ours.evaluate(model=model) == {"uds": 0.25}  # done before
    with pytest.raises(Exception, match="returned non-zero exit status 1"):
        ours.evaluate(model=model, overwrite=True)


def test_the_evaluator_audits_no_model_that_was_not_saved(evaluator, tmp_path: Path, caplog) -> None:
    """The Trainer evaluates weights in memory, and `name_or_path` is still that of the model before unlearning."""
    write_config(tmp_path / "task", {"mode": "unlearn"})
    model = SimpleNamespace(name_or_path=str(tmp_path / "task"))
    ours = evaluator(output_dir=str(tmp_path / "out"))
    assert ours.evaluate(model=model, output_dir=str(tmp_path / "task" / "checkpoint-5" / "evals")) == {}
    assert ours.evaluate(model=SimpleNamespace(name_or_path="owner/model")) == {}
    assert caplog.text.count("UDS needs the folder of a saved run") == 2
