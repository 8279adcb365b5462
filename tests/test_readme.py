"""The README's Python runs as it stands."""

import dataclasses
import re
from pathlib import Path

import pytest

import uds_lens as ul

README = (Path(__file__).resolve().parents[1] / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


@pytest.mark.usefixtures("trusted")
@pytest.mark.parametrize("block", BLOCKS)
def test_python_runs(
    block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    world = ul.toy.load()
    models = dict(list(world.unlearned.items())[:2])
    small = dataclasses.replace(world, examples=world.examples[:12], unlearned=models)
    monkeypatch.setattr("uds_lens.toy.load", lambda: small)
    exec(compile(block, "README.md", "exec"), {})
    printed = capsys.readouterr().out
    assert printed.count("UDS") == len(models)
    assert ul.DepthAudit.load("runs/last").n_measured > 0
