"""What a checkpoint's files and config.json say beside the weights: used, compared, refused, or never run."""

import json
import os
import pickle
import shutil
import threading
import warnings

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from tiny_models import EXAMPLES, Touch, build_model, build_tokenizer, load_plain, with_config
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

from uds_lens.data import _prompts, encode, make_batch
from uds_lens.data._prompts import render
from uds_lens.doctor import examine_inputs
from uds_lens.errors import DataError, ModelBusyError, ModelError, UdsLensWarning, forget_warnings
from uds_lens.models import open_model, read_checkpoint_info
from uds_lens.models._by_block import StreamedModel
from uds_lens.models._checkpoint import checkpoint_folders, checkpoint_record
from uds_lens.models._fingerprint import checkpoint_files
from uds_lens.patching import capture
from uds_lens.weights import difference


def with_weights(folder, **more):
    file = folder / "model.safetensors"
    save_file({**load_file(file), **more}, file, metadata={"format": "pt"})
    return folder


def save_adapter(folder, base):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*is_gradient_checkpointing", category=FutureWarning)
        model = get_peft_model(build_model("llama"), LoraConfig(r=2, target_modules=["q_proj"]))
    model.save_pretrained(folder)
    return with_config(folder, file="adapter_config.json", base_model_name_or_path=str(base))


# Files.


def test_unused_weights_of_the_decoder_are_refused_and_others_reported(copy_of):
    folder = with_weights(
        copy_of(),
        **{
            "v_head.summary.weight": torch.ones(1, 32),
            "model.layers.1.self_attn.rotary_emb.inv_freq": torch.ones(4),  # saved by earlier releases
        },
    )
    forget_warnings()
    with pytest.warns(
        UdsLensWarning, match=r"contains 1 weights .*\(v_head.summary.weight\): they do not affect the measurement"
    ):
        open_model(folder, device="cpu").close()
    with_config(folder, num_hidden_layers=2)
    with pytest.raises(ModelError, match=r"does not use with its config.json \(model.layers.2.*num_hidden_layers"):
        open_model(folder, device="cpu")
    folder = with_weights(copy_of(name="other"), **{"model.layers.1.self_attn.q_proj.bias": torch.ones(32)})
    with pytest.raises(ModelError, match=r"contains 1 weights that LlamaForCausalLM .*q_proj\.bias.*Correct"):
        open_model(folder, device="cpu")


def test_weights_that_disagree_are_refused_and_both_are_named(copy_of, tmp_path):
    """transformers reads model.safetensors first, whatever is newer."""
    folder = copy_of()
    model, _ = load_plain(folder)
    weights = model.state_dict()
    old = tmp_path / "old.safetensors"
    shutil.move(folder / "model.safetensors", old)
    model.save_pretrained(folder, max_shard_size="20KB")
    assert not (folder / "model.safetensors").exists()
    shutil.copy(old, folder / "model.safetensors")
    torch.save({name: weight.bfloat16() for name, weight in weights.items()}, folder / "pytorch_model.bin")
    open_model(folder, device="cpu").close()  # they agree, up to rounding
    head = weights["lm_head.weight"]
    alone = {name: weight for name, weight in weights.items() if name != "lm_head.weight"}
    assert not head.equal(weights["model.embed_tokens.weight"])
    torch.save(alone, folder / "pytorch_model.bin")  # of a model whose head is tied
    with pytest.raises(ModelError, match=r"pytorch_model.bin differs in 'lm_head.weight'"):
        open_model(folder, device="cpu")
    torch.save({**weights, "model.norm.weight": weights["model.norm.weight"] + 0.1}, folder / "pytorch_model.bin")
    words = r"two sets of weights that differ: model.safetensors is read, but {} differs in 'model.norm.weight'"
    with pytest.raises(ModelError, match=words.format("pytorch_model.bin")):
        open_model(folder, device="cpu")
    (folder / "pytorch_model.bin").unlink()
    with_weights(folder, **{"model.norm.weight": weights["model.norm.weight"] - 0.1})
    for read in (open_model, StreamedModel):
        with pytest.raises(ModelError, match=words.format("model.safetensors.index.json")):
            read(folder, device="cpu", **({"dtype": torch.float32} if read is StreamedModel else {}))
    with pytest.raises(ModelError, match=words.format("model.safetensors.index.json")):
        difference(folder, folder, show_progress=False)
    (finding,) = [each for each in examine_inputs({"full": str(folder)}) if each.what == "full weights"]
    assert finding.verdict == "problem" and "two sets of weights" in finding.found
    next(folder.glob("model-00001*")).unlink()  # an index whose files are gone is nobody's model
    open_model(folder, device="cpu").close()


