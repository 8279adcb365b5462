"""The check of annotations during tests refuses what jaxtyping's own would, with and without named axes."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import beartype
import pytest
import torch
from checked_annotations import by_jaxtyping, checked
from jaxtyping import Float, TypeCheckError
from torch import Tensor

STRICT = beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))
WAYS = {"ours": partial(checked, typechecker=STRICT), "jaxtyping's": partial(by_jaxtyping, typechecker=STRICT)}


@pytest.fixture(params=WAYS)
def check(request):
    return WAYS[request.param]


FUNCTIONS = {
    "def half(n: int, by: float = 2) -> float: return n / by if by else None": (
        [((3,), 1.5), ((3, 2.0), 1.5)],
        [("3",), (3, "2"), (3, 0)],
    ),
    "def both(a: list[Float[Tensor, 'n']], b: Float[Tensor, 'n']): return len(b)": (
        [(([torch.ones(2)], torch.ones(2)), 2)],
        [([torch.ones(2)], torch.ones(3))],
    ),
    "def count(n: int, of: Unknown = None) -> Iterator[int]: yield from range(n)": ([], [("2",)]),
}


@pytest.mark.parametrize("text", FUNCTIONS)
def test_arguments_and_results_are_checked(text: str, check) -> None:
    function = check(defined(text))
    fit, unfit = FUNCTIONS[text]
    assert [function(*given) for given, _ in fit] == [returned for _, returned in fit]
    for given in unfit:
        with pytest.raises(TypeCheckError):
            function(*given)


def defined(text: str):
    found: dict = {"Float": Float, "Tensor": Tensor, "Iterator": Iterator}
    exec(f"from __future__ import annotations\n{text}", found)
    return found[text.split("(")[0].removeprefix("def ")]


def test_methods_properties_and_records_are_checked(check) -> None:
    @check
    @dataclass
    class Row:
        n: "int"

        @check
        @classmethod
        def of(cls, n: "int") -> "str":
            return cls(n)

        @check
        @staticmethod
        def twice(n: "int") -> "int":
            return 2 * n

        @check
        @property
        def name(self) -> "str":
            return self.n

    assert Row(3).n == 3 and Row.twice(2) == 4
    for call in (lambda: Row("3"), lambda: Row.of("3"), lambda: Row.of(3), lambda: Row.twice("2"), lambda: Row(3).name):
        with pytest.raises(TypeCheckError):
            call()
    with pytest.raises(TypeError, match="colour"):
        Row.twice(2, colour=1)


def test_generators_and_names_for_type_checkers_only(check) -> None:
    count = check(defined("def count(n: int, of: Unknown = None) -> Iterator[int]: yield from range(n)"))
    assert list(count(2, of=object())) == [0, 1]


def test_the_switch_of_jaxtyping_switches_it_off(check, unchecked) -> None:
    assert check(defined("def same(n: int) -> int: return n"))("3") == "3"
