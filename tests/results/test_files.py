"""Saved results: bit for bit what they were, or refused with the reason."""

import json
import os
import shutil
import signal
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save
from synthetic_audits import synthetic_audit
from tiny_models import EXAMPLES

from results.made import made
from uds_lens._storage import files as atomic
from uds_lens._storage import sealed, sha256_bytes
from uds_lens.audit import Baseline
from uds_lens.audit._resume import write_folder_table
from uds_lens.data import ForgetExample
from uds_lens.errors import ResultFormatError, StorageError
from uds_lens.metrics import MetricResults
from uds_lens.results import (
    AuditConfig,
    DepthAudit,
    RunOptions,
    audit_names,
)
from uds_lens.results import (
    _saving as audit_files,
)
from uds_lens.results._saving import AUDIT, directory_names

CPU = RunOptions(device="cpu", engine="wavefront")
FILES = ("manifest.json", "tensors.safetensors", "examples.parquet")


@pytest.fixture(scope="module")
def audit(trio):
    lost = replace(EXAMPLES[0], id="lost", entity="Nobody")
    rich = replace(
        EXAMPLES[1],
        type=None,
        subject="Ada 日本 <b>",
        paraphrased_question="Poet?",
        paraphrased_answers=("Yes indeed", "She is"),
        perturbed_answers=("No",),
    )
    return DepthAudit.run(
        *trio("llama"),
        [EXAMPLES[0], lost, rich, *EXAMPLES[2:]],
        config=AuditConfig(tau=0.07, seed=3),
        options=CPU,
    )


@pytest.fixture
def saved(audit, tmp_path):
    audit.save(tmp_path / "run")
    return tmp_path / "run"


def bits(tensor):
    return tensor.numpy().tobytes()


def test_an_audit_comes_back_bit_for_bit(audit, saved):
    again = DepthAudit.load(saved)
    for name in AUDIT.tensors:
        left, right = getattr(audit, name), getattr(again, name)
        assert (left.dtype, left.shape, bits(left)) == (right.dtype, right.shape, bits(right)), name
    assert again.config == audit.config
    assert again.models == audit.models
    assert again.examples == tuple(audit.examples)
    assert again.skipped == tuple(audit.skipped)
    assert again.provenance == audit.provenance
    assert again.summary() == audit.summary()
    assert again.to_frame().equals(audit.to_frame())
    assert sorted(path.name for path in saved.iterdir()) == sorted(FILES)


def test_rounding_noise_infinities_and_nan_survive(tmp_path):
    odd = made([[1e-310, -0.0], [float("inf"), 1 / 3]], [[float("nan"), 5e-324], [0.1, -1e300]])
    odd.save(tmp_path / "odd")
    again = DepthAudit.load(tmp_path / "odd")
    assert bits(again.s1_delta) == bits(odd.s1_delta)
    assert bits(again.s2_delta) == bits(odd.s2_delta)


def test_an_audit_without_a_scored_example_survives(tmp_path):
    none = torch.empty(0, 3, dtype=torch.float64)
    names = ("s1_delta", "s2_delta", "s1_cosine", "s2_cosine", "s1_norm_ratio", "s2_norm_ratio")
    made([], [], skipped=2, **dict.fromkeys(names, none)).save(tmp_path / "none")
    again = DepthAudit.load(tmp_path / "none")
    assert (again.examples, len(again.skipped), again.s1_delta.shape) == ((), 2, (0, 3))


def test_the_manifest_is_strict_json_with_the_numbers_in_it(audit, saved):
    def refuse(word):
        raise AssertionError(f"{word} is no JSON")

    manifest = json.loads((saved / "manifest.json").read_text(encoding="utf-8"), parse_constant=refuse)
    assert manifest["format"] == "uds_lens.DepthAudit"
    assert manifest["version"] == 2
    assert next(iter(manifest)) == "format" and len(manifest["sha256"]) == 64
    assert manifest["summary"]["uds"] == audit.uds
    assert manifest["provenance"]["first_prompt"].startswith(
        "Question: Who wrote the Ash Ledger?\nAnswer: It was"
    )
    assert manifest["provenance"]["versions"]["torch"] == torch.__version__
    assert len(manifest["provenance"]["ids_hash"]) == 32
    assert set(manifest["files"]) == set(FILES[1:])