def hub_cache(folder, monkeypatch, tmp_path):
    """Put a checkpoint into a cache of the Hub, as owner/base."""
    place = tmp_path / "hub" / "models--owner--base"
    snapshot = shutil.copytree(folder, place / "snapshots" / ("0" * 40))
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text("0" * 40)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    return snapshot


def test_weights_of_a_download_that_disagree_are_refused(monkeypatch, trio, tmp_path):
    snapshot = hub_cache(trio("llama").full, monkeypatch, tmp_path)
    weights = load_file(snapshot / "model.safetensors")
    torch.save(weights, snapshot / "pytorch_model.bin")
    open_model("owner/base", device="cpu", offline=True).close()
    torch.save({**weights, "model.norm.weight": weights["model.norm.weight"] + 1}, snapshot / "pytorch_model.bin")
    for revision in (None, "0" * 40):
        with pytest.raises(ModelError, match=r"'owner/base' holds two sets of weights that differ"):
            open_model("owner/base", device="cpu", offline=True, revision=revision)


@pytest.mark.parametrize("blocks", [5000, 10**12])
def test_blocks_that_the_weights_cannot_have_are_refused_at_once(copy_of, blocks):
    folder = with_config(copy_of(), num_hidden_layers=blocks)
    refused(folder, rf"declares {blocks} blocks, but the number of stored tensors is \d\d")
    (folder / "model.safetensors").unlink()
    torch.save({"a": torch.zeros(1)}, folder / "pytorch_model.bin")
    refused(folder, rf"declares {blocks} blocks, but the number of stored tensors is 1")


@pytest.mark.parametrize("entry", ["hidden_size", "vocab_size", "intermediate_size"])
def test_a_width_that_the_weights_cannot_have_is_refused_at_once(copy_of, entry):
    folder = with_config(copy_of(), **{entry: 10**9})
    refused(folder, r"declares a matrix of \d+ by \d+, but the weight files have only \d+ bytes in total")


def test_an_adapter_with_two_weights_that_disagree_is_refused(trio, tmp_path):
    folder = save_adapter(tmp_path / "adapter", trio("llama").full)
    weights = load_file(folder / "adapter_model.safetensors")
    torch.save(weights, folder / "adapter_model.bin")
    open_model(folder, device="cpu").close()
    torch.save({name: weight + 1 for name, weight in weights.items()}, folder / "adapter_model.bin")
    with pytest.raises(ModelError, match=r"adapter_model.safetensors is read, but adapter_model.bin differs in"):
        open_model(folder, device="cpu")


def test_weights_lie_in_regular_files_of_their_folder(copy_of, tmp_path):
    """A FIFO would be waited for without end, and /dev/zero fills the memory; a Hub cache links to its files."""
    folder = copy_of()
    index = folder / "model.safetensors.index.json"
    (folder / "model.safetensors").rename(tmp_path / "blob")
    os.mkfifo(folder / "fifo.safetensors")
    (folder / "zero.safetensors").symlink_to("/dev/zero")
    shutil.copy(tmp_path / "blob", folder.parent / "outside.safetensors")
    names = {
        "fifo.safetensors": "no regular file 'fifo.safetensors'",
        "zero.safetensors": "no regular file 'zero.safetensors'",
        "gone.safetensors": "no regular file 'gone.safetensors'",
        "../outside.safetensors": "names '../outside.safetensors': expected files in the same directory",
    }
    for name, words in names.items():
        index.write_text(json.dumps({"metadata": {}, "weight_map": {"model.norm.weight": name}}))
        for read in (open_model, StreamedModel):
            with pytest.raises(ModelError, match=words):
                read(folder, device="cpu", **({"dtype": torch.float32} if read is StreamedModel else {}))
        assert "problem" in [each.verdict for each in examine_inputs({"full": str(folder)})]
    index.unlink()
    for name in ("fifo.safetensors", "zero.safetensors"):
        (folder / name).rename(index)
        for read in (open_model, lambda place, device: difference(place, place)):
            with pytest.raises(ModelError, match=r"no regular file 'model\.safetensors\.index\.json'"):
                read(folder, device="cpu")
        index.rename(folder / name)
    with_config(folder, transformers_weights="fifo.safetensors")
    with pytest.raises(ModelError, match=r"no regular file 'fifo\.safetensors'"):
        open_model(folder, device="cpu")
    with_config(folder, transformers_weights=None)
    (folder / "model.safetensors").symlink_to(tmp_path / "blob")
    open_model(folder, device="cpu").close()


