"""Checkpoints in other forms: 4-bit, adapters, placed by accelerate, offloaded, unknown to TransformerLens."""

import json
import shutil
import warnings
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
import transformers
from accelerate import cpu_offload
from tiny_models import EXAMPLES, build_model, build_tokenizer, each_family, load_plain, with_config

from uds_lens.errors import ModelError, UdsLensWarning
from uds_lens.models import open_model
from uds_lens.models._by_block import StreamedModel
from uds_lens.models._checkpoint import move_checked
from uds_lens.models._hooked import pick_device
from uds_lens.results import DepthAudit, RunOptions

AUTO = RunOptions(device="cpu", progress=False)
FAST = RunOptions(device="cpu", progress=False, engine="wavefront")


def save(model, folder):
    model.save_pretrained(folder)
    build_tokenizer().save_pretrained(folder)
    return folder


def in_4bit(folder):
    quantised = transformers.BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.float32
    )
    return transformers.AutoModelForCausalLM.from_pretrained(
        folder, quantization_config=quantised, dtype=torch.float32, attn_implementation="eager"
    )


@pytest.fixture(scope="module", params=each_family(["phi3"], of=["llama", "phi3", "neox"]))
def wide(request, tmp_path_factory):
    """A trio wide enough for 4-bit blocks, and each version in NF4."""
    family, folder = request.param, tmp_path_factory.mktemp(request.param)
    changes = {"hidden_size": 64, "intermediate_size": 128}
    if family != "neox":
        changes["num_key_value_heads"] = 4
    for version in ("full", "retain", "unlearned"):
        save(build_model(family, version, **changes), folder / version)
        save(in_4bit(folder / version), folder / f"{version}-nf4")
    return folder


def dequantised(wide, version, out):
    """The same numbers as plain weights: what a 4-bit audit must equal."""
    from bitsandbytes.functional import dequantize_4bit

    plain, _ = load_plain(wide / version)
    four, _ = load_plain(wide / f"{version}-nf4")
    layers = {n: m for n, m in four.named_modules() if type(m).__name__ == "Linear4bit"}
    assert len(layers) >= 4 * plain.config.num_hidden_layers
    with torch.no_grad():
        for name, layer in layers.items():
            weight = dequantize_4bit(layer.weight.data, layer.weight.quant_state)
            plain.get_submodule(name).weight.copy_(weight)
    return save(plain, out)


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
def test_4bit_sources_and_targets_equal_their_dequantised_twins(wide, tmp_path):
    plain = {v: dequantised(wide, v, tmp_path / v) for v in ("full", "unlearned")}
    four = DepthAudit.run(wide / "full-nf4", wide / "retain", wide / "unlearned-nf4", EXAMPLES[:4], options=AUTO)
    twin = DepthAudit.run(plain["full"], wide / "retain", plain["unlearned"], EXAMPLES[:4], options=FAST)
    # On a CPU bitsandbytes multiplies 4-bit blocks in bfloat16, whatever the compute dtype: not closer than that.
    for mine, theirs in ((four.s1_delta, twin.s1_delta), (four.s2_delta, twin.s2_delta)):
        torch.testing.assert_close(mine, theirs, atol=0.1, rtol=0)
        assert (mine - theirs).abs().mean() < 0.05
        assert theirs.abs().max() > 0.2
    assert four.models["unlearned"].fingerprint != twin.models["unlearned"].fingerprint


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::uds_lens.errors.UdsLensWarning")
def test_live_4bit_models_are_measured_the_same_every_time_and_stay_as_they_were(wide):
    """bitsandbytes repacks the weights of a model that runs on some CPUs, and does not get them back exactly."""
    ids = torch.tensor([[1, 5, 9, 20]])
    paths = [wide / f"{version}-nf4" for version in ("full", "retain", "unlearned")]
    expected = DepthAudit.run(*paths, EXAMPLES[:3], options=FAST)
    live = [load_plain(path)[0] for path in paths]
    audits = [DepthAudit.run(*live, EXAMPLES[:3], options=AUTO) for _ in range(2)]
    for audit in audits:
        torch.testing.assert_close(audit.s2_delta, expected.s2_delta, atol=0.2, rtol=0.05)
    assert torch.equal(audits[0].s2_delta, audits[1].s2_delta)
    assert DepthAudit.run(live[0], live[1], live[0], EXAMPLES[:3], options=FAST).uds == 0
    with torch.no_grad():
        assert torch.equal(live[0](ids).logits, load_plain(paths[0])[0](ids).logits)


