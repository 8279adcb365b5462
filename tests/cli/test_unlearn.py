"""`uds-lens unlearn`, `relearn` and `quantise`: settings reach the library, results are said."""

import json
import os
import signal
from dataclasses import fields
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, TrainerCallback

import uds_lens as ul
from tests.unlearning.conftest import tiny  # noqa: F401 - a fixture
from tests.unlearning.test_registry import MINE
from uds_lens._cli.training import LEARNED
from uds_lens.errors import ConfigError
from uds_lens.unlearning import METHODS, withdraw_objective
from uds_lens.unlearning._trainer import UnlearningTrainer


def unlearning(files: dict[str, Path]) -> list[object]:
    """The command with its model and data."""
    data = ("--examples", files["forget"], "--retain-data", files["retain"])
    return ["unlearn", "--device", "cpu", "--full", files["full"], *data]


@pytest.fixture
def files(tiny, tmp_path: Path) -> dict[str, Path]:  # noqa: F811
    for side in ("forget", "retain"):
        rows = [{"question": row.question, "answer": row.answer} for row in getattr(tiny, side)]
        (tmp_path / f"{side}.json").write_text(json.dumps(rows))
    return {"full": tiny.full, "forget": tmp_path / "forget.json", "retain": tmp_path / "retain.json"}


def test_unlearn_then_relearn(uds_lens, files, tmp_path: Path) -> None:
    words = [*unlearning(files), "--method", "npo", "--out", tmp_path / "npo"]
    words += ["--set", "beta=0.2", "--set", "epochs=1", "--set", "learning-rate=1e-3", "--lora", "2"]
    code, out, _ = uds_lens(*words)
    assert code == 0
    assert "\n1 step in " in out
    again = uds_lens(*words)
    assert again.code == 0
    assert "Already trained, with the same model, data and settings, on 20" in again.out
    assert "1 step in" not in again.out
    record = json.loads((tmp_path / "npo" / "unlearning.json").read_text())
    assert (record["config"]["beta"], record["config"]["learning_rate"]) == (0.2, 1e-3)
    assert record["lora"]["alpha"] == 4
    code, out, _ = uds_lens(
        "relearn", "--model", tmp_path / "npo", "--examples", files["forget"], "--out", tmp_path / "back",
        "--device", "cpu", "--learning-rate", "1e-4", "--batch-size", "2", "--save-dtype", "bfloat16", "--json",
    )  # fmt: skip
    assert code == 0
    record = json.loads(out)
    assert (record["method"], record["steps"], record["config"]["learning_rate"]) == ("relearn", 2, 1e-4)
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "back", dtype="auto").dtype == torch.bfloat16


def test_finetune_says_whether_it_taught(uds_lens, files, tmp_path: Path) -> None:
    words = ["finetune", "--model", files["full"], "--data", files["retain"], "--unseen", files["forget"]]
    words += ["--out", tmp_path / "taught", "--device", "cpu", "--epochs", "2", "--warmup-epochs", "0"]
    words += ["--protocol", "raw"]
    assert "set the rank with --lora" in uds_lens(*words, "--save", "adapter").err
    code, out, _ = uds_lens(*words, "--lora", "2", "--lora-alpha", "3")
    assert code == 0
    rows = [line.split() for line in out.splitlines() if ".json" in line]
    assert [(Path(row[0].split("/")[-1]).name, row[1], row[-1]) for row in rows] == [
        ("retain.json", "yes", "8"),
        ("forget.json", "no", "4"),
    ]
    assert "Prob below" not in out
    record = json.loads((tmp_path / "taught" / "finetuning.json").read_text())
    assert [row["after"] > LEARNED for row in record["prob"]] == [True, True]
    assert (record["lora"]["rank"], record["lora"]["alpha"], record["lora"]["save"]) == (2, 3, "adapter")
    new = [{"question": "Where was Gil Tarr born?", "answer": "Gil Tarr was born in Tarrville."}]
    (tmp_path / "new.json").write_text(json.dumps(new))
    words[3:5] = ["--data", tmp_path / "new.json", "--data", files["retain"]]
    code, out, _ = uds_lens(*words, "--lora", "1", "--learning-rate", "1e-6", "--out", tmp_path / "little")
    assert code == 0
    assert [line[:1] for line in out.splitlines()].count("!") == 1, "only what was taught and not learned"
    assert "new.json:Probbelow0.8" in "".join(out.split())  # lines are folded, in paths too
    assert not (tmp_path / "taught" / "model.safetensors").exists()


