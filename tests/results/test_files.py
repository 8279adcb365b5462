"""Saved results: bit for bit what they were, or refused with the reason."""

import json
import math
import os
import shutil
import signal
from dataclasses import replace

import pytest
import torch
from results.conftest import made
from safetensors.torch import load_file, save
from synthetic_audits import synthetic_audit
from tiny_models import EXAMPLES

from uds_lens._storage import files, results
from uds_lens._storage.files import sha256_bytes
from uds_lens._storage.records import with_checksum
from uds_lens.audit import Baseline
from uds_lens.audit._resume import write_folder_table
from uds_lens.data import ForgetExample
from uds_lens.errors import ResultFormatError
from uds_lens.results import AuditConfig, DepthAudit, RunOptions
from uds_lens.results._comparing import audit_names
from uds_lens.results._saving import AUDIT, directory_names

FILES = ("manifest.json", "tensors.safetensors", "examples.parquet")


@pytest.fixture(scope="module")
def audit(trio):
    lost = replace(EXAMPLES[0], id="lost", entity="Nobody")
    more = {"paraphrased_question": "Poet?", "paraphrased_answers": ("Yes indeed", "She is")}
    rich = replace(EXAMPLES[1], type=None, subject="Ada 日本 <b>", perturbed_answers=("No",), **more)
    config = AuditConfig(tau=0.07, seed=3, n_bootstrap=200, protocol="raw")
    options = RunOptions(device="cpu", engine="wavefront")
    return DepthAudit.run(*trio("llama"), [EXAMPLES[0], lost, rich, *EXAMPLES[2:]], config=config, options=options)


@pytest.fixture
def saved(audit, tmp_path):
    audit.save(tmp_path / "run")
    return tmp_path / "run"


def bits(tensor):
    return tensor.numpy().tobytes()


def test_an_audit_comes_back_bit_for_bit(audit, saved):
    again = DepthAudit.load(saved)
    for name in (*AUDIT.tensors, "s_retain", "s_unlearned"):
        left, right = getattr(audit, name), getattr(again, name)
        assert (left.dtype, left.shape, bits(left)) == (right.dtype, right.shape, bits(right)), name
    assert (again.config, again.models, again.provenance) == (audit.config, audit.models, audit.provenance)
    assert (again.examples, again.skipped) == (tuple(audit.examples), tuple(audit.skipped))
    assert again.summary() == audit.summary() and again.to_frame().equals(audit.to_frame())
    assert sorted(path.name for path in saved.iterdir()) == sorted(FILES)


def test_an_audit_without_the_models_own_probabilities_is_read(audit, tmp_path):
    older = replace(audit, s_retain=None, s_unlearned=None)
    older.save(tmp_path / "older")
    again = DepthAudit.load(tmp_path / "older")
    assert again.s_unlearned is None and again.uds == audit.uds and math.isnan(again.entity_prob.unlearned)
    assert again.examples_frame()["s_unlearned"].isna().all()
    assert math.isnan(again.output_depth) and math.isnan(again.output_depth_interval.low)
    assert again.output_depth_reason == "the models' own answers were not measured"


def test_odd_numbers_and_an_audit_without_a_scored_example_survive(tmp_path):
    """Rounding noise, infinities, NaN."""
    odd = made([[1e-310, -0.0], [float("inf"), 1 / 3]], [[float("nan"), 5e-324], [0.1, -1e300]])
    odd.save(tmp_path / "odd")
    again = DepthAudit.load(tmp_path / "odd")
    assert (bits(again.s1_delta), bits(again.s2_delta)) == (bits(odd.s1_delta), bits(odd.s2_delta))
    none = torch.empty(0, 3, dtype=torch.float64)
    deltas = [name for name in AUDIT.tensors if name[:2] in ("s1", "s2")]
    made([], [], skipped=2, **dict.fromkeys(deltas, none)).save(tmp_path / "none")
    again = DepthAudit.load(tmp_path / "none")
    assert (again.examples, len(again.skipped), again.s1_delta.shape) == ((), 2, (0, 3))


