"""The conformance kit in `integrations`: the engine's numbers, and each mutant named by the check, with no library."""

import csv
import importlib.util
import json
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from transformers import AutoTokenizer

import uds_lens as ul

KIT = Path(__file__).parents[1] / "integrations" / "conformance"

_spec = importlib.util.spec_from_file_location("conformance_check", KIT / "check.py")
check = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(check)


def lines(file):
    return [json.loads(line) for line in file.read_text("utf-8").splitlines()]


@pytest.fixture(scope="module")
def layers():
    """S1 and S2 by convention, example and layer."""
    found = {}
    for record in [*lines(KIT / "expected.jsonl"), *lines(KIT / "conventions.jsonl")]:
        of_example = found.setdefault(record["convention"], {}).setdefault(record["id"], [])
        of_example.append((record["s1_delta"], record["s2_delta"]))
    return found


def test_the_kit_holds_what_the_engine_measures(layers):
    examples = [
        ul.ForgetExample(**{k: r[k] for k in ("id", "question", "answer", "prefix", "entity")})
        for r in lines(KIT / "examples.jsonl")
    ]
    places = json.loads((KIT / "kit.json").read_text("utf-8"))["models"]
    roles = [KIT.parents[1] / places[role] for role in ("full", "retain", "unlearned")]
    scores = lines(KIT / "scores.jsonl")
    for convention in ("resid_post", "post_norm"):
        config = ul.AuditConfig(protocol="raw", last_layer=convention)
        audit = ul.DepthAudit.run(*roles, examples, config=config)
        for which, deltas in enumerate((audit.s1_delta, audit.s2_delta)):
            own = [[pair[which] for pair in layers[convention][example.id]] for example in examples]
            assert abs(deltas - deltas.new_tensor(own)).max() < 1e-5
        told = {each["id"]: each["uds"] for each in scores if each["convention"] == convention}
        assert told["mean"] == pytest.approx(audit.uds, abs=1e-5)
        assert sum(value is None for value in told.values()) == audit.n_not_measurable == 2
        own = [list(row.ids) for row in ul.data.encode(examples, _tokenizer(roles[0]), protocol="raw").rows]
        assert all(
            row["input_ids"][: len(ids)] == ids for row, ids in zip(lines(KIT / "examples.jsonl"), own, strict=True)
        )


def _tokenizer(place):
    return AutoTokenizer.from_pretrained(place)


def theirs(path, layers, *, rule=None, undefined="", mean=None, first=None):
    """The table of another implementation."""
    rule = rule or (lambda values: check.score(values, 0.05))
    names = list(layers)[:first]
    scores = {name: rule(layers[name]) for name in names}
    known = [value for value in scores.values() if value == value]
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["id", "layer", "s1_delta", "s2_delta", "uds"])
        for name in names:
            for layer, (s1, s2) in enumerate(layers[name]):
                table.writerow([name, layer, s1, s2, scores[name] if scores[name] == scores[name] else undefined])
        table.writerow(["mean", "", "", "", sum(known) / (mean or len(known))])
    return path


MUTANTS = {
    "post-norm last layer": {"convention": "post_norm"},
    "off-by-one positions: the states were patched one token late": {"convention": "late"},
    "off-by-one positions: the states were patched one token early": {"convention": "early"},
    "leading space": {"convention": "no_space"},
    "whole answer for the entity: all tokens of the answer": {"convention": "answer"},
    "whole answer for the entity: all tokens behind the prefix": {"convention": "continuation"},
    "first-N sample: the first 5 of 8 examples": {"first": 5},
    "no clip: ": {"rule": lambda values: check.score(values, 0.05, clip=False)},
    "unweighted mean: ": {"rule": lambda values: check.score(values, 0.05, weighted=False)},
    "no clip and unweighted mean": {"rule": lambda values: check.score(values, 0.05, clip=False, weighted=False)},
    "undefined as 0: example ": {"undefined": 0.0},
    "undefined as 0: the mean counts": {"mean": 8},
}