def test_a_score_that_is_nan_is_null_in_the_manifest(tmp_path):
    made([[0.0]], [[0.0]]).save(tmp_path / "nan")
    assert json.loads((tmp_path / "nan" / "manifest.json").read_text())["summary"]["uds"] is None


def test_a_saved_result_may_be_replaced_moved_and_saved_again(audit, saved, tmp_path):
    other = audit.with_tau(0.5)
    other.save(saved)
    assert DepthAudit.load(saved).config.tau == 0.5
    shutil.move(saved, tmp_path / "elsewhere")
    DepthAudit.load(tmp_path / "elsewhere").save(saved)
    assert DepthAudit.load(saved).uds == other.uds


# What does not load.


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_named(saved, name):
    (saved / name).unlink()
    words = "no saved DepthAudit in .*expected a directory with manifest.json" if name == FILES[0] else name
    with pytest.raises(ResultFormatError, match=words):
        DepthAudit.load(saved)


@pytest.mark.parametrize("name", FILES[1:])
@pytest.mark.parametrize("place", [0, 100, -1])
def test_an_altered_file_is_named(saved, name, place):
    content = bytearray((saved / name).read_bytes())
    content[place] ^= 1
    (saved / name).write_bytes(content)
    with pytest.raises(ResultFormatError, match=f"{name}' was altered after it was saved: measure again"):
        DepthAudit.load(saved)


@pytest.mark.parametrize("name", FILES)
def test_a_truncated_file_is_refused(saved, name):
    content = (saved / name).read_bytes()
    for length in (0, 1, len(content) // 2, len(content) - 3):
        (saved / name).write_bytes(content[:length])
        with pytest.raises(ResultFormatError):
            DepthAudit.load(saved)


def with_manifest(folder, change):
    """Change the manifest as somebody does who knows how to seal it again."""
    manifest = json.loads((folder / "manifest.json").read_text())
    del manifest["sha256"]
    changed = change(manifest)
    (folder / "manifest.json").write_bytes(sealed(manifest) if changed is None else changed)
    return folder


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda m: m.update(version=4),
            "has format version 4, this release reads 1, 2 and 3: use the release that wrote it",
        ),
        (lambda m: m.update(version="1"), "it names no format and version"),
        (
            lambda m: m.update(format="uds_lens.Baseline"),
            r"holds a uds_lens\.Baseline, expected uds_lens\.DepthAudit",
        ),
        (lambda m: m.update(format="other"), "holds a other"),
        (lambda m: m.pop("format") and None, "it names no format and version"),
        (lambda m: b"[]", "expected a JSON object"),
        (lambda m: b'{"a": ' * 100_000, "is no saved result"),
        (lambda m: b'{"format": "x", "format": "x"}', "the name 'format' occurs twice in one object"),
        (lambda m: b'{"format": NaN}', "NaN is no JSON"),
        (lambda m: b"\xff", "is no saved result"),
        (lambda m: m.update(files={}), "tensors.safetensors' was altered"),
        (lambda m: m.pop("files") and None, "is not a complete DepthAudit: see 'files'"),
        (lambda m: m["files"].pop("tensors.safetensors") and None, "tensors.safetensors' was altered"),
        (lambda m: m.update(note=""), "is not a complete DepthAudit: see 'note'"),
        (lambda m: m.pop("models") and None, "is not a complete DepthAudit"),
        (lambda m: m["models"].pop("unlearned") and None, "is not a complete DepthAudit"),
        (
            lambda m: m["models"]["full"].update(extra=1),
            "models.full has an unknown member 'extra'",
        ),
        (lambda m: m["models"]["full"].update(n_layers=2.0), "models.full.n_layers must be a valid integer"),
        (lambda m: m["config"].update(colour="red"), "config has an unknown member 'colour'"),
        (lambda m: m["config"].update(tau=-1.0), "config.tau must be greater than or equal to 0"),
        (lambda m: m["config"].update(exact_noop="False"), "config.exact_noop must be a valid boolean"),
        (lambda m: m["skipped"].append({"id": "x"}), r"skipped\[1\] is not complete: it lacks 'row'"),
        (lambda m: m["skipped"].append(3), r"skipped\[1\] must be an object"),
        (lambda m: m.update(retains={}), "is not a complete DepthAudit: see 'retains'"),
        (lambda m: m.update(retains=[1]), "must hold n_tokens, .*retains_s1_cosine"),
        (lambda m: m.update(control={}), r"control\.parquet"),
        (
            lambda m: m["provenance"].update(ids_hash=1),
            "ids_hash, engine and first_prompt of its provenance must be",
        ),
        (lambda m: m["provenance"].update(versions=["0.1"]), "of its provenance must be texts"),
        (
            lambda m: m["provenance"].update(more=nested(40)),
            "its provenance is nested more than 12 levels deep",
        ),
    ],
)
def test_a_manifest_that_does_not_fit_is_refused(saved, change, words):
    with_manifest(saved, change)
    with pytest.raises(ResultFormatError, match=words):
        DepthAudit.load(saved)


