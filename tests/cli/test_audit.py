"""`uds-lens audit`: what it saves and prints, that every option arrives, and what it refuses."""

import json
import shutil
from pathlib import Path

import pandas as pd
import pytest

import uds_lens as ul

WORLD = ul.toy.load()
TRIO = ("--full", WORLD.full, "--retain", WORLD.retain, "--model", WORLD.unlearned["npo"])
SEVERAL = ("--full", WORLD.full, "--retain", WORLD.retain, "--model", WORLD.retain, "--model", WORLD.full)


@pytest.fixture
def examples(tmp_path: Path) -> Path:
    """Six facts of the toy world as a file."""
    rows = [
        {"id": e.id, "question": e.question, "answer": e.answer, "prefix": e.prefix, "entity": e.entity}
        for e in ul.toy.load().examples[:6]
    ]
    file = tmp_path / "forget.jsonl"
    file.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    return file


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch, make_audit) -> list[tuple]:
    """Replaces the measurement by one that notes what it was asked for."""
    noted = []

    def run(*models, control=None, config, options):
        noted.append((models if control is None else (*models, control), config, options))
        return make_audit(0.5)

    monkeypatch.setattr(ul.DepthAudit, "run", run)
    return noted


def test_one_model_is_saved_in_out(examples: Path, tmp_path: Path, uds_lens) -> None:
    world, out = WORLD, tmp_path / "audit"
    model = next(iter(world.unlearned.values()))
    code, printed, _ = uds_lens(
        *("audit", "--full", world.full, "--retain", world.retain, "--model", model),
        *("--examples", examples, "--out", out, "--limit", 4, "--device", "cpu"),
    )
    assert code == 0
    saved = ul.DepthAudit.load(out)
    assert len(saved.examples) == 4
    direct = ul.DepthAudit.run(
        world.full, world.retain, model, ul.load_examples(examples), config=ul.AuditConfig(limit=4)
    )
    assert saved.uds == pytest.approx(direct.uds, abs=1e-6)
    assert f"{saved.uds:.3f}" in printed
    assert str(out) in printed
    low, high = saved.sample_error.interval
    assert f"{low:.3f} - {high:.3f}" in printed and "the interval itself shows how the score would vary" in " ".join(
        printed.split()
    )


def test_several_models_share_a_baseline(examples: Path, tmp_path: Path, uds_lens) -> None:
    world, out = WORLD, tmp_path / "audits"
    code, printed, _ = uds_lens(
        *("audit", "--full", world.full, "--retain", world.retain, "--model", world.retain),
        *("--model", world.full, "--examples", examples, "--out", out, "--device", "cpu", "--json"),
    )
    assert code == 0
    found = json.loads(printed)["audits"]
    assert [audit["uds"] for audit in found] == [1.0, 0.0]
    assert [ul.DepthAudit.load(audit["directory"]).uds for audit in found] == [1.0, 0.0]
    assert pd.read_csv(out / "table.csv")["uds"].tolist() == [1.0, 0.0]
    assert len(ul.Baseline.load(out / "baseline").examples) == 6
    assert sum("memory: the audit needs about" in line for line in uds_lens.doing) == 1


def test_every_option_arrives(calls: list, examples: Path, uds_lens) -> None:
    """Each alone in its record; without options the defaults are those of the library."""
    config = {"tau": 0.2, "scope": "all", "last_layer": "post_norm", "protocol": "chat", "stand_in": "base"}
    config |= {"dtype": "bfloat16", "confidence": 0.9, "n_bootstrap": 500, "seed": 7}
    run = {"device": "cpu", "engine": "naive", "token_budget": 64, "memory_gib": 0.5, "revision": "v2"}
    words = [f"--{name.replace('_', '-')}={value}" for name, value in (config | run).items()]
    words += ["--no-check-memory", "--offline", "--trust-remote-code"]
    run |= {"check_memory": False, "offline": True, "trust_remote_code": True}
    for place, more in enumerate(([], words, ["--site=mlp_out", "--device-map=auto"])):
        out = examples.parent / str(place)
        assert uds_lens("audit", *TRIO, "--examples", examples, "--out", out, *more).code == 0
    plain, changed, others = calls
    assert plain[0][:3] == (str(WORLD.full), str(WORLD.retain), str(WORLD.unlearned["npo"]))
    assert len(plain[0][3]) == 6 and plain[1:] == (ul.AuditConfig(), ul.RunOptions())
    assert changed[1:] == (ul.AuditConfig(**config), ul.RunOptions(**run))
    assert others[1:] == (ul.AuditConfig(site="mlp_out"), ul.RunOptions(device_map="auto"))


def test_control_facts_and_several_retain_models_arrive(calls: list, examples: Path, uds_lens) -> None:
    more = ("--retain", WORLD.half, "--control", WORLD.path / "retain.json")
    assert uds_lens("audit", *TRIO, *more, "--examples", examples, "--out", examples.parent / "o").code == 0
    ((models, _, _),) = calls
    assert models[1] == [str(WORLD.retain), str(WORLD.half)]
    assert models[4] == WORLD.retain_examples


def test_one_audit_does_not_go_among_several(calls: list, examples: Path, make_audit, uds_lens) -> None:
    out = examples.parent / "runs"
    make_audit(0.5).save(out / "rmu")
    code, _, err = uds_lens("audit", *TRIO, "--examples", examples, "--out", out)
    assert code == 1
    assert "holds audits of several models: choose another place, or one in it." in err
    assert calls == []
    assert uds_lens("audit", *TRIO, "--examples", examples, "--out", out / "npo").code == 0