def test_a_pipe_in_place_of_a_record_is_not_waited_for(copy_of):
    folder = copy_of()
    os.mkfifo(folder / "unlearning.json")
    open_model(folder, device="cpu").close()
    assert checkpoint_record(folder) == {}


def test_an_adapter_that_is_no_numbers_is_refused(trio, tmp_path):
    folder = save_adapter(tmp_path / "adapter", trio("llama").full)
    weights = load_file(folder / "adapter_model.safetensors")
    weights[min(weights)].fill_(torch.nan)
    save_file(weights, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"holds NaN or infinite weights \(model\.layers\.0\.self_attn\.q_proj"):
        open_model(folder, device="cpu")


def test_weights_that_are_no_numbers_are_refused(copy_of):
    folder, place = copy_of(), "model.layers.1.mlp.up_proj.weight"
    shape = load_plain(folder)[0].get_parameter(place).shape
    for value in (torch.nan, torch.inf):
        with_weights(folder, **{place: torch.full(shape, value)})
        with pytest.raises(ModelError, match=rf"holds NaN or infinite weights \({place}\)"):
            open_model(folder, device="cpu")
    model = StreamedModel(folder, dtype=torch.float32, device="cpu")
    with model, pytest.raises(ModelError, match="holds NaN"):
        assert model.fingerprint


