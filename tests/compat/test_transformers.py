"""Parts of transformers that are not public or change; each test names one, and says what to do when it is gone."""

import copy
import warnings

import numpy as np
import pytest
import torch
from huggingface_hub import constants
from tiny_models import GEMMA3N, GEMMA4, build_model, with_config
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import (
    AttentionInterface,
    AutoTokenizer,
    BitsAndBytesConfig,
    Gemma3nTextConfig,
    Gemma4TextConfig,
    LlamaForCausalLM,
    Qwen3NextConfig,
)
from transformers.cache_utils import DynamicCache
from transformers.utils import logging

from uds_lens._compat import transformers as ours


@pytest.fixture(scope="module")
def llama():
    return build_model("llama")


def test_the_attention_of_a_config_is_read_at_every_call(llama) -> None:
    seen = []

    def attend(module, query, key, value, mask, **options):
        seen.append(type(module).__name__)
        return ours.eager_attention(module)(module, query, key, value, mask, **options)

    ours.register_attention("uds_lens_test", attend)
    ours.register_attention("uds_lens_test", print)  # a second time changes nothing
    assert AttentionInterface._global_mapping["uds_lens_test"] is attend, (
        "AttentionInterface._global_mapping is no longer the registry: see transformers/modeling_utils.py"
    )
    llama.set_attn_implementation("eager")
    ids = torch.tensor([[5]])  # one token: transformers makes no mask for names it does not know
    with torch.no_grad():
        plain = llama(ids).logits
        with ours.attention_replaced([llama.config], "uds_lens_test"):
            assert ours.attention_of(llama.config) == "uds_lens_test"
            replaced = llama(ids).logits
    assert seen == ["LlamaAttention"] * 4, (
        "config._attn_implementation no longer decides at each call which attention a block runs, or a modelling file "
        "has no eager_attention_forward(module, query, key, value, mask, **options): packed rows need another way in "
        "(uds_lens/patching/_packing.py); until then empty PACKED_FAMILIES"
    )
    assert torch.equal(plain, replaced)
    assert ours.attention_of(llama.config) == "eager"


def test_the_attention_of_a_class_of_a_config_to_build_from_and_after_an_error(llama) -> None:
    llama.set_attn_implementation("sdpa")
    with pytest.raises(KeyError), ours.attention_replaced([llama.config], "eager"):
        raise KeyError
    assert ours.attention_of(llama.config) == "sdpa"
    assert ours.has_torch_attention(llama), (
        "PreTrainedModel._supports_sdpa is gone: find out how a class says that it runs scaled_dot_product_attention"
    )
    assert not ours.has_torch_attention(torch.nn.Linear(1, 1))
    config = copy.deepcopy(llama.config)
    ours.set_attention(config, "eager")
    assert ours.attention_of(type(llama)(config).config) == "eager", (
        "PreTrainedConfig._attn_implementation no longer chooses the attention of a model that is built from it"
    )


def test_a_config_may_name_its_file_of_weights(llama, tmp_path) -> None:
    llama.save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "other.safetensors")
    with_config(tmp_path, **{ours.WEIGHTS_ENTRY: "other.safetensors"})
    read = type(llama).from_pretrained(tmp_path)
    assert torch.equal(read.lm_head.weight, llama.lm_head.weight), (
        "transformers no longer reads the file that the entry transformers_weights of a config names: streamed models "
        "refuse such configs (uds_lens/models/_by_block.py) for nothing"
    )


def test_a_config_tells_its_place_and_how_its_weights_are_packed(llama) -> None:
    config = copy.deepcopy(llama.config)
    plain = set(config.to_dict())
    config._name_or_path = "somewhere"
    assert config.name_or_path == config.to_dict().get(ours.PLACE_ENTRY, "somewhere") == "somewhere", (
        "PreTrainedConfig._name_or_path no longer holds where a config was loaded from: two copies of one model would "
        "count as computing differently (uds_lens/models/_fingerprint.py)"
    )
    config.quantization_config = BitsAndBytesConfig(load_in_4bit=True)
    assert set(config.to_dict()) - plain - {ours.PLACE_ENTRY} == {ours.QUANTISED_ENTRY}, (
        "PreTrainedConfig.to_dict() no longer names quantization_config: a 4-bit copy would count as computing "
        "differently from its original (uds_lens/models/_fingerprint.py)"
    )


