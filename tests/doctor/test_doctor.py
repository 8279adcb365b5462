"""The doctor's findings: an installation that works, one that does not, and inputs of both kinds."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tiny_models import Touch, with_config
from transformers import MambaConfig

import uds_lens as ul
from tests.cli.conftest import uds_lens  # noqa: F401 - a fixture
from uds_lens._progress import duration
from uds_lens.audit import _inputs
from uds_lens.doctor import _checks as environment, examine_environment, examine_inputs

WORLD = ul.toy.load()
TRIO = {"full": str(WORLD.full), "retain": str(WORLD.retain), "unlearned": str(WORLD.unlearned["npo"])}
FORGET = str(WORLD.path / "forget.json")


def by_name(findings) -> dict:
    return {finding.what: finding for finding in findings}


def test_this_installation_will_do(tmp_path: Path) -> None:
    found = by_name(examine_environment(place=tmp_path))
    assert [name for name, finding in found.items() if finding.verdict == "problem"] == []
    assert found["uds-lens"].found == ul.__version__
    assert found["transformers"].verdict == "ok"
    assert found["Hub"].verdict == "note"  # tests run offline
    assert f"results in {tmp_path}" in found


def test_what_is_wrong_is_told_with_its_fix(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    installed = {"transformers": "4.51.0", "peft": None, "torch": None}
    real = environment._installed
    monkeypatch.setattr(environment, "_installed", lambda name: installed[name] if name in installed else real(name))
    monkeypatch.setattr(environment, "_LITTLE", 1e9)
    found = by_name(examine_environment(place=tmp_path))
    verdicts = {name: found[name].verdict for name in installed}
    assert verdicts == {"transformers": "problem", "peft": "note", "torch": "problem"}
    assert "4.51.0, expected" in found["transformers"].found
    assert "in a separate environment" in found["transformers"].fix
    assert "unlearn --lora" in found["peft"].found and found["peft"].fix == 'pip install "uds-lens[lora]"'
    assert found["memory"].verdict == "note" and found["memory"].fix


def test_a_trio_and_data_that_will_do() -> None:
    found = by_name(examine_inputs(TRIO, FORGET))
    assert {finding.verdict for finding in found.values()} <= {"ok", "note"}
    assert "are compatible" in found["together"].found
    assert found["entities"].found == f"found in {len(WORLD.examples)} of {len(WORLD.examples)} answers"
    assert "GiB free" in found["audit"].found
    assert "each weight of 3 models once: about 1 s at this disk's rate" in found["audit, streamed"].found


def test_what_a_streamed_audit_reads_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the files that are read, which need not be all; each once for each group of rows."""
    from uds_lens.audit import _memory

    full = shutil.copytree(WORLD.full, tmp_path / "full")
    stored = (full / "model.safetensors").stat().st_size
    shutil.copy(full / "model.safetensors", full / "consolidated.safetensors")
    monkeypatch.setattr(environment, "disk_rate", lambda file: stored / 100)
    options = ul.RunOptions(device="cpu", token_budget=64)

    def told() -> str:
        found = by_name(examine_inputs({**TRIO, "full": str(full)}, FORGET, options=options))
        return found["audit, streamed"].found

    others = sum((Path(TRIO[role]) / "model.safetensors").stat().st_size for role in ("retain", "unlearned"))
    seconds = 100 * (stored + others) / stored
    assert f"each weight of 3 models once: about {duration(seconds)} at this disk's rate" in told()
    monkeypatch.setattr(_memory, "_parts_that_fit", lambda sizes, room: tuple((n,) for n in range(len(sizes))))
    turns = told().partition("once for each group of rows: full ")[2].split(",")[0]
    assert int(turns) > 1
    assert f"retain {turns}, unlearned {turns}: about {duration(int(turns) * seconds)} at" in told()


def test_what_would_be_fatal_or_slow_is_told_before(tmp_path: Path) -> None:
    file = tmp_path / "forget.json"
    asked = {"question": "What did Ada write?"}
    rows = [{**asked, "answer": f'Ada wrote "{word}".', "entity": word} for word in ("Fern", "Moss")]
    rows.append({"question": "Was it Ada?", "answer": "It was Ada.", "entity": "Ada", "id": "plain"})
    file.write_text(json.dumps(rows))
    same = {"full": TRIO["full"], "retain": f"{TRIO['full']}/../{Path(TRIO['full']).name}", "unlearned": TRIO["full"]}
    half = ul.AuditConfig(dtype="bfloat16", entity_space="always")
    findings = examine_inputs(same, str(file), config=half, options=ul.RunOptions(device="cpu"))
    found = by_name(findings)
    assert found["roles"].verdict == "problem"
    assert found["roles"].found.startswith("full and retain and unlearned are the same checkpoint")
    assert "as in float32 on cpu" in found["speed"].found
    (quoted,) = [each.found for each in findings if each.what == "entities" and "quotation" in each.found]
    assert quoted.startswith("2 directly follow a quotation mark (or similar), where prompts would add a space: 0, 1")
    assert [each.found for each in findings if "copy them" in each.found] == [
        "1 already occur in the question or earlier in the answer, so a model can copy them"
    ]
    assert "roles" not in by_name(examine_inputs(TRIO))


