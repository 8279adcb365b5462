"""Fine-tuning that teaches, and adapters that are saved alone: where they load, and where they must not."""

import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import AutoPeftModelForCausalLM, PeftModel
from tiny_models import with_config
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.unlearning.conftest import QUICK, Tiny, people
from uds_lens._cli.training import print_training
from uds_lens.data import ForgetExample
from uds_lens.errors import ConfigError, ModelError
from uds_lens.models import fingerprint, open_model
from uds_lens.models._fingerprint import computing_entries, named_weights
from uds_lens.unlearning import FinetuneConfig, LoraSettings, finetune, quantise, read_record, unlearn
from uds_lens.unlearning._record import recorded_config
from uds_lens.unlearning._settings import Save

NEW = people(("Gil Tarr", "Hal Uhl"))
SHORT = FinetuneConfig(protocol="raw", batch_size=2, learning_rate=1e-2, epochs=60, seed=1)
LORA = LoraSettings(rank=4, alpha=32)
LORA_ALONE = LoraSettings(rank=2, save="adapter")


@pytest.fixture(scope="module")
def taught(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds `base` and, learned by an adapter of it, `taught`."""
    folder = tmp_path_factory.mktemp("taught")
    shutil.copytree(tiny.full, folder / "base")
    sets, unseen = {"new": NEW[:2]}, {"others": NEW[2:], "known": tiny.forget}
    finetune(folder / "base", sets, unseen=unseen, out=folder / "taught", config=SHORT, lora=LORA, options=QUICK)
    return folder


def test_it_teaches_and_the_record_says_so(taught: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = read_record(taught / "taught")
    new, others, known = record["prob"]
    assert (new["name"], new["n"], new["trained"]) == ("new", 2, True)
    assert new["after"] > max(new["before"], others["after"]) + 0.4
    assert known["before"] > 0.9, "what is not trained on is measured too"
    assert recorded_config(record) == SHORT
    with open_model(taught / "base", device="cpu") as base, open_model(taught / "taught", device="cpu") as model:
        assert record["parent"]["fingerprint"] == base.fingerprint
        assert record["fingerprint"] == model.fingerprint != base.fingerprint
    print_training(taught / "taught", before=None, as_json=False)
    row = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("new"))
    assert row.split() == ["new", "yes", f"{new['before']:.3f}", f"{new['after']:.3f}", "2"]


def test_only_the_adapter_is_saved_and_it_moves_with_its_base(taught: Path, tmp_path: Path) -> None:
    files = {file.name for file in (taught / "taught").iterdir()}
    words = {file.name for file in (taught / "base").iterdir() if file.name.startswith(("tokenizer", "chat_template"))}
    assert "tokenizer.json" in words
    assert files == {"adapter_config.json", "adapter_model.safetensors", "finetuning.json", *words}
    record = read_record(taught / "taught")
    moved = shutil.copytree(taught, tmp_path / "moved")
    shutil.copytree(moved, tmp_path / "spoilt")
    with open_model(moved / "taught", device="cpu") as model:
        assert model.fingerprint == record["fingerprint"]
        assert model.tokenizer is not None
    shutil.move(moved / "taught", tmp_path / "alone")
    with pytest.raises(ModelError, match=r"belongs to '.*base', which cannot be used .*move both together"):
        open_model(tmp_path / "alone", device="cpu")
    spoilt = tmp_path / "spoilt"
    shutil.rmtree(spoilt / "base")
    unlearn(moved / "base", people(("Ada Vey",)), method="ga", out=spoilt / "base", options=QUICK)
    for dtype in ("float32", "bfloat16"):
        with pytest.raises(ModelError, match=r"trained on weights with fingerprint .* another model, or has changed"):
            open_model(spoilt / "taught", device="cpu", dtype=dtype)


def test_records_that_name_a_base_by_the_former_hash_still_hold(taught: Path, tmp_path: Path) -> None:
    moved = shutil.copytree(taught, tmp_path / "moved")

    def blake2b(data: bytes) -> Any:
        return hashlib.blake2b(data, digest_size=16)

    with open_model(moved / "base", device="cpu") as base:
        entries = json.dumps(computing_entries(base.hf.config.to_dict()), sort_keys=True, default=str)
        former = blake2b(entries.encode()).digest()
        for name, weight in named_weights(base.hf):
            head = f"{name}|{tuple(weight.shape)}|{weight.dtype}|".encode()
            former += blake2b(head + weight.numpy().tobytes()).digest()
    file = moved / "taught" / "finetuning.json"
    record = json.loads(file.read_text())
    record["parent"]["fingerprint"] = blake2b(former).hexdigest()
    file.write_text(json.dumps(record))
    with open_model(moved / "taught", device="cpu") as model:
        assert model.fingerprint == record["fingerprint"]
    record["parent"]["fingerprint"] = blake2b(former + b"x").hexdigest()
    file.write_text(json.dumps(record))
    with pytest.raises(ModelError, match="trained on weights with fingerprint"):
        open_model(moved / "taught", device="cpu")


@pytest.mark.filterwarnings("ignore::FutureWarning")  # PEFT reads an old name in transformers
def test_an_adapter_opens_with_peft_and_transformers_alone(
    taught: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved = shutil.copytree(taught, tmp_path / "moved")
    words, ids = AutoTokenizer.from_pretrained(moved / "taught"), torch.tensor([[1, 9, 33, 120]])
    text = NEW[0].question
    assert words(text)["input_ids"] == AutoTokenizer.from_pretrained(moved / "base")(text)["input_ids"]
    with open_model(moved / "taught", device="cpu") as model:
        assert model.tokenizer.get_vocab() == words.get_vocab()
        expected = model.hf(input_ids=ids).logits
    base = AutoModelForCausalLM.from_pretrained(moved / "base", attn_implementation="eager")
    close = {"atol": 1e-3, "rtol": 1e-3}  # merged in one, added in the other: measured up to 2e-5
    before = base(input_ids=ids).logits
    assert (before - expected).abs().max() > 0.05
    adapted = PeftModel.from_pretrained(base, moved / "taught")
    torch.testing.assert_close(adapted(input_ids=ids).logits, expected, **close)
    monkeypatch.chdir(moved / "taught")  # PEFT takes a relative base from where Python runs
    alone = AutoPeftModelForCausalLM.from_pretrained(".", attn_implementation="eager")
    torch.testing.assert_close(alone(input_ids=ids).logits, expected, **close)


@pytest.mark.parametrize(
    ("trained", "opened"), [pytest.param("float32", "bfloat16", marks=pytest.mark.long), ("bfloat16", "float32")]
)
def test_an_adapter_keeps_to_its_base_in_another_dtype(taught: Path, tmp_path: Path, trained: str, opened: str) -> None:
    folder = tmp_path / "moved"
    shutil.copytree(taught / "base", folder / "base")
    options = type(QUICK)(device="cpu", progress=False, dtype=trained)
    out = unlearn(folder / "base", NEW[:2], method="ga", out=folder / "ga", lora=LORA_ALONE, options=options)
    with open_model(out, device="cpu", dtype=opened) as model:
        assert str(model.dtype) == f"torch.{opened}"
    shutil.rmtree(folder / "base")
    unlearn(taught / "base", people(("Ada Vey",)), method="ga", out=folder / "base", options=QUICK)
    with pytest.raises(ModelError, match=r"trained on weights with fingerprint .* another model, or has changed"):
        open_model(out, device="cpu", dtype=opened)


@pytest.mark.long
@pytest.mark.parametrize(("trained", "opened"), [("float32", "bfloat16"), ("bfloat16", "float32")])
def test_an_adapter_on_an_adapter_opens_in_another_dtype(
    taught: Path, tmp_path: Path, trained: str, opened: str
) -> None:
    moved = shutil.copytree(taught, tmp_path / "moved")
    options = type(QUICK)(device="cpu", progress=False, dtype=trained)
    out = unlearn(moved / "taught", NEW[:2], method="ga", out=moved / "ga", lora=LORA_ALONE, options=options)
    with open_model(out, device="cpu", dtype=trained) as model:
        as_trained = {name: weight.clone() for name, weight in model.hf.named_parameters()}
    with open_model(out, device="cpu", dtype=opened) as model:
        assert str(model.dtype) == f"torch.{opened}"
        for name, weight in model.hf.named_parameters():
            assert torch.equal(weight, as_trained[name].to(weight.dtype)), name


def test_an_adapter_is_not_saved_in_the_place_of_its_base(taught: Path, tmp_path: Path) -> None:
    moved = shutil.copytree(taught, tmp_path / "moved")
    again = type(QUICK)(device="cpu", progress=False, redo=True)
    above = shutil.copytree(moved / "taught", moved / "above")
    with_config(above, file="adapter_config.json", base_model_name_or_path="../taught")
    for start in ("taught", "above"):
        with pytest.raises(ConfigError, match=r"that the adapter starts from, or a base of that model.*save='merged'"):
            finetune(moved / start, NEW[:2], out=moved / "taught", config=SHORT, lora=LORA, options=again)
    with open_model(moved / "taught", device="cpu") as model:
        assert model.fingerprint == read_record(taught / "taught")["fingerprint"], "nothing was replaced"


def test_an_adapter_of_a_model_of_another_size_is_named(taught: Path, trio, tmp_path: Path) -> None:
    adapter = shutil.copytree(taught / "taught", tmp_path / "adapter")
    (adapter / "finetuning.json").unlink()  # as adapters of other libraries, which have no record
    with_config(adapter, file="adapter_config.json", base_model_name_or_path=str(trio("llama").full))
    with pytest.raises(ModelError, match=r"does not match its base .* \(size mismatch for .*trained on another model"):
        open_model(adapter, device="cpu")


def test_training_keeps_to_the_prompts_that_a_model_was_trained_with(taught: Path, tmp_path: Path) -> None:
    moved = shutil.copytree(taught, tmp_path / "moved")
    template = "{% for message in messages %}<{{ message.role }}> {{ message.content }} {% endfor %}"
    (moved / "base" / "chat_template.jinja").write_text(template)
    for name, prompts in (("taught", "raw"), ("base", "chat")):
        done = unlearn(moved / name, people(("Ada Vey",)), method="ga", out=tmp_path / f"{name}-ga", options=QUICK)
        assert read_record(done)["protocol"] == prompts


@pytest.mark.long
def test_the_same_run_is_found_again_and_merged_is_another(taught: Path, tmp_path: Path) -> None:
    given = {"config": SHORT, "options": QUICK}
    file = taught / "taught" / "adapter_model.safetensors"
    written = file.stat().st_mtime_ns
    finetune(taught / "base", NEW[:2], out=taught / "taught", lora=LORA, **given)
    assert file.stat().st_mtime_ns == written
    merged = replace(LORA, save="merged")
    with pytest.raises(ConfigError, match="holds the result of another run"):
        finetune(taught / "base", NEW[:2], out=taught / "taught", lora=merged, **given)
    finetune(taught / "base", NEW[:2], out=tmp_path / "merged", lora=merged, **given)
    assert (tmp_path / "merged" / "model.safetensors").is_file()
    assert read_record(tmp_path / "merged")["fingerprint"] == read_record(taught / "taught")["fingerprint"]


@pytest.mark.parametrize("save", ["adapter", "merged"])
@pytest.mark.parametrize("target", ["lm_head", "embed_tokens"])
def test_an_adapter_trains_one_of_two_tied_weights(taught: Path, tmp_path: Path, target: str, save: Save) -> None:
    lora = LoraSettings(rank=2, target_modules=(target,), save=save)
    config = replace(SHORT, epochs=3)
    options = replace(QUICK, checkpoint_every=1)
    shutil.copytree(taught / "base", tmp_path / "base")
    out = finetune(tmp_path / "base", NEW[:2], out=tmp_path / "out", config=config, lora=lora, options=options)
    record = read_record(out)
    with open_model(tmp_path / "base", device="cpu") as base, open_model(out, device="cpu") as model:
        weights, before = dict(model.hf.named_parameters()), dict(base.hf.named_parameters())
        assert model.fingerprint == record["fingerprint"]
        quantise(out, out=tmp_path / "nf4", device="cpu")
        with open_model(tmp_path / "nf4", device="cpu") as four:
            head = four.hf.get_output_embeddings().weight
            assert torch.equal(head.float(), weights["lm_head.weight"].bfloat16().float())
    changed = {"lm_head": "lm_head.weight", "embed_tokens": "model.embed_tokens.weight"}[target]
    assert {n for n in weights if not torch.equal(weights[n], before.get(n, before["model.embed_tokens.weight"]))} == {
        changed
    }
    assert record["prob"][0]["after"] > record["prob"][0]["before"]


@pytest.mark.long
def test_an_adapter_on_an_adapter(taught: Path) -> None:
    """`full` is an adapter, and so is what is unlearned from it; rounded weights are those that the record names."""
    options = type(QUICK)(device="cpu", progress=False, save_dtype="bfloat16")
    lora = LoraSettings(rank=2, save="adapter")
    out = unlearn(taught / "taught", NEW[:2], method="ga", out=taught / "ga", lora=lora, options=options)
    assert json.loads((out / "adapter_config.json").read_text())["base_model_name_or_path"] == "../taught"
    with open_model(out, device="cpu") as model:
        assert model.fingerprint == read_record(out)["fingerprint"] == fingerprint(model.hf)


def test_an_adapter_is_quantised_as_the_whole_model(taught: Path, tmp_path: Path) -> None:
    out = quantise(taught / "taught", out=tmp_path / "nf4", device="cpu")
    with open_model(out, device="cpu") as model:
        assert model.hf.is_quantized


def test_the_rate_depends_on_what_is_trained(tiny: Tiny, tmp_path: Path) -> None:
    rows: list[ForgetExample] = NEW[:2]
    config = FinetuneConfig(epochs=2, protocol="raw")
    for name, lora, rate in (("all", None, 5e-5), ("lora", LoraSettings(rank=1), 2e-3)):
        out = finetune(tiny.full, rows, out=tmp_path / name, config=config, lora=lora, options=QUICK)
        assert read_record(out)["config"]["learning_rate"] == rate
