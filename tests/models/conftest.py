"""Checkpoints to spoil: every test that changes one gets its own copy."""

import shutil

import pytest


@pytest.fixture(scope="session", autouse=True)
def _quick(one_thread):
    return


@pytest.fixture
def copy_of(trio, tmp_path):
    """`copy_of(family)`: a directory of its own with the family's `full`."""

    def of(family="llama", name="copy"):
        return shutil.copytree(trio(family).full, tmp_path / name)

    return of
