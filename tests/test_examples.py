"""The example scripts: each explains itself, and those that need no download run on the toy world."""

import runpy
import sys
from pathlib import Path

import pytest

import uds_lens as ul

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
SCRIPTS = sorted(EXAMPLES.glob("*.py"))
pytestmark = pytest.mark.usefixtures("trusted", "words_only")


def run_here(monkeypatch: pytest.MonkeyPatch, script: Path, *words: str | Path) -> None:
    """The script as a program, in this process: torch is loaded already."""
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.setattr(sys, "argv", [str(script), *map(str, words)])
    runpy.run_path(str(script), run_name="__main__")


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_explains_itself(script: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match=r"^0$"):
        run_here(monkeypatch, script, "--help")
    assert script.name in capsys.readouterr().out


def test_the_papers_setting_is_its_preset(monkeypatch) -> None:
    """It said so, and ran chat prompts in float32."""
    asked = {}

    class Reached(Exception):
        pass

    def measure(*models, config=None, **given):
        asked["config"] = config
        raise Reached

    monkeypatch.setattr(ul, "load_examples", lambda *source, **given: [])
    monkeypatch.setattr(ul.Baseline, "measure", measure)
    with pytest.raises(Reached):
        run_here(monkeypatch, EXAMPLES / "llama_1b.py")
    assert asked["config"] == ul.AuditConfig.preset("paper")


@pytest.mark.long  # tests/study/test_model_runner.py runs a study, too
def test_toy_study_on_two_models(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    import toy_study

    run_it = ul.study.run

    def small(plan: dict, out: Path, *, jobs: int) -> ul.study.StudyStatus:
        found = ul.study.plan(plan)
        assert len(ul.study.study_models(found)) == 14
        return run_it({**plan, "model": [], "pool": [], "perturb": {}}, out, jobs=jobs)

    judged = []
    monkeypatch.setattr(ul.study, "run", small)
    monkeypatch.setattr(toy_study, "judge", lambda frames, page: judged.append(frames))
    monkeypatch.setattr(sys, "argv", ["toy_study.py", "--out", str(tmp_path / "s")])
    toy_study.main()
    assert "2 of 2 done" in capsys.readouterr().out
    assert len(judged[0].full) == 1