def test_a_model_read_from_a_gguf_file_becomes_plain(llama, tmp_path) -> None:
    """Such a model refuses to be saved, and its config names a title instead of a place."""
    model = copy.deepcopy(llama)
    model.hf_quantizer, model.is_quantized, model.quantization_method = object(), True, "gguf"
    model.config.quantization_config = {"quant_method": "gguf"}
    model.config._model_name_or_path = "a title"
    ours.forget_quantisation(model)
    ours.set_place(model.config, "model.gguf")
    assert (model.config.name_or_path, hasattr(model, "is_quantized")) == ("model.gguf", False)
    assert not {ours.QUANTISED_ENTRY, "_model_name_or_path"} & set(model.config.to_dict())
    model.save_pretrained(tmp_path)


def test_what_the_reader_of_gguf_files_leaves_out(llama) -> None:
    names = ["blk.0.attn_q.weight", "blk.1.ffn_up.weight", "blk.0.attn_q.bias", "blk.0.attn_rot_embd.weight"]
    assert ours.gguf_tensors_left_out(llama, "llama", names) == ["blk.0.attn_q.bias"]


def test_inverse_rotary_frequencies_of_a_config(llama) -> None:
    config = copy.deepcopy(llama.config)
    found = ours.inverse_frequencies(config)
    np.testing.assert_allclose(found, llama.model.rotary_emb.inv_freq.double().numpy(), rtol=1e-6)
    config.rope_parameters = {"rope_theta": config.rope_parameters["rope_theta"], "rope_type": "linear", "factor": 4.0}
    np.testing.assert_allclose(ours.inverse_frequencies(config), found / 4, rtol=1e-6)


@pytest.mark.parametrize("bits", [4, 8])
def test_a_dequantised_model_is_saved_as_any_other(trio, tmp_path, bits) -> None:
    load = LlamaForCausalLM.from_pretrained
    with warnings.catch_warnings():  # bitsandbytes looks for a kernel of its own
        warnings.simplefilter("ignore")
        small = load(trio("llama").full, quantization_config=BitsAndBytesConfig(**{f"load_in_{bits}bit": True}))
        small.save_pretrained(tmp_path / "small")
        plain = ours.dequantised(load(tmp_path / "small"))
    assert not getattr(plain, "is_quantized", False)
    assert all(type(m) is torch.nn.Linear for n, m in plain.named_modules() if n.endswith("_proj"))
    plain.save_pretrained(tmp_path / "plain")  # raises while `_weight_conversions` still names the quantiser
    again = load(tmp_path / "plain")
    assert all(torch.equal(p, again.get_parameter(n)) for n, p in plain.named_parameters())


def test_an_entry_that_differs_between_blocks_is_the_largest() -> None:
    assert ours.largest_entry(Gemma4TextConfig(**GEMMA4), "head_dim") == 16, (
        "blocks of another size are no longer found in a config's `per_layer_config`"
    )
    assert (
        ours.largest_entry(Gemma3nTextConfig(**{**GEMMA3N, "intermediate_size": [48, 64] * 2}), "intermediate_size")
        == 64
    )
    assert ours.largest_entry(build_model("gpt2").config, "num_attention_heads") == 4
    assert ours.largest_entry(build_model("gpt2").config, "head_dim") is None


def test_a_tokenizer_that_is_built_anew_follows_its_file(tmp_path) -> None:
    written = Tokenizer(models.BPE(vocab={"1": 0, "9": 1, "19": 2}, merges=[("1", "9")]))
    written.pre_tokenizer = pre_tokenizers.Digits(individual_digits=True)
    written.enable_padding(length=400)
    written.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "GPT2Tokenizer"}')
    built = AutoTokenizer.from_pretrained(tmp_path)
    assert built.tokenize("19") == ["19"], "transformers reads GPT-2's tokenizers as they are: follow_file may go"
    where = {"revision": None, "offline": True}
    assert ours.follow_file(built, str(tmp_path), **where)
    assert built.tokenize("19") == ["1", "9"]
    assert not ours.follow_file(built, str(tmp_path), **where)
    written.model = models.BPE(vocab={digit: n for n, digit in enumerate([*"1234567890", "56"])}, merges=[("5", "6")])
    written.pre_tokenizer = pre_tokenizers.Split(Regex(r"\d{1,5}"), "isolated")  # as GPT-2 up to five digits
    written.save(str(tmp_path / "tokenizer.json"))
    built = AutoTokenizer.from_pretrained(tmp_path)
    assert built.tokenize("123456") == ["1", "2", "3", "4", "56"]
    assert ours.follow_file(built, str(tmp_path), **where)
    assert built.tokenize("123456") == list("123456")
    (tmp_path / "tokenizer.json").unlink()
    assert not ours.follow_file(built, str(tmp_path), **where)
    assert not ours.follow_file(built, "nobody/has-this", **where)


