"""Texts that plotly would take for something else."""

import pytest

from uds_lens.plots._style import shown


@pytest.mark.parametrize("name", ["constructor", "__proto__", "toString"])
def test_members_of_javascript_objects_are_no_keys(name):
    assert shown(name) not in (name, "") and shown(name).startswith(name)
    assert shown(name + "s") == name + "s"