@pytest.mark.parametrize("several", [False, True])
def test_a_directory_with_other_things_is_refused_before_the_work(
    several: bool, calls: list, examples: Path, uds_lens
) -> None:
    occupied = examples.parent
    out = occupied.parent if several else occupied
    more = ("--model", occupied.name) if several else ()
    code, _, err = uds_lens("audit", *TRIO, *more, "--examples", examples, "--out", out)
    assert code == 1
    assert "is not a saved result" in err
    assert calls == []
    assert examples.exists()


# Several models: all are looked at first.


def narrower(place: Path) -> Path:
    """The same checkpoint with another width in its config."""
    config = json.loads((place / "config.json").read_text())
    (place / "config.json").write_text(json.dumps({**config, "hidden_size": 32}))
    return place


def broken(place: Path) -> Path:
    (place / "config.json").write_text("{")
    return place


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda place: "./nowhere", "no directory './nowhere'"),
        (broken, "cannot load the checkpoint in"),
        (narrower, "width (d_model): full"),
    ],
)
def test_later_models_are_looked_at_before_the_work(
    spoil, words: str, examples: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uds_lens
) -> None:
    monkeypatch.setattr(ul.Baseline, "measure", lambda *_, **__: pytest.fail("stage 1 was measured"))
    place = shutil.copytree(WORLD.retain, tmp_path / "spoilt")
    code, _, err = uds_lens(
        *("audit", *SEVERAL, "--model", spoil(place), "--examples", examples, "--out", tmp_path / "o")
    )
    assert code == 1
    assert words in err
    assert err.count("\n") == 1


# What is said.


def test_swapped_models_withhold_the_verdict_and_say_so_by_the_exit_code(
    examples: Path, tmp_path: Path, uds_lens
) -> None:
    code, out, _ = uds_lens(
        *("audit", "--full", WORLD.retain, "--retain", WORLD.full, "--model", WORLD.unlearned["npo"]),
        *("--examples", examples, "--out", tmp_path / "o", "--device", "cpu", "--engine", "wavefront"),
    )
    assert code == 3
    assert "!! FATAL npo: Are full and retain swapped? On 100% of the examples" in " ".join(out.split())


def test_a_foreign_table_is_refused_before_anything_is_measured(
    examples: Path, tmp_path: Path, calls: list, uds_lens
) -> None:
    one, two = list(WORLD.unlearned.values())[:2]
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "table.csv").write_text("my,own,table")
    code, _, err = uds_lens(
        *("audit", "--full", WORLD.full, "--retain", WORLD.retain, "--model", one, "--model", two),
        *("--examples", examples, "--out", tmp_path / "out", "--device", "cpu"),
    )
    assert code == 1 and "table.csv' exists and was not written by uds_lens" in err
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["table.csv"]
    assert (tmp_path / "out" / "table.csv").read_text() == "my,own,table"


def test_what_stands_in_the_place_of_stage_1_is_found_before_it_is_measured(
    examples: Path, tmp_path: Path, uds_lens, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ul.Baseline, "measure", lambda *_, **__: pytest.fail("measured"))
    one, two = list(WORLD.unlearned.values())[:2]
    mine = tmp_path / "out" / "baseline" / "mine.txt"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    code, _, err = uds_lens(
        *("audit", "--full", WORLD.full, "--retain", WORLD.retain, "--model", one, "--model", two),
        *("--examples", examples, "--out", tmp_path / "out", "--device", "cpu"),
    )
    assert code == 1 and "baseline' exists and is not a saved result" in err
    assert mine.read_text() == "mine"


def test_the_first_rows_of_sorted_data_get_no_reading(examples: Path, tmp_path: Path, uds_lens) -> None:
    code, out, _ = uds_lens(
        *("audit", "--full", WORLD.full, "--retain", WORLD.retain, "--model", WORLD.unlearned["npo"]),
        *("--examples", WORLD.path / "forget.json", "--out", tmp_path / "o", "--device", "cpu"),
        *("--engine", "wavefront", "--limit", "8", "--sample", "first"),
    )
    assert code == 3
    printed = " ".join(out.split())
    assert "withheld (!!)" in printed
    assert "!! FATAL npo: Only the first 8 of 48 examples were measured. The data are sorted by subject" in printed


def test_counterfactuals_need_no_retain_model(tmp_path: Path, uds_lens) -> None:
    rows = [row for row in WORLD.examples if row.id.endswith("/birthplace")]
    file = tmp_path / "forget.json"
    cells = ("id", "question", "answer", "prefix", "entity", "subject", "type")
    file.write_text(json.dumps([{name: getattr(row, name) for name in cells} for row in rows]), encoding="utf-8")
    command = ("audit", "--full", WORLD.full, "--model", WORLD.retain, "--examples", file, "--device", "cpu")
    code, printed, _ = uds_lens(
        *command, "--stand-in", "counterfactual", "--counterfactual", "other", "--draws", 1, "--out", tmp_path / "a"
    )
    saved = ul.DepthAudit.load(tmp_path / "a")
    assert code == 0 and f"{saved.uds:.3f}" in printed
    assert saved.provenance["counterfactual"]["from"] == "other" and saved.config.draws == 1
    code, _, complaint = uds_lens(*command, "--out", tmp_path / "b")
    assert code == 2 and "--retain" in complaint
