"""`uds-lens audit`: what it saves and prints, that every option arrives, and what it refuses."""

import json
import shutil
from pathlib import Path

import pytest
from tiny_models import with_config

import uds_lens as ul

WORLD = ul.toy.load()
NPO = WORLD.unlearned["npo"]
TRIO = ("--full", WORLD.full, "--retain", WORLD.retain, "--model", NPO)
CELLS = ("id", "question", "answer", "prefix", "entity", "subject", "type")


def written(file: Path, examples: list[ul.data.ForgetExample]) -> Path:
    rows = [{name: getattr(example, name) for name in CELLS} for example in examples]
    file.write_text(json.dumps(rows), encoding="utf-8")
    return file


@pytest.fixture
def examples(tmp_path: Path) -> Path:
    """Six facts of the toy world as a file."""
    return written(tmp_path / "forget.json", WORLD.examples[:6])


@pytest.fixture
def audit(examples: Path, tmp_path: Path, uds_lens):
    """`audit(*words)` audits the six facts into `out`; it returns the code, the text as one line, and the errors."""

    def run(*words: object, models: tuple = TRIO, out: Path = tmp_path / "out"):
        code, printed, err = uds_lens(
            "audit", *models, "--examples", examples, "--out", out, "--device", "cpu", "--engine", "wavefront", *words
        )
        return code, " ".join(printed.split()), err

    return run


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch, make_audit) -> list[tuple]:
    """Replaces the measurement by one that notes what it was asked for."""
    noted = []

    def run(*models, control=None, config, options):
        noted.append((models if control is None else (*models, control), config, options))
        return make_audit(0.5)

    monkeypatch.setattr(ul.DepthAudit, "run", run)
    return noted


@pytest.fixture
def unmeasured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ul.Baseline, "measure", lambda *_, **__: pytest.fail("stage 1 was measured"))


def test_one_model_is_saved_in_out(audit, examples: Path, tmp_path: Path) -> None:
    code, printed, _ = audit("--limit", 4)
    assert code == 0
    saved = ul.DepthAudit.load(tmp_path / "out")
    assert len(saved.examples) == 4
    direct = ul.DepthAudit.run(*TRIO[1::2], ul.load_examples(examples), config=ul.AuditConfig(limit=4))
    assert saved.uds == pytest.approx(direct.uds, abs=1e-6)
    low, high = saved.sample_error.interval
    for words in (f"{saved.uds:.3f}", f"{low:.3f} to {high:.3f}", "the interval shows how much the score would vary"):
        assert words in printed
    assert str(tmp_path / "out") in printed.replace(" ", "")


def test_precision_finds_the_limit(audit, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked = []

    def limit_for(*models, **given):
        asked.append((models, given["precision"]))
        return 4

    monkeypatch.setattr(ul.audit, "limit_for", limit_for)
    assert audit("--precision", 0.25)[0] == 0
    assert ul.DepthAudit.load(tmp_path / "out").config.limit == 4
    ((models, precision),) = asked
    assert models[2] == str(NPO) and precision == 0.25
    code, _, err = audit("--precision", 0.25, "--limit", 4)
    assert code == 1 and "leave out --limit" in err


def test_every_option_arrives(calls: list, examples: Path, uds_lens) -> None:
    """Each alone in its record; without options the defaults are those of the library."""
    config = {"tau": 0.2, "scope": "all", "last_layer": "post_norm", "protocol": "chat", "stand_in": "base"}
    config |= {"dtype": "bfloat16", "confidence": 0.9, "n_bootstrap": 500, "seed": 7}
    run = {"device": "cpu", "engine": "naive", "token_budget": 64, "memory_gib": 0.5, "revision": "v2"}
    words = [f"--{name.replace('_', '-')}={value}" for name, value in (config | run).items()]
    words += ["--no-check-memory", "--offline", "--trust-remote-code"]
    run |= {"check_memory": False, "offline": True, "trust_remote_code": True}
    other = ["--site=mlp_out", "--device-map=auto", "--retain", WORLD.half, "--control", WORLD.path / "retain.json"]
    for place, more in enumerate(([], words, other)):
        out = examples.parent / str(place)
        assert uds_lens("audit", *TRIO, "--examples", examples, "--out", out, *more).code == 0
    plain, changed, others = calls
    assert plain[0][:3] == (str(WORLD.full), str(WORLD.retain), str(NPO))
    assert len(plain[0][3]) == 6 and plain[1:] == (ul.AuditConfig(), ul.RunOptions())
    assert changed[1:] == (ul.AuditConfig(**config), ul.RunOptions(**run))
    assert others[1:] == (ul.AuditConfig(site="mlp_out"), ul.RunOptions(device_map="auto"))
    assert others[0][1] == [str(WORLD.retain), str(WORLD.half)] and others[0][4] == WORLD.retain_examples


def test_one_audit_does_not_go_among_several(calls: list, audit, tmp_path: Path, make_audit) -> None:
    make_audit(0.5).save(tmp_path / "out" / "rmu")
    code, _, err = audit()
    assert code == 1 and calls == []
    assert "contains audits of several models: choose another directory, or a subdirectory of it." in err
    assert audit(out=tmp_path / "out" / "npo")[0] == 0


# Several models: all are looked at first. tests/cli/test_places.py has what stands in the place of one.


@pytest.mark.parametrize(
    ("mine", "words"),
    [
        ("npo/mine.txt", "npo' exists and is not a saved result"),
        ("baseline/mine.txt", "baseline' exists and is not a saved result"),
        ("table.csv", "table.csv' exists and was not written by uds_lens"),
    ],
)
def test_what_stands_in_a_place_is_seen_before_the_work(
    mine: str, words: str, audit, tmp_path: Path, unmeasured
) -> None:
    file = tmp_path / "out" / mine
    file.parent.mkdir(parents=True)
    file.write_text("my,own")
    code, _, err = audit("--model", WORLD.retain)
    assert code == 1 and words in err
    assert [path for path in (tmp_path / "out").rglob("*") if path.is_file()] == [file]
    assert file.read_text() == "my,own"


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (None, "no directory './nowhere'"),
        (lambda place: (place / "config.json").write_text("{"), "cannot load the checkpoint in"),
        (lambda place: with_config(place, hidden_size=32), "width (d_model): full"),
    ],
)
def test_later_models_are_looked_at_before_the_work(spoil, words: str, audit, tmp_path: Path, unmeasured) -> None:
    place = shutil.copytree(WORLD.retain, tmp_path / "spoilt")
    if spoil:
        spoil(place)
    code, _, err = audit("--model", place if spoil else "./nowhere")
    assert code == 1 and words in err and err.count("\n") == 1


