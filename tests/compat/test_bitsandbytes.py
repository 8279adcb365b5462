"""Parts of bitsandbytes that are not public; each test names one, and says what to do when it is gone."""

import logging
import os
import subprocess
import sys
import warnings

import pytest
import torch

from uds_lens import toy
from uds_lens._compat import bitsandbytes as ours

bnb = pytest.importorskip("bitsandbytes", reason="no release for this machine")


def four_bit(n_in: int, n_out: int):
    layer = bnb.nn.Linear4bit(n_in, n_out, bias=False, quant_type="nf4", compute_dtype=torch.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return layer.to("cpu")  # quantises


def test_a_configuration_tells_who_quantised() -> None:
    from transformers import BitsAndBytesConfig

    class Config:
        quantization_config: object = None

    config = Config()
    assert not ours.is_bitsandbytes(config)
    assert not ours.is_4bit_config(config) and ours.quantised_as(config) is None
    for said in (BitsAndBytesConfig(load_in_4bit=True), BitsAndBytesConfig(load_in_4bit=True).to_dict()):
        config.quantization_config = said
        assert ours.is_bitsandbytes(config), "quant_method is called otherwise: see BitsAndBytesConfig"
        assert ours.is_4bit_config(config), "load_in_4bit is called otherwise: see BitsAndBytesConfig"
        assert ours.quantised_as(config) == "4 bits (fp4)"
    config.quantization_config = BitsAndBytesConfig(load_in_8bit=True)
    assert not ours.is_4bit_config(config) and ours.quantised_as(config) == "8 bits"
    config.quantization_config = {"quant_method": "gptq"}
    assert not ours.is_bitsandbytes(config) and ours.quantised_as(config) == "gptq"


def test_a_layer_for_packed_weights_that_holds_plain_ones_is_named() -> None:
    plain = four_bit(64, 32)
    plain.weight = torch.nn.Parameter(torch.zeros(32, 64))
    model = torch.nn.Sequential(four_bit(64, 64), torch.nn.Linear(64, 64), plain)
    assert ours.plain_in_packed(model) == "2", "Linear4bit is called otherwise: see bitsandbytes/nn/modules.py"
    assert ours.plain_in_packed(model[:2]) is None


def test_a_quantised_layer_tells_its_format() -> None:
    layer = four_bit(64, 32)
    assert ours.block_size(layer) == layer.weight.quant_state.blocksize == 64, (
        "weight.quant_state.blocksize is gone: see bitsandbytes/functional.py, QuantState"
    )
    assert not ours.is_repacked(layer)
    layer.weight.quant_state.packing_format_for_cpu = True
    assert ours.is_repacked(layer)


def test_a_quantised_layer_gives_its_weight_back() -> None:
    layer = four_bit(64, 32)
    assert ours.is_4bit_layer(layer), "Linear4bit has another name: see bitsandbytes/nn/modules.py"
    assert not ours.is_4bit_layer(torch.nn.Linear(2, 2))
    whole = layer(torch.eye(64)).T
    assert torch.allclose(ours.plain_weight(layer), whole, atol=1e-6), (
        "functional.dequantize_4bit(weight.data, weight.quant_state) is not what the layer multiplies with"
    )


def test_a_layer_can_be_kept_out_of_the_fast_format() -> None:
    layer = four_bit(64, 32)
    assert hasattr(layer, "support_avx512bf16_for_cpu"), (
        "Linear4bit.support_avx512bf16_for_cpu is gone: look in bitsandbytes/nn/modules.py what decides whether the "
        "first forward on a CPU repacks the weights, and keep shapes that it cannot hold out of it"
    )
    layer.support_avx512bf16_for_cpu = True
    assert ours.may_repack(layer)
    ours.never_repack(layer)
    assert not ours.may_repack(layer)
    layer(torch.zeros(1, 64))
    assert not ours.is_repacked(layer)


def test_only_the_note_about_the_kernel_is_dropped(caplog) -> None:
    logger = logging.getLogger("bitsandbytes.backends.cpu.ops")
    note = "Failed to load CPU gemm_4bit_forward from kernels-community: %s."
    with ours.no_hub_kernels():
        logger.warning(note, "no kernels")
        logger.warning("something else")
    assert caplog.messages == ["something else"]
    logger.warning(note, "no kernels")
    assert len(caplog.messages) == 2


_KERNELS = """
from pathlib import Path
def get_kernel(*asked, **_):
    Path(__file__).with_name("asked").write_text(str(asked))
    raise OSError("no network")
"""

_FINETUNE = """
import sys
from uds_lens._cli import main
try:
    main(["finetune", "--model", sys.argv[1], "--data", sys.argv[2], "--out", sys.argv[1] + "/out", "--device=cpu"])
except SystemExit as done:
    assert done.code == 1
assert "bitsandbytes" in sys.modules
"""


@pytest.mark.long  # in a process of its own, which loads the libraries anew
def test_training_asks_the_hub_for_no_kernel_code_and_says_nothing_of_it(tmp_path) -> None:
    """A package `kernels` that writes down what it is asked, as bitsandbytes alone does on some CPUs.

    It is first imported by transformers' trainer, before a model is opened.
    """
    package = tmp_path / "kernels"
    package.mkdir()
    (package / "__init__.py").write_text(_KERNELS, "utf-8")
    paths = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))
    given = [sys.executable, "-c", _FINETUNE, str(tmp_path), str(toy.load().path / "retain.json")]
    done = subprocess.run(given, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "has no config.json" in done.stderr and "kernel" not in done.stderr
    assert not (package / "asked").exists()