def test_the_hub_is_asked_as_the_environment_says() -> None:
    assert ours.downloaded("nobody/has-this-model") is None, (
        "transformers.utils.hub.try_to_load_from_cache no longer gives None for what is not there"
    )
    assert ours.is_offline() == constants.HF_HUB_OFFLINE, "transformers.utils.hub.is_offline_mode is no longer that"


def test_bars_and_reports_are_silent_only_inside() -> None:
    before = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_warning()
    logging.enable_progress_bar()
    try:
        with ours.quiet_loading():
            assert not logging.is_progress_bar_enabled()
            assert logging.get_verbosity() == logging.ERROR
        with ours.quiet_loading(report=True):
            assert logging.get_verbosity() == logging.WARNING
        assert logging.is_progress_bar_enabled()
        assert logging.get_verbosity() == logging.WARNING
        logging.set_verbosity_info()
        with ours.quiet_loading():
            assert logging.get_verbosity() == logging.INFO, "who asked for more hears it"
    finally:
        logging.set_verbosity(before[0])
        if not before[1]:
            logging.disable_progress_bar()


def test_a_cache_gets_the_keys_and_values_of_every_block(llama) -> None:
    llama.set_attn_implementation("eager")
    seen = []

    def update(keys, values):
        seen.append((keys.shape, values.shape))
        return keys, values

    ids = torch.arange(4)[None]
    with torch.no_grad():
        cached = llama(ids, past_key_values=ours.key_value_cache([update] * 4), use_cache=True).logits
        assert torch.equal(cached, llama(ids, use_cache=False).logits)
    assert seen == [((1, 2, 4, 8), (1, 2, 4, 8))] * 4, (
        "blocks no longer hand keys and values to the `update` of transformers.cache_utils.Cache, DynamicLayer: the "
        "wavefront engine cannot record or resume (uds_lens/patching/_packing.py); audits run on the naive one"
    )
    assert ours.key_value_cache([update], length=7).get_seq_length() == 7


@pytest.mark.parametrize(("family", "atol"), [("llama", 1e-5), ("jamba", 1e-4), ("zamba2", 1e-4)])
def test_rows_of_a_cache_are_kept_and_repeated(family, atol) -> None:
    model = build_model(family)  # jamba has linear layers, zamba2 layers that are both linear and attention
    ids, after = torch.tensor([[1, 5, 6], [1, 7, 8], [1, 9, 10]]), torch.tensor([[11], [12], [13]])
    with torch.no_grad():
        whole = model(torch.cat([ids, after], dim=1), use_cache=False).logits[:, -1]
        cache = model(ids, use_cache=True).past_key_values
        for rows in ([2, 0], [1, 1, 0, 0]):
            ours.keep_cached_rows(cache, torch.tensor(rows))
        kept = [0, 0, 2, 2]
        found = model(after[kept], past_key_values=cache, use_cache=True).logits[:, -1]
    assert torch.allclose(found, whole[kept], atol=atol), (
        "transformers.cache_utils: batch_select_indices no longer keeps or repeats the rows of keys and values, "
        "`conv_states` no longer marks linear layers, or `reorder_cache` no longer selects all their tensors: answers "
        "of rows side by side would be mixed up (uds_lens/generation)"
    )


def test_where_rotary_frequencies_depend_on_the_length() -> None:
    assert ours.rope_limit(build_model("longrope").config) == ours.RopeLimit(24, by_length=False)
    assert ours.rope_limit(build_model("dynamic").config) == (24, True)
    for family in ("llama", "gemma3", "gpt2", "recurrent-gemma", "jamba"):
        assert ours.rope_limit(build_model(family).config) is None
    yarn = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 2.0, "original_max_position_embeddings": 64}
    assert ours.rope_limit(build_model("llama", rope_parameters=yarn).config) is None
    lengths = {"llama": 128, "longrope": 512, "dynamic": 8 * 24}
    assert {family: ours.longest_text(build_model(family).config) for family in lengths} == lengths


def test_dynamic_frequencies_begin_anew() -> None:
    model, twin = build_model("dynamic"), build_model("dynamic")
    long, short = torch.arange(60)[None], torch.arange(30)[None]
    with torch.no_grad():
        expected = twin(short).logits
        twin(long)
        assert not torch.equal(twin(short).logits, expected), (
            "transformers no longer keeps the frequencies of the longest text: forget_longer_texts can go"
        )
        (handle,) = ours.forget_longer_texts(model)
        model(long)
        assert torch.equal(model(short).logits, expected), (
            "transformers.modeling_rope_utils: max_seq_len_cached, original_max_seq_len or original_inv_freq are no "
            "longer what a dynamic rotary embedding remembers: long rows depend on what was read before them"
        )
        assert ours.forget_longer_texts(model) == []
        handle.remove()
    assert ours.forget_longer_texts(build_model("llama")) == []