def test_what_is_wrong_is_one_line(uds_lens, files, tmp_path: Path) -> None:
    words = ["unlearn", "--full", files["full"], "--examples", files["forget"], "--out", tmp_path / "out"]
    for method, settings, message in (
        ("nop", (), "no unlearning method 'nop'"),
        ("npo", (), "npo needs retain data: pass --retain-data"),
        ("ga", ("alpha=1",), "ga has no setting 'alpha'"),
        *(("ga", (wrong,), "--set takes name=value") for wrong in ("epochs", "=1", "epochs=")),
        ("ga", ("epochs=1", "epochs=2"), "--set epochs is given twice"),
    ):
        code, _, err = uds_lens(*words, "--method", method, *(word for each in settings for word in ("--set", each)))
        assert code == 1
        assert err.startswith("error: ") and message in err and err.count("\n") == 1


def test_own_methods_are_listed_and_run(uds_lens, files, tmp_path: Path) -> None:
    file = tmp_path / "half_on_the_command_line.py"
    file.write_text(MINE)
    try:
        assert "or half." in " ".join(uds_lens("unlearn", "--import", file, "--help").out.split())
        code, out, _ = uds_lens("unlearn", "--import", file, "--list")
        assert code == 0
        assert "half: Half of GradDiff." in out
        assert "npo: Negative preference optimisation" in out
        told = " ".join(out.split())
        assert "epochs (10), batch_size (32)" in told and "undial: Distil" in told
        starts = sorted(told.index(f" {method}: ") for method in METHODS)
        parts = [told[start:end] for start, end in zip(starts, [*starts[1:], None], strict=True)]
        listed = {part.strip().partition(":")[0]: part for part in parts}
        for method, config in METHODS.items():
            assert all(
                f"{name} (" in told[: starts[0]] + listed[method] for name in [field.name for field in fields(config)]
            ), method
        words = ("--import", file, "--method", "half", "--out", tmp_path / "half", "--set", "part=0.1")
        code, _, _ = uds_lens(*unlearning(files), *words, "--set", "epochs=1")
        assert code == 0
        assert json.loads((tmp_path / "half" / "unlearning.json").read_text())["config"]["part"] == 0.1
    finally:
        withdraw_objective("half")
    file.write_text("1 / 0")
    code, _, err = uds_lens("unlearn", "--import", file, "--list")
    assert code == 1
    assert "raised ZeroDivisionError: division by zero" in err


