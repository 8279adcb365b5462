"""Incompatible checkpoints are named with what differs, before a weight is read."""

import json

import numpy as np
import pytest
import torch
from tiny_models import build_model, build_tokenizer, load_plain, with_config

from uds_lens.errors import IncompatibleModelsError, ModelError, UdsLensWarning, forget_warnings
from uds_lens.models import open_model, read_checkpoint_info
from uds_lens.models._compatibility import check_compatible


def infos(trio, other):
    return {"full": read_checkpoint_info(trio("llama").full), "unlearned": read_checkpoint_info(other)}


def swapped(vocabulary):
    """Two tokens change places."""
    first, second = (token for token, index in vocabulary.items() if index in (20, 21))
    return {**vocabulary, first: vocabulary[second], second: vocabulary[first]}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": "mistral"}, r"architecture: full '.*' has 'llama', unlearned '.*' has 'mistral'"),
        (  # all at once
            {"num_hidden_layers": 3, "hidden_size": 64},
            r"^.*\n.*depth \(layers\): full '.*' has 4, unlearned '.*' has 3\n"
            r".*width \(d_model\): full '.*' has 32, unlearned '.*' has 64$",
        ),
        ({"vocab_size": 201}, r"vocabulary size: full '.*' has 200, unlearned '.*' has 201"),
        ({"num_attention_heads": 8}, r"attention heads: full '.*' has 4, unlearned '.*' has 8"),
        ({"rms_norm_eps": 0.1}, r"rms_norm_eps: full '.*' has 1e-06, unlearned '.*copy' has 0.1"),
        ({"hidden_act": "relu"}, r"hidden_act: full '.*' has 'silu', unlearned '.*copy' has 'relu'"),
        (
            {"rope_parameters": {"rope_type": "default", "rope_theta": 5.0}},
            r"rope_parameters.rope_theta: full '.*' has 10000.0, unlearned '.*copy' has 5.0",
        ),
        (
            {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}},
            r"rope_parameters.factor: full '.*' has None, unlearned '.*copy' has 2.0",
        ),
    ],
)
def test_the_shape_and_what_changes_the_arithmetic_are_compared_and_named(trio, copy_of, changes, words):
    with pytest.raises(IncompatibleModelsError, match=words):
        check_compatible(infos(trio, with_config(copy_of(), **changes)))


@pytest.mark.parametrize(
    "changes",
    [
        {"dtype": "bfloat16", "use_cache": False, "transformers_version": "5.0.0", "eos_token_id": 7},
        {"attention_dropout": 0.5, "initializer_range": 1.0, "max_position_embeddings": 4096},
        {"rms_norm_eps": float(np.float32(1e-6))},  # as files keep it that hold no other numbers
        {"unlearned_by": "npo", "_name_or_path": "elsewhere", "architectures": ["X"]},
    ],
)
def test_entries_that_change_nothing_may_differ(trio, copy_of, changes):
    check_compatible(infos(trio, with_config(copy_of(), **changes)))


@pytest.mark.parametrize(
    "spoil",
    [
        lambda state: state["model"].update(vocab=swapped(state["model"]["vocab"])),
        lambda state: state.update(post_processor=None),
        lambda state: state["model"]["merges"].pop(),
    ],
)
def test_tokenizers_are_compared(trio, copy_of, spoil):
    folder = copy_of()
    state = json.loads((folder / "tokenizer.json").read_text())
    spoil(state)
    (folder / "tokenizer.json").write_text(json.dumps(state))
    with pytest.raises(IncompatibleModelsError, match=r"tokenizer: full '.*' and unlearned '.*copy' differ"):
        check_compatible(infos(trio, folder))


def test_chat_templates_may_differ_because_that_of_full_is_used(trio, copy_of):
    folder = copy_of()
    tokenizer = build_tokenizer()
    tokenizer.chat_template = "other"
    tokenizer.save_pretrained(folder)
    assert check_compatible(infos(trio, folder)).chat_template.startswith("<bos>")


def test_padding_and_truncation_of_the_last_call_do_not_matter(trio):
    one, other = open_model(build_model("llama"), tokenizer=build_tokenizer()), build_tokenizer()
    other(["a", "b c d"], padding=True, truncation=True, max_length=2)
    two = open_model(build_model("llama", "retain"), tokenizer=other)
    assert check_compatible({"full": read_checkpoint_info(one), "retain": read_checkpoint_info(two)}) is one.tokenizer


def test_a_missing_tokenizer_is_borrowed_with_a_warning(trio, copy_of):
    folder = copy_of()
    for file in [*folder.glob("tokenizer*"), *folder.glob("chat_template*")]:
        file.unlink()
    forget_warnings()
    with pytest.warns(
        UdsLensWarning, match=r"no tokenizer for unlearned '.*copy': using the tokenizer of full without a check"
    ):
        tokenizer = check_compatible(infos(trio, folder))
    assert tokenizer.vocab_size == 200
    forget_warnings()
    with pytest.warns(UdsLensWarning, match="using the tokenizer of retain"):
        check_compatible({"full": read_checkpoint_info(folder), "retain": read_checkpoint_info(trio("llama").retain)})
    forget_warnings()
    with pytest.raises(ModelError, match=r"none of the checkpoints has a tokenizer: save one next to the weights"):
        check_compatible({"full": read_checkpoint_info(folder)})


def test_an_info_is_the_same_for_every_form_and_needs_no_weights(trio, copy_of):
    place = trio("llama").full
    plain, opened = read_checkpoint_info(place), open_model(place, device="cpu")
    assert set(plain.shape.values()) == {"llama", 4, 32, 200}
    folder = copy_of()
    (folder / "model.safetensors").unlink()
    for source in (load_plain(place, dtype=torch.bfloat16)[0], opened, opened.bridge, folder):
        info = read_checkpoint_info(source)
        assert (info.shape, info.tokenizer_hash) == (plain.shape, plain.tokenizer_hash)