def test_which_caches_hold_keys_and_values_alone(llama) -> None:
    with torch.no_grad():
        assert ours.keeps_plain_keys(llama(torch.tensor([[1, 5]]), use_cache=True).past_key_values), (
            "transformers.cache_utils: a plain model's cache is no longer of DynamicLayer and "
            "DynamicSlidingWindowLayer: answers of one question are all run whole, slower (uds_lens/generation)"
        )
    config = Qwen3NextConfig(num_hidden_layers=2, layer_types=["linear_attention", "full_attention"])
    assert not ours.keeps_plain_keys(DynamicCache(config=config))
    assert not ours.keeps_plain_keys(None)


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_one_row_of_a_cache_is_shared_by_many(family) -> None:
    model = build_model(family)  # gemma2 has layers with a sliding window beside plain ones
    ids, after = torch.tensor([[1, 5, 6]]), torch.tensor([[11], [12], [13]])
    with torch.no_grad():
        whole = model(torch.cat([ids.expand(3, -1), after], dim=1)).logits[:, -1]
        cache = model(ids, use_cache=True).past_key_values
        for _ in range(2):  # the first time must not change the row itself
            found = model(after, past_key_values=ours.shared_cached_row(cache, 3)).logits[:, -1]
            assert torch.allclose(found, whole, atol=1e-5), (
                "transformers.cache_utils: a cache's `layers` with `keys` and `values`, which `update` replaces by new "
                "tensors, is no longer what it was: losses of GCG would be wrong (uds_lens/elicitation)"
            )


def test_plain_decoders_are_classes_of_transformers(llama) -> None:
    assert ours.is_plain_decoder(llama)
    upcast = build_model("gpt2", reorder_and_upcast_attn=True)
    assert ours.upcasts_attention(upcast.config) and not ours.is_plain_decoder(upcast), (
        "GPT2Config.reorder_and_upcast_attn is gone: does modeling_gpt2.py still go around the registry?"
    )
    other = type("Other", (type(llama),), {"__module__": "somewhere"})
    assert not ours.is_plain_decoder(other(llama.config))


def test_loading_tells_which_weights_stayed_unset_or_were_not_used(tmp_path, llama) -> None:
    weights = {**llama.state_dict(), "model.more.weight": torch.zeros(2)}
    del weights["lm_head.weight"]
    llama.save_pretrained(tmp_path, state_dict=weights)
    with ours.quiet_loading():
        _, info = type(llama).from_pretrained(tmp_path, output_loading_info=True)
    assert (ours.unset_weights(info), ours.unused_weights(info)) == (["lm_head.weight"], ["model.more.weight"]), (
        "from_pretrained(output_loading_info=True) no longer names missing_keys, mismatched_keys and unexpected_keys: "
        "incomplete checkpoints would be filled with random weights, or weights be left out, without a word"
    )


@pytest.mark.parametrize(
    ("settings", "unknown"),
    [
        ({"quant_method": "foo"}, "foo"),
        ({"quant_method": "gptq"}, None),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, None),
        ({"load_in_4bit": True}, None),
        ({"quant_method": "foo", "load_in_4bit": True}, "foo"),
        ({}, ""),
        (None, None),
    ],
)
def test_a_quantisation_that_transformers_would_ignore_is_named(llama, settings, unknown) -> None:
    config = copy.deepcopy(llama.config)
    config.quantization_config = settings
    assert ours.unknown_quantisation(config) == unknown


def test_empty_model_and_fill_weights(llama):
    """How `from_pretrained` builds a model on the meta device and converts tensors; without it, nothing is streamed."""
    stored = {name: weight.detach().clone() for name, weight in llama.state_dict().items()}
    files = {name: weight.to("meta") for name, weight in stored.items()}
    made = ours.empty_model(llama.config, files, dtype=torch.float32)
    assert isinstance(made, ours.EmptyModel)
    assert all(weight.is_meta for weight in made.model.parameters())
    assert not any(buffer.is_meta for buffer in made.model.buffers())
    assert ours.unset_weights(made.loading_info) == ours.unused_weights(made.loading_info) == []
    assert made.filled_by == {name: name for name in stored}
    assert ours.fill_weights(made.model, stored, made.settings) == []
    ids = torch.arange(6)[None]
    torch.testing.assert_close(made.model(ids).logits, llama(ids).logits)  # buffers, too; products may round
    del files["lm_head.weight"]
    assert ours.unset_weights(ours.empty_model(llama.config, files, dtype=torch.float32).loading_info) == [
        "lm_head.weight"
    ]
