"""The UDS paper's files that come with the library."""

import json

import pytest

from uds_lens import meta
from uds_lens.meta._published import SHIPPED


@pytest.mark.parametrize("name", ["method_results.json", "meta_eval.json"])
def test_hold_the_published_values(name, shared_dir):
    original = shared_dir / "data" / "published" / name
    if not original.is_file():
        pytest.skip("no published data")
    shipped = json.loads((SHIPPED / name).read_text(encoding="utf-8"))
    assert "Apache License 2.0" in shipped.pop("notice")
    assert shipped == json.loads(original.read_text(encoding="utf-8"))


def test_are_read_without_a_path_and_carry_their_licence():
    found = meta.read_published()
    assert len(found) == 150 and len(found.metrics) == 22 and "/" not in found.source
    assert "Apache License" in (SHIPPED / "LICENSE").read_text(encoding="utf-8")
    assert sum(file.stat().st_size for file in SHIPPED.glob("*.json")) < 200_000
