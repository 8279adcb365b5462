"""4-bit checkpoints: they load again, compute nearly the same, and can be audited."""

import json
import shutil
import warnings
from pathlib import Path

import pytest
import torch
from tiny_models import with_config
from transformers import AutoModelForCausalLM, AutoTokenizer

from uds_lens.errors import ConfigError, ModelError
from uds_lens.unlearning import quantise, unlearn

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


@pytest.fixture(scope="module")
def quantised(tiny, tmp_path_factory) -> Path:
    pytest.importorskip("bitsandbytes")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return quantise(tiny.full, out=tmp_path_factory.mktemp("quantised") / "nf4", device="cpu")


def test_it_loads_again_with_transformers(tiny, quantised: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(quantised, device_map={"": "cpu"})
    settings = model.config.quantization_config
    assert (settings.load_in_4bit, settings.bnb_4bit_quant_type) == (True, "nf4")
    assert settings.bnb_4bit_compute_dtype == torch.bfloat16
    assert type(model.model.layers[0].mlp.up_proj).__name__ == "Linear4bit"
    tokenizer = AutoTokenizer.from_pretrained(quantised)
    full = AutoModelForCausalLM.from_pretrained(tiny.full)
    batch = tokenizer(f"Question: {tiny.forget[0].question}\nAnswer: {tiny.forget[0].answer}", return_tensors="pt")
    with torch.no_grad():
        four, whole = (m(**batch).logits.float().log_softmax(-1) for m in (model, full))
    assert 1e-4 < (four - whole).abs().mean() < 0.5
    record = json.loads((quantised / "quantisation.json").read_text())["settings"]
    assert (record["parent"], record["revision"]) == (str(tiny.full), None)


def test_a_copy_of_another_model_or_revision_is_not_replaced(tiny, quantised: Path, tmp_path: Path) -> None:
    out = shutil.copytree(quantised, tmp_path / "nf4")
    for model, revision in (("owner/other", None), (tiny.full, "v2")):
        with pytest.raises(ConfigError, match=r"quantised: choose another out, or .*redo=True"):
            quantise(model, revision=revision, out=out, device="cpu")


def test_a_quantised_model_is_neither_quantised_nor_trained(tiny, quantised: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="there is no directory 'nobody' here and no downloaded copy, and the Hub"):
        quantise("nobody", out=tmp_path / "again", device="cpu")
    with pytest.raises(ModelError, match="is already quantised"):
        quantise(quantised, out=tmp_path / "again", device="cpu")
    with pytest.raises(ModelError, match="is quantised"):
        unlearn(quantised, tiny.forget, method="ga", out=tmp_path / "out")


def test_a_checkpoint_does_not_choose_the_attention(tiny, tmp_path: Path) -> None:
    """It may name a kernel of the Hub, which is a program."""
    pytest.importorskip("bitsandbytes")
    chosen = dict.fromkeys(("attn_implementation", "_attn_implementation"), "owner/kernel")
    folder = with_config(shutil.copytree(tiny.full, tmp_path / "full"), **chosen)
    out = quantise(folder, out=tmp_path / "nf4", device="cpu")
    assert "owner/kernel" not in (out / "config.json").read_text()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_hidden_layers": 2}, "does not use with its config.json"),
        ({"num_hidden_layers": 7}, "does not fill .* weights"),
    ],
)
def test_files_that_do_not_fit_the_config_are_refused(changes: dict, words: str, tiny, tmp_path: Path) -> None:
    pytest.importorskip("bitsandbytes")
    folder = with_config(shutil.copytree(tiny.full, tmp_path / "full"), **changes)
    with pytest.raises(ModelError, match=words):
        quantise(folder, out=tmp_path / "nf4", device="cpu")
    assert not (tmp_path / "nf4").exists()