@pytest.mark.parametrize("gain", [1.2, 3.0])
def test_a_cpu_that_is_fast_in_bfloat16_is_told(gain: float, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rates = {"float32": 1.0, "bfloat16": gain}
    monkeypatch.setattr("uds_lens.patching._costs.product_rate", lambda dtype, device: rates[dtype])
    found = by_name(examine_environment(place=tmp_path))
    assert ("speed" in found) == (gain > 2)
    assert "speed" not in by_name(examine_inputs(TRIO, options=ul.RunOptions(device="cpu"))), "said already"
    told: list[str] = []
    monkeypatch.setattr("uds_lens.audit._inputs.tell", told.append)
    shape = SimpleNamespace(num_hidden_layers=30, hidden_size=576)
    dtype: Any
    for dtype, size in (("float32", 576), ("bfloat16", 576), ("float32", 64)):
        shape.hidden_size = size
        _inputs._tell_of_bfloat16(shape, ul.AuditConfig(dtype=dtype), ul.RunOptions(device="cpu"))
    assert len(told) == (gain > 2) and all("3.0 times as fast" in words for words in told)


def test_first_rows_of_sorted_data_are_fatal() -> None:
    first = ul.AuditConfig(limit=5, sample="first")
    found = by_name(examine_inputs(TRIO, FORGET, config=first))
    assert found["sample"].verdict == "problem" and found["sample"].found.startswith("only the first 5 of 48.")
    assert "sample" not in by_name(examine_inputs(TRIO, FORGET, config=ul.AuditConfig(limit=5)))


def test_several_retain_models_and_a_control_are_checked_as_an_audit_takes_them(uds_lens) -> None:  # noqa: F811
    models = {"full": TRIO["full"], "retain 1": TRIO["retain"], "retain 2": TRIO["full"]}
    findings = examine_inputs(models, FORGET, control=FORGET)
    assert "control contains 48 of the examples to forget" in by_name(findings)["data"].found.replace("--", "")
    found = by_name(examine_inputs(TRIO, FORGET, control=str(WORLD.path / "retain.json")))
    assert found["control"].found == "entities found in 192 of 192 answers"
    full, retain = TRIO["full"], TRIO["retain"]
    words = ["doctor", "--full", full, "--retain", retain, "--retain", full, "--control", FORGET]
    code, out, _ = uds_lens(*words, "--examples", FORGET, "--json")
    problems = {each["what"] for each in json.loads(out) if each["verdict"] == "problem"}
    assert (code, problems) == (1, {"roles", "data"})


def test_advice_at_the_end_of_a_long_error_is_shown(tmp_path: Path) -> None:
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "../base"}))
    found = by_name(examine_inputs({"full": str(adapter)}))["full"]
    assert found.verdict == "problem"
    assert found.found.endswith("or correct base_model_name_or_path in adapter_config.json.")


def test_a_model_of_another_form_is_a_finding(tmp_path: Path) -> None:
    folder = shutil.copytree(WORLD.full, tmp_path / "mamba")
    MambaConfig(vocab_size=1024, hidden_size=16, num_hidden_layers=2).save_pretrained(folder)
    found = by_name(examine_inputs({"full": str(folder)}, FORGET))
    assert found["full"].verdict == "ok" and found["audit"].verdict == "problem"
    assert "has no list of 2 blocks with a final norm" in found["audit"].found


def test_models_with_other_prompts_are_named(tmp_path: Path) -> None:
    models = {}
    for role, protocol in (("full", "raw"), ("unlearned", "chat")):
        models[role] = str(shutil.copytree(TRIO[role], tmp_path / role))
        (tmp_path / role / "unlearning.json").write_text(json.dumps({"protocol": protocol}))
    findings = [each for each in examine_inputs(models, FORGET) if each.what == "prompts"]
    assert [each.verdict for each in findings] == ["ok", "note"]
    assert findings[0].found == "raw (as the checkpoint's record says)"
    assert "unlearned" in findings[1].found and "was trained with the chat template" in findings[1].found
    assert findings[1].found.endswith("--protocol chat uses its training prompts.")


def test_inputs_that_will_not_do(tmp_path: Path, trio) -> None:
    file = tmp_path / "forget.json"
    file.write_text(json.dumps([{"question": "Who?", "answer": "Nobody."}]))
    found = by_name(examine_inputs({"full": str(WORLD.full), "retain": str(trio("gpt2").retain)}, str(file)))
    assert found["together"].verdict == "problem"
    assert found["entities"].verdict == "problem"
    assert found["entities"].found.startswith("found in 0 of 1 answers; No entity is given")
    found = by_name(examine_inputs({"full": str(tmp_path / "none")}, str(tmp_path / "none.json")))
    assert {finding.verdict for finding in found.values()} == {"problem"}
    assert set(found) == {"full", "examples"}


def test_pickled_cut_and_missing_weights_are_reported(tmp_path: Path, trio) -> None:
    def verdict(folder: Path) -> tuple[str, str]:
        found = by_name(examine_inputs({"full": str(folder)}))
        return (found["full weights"].verdict, found["full weights"].found) if "full weights" in found else ("ok", "")

    folder = tmp_path / "full"
    shutil.copytree(trio("gpt2").full, folder)
    assert verdict(folder)[0] == "ok"
    (weights,) = folder.glob("*.safetensors")
    content = weights.read_bytes()
    weights.write_bytes(content[:-10])
    assert verdict(folder)[0] == "problem"
    weights.unlink()
    assert verdict(folder) == ("problem", f"{folder} contains no weights")
    torch.save({"a": torch.ones(2)}, folder / "pytorch_model.bin")
    assert verdict(folder) == ("note", "pytorch_model.bin is pickled; only its tensors are read")
    torch.save({"a": Touch(tmp_path / "ran")}, folder / "pytorch_model.bin")
    assert verdict(folder)[0] == "problem" and "more than tensors" in verdict(folder)[1]
    (folder / "extra.safetensors").write_bytes(content)  # models are not opened by that name
    assert verdict(folder)[0] == "problem" and "more than tensors" in verdict(folder)[1]
    assert not (tmp_path / "ran").exists()
    with_config(folder, quantization_config={"quant_method": "foo"})
    assert "quantised by 'foo'" in by_name(examine_inputs({"full": str(folder)}))["full"].found