@pytest.mark.parametrize(
    ("models", "words", "verdict", "told"),
    [
        (
            ("--full", WORLD.retain, "--retain", WORLD.full, "--model", NPO),
            (),
            "withheld (!!)",
            "Are full and retain swapped? On 100% of the examples",
        ),
        (
            TRIO,
            ("--examples", WORLD.path / "forget.json", "--limit", 8, "--sample", "first"),
            "withheld (!!)",
            "Only the first 8 of 48 examples were measured. The data are sorted by subject",
        ),
    ],
    ids=["swapped", "sorted"],
)
def test_a_fatal_warning_is_said_and_is_the_exit_code(models, words, verdict: str, told: str, audit) -> None:
    code, printed, _ = audit(*words, models=models)
    assert code == 3
    assert verdict in printed and f"!! FATAL npo: {told}" in printed


def test_counterfactuals_need_no_retain_model(tmp_path: Path, uds_lens) -> None:
    file = written(tmp_path / "forget.json", [row for row in WORLD.examples if row.id.endswith("/birthplace")])
    command = ("audit", "--full", WORLD.full, "--model", WORLD.retain, "--examples", file, "--device", "cpu")
    code, printed, _ = uds_lens(
        *command, "--stand-in", "counterfactual", "--counterfactual", "other", "--draws", 1, "--out", tmp_path / "a"
    )
    saved = ul.DepthAudit.load(tmp_path / "a")
    assert code == 0 and f"{saved.uds:.3f}" in printed
    assert saved.provenance["counterfactual"]["from"] == "other" and saved.config.draws == 1
    code, _, complaint = uds_lens(*command, "--out", tmp_path / "b")
    assert code == 2 and "--retain" in complaint


@pytest.mark.long
def test_the_baseline_of_a_folder_keeps_what_transplants_of_later_models_need(audit, tmp_path, monkeypatch):
    from uds_lens.transplants import _measuring

    hosts, run_host = [], _measuring.run_host
    monkeypatch.setattr(
        _measuring, "run_host", lambda *a, what, **more: (hosts.append(what), run_host(*a, what=what, **more))[1]
    )
    pair, words = ("--full", WORLD.full, "--retain", WORLD.retain), ("--transplant", "--n-bootstrap", 100)
    models = [("--model", WORLD.unlearned[name]) for name in ("npo", "rmu", "idkdpo")]
    assert audit(*words, models=(*pair, *models[0], *models[1]))[0] == 0
    assert len(hosts) == 6
    assert ul.Baseline.load(tmp_path / "out" / "baseline").exchanged is not None
    hosts.clear()
    assert audit(*words, models=(*pair, *models[1], *models[2]))[0] == 0
    assert hosts == ["unlearned with blocks of retain", "unlearned with blocks of full"]


@pytest.mark.long
def test_transplants_are_saved_printed_kept_and_on_the_report(audit, uds_lens, tmp_path, monkeypatch):
    words = ("--examples", written(tmp_path / "all.json", WORLD.examples[::6]), "--n-bootstrap", 100)
    code, text, _ = audit("--transplant", *words)
    assert code == 0
    assert "With blocks of other models" in text
    saved = ul.Transplant.load(tmp_path / "out" / "transplant")
    assert f"{saved.host_depth:.3f}" in text
    assert saved.belongs_to(ul.DepthAudit.load(tmp_path / "out"))
    judged = saved.beside(ul.DepthAudit.load(tmp_path / "out"))
    assert judged.verdict.word == "hidden"
    assert "hidden" in text.partition("With blocks of other models")[0]
    assert ul.meta.read_audits(tmp_path / "out").frame["hidden"].tolist() == [saved.hidden]
    monkeypatch.setattr("uds_lens.transplants._measuring.run_host", lambda *_, **__: pytest.fail("measured again"))
    code, again, _ = audit("--transplant", *words, "--json")
    assert code == 0
    row = json.loads(again)["audits"][0]
    assert row["transplant"]["host_depth"] == row["host_depth"] == pytest.approx(saved.host_depth)
    assert (row["reading"], row["reason"]) == ("hidden", judged.verdict.why)
    code, _, _ = uds_lens("report", tmp_path / "out", "--out", tmp_path / "report.html")
    assert code == 0
    page = (tmp_path / "report.html").read_text("utf-8")
    assert "Blocks of other models" in page
    assert '<b class="reading">Hidden' in page
    assert f">{saved.hidden:.3f}</td>" in page