def test_a_live_4bit_model_whose_weights_were_repacked_is_refused(wide):
    live, _ = load_plain(wide / "full-nf4")
    layer = next(m for m in live.modules() if type(m).__name__ == "Linear4bit")
    layer.weight.quant_state.packing_format_for_cpu = True  # as bitsandbytes leaves it after a pass on such a CPU
    with pytest.raises(ModelError, match="bitsandbytes repacked its weights in place"):
        open_model(live)


@contextmanager
def adapted(folder, **changes):
    """A live model with a random adapter, on every layer or on some."""
    from peft import LoraConfig, get_peft_model

    given = {"r": 2, "target_modules": "all-linear", "init_lora_weights": False, "task_type": "CAUSAL_LM", **changes}
    settings = LoraConfig(**given)
    with warnings.catch_warnings(), torch.random.fork_rng():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        yield get_peft_model(load_plain(folder)[0], settings).eval()


def test_an_adapter_is_merged_on_load(trio, tmp_path):
    with adapted(trio("llama").full) as model:
        model.save_pretrained(tmp_path / "adapter")
        merged = save(model.merge_and_unload(), tmp_path / "merged")
    with open_model(tmp_path / "adapter") as model, open_model(merged) as whole:
        assert model.fingerprint == whole.fingerprint
        assert model.tokenizer is not None


TIED = {
    "head": {"target_modules": ["lm_head"]},
    "embedding": {"target_modules": ["embed_tokens"]},
    "both": {"target_modules": ["lm_head", "embed_tokens", "q_proj"]},
    "tied to each other": {"target_modules": ["embed_tokens"], "ensure_weight_tying": True},
    "replaced": {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]},
}
"""Adapters on weights that a model has as one tensor."""


@pytest.mark.parametrize("settings", TIED.values(), ids=TIED)
def test_an_adapter_on_a_tied_weight_changes_the_weight_that_it_is_on(trio, tmp_path, settings):
    ids = torch.tensor([[1, 5, 9, 20, 33]])
    with adapted(trio("llama-tied").full, **settings) as live, torch.no_grad():
        if "modules_to_save" in settings:
            live.lm_head.modules_to_save.default.weight.mul_(1.5)
        live.save_pretrained(tmp_path / "adapter")
        expected = live(ids).logits
    assert (load_plain(trio("llama-tied").full)[0](ids).logits - expected).abs().max() > 0.1
    with open_model(tmp_path / "adapter") as model:
        torch.testing.assert_close(model.hf(ids).logits, expected, atol=1e-5, rtol=1e-5)
        own, whole = model.fingerprint, save(model.hf, tmp_path / "whole")
    with open_model(whole) as model:
        torch.testing.assert_close(model.hf(ids).logits, expected, atol=1e-5, rtol=1e-5)
        assert model.fingerprint == own
    with StreamedModel(whole, dtype=torch.float32, device="cpu") as streamed:
        assert streamed.fingerprint == own
        assert not streamed.is_tied


def test_an_adapter_on_the_head_changes_no_block(trio, tmp_path):
    paths = trio("llama-tied")
    with adapted(paths.full, target_modules=["lm_head"]) as live:
        live.save_pretrained(tmp_path / "adapter")
    with open_model(tmp_path / "adapter") as model:
        whole = save(model.hf, tmp_path / "whole")
    for unlearned in (tmp_path / "adapter", whole, live):
        assert DepthAudit.run(paths.full, paths.retain, unlearned, EXAMPLES[:4], options=AUTO).uds == 0
    streamed = replace(AUTO, stream=True)
    assert DepthAudit.run(paths.full, paths.retain, whole, EXAMPLES[:4], options=streamed).uds == 0


