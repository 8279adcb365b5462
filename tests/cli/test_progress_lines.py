"""What the program says of its work: the first line at once, a line per step and per finished model, each once."""

import logging
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import typer

import uds_lens as ul
from uds_lens import _progress as progress
from uds_lens._cli import terminal as progress_lines

from .conftest import audit_words

FIRST = {
    "annotate": ("--examples=x --by=answer --out=o", "finding entities in x with answer ..."),
    "audit": ("--full=f --retain=r --model=u --examples=x --out=o", "auditing 1 model; opening full: f ..."),
    "dashboard": ("published", "reading published ..."),
    "demo": ("", "auditing the models of the toy world ..."),
    "doctor": ("", "checking this installation ..."),
    "elicit": ("--model=m --examples=d --out=o", "eliciting answers from m ..."),
    "finetune": ("--model=m --data=d --out=o", "fine-tuning; opening m ..."),
    "meta": ("published", "reading published ..."),
    "metrics": ("--model=m --examples=d --out=o", "measuring all metrics of m ..."),
    "published": ("list", "reading the list of published models ..."),
    "quantise": ("--model=m --out=o", "quantising; opening m ..."),
    "rank": ("published", "reading published ..."),
    "relearn": ("--model=m --examples=d --out=o", "fine-tuning again; opening m ..."),
    "report": ("a b", "reading a, b ..."),
    "sweep": ("plan.toml", "reading plan.toml ..."),
    "table": ("published", "reading published ..."),
    "unlearn": ("--method=ga --full=f --examples=d --out=o", "unlearning with ga; opening full: f ..."),
    "weights": ("--full=f --model=m", "comparing m with f ..."),
}


def test_the_first_line_of_every_command_comes_before_torch_is_loaded() -> None:
    from uds_lens._cli.app import app

    assert set(FIRST) == set(typer.main.get_command(app).commands) - {"export"}, "which has nothing to wait for"
    script = (
        "import sys\nfrom uds_lens._cli import main\n"
        "def say(message):\n    print(message, 'torch' in sys.modules)\n    raise SystemExit(0)\n"
        f"for command, words in { {name: words.split() for name, (words, _) in FIRST.items()}!r}.items():\n"
        "    for name, module in list(sys.modules.items()):\n"
        "        if name.startswith('uds_lens._cli.') and hasattr(module, 'say'):\n            module.say = say\n"
        "    try:\n        main([command, *words])\n    except SystemExit:\n        pass\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [f"{said} False" for _, said in FIRST.values()]


def test_a_line_per_step_and_per_model(sweep: Path, tmp_path: Path, uds_lens) -> None:
    logging.getLogger().addHandler(noisy := logging.StreamHandler(sys.stderr))
    try:
        words = [*audit_words(sweep, "unlearned", "full"), "--name", "one", "--name", "two"]
        code, _, err = uds_lens(*words, "--out", tmp_path / "out")
    finally:
        logging.getLogger().removeHandler(noisy)
    assert (code, err) == (0, "")
    lines = uds_lens.doing
    assert lines[0] == f"auditing 2 models; opening full: {sweep / 'full'} ..."
    assert f"stage 1: opening {sweep / 'retain'}" in lines
    assert sum("prompts: " in line for line in lines) == 1
    assert f"two (2 of 2): opening {sweep / 'full'}" in lines
    (done,) = [line for line in lines if line.startswith("one: UDS")]
    assert done.endswith("; saved, 1 of 2")
    assert lines[-1] == "two: UDS 0.000, 95% interval 0.000 to 0.000, output depth 0.000; saved, 2 of 2"
    assert sum(line.startswith("memory: the audit needs") for line in lines) == 1
    assert {path.name for path in (tmp_path / "out").glob("[!.]*")} == {"baseline", "one", "two", "table.csv"}
    table = pd.read_csv(tmp_path / "out" / "table.csv").set_index("model")["uds"]
    assert table["two"] == 0 and table["one"] == pytest.approx(ul.DepthAudit.load(tmp_path / "out" / "one").uds)
    assert len(ul.Baseline.load(tmp_path / "out" / "baseline").examples) == 8


def test_verbose_says_more_and_of_other_packages_too(capsys: pytest.CaptureFixture[str]) -> None:
    ours, other = logging.getLogger("uds_lens.somewhere"), logging.getLogger("otherpackage")
    before = logging.getLogger("uds_lens").propagate, logging.getLogger().level
    for verbose in (False, True):
        with progress_lines.progress_printed(verbose=verbose):
            ours.info("within")
            other.info("beside")
            progress.tell("doing")
    said = [line.partition("] ")[2] for line in capsys.readouterr().err.splitlines()]
    assert said == ["doing", "uds_lens.somewhere: within", "otherpackage: beside", "doing"]
    assert (logging.getLogger("uds_lens").propagate, logging.getLogger().level) == before