@pytest.mark.parametrize(
    "settings",
    [
        {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
        {"quant_method": "bitsandbytes", "load_in_8bit": True},
        {"load_in_4bit": True},
    ],
)
def test_a_config_that_calls_plain_weights_quantised_is_refused_in_words(copy_of, settings):
    """bitsandbytes would fail in the first pass, with an AssertionError that says nothing."""
    folder = with_config(copy_of(), quantization_config=settings)
    with pytest.raises(
        ModelError, match=r"quantised by bitsandbytes, but its files contain unquantised .*: remove quant"
    ):
        open_model(folder, device="cpu")


@pytest.mark.parametrize("name", ["GPT2Tokenizer", "GPT2TokenizerFast", "Qwen2Tokenizer", "GPTNeoXTokenizerFast"])
def test_the_tokenizer_is_that_of_the_file(copy_of, name):
    """transformers builds the tokenizer of these classes anew, with a pre-tokenizer of its own."""
    folder = copy_of()
    tokens = [*"<>0123456789", "19", "90", "1990", "99", "Ġ", "a", "Ġa"]
    merges = [("1", "9"), ("9", "0"), ("19", "90"), ("9", "9"), ("Ġ", "a")]
    written = Tokenizer(models.BPE(vocab={token: number for number, token in enumerate(tokens)}, merges=merges))
    digits, rest = pre_tokenizers.Split(Regex(r"0|1|99"), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False)
    written.pre_tokenizer, written.decoder = pre_tokenizers.Sequence([digits, rest]), decoders.ByteLevel()
    written.save(str(folder / "tokenizer.json"))
    special = {"bos_token": "<", "eos_token": ">", "unk_token": "<"}
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": name, **special}))
    forget_warnings()
    with pytest.warns(UdsLensWarning, match="tokenizer.json split texts differently"):
        tokenizer = read_checkpoint_info(folder).tokenizer
    assert tokenizer.tokenize("1990 a") == ["1", "99", "0", "Ġa"] == written.encode("1990 a").tokens
    assert (tokenizer.eos_token, tokenizer.chat_template) == (">", build_tokenizer().chat_template)
    tokenizer.save_pretrained(folder)
    assert read_checkpoint_info(folder).tokenizer.tokenize("1990 a") == ["1", "99", "0", "Ġa"]
    with_config(folder, file="tokenizer_config.json", tokenizer_class="PreTrainedTokenizerFast")
    forget_warnings()
    assert read_checkpoint_info(folder).tokenizer.tokenize("1990 a") == ["1", "99", "0", "Ġa"]


def refused(folder, words):
    for read in (read_checkpoint_info, open_model):
        with pytest.raises(ModelError, match=words):
            read(folder)


def test_adapters_that_cannot_be_opened_are_refused(copy_of, trio, tmp_path):
    merged = save_adapter(copy_of(), trio("llama").full)
    refused(merged, r"contains a complete model \(model.safetensors\) and a PEFT adapter")
    refused(save_adapter(tmp_path / "one", tmp_path / "one"), "has itself as its base")
    save_adapter(tmp_path / "one", "../two")
    save_adapter(tmp_path / "two", tmp_path / "one")
    refused(tmp_path / "one", r"has itself as its base \('.*two'\): set base_model_name_or_path")
    folder = save_adapter(tmp_path / "adapter", trio("llama").full)
    (folder / "adapter_model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"not its weights: expected adapter_model.safetensors"):
        open_model(folder)  # it is no wrong id of the Hub


def test_an_adapter_on_a_hub_model_never_asks_the_network(tmp_path, monkeypatch):
    folder = save_adapter(tmp_path / "adapter", "owner/base")
    asked = []
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("socket.create_connection", lambda *a, **k: asked.append(a) or pytest.fail("network"))
    refused(folder, r"belongs to 'owner/base', which is neither a local directory.*hf download owner/base")
    assert not asked


def test_an_adapter_finds_a_base_that_was_downloaded(tmp_path, monkeypatch, trio):
    snapshot = hub_cache(trio("llama").full, monkeypatch, tmp_path)
    folder = save_adapter(tmp_path / "adapter", "owner/base")
    assert checkpoint_folders(folder) == [folder, str(snapshot)]
    with open_model(folder, device="cpu") as model:
        assert model.tokenizer is not None


def test_checkpoint_files_change_when_a_file_does(copy_of, tmp_path):
    base = copy_of()
    adapter = save_adapter(tmp_path / "adapter", base)
    assert checkpoint_folders(adapter) == [adapter, str(base)]
    before = checkpoint_files(*checkpoint_folders(adapter))
    assert checkpoint_files(*checkpoint_folders(adapter)) == before
    with_weights(base, **{"lm_head.weight": torch.zeros(200, 32)})
    stat = (base / "config.json").stat()
    os.utime(base / "model.safetensors", ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert checkpoint_files(*checkpoint_folders(adapter)) != before, "the adapter's base counts too"
    assert checkpoint_files("owner/name") is None


def test_weights_are_hashed_once_for_the_same_files(copy_of, hashed):
    folder = copy_of()

    def read():
        with open_model(folder, device="cpu") as model:
            model.keeps_weights = True
            return model.fingerprint

    first = read()
    assert read() == first
    assert len(hashed) == 1
    model, _ = load_plain(folder)
    with torch.no_grad():
        model.lm_head.weight.mul_(2)
    model.save_pretrained(folder)
    assert read() != first
    assert len(hashed) == 2


# Configs.


@pytest.mark.parametrize("name", ["_attn_implementation", "attn_implementation"])
@pytest.mark.parametrize("value", ["sdpa", "kernels-community/flash-attn"])
def test_a_checkpoint_does_not_choose_the_attention(trio, copy_of, name, value):
    folder = with_config(copy_of(), **{name: value})
    assert read_checkpoint_info(folder).config._attn_implementation == "eager"
    with open_model(folder, device="cpu") as model, open_model(trio("llama").full, device="cpu") as plain:
        assert model.hf.config._attn_implementation == "eager"
        assert model.fingerprint == plain.fingerprint


# Code from a checkpoint.


def test_code_named_beside_a_known_architecture_or_by_a_tokenizer_is_not_run(copy_of, tmp_path):
    folder, mark = copy_of(), tmp_path / "ran"
    (folder / "evil.py").write_text(f"import pathlib\npathlib.Path({str(mark)!r}).touch()\nclass M: pass\n")
    with_config(folder, auto_map={"AutoConfig": "evil.M", "AutoModelForCausalLM": "evil.M"})
    open_model(folder, device="cpu").close()
    own = {"auto_map": {"AutoTokenizer": ["evil.M", "evil.M"]}, "tokenizer_class": "M"}
    with_config(folder, file="tokenizer_config.json", **own)
    try:
        open_model(folder, device="cpu").close()
    except ModelError as error:
        assert "cannot load the checkpoint" in str(error)
    assert not mark.exists()


def test_pickled_weights_run_nothing(copy_of, tmp_path):
    folder, mark = copy_of(), tmp_path / "ran"
    (folder / "model.safetensors").unlink()
    for save in (
        lambda file: torch.save({"lm_head.weight": Touch(mark)}, file),
        lambda file: file.write_bytes(pickle.dumps(Touch(mark))),
    ):
        save(folder / "pytorch_model.bin")
        with pytest.raises(ModelError, match="cannot load the checkpoint"):
            open_model(folder, device="cpu")
        assert not mark.exists()


MANY = "range(99999)"


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{% for a in range(9999) %}{{ 'x' * 999 }}{% endfor %}", "it wrote 9989001 characters"),
        ("{{ 9 ** (9 ** 9) }}", r"it contains a power \(\*\*\)"),
        ("**{{ '**' }}{{ messages[0]['role'] }}", "does not contain the question"),
        ("{{ messages.__class__.__mro__[1].__subclasses__() }}", "cannot render"),
        (f"{{% for a in {MANY} %}}{{% for b in {MANY} %}}{{% endfor %}}{{% endfor %}}", "it ran for more than"),
        (f"{{% for a in {MANY} %}}{{{{ {MANY} | list | sum * 0 }}}}{{% endfor %}}", "it ran for more than"),
        ("{% macro f() %}{% for a in messages * 9 %}{{ f() }}{% endfor %}{% endmacro %}{{ f() }}", "cannot render"),
        (f"{{{{ {MANY} | map('string') | join | length }}}}{{% for a in {MANY} if a < 0 %}}{{% endfor %}}", "contain"),
    ],
)
def test_chat_templates_have_limits(template, words, monkeypatch):
    monkeypatch.setattr(_prompts, "_TEMPLATE_SECONDS", 1.5)
    tokenizer = build_tokenizer()
    tokenizer.chat_template = template
    before = set(threading.enumerate())
    with pytest.raises(DataError, match=words):
        render(EXAMPLES[0], protocol="chat", tokenizer=tokenizer)
    for left in set(threading.enumerate()) - before:
        left.join(5)
        assert not left.is_alive(), "a template that is given up goes on running"


# Threads, and torch.autocast.


def test_models_are_opened_in_threads_without_harm(trio):
    found, errors = [], []

    def read(path):
        try:
            with open_model(path, device="cpu") as model:
                found.append(model.fingerprint)
        except Exception as error:
            errors.append(error)

    paths = [path for path in trio("llama") for _ in range(3)]
    threads = [threading.Thread(target=read, args=(path,)) for path in paths]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert len(set(found)) == 3
    open_model(trio("llama").full, device="cpu").close()


@pytest.mark.parametrize("borrowed", [False, True])
def test_an_open_model_serves_one_thread(opened, borrowed):
    """Through every handle on it."""
    model = opened("llama")
    batch = make_batch(encode(EXAMPLES, model.tokenizer).rows, pad_token_id=3)
    handle, caught = model.lent() if borrowed else model, []

    def other():
        try:
            capture(handle, batch)
        except ModelBusyError as error:
            caught.append(str(error))

    with model.running():
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        capture(handle, batch)
    assert "serves one thread at a time" in caught[0]
    capture(handle, batch)


def test_autocast_does_not_reach_a_model(opened):
    model = opened("llama")
    batch = make_batch(encode(EXAMPLES, model.tokenizer).rows, pad_token_id=3)
    plain = capture(model, batch).states
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = capture(model, batch).states
    assert torch.equal(inside, plain)
