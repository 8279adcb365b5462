"""Whether files are as they were written: the first that is not is named."""

import pytest

from uds_lens.unlearning._run_folder import difference, file_sums


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "a.bin").write_bytes(b"1234")
    (tmp_path / "b.json").write_bytes(b"{}")
    return tmp_path


def test_nothing_changed_and_what_came_since_does_not_matter(folder) -> None:
    sums = file_sums(folder)
    assert set(sums) == {"inner/a.bin", "b.json"}
    (folder / "later.txt").write_text("new")
    assert difference(folder, sums) is None
    assert set(file_sums(folder, but=("b.json",))) == {"inner/a.bin", "later.txt"}


def test_what_changed_is_named(folder) -> None:
    sums, file = file_sums(folder), folder / "inner" / "a.bin"
    file.write_bytes(b"123")
    assert difference(folder, sums) == "inner/a.bin has 3 bytes instead of 4"
    file.write_bytes(b"1235")
    assert difference(folder, sums) == "inner/a.bin was altered"
    file.unlink()
    assert difference(folder, sums) == "inner/a.bin is missing"
