"""No command runs code from a checkpoint unless it was asked to: configs, tokenizers, pickled weights."""

import json
import pickle
import shutil
from pathlib import Path

import pytest
from tiny_models import Touch, with_config

import uds_lens as ul

WORLD = ul.toy.load()

COMMANDS = {
    "audit": "audit --full {evil} --retain {evil} --model {evil} --examples {rows} --out o",
    "metrics": "metrics --model {evil} --examples {rows} --metric em --out o.json",
    "fluency": "metrics --model {good} --examples {rows} --metric fluency --fluency {evil} --out o.json",
    "elicit": "elicit --model {evil} --examples {rows} --probe plain --out o",
    "unlearn": "unlearn --method ga --full {evil} --examples {rows} --out o",
    "relearn": "relearn --model {evil} --examples {rows} --out o",
    "quantise": "quantise --model {evil} --out o",
    "annotate": "annotate --examples {rows} --redo --by contrast --full {evil} --retain {evil} --out o.json",
    "doctor": "doctor --full {evil} --examples {rows}",
}


def code_in_config(folder: Path, mark: Path) -> None:
    """An architecture that only the checkpoint's own file knows."""
    names = {"AutoConfig": "evil.C", "AutoModelForCausalLM": "evil.M", "AutoModelForSequenceClassification": "evil.M"}
    with_config(folder, model_type="evil", auto_map=names)
    (folder / "evil.py").write_text(
        f"open({str(mark)!r}, 'w')\nfrom transformers import LlamaConfig as C, LlamaModel as M\n"
    )


def code_elsewhere(folder: Path, mark: Path) -> None:
    """A known architecture; a tokenizer with code of its own, and weights that are a pickle."""
    (folder / "evil.py").write_text(f"open({str(mark)!r}, 'w')\nclass T: pass\n")
    with_config(folder, file="tokenizer_config.json", auto_map={"AutoTokenizer": ["evil.T", "evil.T"]})
    (folder / "model.safetensors").unlink()
    with (folder / "pytorch_model.bin").open("wb") as file:
        pickle.dump(Touch(mark), file)


@pytest.mark.parametrize("change", [code_in_config, code_elsewhere])
@pytest.mark.parametrize("command", COMMANDS)
def test_code_of_a_checkpoint_is_not_run(command: str, change, tmp_path: Path, uds_lens, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(WORLD.full, tmp_path / "evil")
    change(tmp_path / "evil", tmp_path / "ran")
    rows = [{"question": "Who?", "answer": "It was Ada.", "entity": "Ada"}]
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    words = COMMANDS[command].format(evil=tmp_path / "evil", good=WORLD.full, rows=tmp_path / "rows.json")
    code, _, err = uds_lens(*words.split(), "--device", "cpu")
    assert not (tmp_path / "ran").exists()
    if command == "doctor":  # it says so
        assert (code, err) == (1, "")
    else:
        assert code == 1
        assert err.startswith("error: ") and err.count("\n") == 1 and len(err) < 600, err