@pytest.mark.long
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
def test_an_adapter_on_a_quantised_base_is_not_rounded_with_it(wide, tmp_path, bits):
    """The independent value: the base's weights as bitsandbytes gives them, and the low-rank product added to each."""
    from bitsandbytes.functional import dequantize_4bit, int8_vectorwise_dequant

    base = wide / "full-nf4"
    if bits == 8:
        eight = transformers.BitsAndBytesConfig(load_in_8bit=True)
        base = save(load_plain(wide / "full", quantization_config=eight)[0], tmp_path / "base")
    with adapted(base) as live:
        live.save_pretrained(tmp_path / "adapter")
    with open_model(tmp_path / "adapter") as model:
        assert not getattr(model.hf, "is_quantized", False)
        merged = dict(model.hf.named_parameters())
        whole = save(model.hf, tmp_path / "whole")
        own = model.fingerprint
    with open_model(whole) as model:
        assert model.fingerprint == own, "saved, it is a plain checkpoint"
    adapters = 0
    for place, layer in live.get_base_model().named_modules():
        if not hasattr(layer, "lora_A"):
            continue
        inside, weight = layer.get_base_layer(), layer.get_base_layer().weight
        plain = (
            dequantize_4bit(weight.data, weight.quant_state)
            if bits == 4
            else int8_vectorwise_dequant(weight.data, weight.SCB if inside.state.SCB is None else inside.state.SCB)
        )
        product = layer.lora_B.default.weight @ layer.lora_A.default.weight * layer.scaling["default"]
        torch.testing.assert_close(merged[f"{place}.weight"], plain.float() + product)
        adapters += 1
    assert adapters >= 16
    paths = [base, wide / "retain", tmp_path / "adapter"]
    mine = DepthAudit.run(*paths, EXAMPLES[:3], options=AUTO)
    theirs = DepthAudit.run(base, wide / "retain", live, EXAMPLES[:3], options=AUTO)
    # The live model multiplies the quantised weights in bfloat16, or with inputs rounded to 8 bits.
    torch.testing.assert_close(mine.s2_delta, theirs.s2_delta, atol=0.1, rtol=0)


def test_a_live_adapter_is_audited_as_it_is(trio):
    paths = trio("llama")
    with adapted(paths.full) as live:
        audit = DepthAudit.run(paths.full, paths.retain, live, EXAMPLES[:4], options=AUTO)
        merged = live.merge_and_unload()
    expected = DepthAudit.run(paths.full, paths.retain, merged, EXAMPLES[:4], options=FAST)
    torch.testing.assert_close(audit.s2_delta, expected.s2_delta, atol=1e-5, rtol=1e-5)
    assert audit.provenance["engine"] == "wavefront"