def test_the_manifest_is_strict_json_with_the_numbers_in_it(audit, saved, tmp_path):
    def refuse(word):
        raise AssertionError(f"{word} is not JSON")

    manifest = json.loads((saved / "manifest.json").read_text(encoding="utf-8"), parse_constant=refuse)
    assert (next(iter(manifest)), manifest["format"], manifest["version"]) == ("format", "uds_lens.DepthAudit", 1)
    assert manifest["summary"]["uds"] == audit.uds and len(manifest["sha256"]) == 64
    provenance = manifest["provenance"]
    assert provenance["first_prompt"].startswith("Question: Who wrote the Ash Ledger?\nAnswer: It was")
    assert provenance["versions"]["torch"] == torch.__version__ and len(provenance["ids_hash"]) == 32
    assert set(manifest["files"]) == set(FILES[1:])
    made([[0.0]], [[0.0]]).save(tmp_path / "nan")
    assert json.loads((tmp_path / "nan" / "manifest.json").read_text())["summary"]["uds"] is None


def test_a_saved_result_may_be_replaced_moved_and_saved_again(audit, saved, tmp_path):
    other = audit.with_tau(0.5)
    (saved / "report.html").write_text("a page")
    audit.save(saved / "nested" / "npo")
    other.save(saved)
    assert DepthAudit.load(saved).config.tau == 0.5
    assert DepthAudit.load(saved / "nested" / "npo").config == audit.config
    assert (saved / "report.html").read_text() == "a page"
    shutil.move(saved, tmp_path / "elsewhere")
    DepthAudit.load(tmp_path / "elsewhere").save(saved)
    assert DepthAudit.load(saved).uds == other.uds


# Refusals.


@pytest.mark.parametrize("name", FILES)
def test_missing_altered_and_truncated_files_are_named(saved, name):
    content = (saved / name).read_bytes()
    changes = [content[: len(content) // 2], content[:-3], b""]
    if name != FILES[0]:  # white space of a manifest means nothing; below
        changes += [bytes([content[0] ^ 1]) + content[1:], content[:-1] + bytes([content[-1] ^ 1])]
    for changed in changes:
        (saved / name).write_bytes(changed)
        with pytest.raises(ResultFormatError, match=r"altered after it was saved|is not a saved result"):
            DepthAudit.load(saved)
    (saved / name).unlink()
    words = "no saved DepthAudit in .*expected a directory with manifest.json" if name == FILES[0] else name
    with pytest.raises(ResultFormatError, match=words):
        DepthAudit.load(saved)


def with_manifest(folder, change):
    """Change the manifest like someone who knows how to seal it again."""
    manifest = json.loads((folder / "manifest.json").read_text())
    del manifest["sha256"]
    changed = change(manifest)
    (folder / "manifest.json").write_bytes(with_checksum(manifest) if changed is None else changed)
    return folder


def several(models):
    """The same models with two retain models."""
    of = dict(models)
    return of | {"retain 1": of.pop("retain"), "retain 2": of["full"]} if "retain" in of else of


SAMPLE = {"limit": 4, "of": 9, "sample": "random", "seed": 0}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda m: m.update(version=6), "has format version 6, but this release reads 1:"),
        (lambda m: m.update(version="1"), "it does not name its format and version"),
        (lambda m: m.update(format="uds_lens.Baseline"), r"holds a uds_lens\.Baseline, expected uds_lens"),
        (lambda m: b"[]", "expected a JSON object"),
        (lambda m: b'{"a": ' * 100_000, "is not a saved result"),
        (lambda m: m.update(files={}), "is not a complete DepthAudit: it lacks examples.parquet"),
        (lambda m: m.pop("files") and None, "is not complete: it lacks 'files'"),
        (lambda m: m.update(note=""), "has an unknown member 'note'"),
        (lambda m: m["models"].pop("unlearned") and None, "is not a complete DepthAudit"),
        (lambda m: m["models"]["full"].update(extra=1), "full has an unknown member 'extra'"),
        (lambda m: m["settings"].update(tau=-1.0), "settings.tau must be greater than or equal to 0"),
        (lambda m: m["settings"].update(exact_noop="False"), "settings.exact_noop must be a valid boolean"),
        (lambda m: m["values"]["skipped"].append({"id": "x"}), r"skipped\[1\] is not complete: it lacks 'row'"),
        (lambda m: m["values"]["skipped"].append(3), r"skipped\[1\] must be an object"),
        (lambda m: m["files"].update({"../x": ""}), "a DepthAudit has no file '../x'"),
        (lambda m: m.update(models=several(m["models"])), "must contain n_tokens, .*retains_s1_cosine"),
        (lambda m: m["values"].update(control={}), "control is not complete: it lacks 'ids_hash'"),
        (lambda m: m["provenance"].update(ids_hash=1), "provenance.ids_hash must be a valid string"),
        (lambda m: m["provenance"].update(versions=["0.1"]), "provenance.versions must be an object"),
        (lambda m: m["provenance"].update(sample={**SAMPLE, "of": "9"}), "provenance.sample.of must be a valid"),
        (lambda m: m["provenance"].update(sample=[1]), "provenance.sample must be an object"),
        (lambda m: m["provenance"].update(stage_2="knowledge"), "provenance.stage_2 must be an object"),
        (lambda m: m["provenance"].update(counterfactual=[3]), "provenance.counterfactual must be an object"),
        (lambda m: m["provenance"].update(stage_2={"layers": "knowledge"}), "stage_2 is not complete: it lacks 'tau'"),
        (lambda m: m["provenance"].update(stage_1=[]), "provenance.stage_1 must be an object"),
        (lambda m: m["provenance"].update(stage_1={"sample": {}}), "stage_1.sample is not complete: it lacks 'limit'"),
    ],
)
def test_a_manifest_that_does_not_fit_is_refused(saved, change, words):
    with_manifest(saved, change)
    with pytest.raises(ResultFormatError, match=words):
        DepthAudit.load(saved)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("s2_delta", lambda tensor: tensor.half()),
        ("n_tokens", lambda tensor: tensor.double()),
        ("s_full", lambda tensor: tensor[:-1].clone()),
        ("s1_cosine", lambda tensor: tensor.T.contiguous()),
    ],
)
def test_tensors_of_another_kind_or_shape_are_refused(saved, name, change):
    """Although every checksum fits."""
    tensors = load_file(saved / "tensors.safetensors")
    content = save({**tensors, name: change(tensors[name])})
    (saved / "tensors.safetensors").write_bytes(content)
    with_manifest(saved, lambda m: m["files"].update({"tensors.safetensors": sha256_bytes(content)}))
    with pytest.raises(ResultFormatError, match=r"must have shape \(.*\) and dtype"):
        DepthAudit.load(saved)


