"""Places on the command line: `~`, directories that are not there, names of the file system."""

import json
import os
from pathlib import Path

import pytest

import uds_lens as ul

WORLD = ul.toy.load()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home directory with the toy world's files, and another place to stand in."""
    home = tmp_path / "home"
    home.mkdir()
    for role in ("full", "retain"):
        (home / role).symlink_to(getattr(WORLD, role))
    rows = json.loads((WORLD.path / "forget.json").read_text(encoding="utf-8"))
    (home / "forget.json").write_text(json.dumps(rows[:3]), encoding="utf-8")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("HOME", str(home))
    return home


def test_home_is_home_everywhere(home: Path, uds_lens) -> None:
    where = ("--full=~/full", "--retain=~/retain", "--examples=~/forget.json", "--device=cpu", "--engine=wavefront")
    assert uds_lens("audit", *where, "--model=~/retain", "--out=~/audit").code == 0
    assert ul.DepthAudit.load(home / "audit").uds == 1.0
    assert uds_lens("report", "~/audit", "--out=~/page.html").code == 0
    assert (home / "page.html").is_file()
    words = ("--model=~/full", "--examples=~/forget.json", "--metric=em", "--device=cpu")
    assert uds_lens("metrics", *words, "--out=~/em.json").code == 0
    assert (home / "em.json").is_file()
    assert uds_lens("doctor", "--full=~/full", "--examples=~/forget.json", "--out=~/new").code == 0
    told = uds_lens("annotate", "--examples=~/forget.json", "--by=answer", "--redo", "--out=~/a.json")
    assert told.code == 0 and f"Saved in {home / 'a.json'}" in told.out
    (home / "t.csv").write_text("model,method,es\na,npo,0.5\n")
    for command in ("rank", "meta"):
        assert "nothing at" not in uds_lens(command, "~/t.csv").err
    assert list(Path().iterdir()) == []


def test_names_that_are_no_utf8(home: Path, uds_lens) -> None:
    """A system's names are bytes; Python keeps those that are no text, and no output may fail over them."""
    odd = os.fsdecode(b"caf\xe9")
    words = ("--full=~/full", "--retain=~/retain", "--model=~/retain", "--examples=~/forget.json")
    found = uds_lens("audit", *words, f"--out={odd}", "--device=cpu", "--engine=wavefront", "--json")
    assert found.code == 0
    assert "caf\\udce9" in found.out
    assert ul.DepthAudit.load(odd).uds == 1.0
    assert os.path.isfile(os.path.join(os.fsencode(odd), b"manifest.json"))
    report = uds_lens("report", odd, f"--out={odd}.html")
    assert (report.code, "caf\\udce9.html" in report.out) == (0, True)
    assert os.path.isfile(os.fsencode(f"{odd}.html"))
    words = ("--model=~/full", "--examples=~/forget.json", "--metric=em", "--device=cpu", f"--out={odd}.json")
    assert uds_lens("metrics", *words).code == 0
    assert os.path.isfile(os.fsencode(f"{odd}.json"))


def test_a_misspelt_place_is_answered_with_the_nearest_one(home: Path, uds_lens) -> None:
    Path("ckpt/full").mkdir(parents=True)
    Path("forget.json").write_text("[]")
    asked = "audit --retain ckpt/full --model ckpt/full --out x"
    for words, near in (
        ("--full ckpt/ful --examples x", "ckpt/full"),
        ("--full ckpt/full --examples forgt.json", "forget.json"),
    ):
        code, _, err = uds_lens(*asked.split(), *words.split())
        assert code == 1 and f"{near}'?" in err and "Did you mean '" in err


TAKEN = {
    "audit": "audit --full ~/full --retain ~/retain --model ~/retain --examples ~/forget.json --out {folder}",
    "metrics": "metrics --model ~/full --examples ~/forget.json --metric em --out {file}",
    "elicit": "elicit --model ~/full --examples ~/forget.json --probe plain --out {folder}",
    "unlearn": "unlearn --method ga --full ~/full --examples ~/forget.json --out {folder}",
    "relearn": "relearn --model ~/full --examples ~/forget.json --out {folder}",
    "quantise": "quantise --model ~/full --out {folder}",
    "annotate": "annotate --examples ~/forget.json --redo --by contrast --full ~/full --retain ~/retain --out {file}",
    "review": "annotate --examples ~/forget.json --redo --by contrast --full ~/full --retain ~/retain "
    "--out new.json --review {file}",
    "demo": "demo --out {above}",
    "sweep": "sweep ~/plan.toml --out {folder}",
}
"""Commands that open models; `rank`, `meta`, `dashboard`, `report` and `sweep table` have tests of their own."""


@pytest.mark.parametrize("command", TAKEN)
def test_what_stands_there_is_seen_before_any_weight_is_read(command: str, home: Path, uds_lens, monkeypatch) -> None:
    for place in ("models._hooked.load_weights", "unlearning._job.load_weights"):
        monkeypatch.setattr(f"uds_lens.{place}", lambda *_, **__: pytest.fail("weights were read"))
    monkeypatch.setattr("uds_lens.unlearning._quantise._load_in_4_bits", lambda *_, **__: pytest.fail("read"))
    (home / "plan.toml").write_text(
        'name = "s"\nfull = "toy:full"\nretain = "toy:retain"\n[data]\nforget = "toy:forget"\n'
        '[measure]\nmetrics = ["em"]\n'
    )
    taken = Path("baseline")  # one of those that the demo writes
    taken.mkdir()
    for file in (taken / "thesis.txt", Path("mine.html")):
        file.write_text("mine")
    words = TAKEN[command].format(folder=taken, file="mine.html", above=".").split()
    code, out, err = uds_lens(*words)
    assert (code, out) == (1, "")
    assert "is not a saved result" in err or "was not written by uds_lens" in err
    assert sorted(map(str, Path().rglob("*"))) == ["baseline", "baseline/thesis.txt", "mine.html"]
    assert {file.read_text() for file in (taken / "thesis.txt", Path("mine.html"))} == {"mine"}
