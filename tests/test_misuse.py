"""Settings refuse what makes no sense, in one sentence of the library's own."""

import math
from dataclasses import fields, is_dataclass
from importlib import import_module

import pytest

import uds_lens as ul
from uds_lens.errors import ConfigError, UdsLensError

MISUSE = (None, 3, "x", object(), 10**400, math.nan, math.inf, "False")

ROOMS = ("results", "metrics", "elicitation", "unlearning")

SETTINGS = {
    f"{room}.{name}": cls
    for room in ROOMS
    for name in import_module(f"uds_lens.{room}").__all__
    if name.endswith(("Config", "Options")) and is_dataclass(cls := getattr(import_module(f"uds_lens.{room}"), name))
}


def test_settings_are_found() -> None:
    assert len(SETTINGS) > 12


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_refuse_in_words(name: str, unchecked) -> None:
    """Each field of each record of settings, with everything else at its default."""
    cls = SETTINGS[name]
    for field in fields(cls):
        if not field.init:
            continue
        for value in MISUSE:
            try:
                cls(**{field.name: value})
            except UdsLensError as error:
                assert len(str(error)) < 500
    with pytest.raises(UdsLensError, match="'colour'"):
        cls(colour=1)


def test_sentences(unchecked) -> None:
    with pytest.raises(ConfigError, match="'forgot'; did you mean 'forget'"):
        ul.metrics.MetricData(forgot=[])
    with pytest.raises(ConfigError, match="GCG has no setting 'stepz'; did you mean 'steps'"):
        ul.elicitation.GCG(stepz=3)