def test_the_checksum_covers_every_value_of_a_manifest(audit, saved):
    manifest = json.loads((saved / "manifest.json").read_text())
    (saved / "manifest.json").write_text(json.dumps(manifest, indent=8))
    assert DepthAudit.load(saved).summary() == audit.summary(), "white space means nothing"
    renamed = {**manifest["models"], "full": {**manifest["models"]["full"], "name": "another"}}
    unsealed = {name: value for name, value in manifest.items() if name != "sha256"}
    for change in ({"summary": {**manifest["summary"], "uds": 0.9}}, {"models": renamed}, {"sha256": None}, unsealed):
        (saved / "manifest.json").write_text(json.dumps(change if change is unsealed else {**manifest, **change}))
        with pytest.raises(ResultFormatError, match="was altered after it was saved: run the measurement again"):
            DepthAudit.load(saved)


def test_other_places_are_no_results_and_a_folder_of_audits_names_one_to_load(tmp_path, saved):
    (tmp_path / "file").write_text("hello")
    (tmp_path / "folder").mkdir()
    for place in ("file", "folder", "nowhere"):
        with pytest.raises(ResultFormatError, match="no saved DepthAudit in"):
            DepthAudit.load(tmp_path / place)
    with pytest.raises(ResultFormatError, match=r"expected uds_lens\.Baseline"):
        Baseline.load(saved)
    runs = tmp_path / "runs" / "forget10"
    shutil.copytree(saved, runs / "npo")
    shutil.copytree(saved, runs / ".npo.part")
    for folder in (runs, runs.parent):
        with pytest.raises(ResultFormatError, match="is a folder of 1 saved audits: load one of them") as error:
            DepthAudit.load(folder)
        assert f"DepthAudit.load({str(runs / 'npo')!r})" in str(error.value)
        assert f"uds-lens report {folder}" in str(error.value)


# Writing.