def test_an_adapter_that_names_no_base_is_refused(tmp_path):
    (tmp_path / "adapter_config.json").write_text('{"base_model_name_or_path": null}')
    with pytest.raises(ModelError, match="does not name its base model"):
        open_model(tmp_path)
    for base in ("a\0b", "x" * 100_000, "own\x1b[2J"):
        (tmp_path / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": base}))
        with pytest.raises(ModelError, match="of at most 1024 printable characters") as refused:
            open_model(tmp_path)
        assert len(str(refused.value)) < 500 and str(refused.value).isprintable()


def test_device_map_gives_the_same_numbers(audited, trio):
    options = RunOptions(device_map={"": "cpu"}, engine="wavefront")
    audit = DepthAudit.run(*trio("llama"), EXAMPLES, options=options)
    torch.testing.assert_close(audit.s2_delta, audited("llama").s2_delta, atol=1e-5, rtol=0)


@pytest.mark.filterwarnings("ignore::UserWarning:accelerate", "ignore::UserWarning:transformers")
def test_a_model_offloaded_to_disk_is_audited(audited, trio, tmp_path):
    paths = trio("llama")
    places = {f"model.layers.{i}": "disk" if i % 2 else "cpu" for i in range(4)}
    others = dict.fromkeys(("model.embed_tokens", "model.norm", "model.rotary_emb", "lm_head"), "cpu")
    as_usual = {"attn_implementation": "eager", "dtype": torch.float32}
    model = transformers.AutoModelForCausalLM.from_pretrained(
        paths.full, device_map=places | others, offload_folder=tmp_path, **as_usual
    )
    with pytest.warns(UdsLensWarning, match="accelerate keeps some of them on disk"):
        assert not open_model(model).has_bridge
    audit = DepthAudit.run(model, paths.retain, paths.unlearned, EXAMPLES, options=AUTO)
    torch.testing.assert_close(audit.s2_delta, audited("llama").s2_delta, atol=1e-5, rtol=0)
    assert audit.models["full"].fingerprint == audited("llama").models["full"].fingerprint
    assert audit.provenance["engine"] == "wavefront"


@pytest.mark.parametrize("family", each_family(["llama-tied"], of=["llama", "llama-tied"]))
@pytest.mark.filterwarnings("ignore::uds_lens.errors.UdsLensWarning")
def test_models_that_are_offloaded_whole_are_audited(audited, trio, family):
    live = [cpu_offload(load_plain(path)[0].eval()) for path in trio(family)]
    assert all(weight.is_meta for model in live for weight in model.parameters())
    audit = DepthAudit.run(*live, EXAMPLES, options=AUTO)
    torch.testing.assert_close(audit.s2_delta, audited(family).s2_delta, atol=1e-5, rtol=0)
    if family == "llama":  # accelerate gives tied weights away apart, and both are hashed
        for role, model in audited(family).models.items():
            assert audit.models[role].fingerprint == model.fingerprint


@pytest.fixture
def unknown(monkeypatch):
    """TransformerLens refuses every model."""
    from transformer_lens.model_bridge import TransformerBridge

    def refuse(*args, **kwargs):
        raise ValueError("Unsupported architecture: NewForCausalLM")

    monkeypatch.setattr(TransformerBridge, "boot_transformers", refuse)


def test_an_architecture_transformer_lens_refuses_falls_back_to_plain_hooks(audited, trio, unknown):
    with pytest.warns(UdsLensWarning, match="cannot wrap .*Unsupported architecture.*plain forward hooks"):
        audit = DepthAudit.run(*trio("llama"), EXAMPLES, options=RunOptions(device="cpu", engine="naive"))
    torch.testing.assert_close(audit.s2_delta, audited("llama").s2_delta, atol=1e-5, rtol=0)
    assert audit.provenance["engine"] == "naive"


def test_the_self_check_needs_no_transformer_lens(audited, trio, unknown):
    audit = DepthAudit.run(*trio("llama"), EXAMPLES, options=RunOptions(device="cpu"))
    assert audit.provenance["engine"] == "wavefront"
    assert torch.equal(audit.s2_delta, audited("llama").s2_delta)


@pytest.mark.skipif(torch.backends.mps.is_available(), reason="this machine has an Apple GPU")
def test_apples_gpu_is_refused_where_there_is_none():
    with pytest.raises(ModelError, match="sees no Apple GPU: use device='cpu'"):
        pick_device("mps")
    assert pick_device("auto") != "mps"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_model_moved_to_apples_gpu_is_compared_with_itself_on_the_cpu(trio, dtype, monkeypatch):
    """There is no such device here: `to` stands for the move, once harmless and once as it went wrong before."""
    with open_model(trio("llama").full, device="cpu", dtype=dtype) as opened:
        model = opened.hf
        with pytest.warns(UdsLensWarning, match="Apple's backend.*the first model agreed"):
            assert move_checked(model, "cpu") is model
        monkeypatch.setattr(model, "name_or_path", "another")
        assert move_checked(model, "cpu") is model  # warned of once, not for every model

        def wrongly(device):
            model.lm_head.weight[: len(model.lm_head.weight) // 2] = 0
            return model

        monkeypatch.setattr(model, "to", wrongly)
        with pytest.raises(ModelError, match=r"logits of LlamaForCausalLM differ .* Use device='cpu'"):
            move_checked(model, "cpu")


@pytest.mark.parametrize(
    ("family", "setting"), [("mixtral", {"output_router_logits": True}), ("llama", {"return_dict": False})]
)
def test_what_a_config_wants_returned_changes_nothing(audited, trio, tmp_path, family, setting):
    """Training saves such settings with the checkpoint, and live models carry them."""
    paths = [with_config(shutil.copytree(path, tmp_path / path.name), **setting) for path in trio(family)]
    with_setting = DepthAudit.run(*paths, EXAMPLES, options=AUTO)
    plain = audited(family)
    assert with_setting.provenance["engine"] == "wavefront"
    assert torch.equal(with_setting.s2_delta, plain.s2_delta)
    assert with_setting.models["full"].fingerprint == plain.models["full"].fingerprint