@pytest.mark.parametrize(
    "change",
    [
        lambda tensors: {"s2_delta": tensors["s2_delta"].half()},
        lambda tensors: {"s1_delta": tensors["s1_delta"].long()},
        lambda tensors: {"n_tokens": tensors["n_tokens"].double()},
        lambda tensors: {"s_full": tensors["s_full"][:-1].clone()},
        lambda tensors: {"s1_cosine": tensors["s1_cosine"].T.contiguous()},
        lambda tensors: {"s2_norm_ratio": tensors["s2_norm_ratio"].unsqueeze(-1)},
    ],
)
def test_tensors_of_another_kind_or_shape_are_refused(saved, change):
    """Though every sum fits."""
    tensors = load_file(saved / "tensors.safetensors")
    content = save({**tensors, **change(tensors)})
    (saved / "tensors.safetensors").write_bytes(content)
    with_manifest(saved, lambda m: m["files"].update({"tensors.safetensors": sha256_bytes(content)}))
    with pytest.raises(ResultFormatError, match=r"must have shape \(.*\) and dtype"):
        DepthAudit.load(saved)


def nested(depth):
    return {"a": nested(depth - 1)} if depth else None


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m["summary"].update(uds=0.9),
        lambda m: m["config"].update(tau=0.08),
        lambda m: m["models"]["full"].update(name="another"),
        lambda m: m["provenance"].update(command="another"),
        lambda m: m.pop("sha256"),
        lambda m: m.update(version=1),
        lambda m: m.update(sha256=None),
    ],
)
def test_a_manifest_vouches_for_every_value_in_it(saved, change):
    manifest = json.loads((saved / "manifest.json").read_text())
    change(manifest)
    (saved / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ResultFormatError, match="was altered after it was saved: measure again"):
        DepthAudit.load(saved)


def test_white_space_in_a_manifest_means_nothing(audit, saved):
    text = (saved / "manifest.json").read_text()
    (saved / "manifest.json").write_text(json.dumps(json.loads(text), indent=8))
    assert DepthAudit.load(saved).summary() == audit.summary()


def test_other_places_are_no_results(tmp_path, saved):
    (tmp_path / "file").write_text("hello")
    (tmp_path / "folder").mkdir()
    for place in ("file", "folder", "nowhere"):
        with pytest.raises(ResultFormatError, match="no saved DepthAudit in"):
            DepthAudit.load(tmp_path / place)
    with pytest.raises(ResultFormatError, match=r"expected uds_lens\.Baseline"):
        Baseline.load(saved)


def test_a_folder_of_audits_names_one_to_load(tmp_path, saved):
    runs = tmp_path / "runs" / "forget10"
    runs.mkdir(parents=True)
    shutil.copytree(saved, runs / "npo")
    shutil.copytree(saved, runs / ".npo.part")
    for folder in (runs, runs.parent):
        with pytest.raises(
            ResultFormatError, match=r"but holds 1: load one of them, for example DepthAudit\.load"
        ) as told:
            DepthAudit.load(folder)
        assert repr(str(runs / "npo")) in str(told.value) and f"uds-lens report {folder}" in str(told.value)
    with pytest.raises(ResultFormatError, match=r"expected a directory with manifest.json"):
        DepthAudit.load(runs.parent.parent / "nowhere")