def test_saving_never_replaces_foreign_files(audit, tmp_path):
    manifests = {"thesis": None, "web": '{"name": "app"}', "other": '{"format": "other", "version": 1}'}
    for name, text in manifests.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "chapter.tex").write_text("years of work")
        if text is not None:
            (tmp_path / name / "manifest.json").write_text(text)
    (tmp_path / "file").write_text("hello")
    for place in (*manifests, "file"):
        with pytest.raises(ResultFormatError, match="exists and is not a saved result"):
            audit.save(tmp_path / place)
    assert all((tmp_path / name / "chapter.tex").read_text() == "years of work" for name in manifests)
    assert (tmp_path / "file").read_text() == "hello"
    (tmp_path / "empty").mkdir()
    audit.save(tmp_path / "empty")
    assert DepthAudit.load(tmp_path / "empty").uds == audit.uds


def test_texts_of_any_kind_survive(tmp_path, monkeypatch):
    strange = 'quote " newline \n tab \t null-ish \\u0000 emoji 🎉 日本'
    audit = made([[1.0]], [[0.5]], names={"unlearned": strange})
    texts = dict.fromkeys(("id", "question", "answer", "entity"), strange)
    example = ForgetExample(**texts, perturbed_answers=(strange, ""))
    monkeypatch.setenv("HOME", str(tmp_path))
    replace(audit, examples=(example,)).save("~/odd name ü")
    again = DepthAudit.load(os.fspath(tmp_path / "odd name ü"))
    assert again.examples == (example,) and again.models["unlearned"].name == strange


def test_names_that_are_no_utf8_are_saved(tmp_path):
    odd = os.fsdecode(b"models/caf\xe9")
    audit = made([[1.0]], [[0.5]], names={"unlearned": odd})
    audit.save(tmp_path / "run")
    again = DepthAudit.load(tmp_path / "run")
    assert again.models["unlearned"].name == audit.models["unlearned"].name == "models/caf\\udce9"
    assert write_folder_table(tmp_path, {audit_names([again])[0]: again}).read_text().count("caf\\udce9") == 1
    assert again.plot_ranking([]).data
    assert directory_names([odd]) == ["caf\\udce9"]


# Readers and writers at the same time.


def versions():
    """Two audits of one place, each with a name that tells its score."""
    return [made([[1.0]], [[uds]], names={"unlearned": str(uds)}) for uds in (0.25, 0.75)]


def of_one_version(audit):
    return str(audit.uds) == audit.models["unlearned"].name


@pytest.mark.parametrize("after", [1, 2, 3])
def test_another_version_is_saved_between_two_reads(tmp_path, monkeypatch, after):
    """After the manifest, the tensors, the examples: what is parsed is what was hashed, all of one version."""
    one, two = versions()
    one.save(tmp_path / "run")
    read, reads = results.read_file, []

    def then_replaced(path, **bounds):
        content = read(path, **bounds)
        reads.append(path.name)
        if len(reads) == after:
            two.save(tmp_path / "run")
        return content

    monkeypatch.setattr(results, "read_file", then_replaced)
    assert of_one_version(DepthAudit.load(tmp_path / "run"))
    assert set(reads) == set(FILES)


@pytest.mark.parametrize("during", FILES)
def test_a_result_is_moved_away_for_a_moment_while_it_is_read(tmp_path, monkeypatch, during):
    """Another save has renamed the directory: the reader puts it back, and finds the version that it began with."""
    one, _ = versions()
    one.save(tmp_path / "run")
    read, moved = results.read_file, []

    def moved_away(path, **bounds):
        if path.name == during and not moved:
            place, lock = files._held(tmp_path / "run")
            os.rename(tmp_path / "run", place / "old00")
            moved.append(lock)
            lock.release()
        return read(path, **bounds)

    monkeypatch.setattr(results, "read_file", moved_away)
    assert DepthAudit.load(tmp_path / "run").models["unlearned"].name == one.models["unlearned"].name
    assert len(moved) == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="another process")
def test_loading_while_another_process_saves_gives_one_version_or_the_other(tmp_path):
    one, two = versions()
    one.save(tmp_path / "run")
    child = os.fork()
    if not child:
        while True:
            two.save(tmp_path / "run")
            one.save(tmp_path / "run")
    try:
        loaded = [DepthAudit.load(tmp_path / "run") for _ in range(100)]
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert all(map(of_one_version, loaded))


def test_the_golden_score():
    # To rounding: normal numbers are drawn with the logarithm and cosine of the machine.
    assert synthetic_audit(n=3, layers=2).uds == pytest.approx(0.5687505928799304, rel=1e-12)
