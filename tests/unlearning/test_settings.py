"""Settings: what they refuse, and how they say it."""

import copy
import math
import re
from dataclasses import fields

import pytest

from uds_lens import unlearning as u
from uds_lens.errors import ConfigError


@pytest.mark.parametrize("method", sorted(u.METHODS))
def test_every_number_is_checked(method: str, unchecked) -> None:
    for field in fields(u.METHODS[method]):
        if field.type in ("int", "float"):
            for wrong in (-1, "-1", "1.5.", None, True):
                with pytest.raises(ConfigError, match=field.name):
                    u.make_config(method, {field.name: wrong})


WRONG = {
    u.NPOConfig: {"beta": [math.nan, math.inf, "x" * 5000], "learning_rate": [0, 10**400], "epochs": [0]},
    u.GAConfig: {"schedule": ["sudden"], "protocol": ["plain"], "batch_size": [0]},
    u.TrainOptions: {
        "device": ["tpu"],
        "log_every": [0, 1.5],
        "log_to": [("csv", "tensorboard")],
        "device_batch_size": ["2"],
        "checkpoint_every": [-1, True],
        "offline": ["no"],
    },
    u.LoraSettings: {"rank": ["2"], "alpha": [0], "dropout": [1.0]},
}


@pytest.mark.parametrize("record", WRONG)
def test_values_out_of_range_are_refused_by_name(record, unchecked) -> None:
    for name, values in WRONG[record].items():
        for value in values:
            with pytest.raises(ConfigError, match=f"^{name} must be ") as refused:
                record(**{name: value})
            assert len(str(refused.value)) < 500


def test_texts_become_numbers() -> None:
    config = u.make_config("npo", {"beta": "0.5", "epochs": "3", "protocol": "chat"})
    assert config == u.NPOConfig(beta=0.5, epochs=3, protocol="chat") == copy.deepcopy(config)
    assert repr(u.make_config("npo", {"beta": 1})) == repr(u.make_config("npo", {"beta": 1.0}))
    with pytest.raises(ConfigError, match=r"epochs must be a whole number; got '1\.5'"):
        u.make_config("npo", {"epochs": "1.5"})


def test_unknown_names_come_with_the_known_ones(tmp_path, unchecked) -> None:
    every = ", ".join(sorted(u.METHODS))
    with pytest.raises(ConfigError, match=re.escape(f"method 'nop'; did you mean 'npo'? There are {every}")):
        u.make_config("nop")
    with pytest.raises(ConfigError, match="ga has no setting 'alpha'; it has"):
        u.make_config("ga", {"alpha": 1})
    with pytest.raises(ConfigError, match="npo has no setting 'reduction'"):
        u.make_config("npo", {"reduction": "open_unlearning"})
    with pytest.raises(ConfigError, match="NPOConfig has no setting 'beat'; did you mean 'beta'"):
        u.NPOConfig(beat=1)
    for name, value in (("config", {"epochs": 1}), ("lora", {"rank": 1})):
        with pytest.raises(ConfigError, match=f"{name} must be .*; got dict"):
            u.relearn("nowhere", [{"question": "q", "answer": "a"}], out=tmp_path / "r", **{name: value})


def test_relearning_has_the_defaults_of_the_robustness_test() -> None:
    config = u.RelearnConfig()
    assert (config.learning_rate, config.batch_size, config.epochs) == (2e-5, 32, 1)
    assert (config.weight_decay, config.warmup_epochs, config.schedule) == (0.0, 0.0, "linear")
    assert config.protocol == u.GAConfig().protocol == "auto"