def test_saving_never_replaces_what_is_no_result(audit, tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("years of work")
    (tmp_path / "file").write_text("hello")
    for place in ("thesis", "file"):
        with pytest.raises(
            ResultFormatError, match="exists and is no saved result: choose another directory"
        ):
            audit.save(tmp_path / place)
    assert (tmp_path / "thesis" / "chapter.tex").read_text() == "years of work"
    assert (tmp_path / "file").read_text() == "hello"
    (tmp_path / "empty").mkdir()
    audit.save(tmp_path / "empty")
    assert DepthAudit.load(tmp_path / "empty").uds == audit.uds


def test_a_failure_while_saving_leaves_the_old_result(audit, saved, monkeypatch):
    def full_disk(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("uds_lens._storage.files._write", full_disk)
    with pytest.raises(StorageError, match=r"cannot write .*run': No space left on device\. What was there"):
        audit.with_tau(9.0).save(saved)
    assert DepthAudit.load(saved).config == audit.config
    assert [path.name for path in saved.parent.iterdir()] == ["run"]


def dies_half_way(audit, target, step):
    """A process that saves, and ends in the middle of a file."""
    child = os.fork()
    if not child:
        write = atomic._write

        def half(file, content):
            if file.name.startswith(step):
                file.write_bytes(content[: len(content) // 2])
                os._exit(9)
            write(file, content)

        atomic._write = half
        audit.save(target)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9


@pytest.mark.skipif(not hasattr(os, "fork"), reason="another process")
@pytest.mark.parametrize(("step", "over"), [("tensors", True), ("examples", False), ("manifest", True)])
def test_a_process_killed_half_way_leaves_nothing_that_loads_and_the_old_result(
    audit, saved, tmp_path, step, over
):
    target = tmp_path / "target"
    if over:
        audit.save(target)
    dies_half_way(DepthAudit.load(saved).with_tau(0.5), target, step)
    if over:
        assert DepthAudit.load(target).config == audit.config
    for place in tmp_path.iterdir():
        if place not in (saved, target) or (not over and place == target):
            with pytest.raises(ResultFormatError):
                DepthAudit.load(place)
    audit.with_tau(0.5).save(target)
    assert DepthAudit.load(target).config.tau == 0.5
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "target"], "what the kill left is gone"


def test_texts_of_any_kind_survive(tmp_path):
    strange = 'quote " newline \n tab \t null-ish \\u0000 emoji 🎉 日本'
    audit = made([[1.0]], [[0.5]], names={"unlearned": strange})
    example = ForgetExample(
        id=strange, question=strange, answer=strange, entity=strange, perturbed_answers=(strange, "")
    )
    audit = replace(audit, examples=(example,))
    audit.save(tmp_path / "odd name ü")
    again = DepthAudit.load(os.fspath(tmp_path / "odd name ü"))
    assert again.examples == (example,)
    assert again.models["unlearned"].name == strange


# Beside other things, in strange places, at the same time.


def test_what_else_stands_in_a_result_stays_when_it_is_saved_again(audit, saved):
    audit.save(saved / "nested" / "npo")
    (saved / "report.html").write_text("a page")
    audit.with_tau(0.5).save(saved)
    assert DepthAudit.load(saved).config.tau == 0.5
    assert DepthAudit.load(saved / "nested" / "npo").config == audit.config
    assert (saved / "report.html").read_text() == "a page"


def test_a_manifest_of_somebody_else_makes_no_result(audit, tmp_path):
    for name, text in (
        ("web", '{"name": "app"}'),
        ("other", '{"format": "other", "version": 1}'),
        ("none", ""),
    ):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "manifest.json").write_text(text)
        (folder / "thesis.tex").write_text("years of work")
        with pytest.raises(ResultFormatError, match="exists and is no saved result"):
            audit.save(folder)
        assert (folder / "thesis.tex").read_text() == "years of work"


def test_names_that_are_no_utf8_are_saved(tmp_path):
    odd = os.fsdecode(b"models/caf\xe9")
    audit = made([[1.0]], [[0.5]], names={"unlearned": odd})
    audit.save(tmp_path / "run")
    again = DepthAudit.load(tmp_path / "run")
    assert again.models["unlearned"].name == audit.models["unlearned"].name == "models/caf\\udce9"
    assert write_folder_table(tmp_path, {audit_names([again])[0]: again}).read_text().count("caf\\udce9") == 1
    assert again.plot_ranking([]).data
    assert directory_names([odd]) == ["caf\\udce9"]


def test_the_home_directory_is_understood(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    audit = made([[1.0]], [[0.5]])
    audit.save("~/runs/one")
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]
    assert DepthAudit.load("~/runs/one").uds == audit.uds


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
    read, reads = audit_files.read_file, []

    def then_replaced(path, **bounds):
        content = read(path, **bounds)
        reads.append(path.name)
        if len(reads) == after:
            two.save(tmp_path / "run")
        return content

    monkeypatch.setattr(audit_files, "read_file", then_replaced)
    assert of_one_version(DepthAudit.load(tmp_path / "run"))
    assert set(reads) == {"manifest.json", "tensors.safetensors", "examples.parquet"}


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
        found = [DepthAudit.load(tmp_path / "run") for _ in range(300)]
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert all(map(of_one_version, found))
    assert {audit.uds for audit in found} == {0.25, 0.75}, "it was saved meanwhile"


def test_many_first_saves_to_one_place_all_succeed(tmp_path):
    audit = made([[1.0]], [[0.5]])
    for attempt in range(10):
        place = tmp_path / str(attempt)
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda _, place=place: audit.save(place), range(4)))
        assert DepthAudit.load(place).uds == audit.uds
    assert sorted(path.name for path in tmp_path.iterdir()) == [str(i) for i in range(10)]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes with names")
