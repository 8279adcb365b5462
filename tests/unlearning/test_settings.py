"""Settings: what they refuse, and how they say it."""

import copy
import re
from dataclasses import fields

import pytest

from uds_lens.errors import ConfigError
from uds_lens.unlearning import (
    METHODS,
    GAConfig,
    LoraSettings,
    NPOConfig,
    RelearnConfig,
    TrainOptions,
    make_config,
    relearn,
)


@pytest.mark.parametrize("method", sorted(METHODS))
def test_every_number_is_checked(method: str, unchecked) -> None:
    for field in fields(METHODS[method]):
        if field.type in ("int", "float"):
            for wrong in (-1, "-1", "1.5.", None, True):
                with pytest.raises(ConfigError, match=field.name):
                    make_config(method, {field.name: wrong})


@pytest.mark.parametrize(
    ("record", "name", "value"),
    [
        (NPOConfig, "beta", float("nan")),
        (NPOConfig, "beta", float("inf")),
        (NPOConfig, "beta", "x" * 5000),
        (NPOConfig, "learning_rate", 0),
        (NPOConfig, "learning_rate", 10**400),
        (NPOConfig, "epochs", 0),
        (NPOConfig, "batch_size", 0),
        (GAConfig, "schedule", "sudden"),
        (GAConfig, "protocol", "plain"),
        (TrainOptions, "device", "tpu"),
        (TrainOptions, "log_every", 0),
        (TrainOptions, "log_every", 1.5),
        (TrainOptions, "log_to", ("csv", "tensorboard")),
        (TrainOptions, "device_batch_size", "2"),
        (TrainOptions, "checkpoint_every", -1),
        (TrainOptions, "checkpoint_every", True),
        (TrainOptions, "offline", "no"),
        (LoraSettings, "rank", "2"),
        (LoraSettings, "alpha", 0),
        (LoraSettings, "dropout", 1.0),
    ],
)
def test_values_out_of_range_are_refused_by_name(record, name, value, unchecked) -> None:
    with pytest.raises(ConfigError, match=f"^{name} must be ") as refused:
        record(**{name: value})
    assert len(str(refused.value)) < 500


def test_texts_become_numbers() -> None:
    config = make_config("npo", {"beta": "0.5", "epochs": "3", "protocol": "chat"})
    assert config == NPOConfig(beta=0.5, epochs=3, protocol="chat") == copy.deepcopy(config)
    assert repr(make_config("npo", {"beta": 1})) == repr(make_config("npo", {"beta": 1.0}))
    with pytest.raises(ConfigError, match=r"epochs must be a whole number; got '1\.5'"):
        make_config("npo", {"epochs": "1.5"})


def test_unknown_names_come_with_the_known_ones(tmp_path, unchecked) -> None:
    every = ", ".join(sorted(METHODS))
    with pytest.raises(ConfigError, match=re.escape(f"method 'nop'; did you mean 'npo'? There are {every}")):
        make_config("nop")
    with pytest.raises(ConfigError, match="ga has no setting 'alpha'; it has"):
        make_config("ga", {"alpha": 1})
    with pytest.raises(ConfigError, match="npo has no setting 'reduction'"):
        make_config("npo", {"reduction": "open_unlearning"})
    with pytest.raises(ConfigError, match="NPOConfig has no setting 'beat'; did you mean 'beta'"):
        NPOConfig(beat=1)
    for name, value in (("config", {"epochs": 1}), ("lora", {"rank": 1})):
        with pytest.raises(ConfigError, match=f"{name} must be .*; got dict"):
            relearn("nowhere", [{"question": "q", "answer": "a"}], out=tmp_path / "r", **{name: value})


def test_relearning_has_the_defaults_of_the_robustness_test() -> None:
    config = RelearnConfig()
    assert (config.learning_rate, config.batch_size, config.epochs) == (2e-5, 32, 1)
    assert (config.weight_decay, config.warmup_epochs, config.schedule) == (0.0, 0.0, "linear")
    assert config.protocol == GAConfig().protocol == "auto"