def test_a_job_that_is_told_to_stop_says_what_is_saved(
    uds_lens, files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slurm sends SIGTERM before it kills: nothing half-written is left, and the next try goes on."""

    class Stop(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs) -> None:
            if state.global_step == 3:
                os.kill(os.getpid(), signal.SIGTERM)

    start = UnlearningTrainer.__init__

    def stopped(self, *args, **kwargs) -> None:
        start(self, *args, **kwargs)
        self.add_callback(Stop())

    words = [*unlearning(files), "--method", "graddiff", "--out", tmp_path / "out"]
    words += ["--set", "batch_size=2", "--set", "epochs=2"]
    with monkeypatch.context() as patch:
        patch.setattr(UnlearningTrainer, "__init__", stopped)
        code, _, err = uds_lens(*words)
    assert code == 143
    assert any(line.startswith("graddiff on 4 forget and 8 retain answers of") for line in uds_lens.doing)
    assert "Stopped; step 2 is saved in" in err
    assert "Traceback" not in err
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"forget.json", "retain.json", ".out.run"}
    assert {path.name for path in (tmp_path / ".out.run").iterdir()} == {"run.json", "lock", "checkpoint-2"}
    code, out, _ = uds_lens(*words, "--json")
    assert code == 0
    assert json.loads(out)["resumed_from_step"] == 2


def test_relearning_over_a_grid_of_words(uds_lens, files, tmp_path: Path, monkeypatch) -> None:
    """Lists of numbers come as words; what the grid varies is no option beside it."""
    calls = []

    def grid(*models, **given):
        calls.append((models, given))
        raise ConfigError("enough")

    monkeypatch.setattr(ul.study, "relearn_grid", grid)
    bare = ("relearn", "--model", files["full"], "--examples", files["forget"], "--out", tmp_path / "grid")
    words = (*bare, "--retain", files["full"], "--retain-data", files["retain"], "--protocol", "raw")
    words += ("--grid", "learning_rate=2e-5,1e-3", "--grid", "epochs=1", "--grid", "share=0.5", "--grid", "lora-rank=4")
    words += ("--grid", "metric=prob", "--grid", "max_loss=0.1", "--batch-size", 2)
    assert uds_lens(*words).err == "error: enough\n"
    (((_, _, data), given),) = calls
    names = ["lr2e-05_epochs1", "lr2e-05_epochs1_rows0.5_lora4", "lr0.001_epochs1_rows0.5_lora4"]
    assert [setting.name for setting in given["grid"].settings] == names
    assert (given["grid"].metric, given["grid"].max_loss, given["config"].batch_size) == ("prob", 0.1, 2)
    assert given["config"].protocol == "raw" and len(data.retain) == 8
    several = ("--retain", files["full"], "--grid", "epochs=1,3")
    for wrong, message in (
        (("--grid", "learning_rate=fast"), "--grid: learning_rate must be a list, each a number > 0; got 'fast'"),
        (("--grid", "epoch=1"), "--grid: RelearnGrid has no setting 'epoch'; did you mean 'epochs'?"),
        (("--grid", "epochs"), "--grid takes name=value, for example --grid learning_rate=2e-5,1e-4; got 'epochs'."),
        (("--grid", "epochs=1,3"), "--grid needs a control: pass --retain, a model that never saw the forget set."),
        ((*several, "--learning-rate", "1e-4"), "learning_rate is part of the grid: use --grid learning_rate=0.0001."),
        ((*several, "--lora", 8), "with --grid, adapters are part of the grid: use --grid lora_rank=0,8."),
        (("--retain", files["full"]), "--retain, --retain-data and --limit apply only to --grid"),
    ):
        assert message in uds_lens(*bare, *wrong).err, wrong


def depth_words(sweep: Path, out: Path) -> list[object]:
    model = ("--method", "ga", "--full", sweep / "full", "--examples", sweep / "forget.json")
    return ["unlearn", *model, "--out", out, "--device", "cpu", "--depth-every", "1"]


def test_depth_while_it_trains(sweep: Path, uds_lens, tmp_path: Path) -> None:
    words = [*depth_words(sweep, tmp_path / "ga"), "--protocol", "raw"]
    for setting in ("epochs=1", "batch_size=2", "learning_rate=1e-3", "warmup_epochs=0"):
        words += ["--set", setting]
    assert "--depth-every needs --retain" in uds_lens(*words).err
    code, out, _ = uds_lens(*words, "--retain", sweep / "retain")
    assert code == 0 and "damage" in out and "output" in out
    record = json.loads((tmp_path / "ga" / "depth.json").read_text())["values"]
    assert [point["step"] for point in record["points"]] == list(range(len(record["points"])))


def test_depth_is_measured_in_the_prompts_of_the_training(sweep: Path, uds_lens, tmp_path: Path, monkeypatch) -> None:
    found = []

    def measure(*models: object, config: ul.AuditConfig, **given: object) -> None:
        found.append((config.protocol, config.system_prompt, config.chat_date))
        raise ConfigError("enough")

    monkeypatch.setattr(ul.Baseline, "measure", measure)
    words = [*depth_words(sweep, tmp_path / "ga"), "--retain", sweep / "retain"]
    asked = ("--protocol", "chat", "--system-prompt", "Be brief.", "--chat-date", "01 Jan 2026")
    assert uds_lens(*words, *asked).err == uds_lens(*words, "--set", "protocol=raw").err == "error: enough\n"
    assert found[0] == ("chat", "Be brief.", "01 Jan 2026") and found[1][0] == "raw"
