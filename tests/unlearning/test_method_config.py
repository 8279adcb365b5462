"""Configurations: what they refuse, and what they say about it."""

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


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_fractions_are_finite(wrong: float) -> None:
    with pytest.raises(ConfigError, match="beta must be a number > 0"):
        NPOConfig(beta=wrong)


@pytest.mark.parametrize("field", ["learning_rate", "epochs", "batch_size", "beta"])
def test_some_numbers_must_not_be_zero(field: str) -> None:
    with pytest.raises(ConfigError, match=f"{field} must be a .*(> 0|>= 1)"):
        make_config("npo", {field: 0})


def test_texts_become_numbers() -> None:
    config = make_config("npo", {"beta": "0.5", "epochs": "3", "protocol": "chat"})
    assert config == NPOConfig(beta=0.5, epochs=3, protocol="chat")
    with pytest.raises(ConfigError, match=r"epochs must be a whole number; got '1\.5'"):
        make_config("npo", {"epochs": "1.5"})


def test_unknown_words_are_listed_with_the_known_ones(unchecked) -> None:
    every = ", ".join(sorted(METHODS))
    with pytest.raises(ConfigError, match=re.escape(f"no unlearning method 'nop'; there are {every}")):
        make_config("nop")
    with pytest.raises(ConfigError, match="ga has no setting 'alpha'; it has"):
        make_config("ga", {"alpha": 1})
    with pytest.raises(ConfigError, match="schedule must be one of"):
        GAConfig(schedule="sudden")
    with pytest.raises(ConfigError, match="protocol must be one of"):
        GAConfig(protocol="plain")


def test_relearning_has_the_definitions_defaults() -> None:
    config = RelearnConfig()
    assert (config.learning_rate, config.batch_size, config.epochs) == (2e-5, 32, 1)
    assert (config.weight_decay, config.warmup_epochs, config.schedule) == (0.0, 0.0, "linear")
    assert config.protocol == GAConfig().protocol == "auto"


def test_whole_numbers_and_fractions_make_equal_settings() -> None:
    assert repr(make_config("npo", {"beta": 1})) == repr(make_config("npo", {"beta": 1.0}))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"device": "tpu"}, "device"),
        ({"log_every": 0}, "log_every"),
        ({"checkpoint_every": -1}, "checkpoint_every"),
    ],
)
def test_options_are_checked(settings: dict, message: str, unchecked) -> None:
    with pytest.raises(ConfigError, match=message):
        TrainOptions(**settings)


@pytest.mark.parametrize("settings", [{"rank": 0}, {"alpha": 0}, {"dropout": 1.0}])
def test_adapters_are_checked(settings: dict) -> None:
    with pytest.raises(ConfigError, match="must"):
        LoraSettings(**settings)


@pytest.mark.parametrize(
    ("record", "name", "value"),
    [
        (TrainOptions, "device_batch_size", "2"),
        (TrainOptions, "log_every", 1.5),
        (TrainOptions, "checkpoint_every", True),
        (TrainOptions, "offline", "no"),
        (TrainOptions, "gradient_checkpointing", "False"),
        (LoraSettings, "rank", "2"),
        (LoraSettings, "alpha", "x"),
        (LoraSettings, "dropout", None),
    ],
)
def test_values_of_another_kind_are_refused_by_name(record, name, value, unchecked):
    with pytest.raises(ConfigError, match=f"^{name} must "):
        record(**{name: value})


def test_settings_of_methods_are_refused_in_words(tmp_path, unchecked):
    with pytest.raises(ConfigError, match="NPOConfig has no setting 'beat'; did you mean 'beta'"):
        NPOConfig(beat=1)
    with pytest.raises(ConfigError, match="TrainOptions has no setting 'epochs'"):
        TrainOptions(epochs=1)
    with pytest.raises(ConfigError, match="LoraSettings has no setting 'r'"):
        LoraSettings(r=8)
    for name, value in (("learning_rate", 10**400), ("beta", "x" * 5000)):
        with pytest.raises(ConfigError, match=f"^{name} must be") as refused:
            NPOConfig(**{name: value})
        assert len(str(refused.value)) < 500
    assert copy.copy(NPOConfig(beta=0.5)) == copy.deepcopy(NPOConfig(beta=0.5))
    with pytest.raises(ConfigError, match="config must be RelearnConfig; got dict"):
        relearn("nowhere", [{"question": "q", "answer": "a"}], out=tmp_path / "r", config={"epochs": 1})
    with pytest.raises(ConfigError, match="lora must be LoraSettings; got dict"):
        relearn("nowhere", [{"question": "q", "answer": "a"}], out=tmp_path / "r", lora={"rank": 1})