@pytest.mark.parametrize("words", MUTANTS)
def test_each_mutant_is_named(words, layers, tmp_path):
    given = dict(MUTANTS[words])
    table = theirs(tmp_path / "t.csv", layers[given.pop("convention", "resid_post")], **given)
    found = check.check(KIT, table)
    named = [each for each in MUTANTS if any(each in finding for finding in found.findings)]
    assert named == [words], found.findings
    assert found.conforms == (words == "post-norm last layer")
    assert words.split(":")[0] in ("no clip and unweighted mean", "undefined as 0", "first-N sample") or any(
        finding.startswith("first ") for finding in found.findings
    )


def test_an_implementation_that_is_right_conforms_and_what_the_model_does_not_have_does_not(layers, tmp_path):
    rounded = {name: [(round(a, 4), round(b, 4)) for a, b in own] for name, own in layers["resid_post"].items()}
    assert check.check(KIT, theirs(tmp_path / "t.csv", rounded)) == (True, ())
    noisy = {name: [(a + 0.01, b) for a, b in own] for name, own in layers["resid_post"].items()}
    found = check.check(KIT, theirs(tmp_path / "t.csv", noisy))
    assert not found.conforms and "No known convention explains it" in found.findings[0]
    more = {name: [*own, (5.0, 5.0)] for name, own in layers["resid_post"].items()}
    found = check.check(KIT, theirs(tmp_path / "t.csv", more))
    assert not found.conforms and "has a layer 8, which the model does not have" in found.findings[0]
    found = check.check(KIT, theirs(tmp_path / "t.csv", layers["resid_post"], undefined=1.0))
    assert not found.conforms and "and 1.000000 is written" in found.findings[0]


def test_the_folder_alone_is_enough(layers, tmp_path):
    """`check.py` runs where this library is not installed, and says the same."""
    alone = shutil.copytree(KIT, tmp_path / "kit")
    for convention, code, last in (("resid_post", 0, "conforms"), ("late", 1, "does not conform")):
        table = theirs(tmp_path / "mine.csv", layers[convention])
        words = [sys.executable, "-I", "-S", alone / "check.py", table]
        done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=tmp_path)
        assert (done.returncode, done.stdout.splitlines()[-1], done.stderr) == (code, last, "")
    (tmp_path / "mine.csv").write_text("id,layer\n1,2\n")
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 1 and "expected numbers in the columns id, layer" in done.stderr
    template = (KIT / "template.csv").read_text().splitlines()
    assert len(template) == 8 * 8 + 2 and template[0] == "id,layer,s1_delta,s2_delta,uds"
    named = [name for name in MUTANTS if name.partition(":")[0] in (KIT / "README.md").read_text("utf-8")]
    assert len({name.partition(":")[0] for name in named}) >= 8


@pytest.mark.parametrize(
    "content", ["", "id,layer,s1_delta,s2_delta\n1,x,1,1\n", "a,b\n", "id,layer,s1_delta,s2_delta\n1,0,1,1\n1,0,1,1\n"]
)
def test_a_table_that_is_none(tmp_path, content):
    (tmp_path / "t.csv").write_text(content)
    with pytest.raises(ValueError, match="expected"):
        check.check(KIT, tmp_path / "t.csv")


def test_the_data_are_those_that_the_exporter_writes(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(KIT))
    runpy.run_path(str(KIT / "export.py"))["export"](tmp_path)
    for file in sorted(tmp_path.iterdir()):
        if file.name in ("expected.jsonl", "conventions.jsonl", "scores.jsonl"):
            again, there = lines(file), lines(KIT / file.name)
            assert len(again) == len(there)
            for one, other in zip(again, there, strict=True):
                assert one == pytest.approx(other, abs=1e-5)
        else:
            assert file.read_text("utf-8") == (KIT / file.name).read_text("utf-8")