def test_pipes_and_devices_are_refused_at_once(saved):
    (saved / "manifest.json").unlink()
    os.mkfifo(saved / "manifest.json")
    with pytest.raises(ResultFormatError, match="no regular file"):
        DepthAudit.load(saved)
    (saved / "manifest.json").unlink()
    (saved / "manifest.json").symlink_to("/dev/zero")
    with pytest.raises(ResultFormatError, match="no regular file"):
        DepthAudit.load(saved)


def test_texts_that_are_stored_once_are_counted_each_time(tmp_path, monkeypatch):
    """A file of a few kilobytes that unpacks to sixty megabytes."""
    import pyarrow
    from pyarrow import parquet

    from uds_lens._storage import tables as bounded_table
    from uds_lens.results import _saving as examples_table

    count, schema = 3000, examples_table._schema()
    once = pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * count, pyarrow.int32()), ["x" * 20_000])
    columns = {name: pyarrow.nulls(count, schema.field(name).type) for name in schema.names}
    columns["question"] = once.cast(pyarrow.string())
    parquet.write_table(
        pyarrow.table(columns, schema=schema), tmp_path / "a", compression="zstd", store_schema=False
    )
    content = (tmp_path / "a").read_bytes()
    assert len(content) < 100_000
    monkeypatch.setattr(bounded_table, "MOST_BYTES", 1_000_000)
    with pytest.raises(ResultFormatError, match="would unpack to more than"):
        examples_table.examples_from_parquet(content, told="a")


# Of release 0.1.

SAVED_BY_0_1 = Path(__file__).parent / "saved_by_0_1"


def test_results_of_release_0_1_load():
    """Measured by nobody: the deltas are those of `synthetic_audit(n=3, layers=2)`, saved by release 0.1."""
    audit, expected = DepthAudit.load(SAVED_BY_0_1 / "audit"), synthetic_audit(n=3, layers=2)
    assert all(torch.equal(getattr(audit, name), getattr(expected, name)) for name in AUDIT.tensors)
    assert (audit.config, audit.models, list(audit.examples)) == (
        expected.config,
        expected.models,
        expected.examples,
    )
    assert audit.uds == expected.uds == 0.5687505928799304
    baseline = Baseline.load(SAVED_BY_0_1 / "baseline")
    assert torch.equal(baseline.s1_delta, audit.s1_delta)
    metrics = MetricResults.load(SAVED_BY_0_1 / "metrics.json")
    assert (metrics["es"].value, metrics["zlib"].high, metrics["zlib"].reason) == (
        0.5,
        float("inf"),
        "no holdout set was given",
    )


def test_a_result_of_release_0_1_is_saved_anew_with_its_seal(tmp_path):
    shutil.copytree(SAVED_BY_0_1 / "audit", tmp_path / "old")
    DepthAudit.load(tmp_path / "old").save(tmp_path / "old")
    assert "sha256" in json.loads((tmp_path / "old" / "manifest.json").read_text())
