"""The refusals that come with the package."""

import pytest

from uds_lens.errors import DataError
from uds_lens.unlearning import load_refusals


def test_a_hundred_different_refusals_that_end_as_sentences() -> None:
    refusals = load_refusals()
    assert len({text.casefold() for text in refusals}) == len(refusals) == 100
    assert all(text[-1] == "." and text == text.strip() for text in refusals)


def test_they_are_ours(shared_dir) -> None:
    theirs = (shared_dir / "data" / "tofu" / "tofu_idontknow.txt").read_text(encoding="utf-8").splitlines()
    assert not {text.casefold() for text in theirs} & {text.casefold() for text in load_refusals()}


def test_no_file_is_said(tmp_path) -> None:
    with pytest.raises(DataError, match=r"cannot read refusals from .*none\.txt"):
        load_refusals(tmp_path / "none.txt")
