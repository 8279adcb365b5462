"""Results in the forms of others: on the Hub, in Every Eval Ever, as logs of inspect_ai; read back by their readers."""

import hashlib
import importlib.resources
import importlib.util
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import huggingface_hub
import pandas as pd
import pytest
import yaml
from altered_results import metric_results
from cli.conftest import uds_lens  # noqa: F401 - a fixture
from synthetic_audits import synthetic_audit
from synthetic_elicitations import synthetic_elicitation

from uds_lens.errors import ConfigError, ResultFormatError
from uds_lens.results import DepthAudit
from uds_lens.sharing import write_eval_results, write_every_eval_ever, write_inspect_logs


@pytest.fixture(scope="module")
def audit() -> DepthAudit:
    return synthetic_audit()


def test_the_hub_reads_the_entry(audit: DepthAudit, tmp_path: Path) -> None:
    file = write_eval_results(audit, tmp_path, dataset="locuslab/TOFU", config="forget10")
    assert file == tmp_path / ".eval_results" / "uds.yaml"
    (entry,) = huggingface_hub.parse_eval_result_entries(yaml.safe_load(file.read_text()))
    assert (entry.dataset_id, entry.task_id, entry.value) == ("locuslab/TOFU", "forget10", round(audit.uds, 6))
    low, high = audit.uds_interval
    assert f"95% CI {low:.3f} to {high:.3f}" in entry.notes and "uds_lens" in entry.source_name
    frame = pd.json_normalize(yaml.safe_load(file.read_text()))
    assert frame.loc[0, "dataset.task_id"] == "forget10"
    write_eval_results(audit, tmp_path, dataset="locuslab/TOFU")  # ours is replaced
    file.write_text("mine: 1")
    with pytest.raises(ResultFormatError, match="was not written by uds_lens"):
        write_eval_results(audit, tmp_path, dataset="locuslab/TOFU")
    with pytest.raises(ConfigError, match="must be the id of a data set on the Hub, owner/name; got 'TOFU'"):
        write_eval_results(audit, tmp_path, dataset="TOFU")
    swapped = replace(audit, s1_delta=-audit.s1_delta)
    with pytest.raises(ConfigError, match="no score that may be quoted"):
        write_eval_results(swapped, tmp_path / "x", dataset="locuslab/TOFU")


def schemas() -> dict[str, dict] | None:
    """Return those of the installed package of Every Eval Ever; None where it is not installed."""
    if importlib.util.find_spec("every_eval_ever") is None:
        return None
    place = importlib.resources.files("every_eval_ever") / "schemas"
    return {name: json.loads((place / f"{name}.schema.json").read_text()) for name in ("eval", "instance_level_eval")}


def check_record(head: dict, rows: list[dict]) -> None:
    """What version 0.3.0 of the schema demands of our records; its own files, where they are installed."""
    assert head["schema_version"] == "0.3.0"
    assert {"evaluation_id", "retrieved_timestamp", "source_metadata", "model_info", "eval_library"} <= head.keys()
    assert {"deployment_type", "model_availability"} <= head["model_info"]["additional_details"].keys()
    place = r"data/[^/]+/[^/]+/[^/]+/[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}_samples\.jsonl"
    assert re.fullmatch(place, head["detailed_evaluation_results"]["file_path"])
    for entry in head["evaluation_results"]:
        config = entry["metric_config"]
        assert isinstance(config["lower_is_better"], bool) and {"min_score", "max_score"} <= config.keys()
        assert isinstance(entry["score_details"]["score"], float)
    ids = {entry["evaluation_result_id"] for entry in head["evaluation_results"]}
    for row in rows:
        assert row["evaluation_id"] == head["evaluation_id"] and row["evaluation_result_id"] in ids
        assert row["interaction_type"] == "single_turn" and row["messages"] is None and "raw" in row["output"]
        assert all(isinstance(value, str) for value in row["metadata"].values())
    if (known := schemas()) is not None:
        import jsonschema

        jsonschema.validate(head, known["eval"])
        for row in rows:
            jsonschema.validate(row, known["instance_level_eval"])


def test_records_of_every_eval_ever(audit: DepthAudit, tmp_path: Path) -> None:
    head, lines = write_every_eval_ever(audit, tmp_path, dataset="locuslab/TOFU", model="owner/npo")
    record = json.loads(head.read_text())
    check_record(record, [json.loads(line) for line in lines.read_text().splitlines()])
    assert head.relative_to(tmp_path).parts[:4] == ("data", "tofu", "owner", "npo")
    rows = pd.read_json(lines, lines=True)
    assert len(rows) == audit.n_measured == record["detailed_evaluation_results"]["total_rows"]
    scores = pd.json_normalize(rows["evaluation"].tolist())["score"]
    (uds,) = record["evaluation_results"]
    assert scores.mean() == pytest.approx(uds["score_details"]["score"]) == audit.uds
    interval = uds["score_details"]["uncertainty"]["confidence_interval"]
    assert (interval["lower"], interval["upper"]) == tuple(audit.uds_interval)
    assert record["detailed_evaluation_results"]["checksum"] == hashlib.sha256(lines.read_bytes()).hexdigest()
    assert write_every_eval_ever(audit, tmp_path, dataset="locuslab/TOFU", model="owner/npo") == (head, lines)
    head.write_text(json.dumps({**record, "schema_version": "0.2.2"}))
    with pytest.raises(
        ResultFormatError, match=r"of schema '0\.2\.2' of Every Eval Ever, and '0\.3\.0' is written here"
    ):
        write_every_eval_ever(audit, tmp_path, dataset="locuslab/TOFU", model="owner/npo")
    metrics = metric_results(audit)  # ES of two examples, and an attack that has no value
    head, lines = write_every_eval_ever(metrics, tmp_path, dataset="my facts")
    record = json.loads(head.read_text())
    check_record(record, [json.loads(line) for line in lines.read_text().splitlines()])
    assert [entry["metric_config"]["metric_id"] for entry in record["evaluation_results"]] == ["uds_lens.es"]
    assert record["evaluation_results"][0]["metric_config"]["lower_is_better"] is True
    assert pd.read_json(lines, lines=True)["sample_id"].tolist() == ["e0"], "the other has no value"
    with pytest.raises(ConfigError, match="no value that may be quoted: all are NaN"):
        gone = {"zlib": metrics["zlib"]}
        write_every_eval_ever(replace(metrics, metrics=gone), tmp_path, dataset="my facts")


def test_logs_of_inspect(audit: DepthAudit, tmp_path: Path) -> None:
    results = synthetic_elicitation(audit)
    files = write_inspect_logs(results, tmp_path / "logs", dataset="locuslab/TOFU")
    assert len(files) == len(results.parts) == len(set(files))
    frame = results.samples_frame()
    logs = [json.loads(file.read_text()) for file in files]
    for log, part in zip(logs, results.parts, strict=True):
        chosen = frame[(frame["model"] == part.role) & (frame["probe"] == part.probe)]
        chosen = chosen[chosen["decoding"] == part.decoding]
        samples = pd.json_normalize(log["samples"])
        assert samples["scores.rouge_l_recall.value"].tolist() == pytest.approx(chosen["recall"].tolist())
        assert samples["id"].tolist() == chosen["example_id"].tolist()
        assert [s["output"]["choices"][0]["message"]["content"] for s in log["samples"]] == chosen["text"].tolist()
        mean = log["results"]["scores"][0]["metrics"]["mean"]["value"]
        assert mean == pytest.approx(chosen["recall"].mean())
    assert write_inspect_logs(results, tmp_path / "logs", dataset="locuslab/TOFU") == files
    files[0].write_text("{}")
    with pytest.raises(ResultFormatError, match="was not written by uds_lens"):
        write_inspect_logs(results, tmp_path / "logs")


READ = """
import json, sys
from inspect_ai.log import list_eval_logs, read_eval_log
for file in sys.argv[1:]:
    log = read_eval_log(file)
    print(json.dumps([log.status, log.eval.task, len(log.samples), log.samples[0].output.completion,
                      log.results.scores[0].metrics["mean"].value, log.samples[0].scores["rouge_l_recall"].value]))
"""


@pytest.mark.skipif(importlib.util.find_spec("inspect_ai") is None, reason="inspect_ai is not installed")
def test_inspect_reads_its_logs(audit: DepthAudit, tmp_path: Path) -> None:
    results = synthetic_elicitation(audit)
    files = write_inspect_logs(results, tmp_path)
    command = [sys.executable, "-c", READ, *map(str, files)]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    for line, file in zip(told, files, strict=True):
        log = json.loads(file.read_text())
        first = log["samples"][0]
        assert json.loads(line) == [
            "success",
            log["eval"]["task"],
            len(log["samples"]),
            first["output"]["choices"][0]["message"]["content"],
            log["results"]["scores"][0]["metrics"]["mean"]["value"],
            first["scores"]["rouge_l_recall"]["value"],
        ]


def test_the_command_writes_each_of_them(audit: DepthAudit, tmp_path: Path, uds_lens) -> None:  # noqa: F811
    audit.save(tmp_path / "audit")
    metric_results(audit).save(tmp_path / "metrics.json")
    synthetic_elicitation(audit).save(tmp_path / "texts")

    named = ("--dataset", "locuslab/TOFU")
    for words, ending in (
        ((tmp_path / "audit", "--to", "hub", *named), "uds.yaml"),
        ((tmp_path / "audit", "--to", "open-unlearning"), "UDS_EVAL.json"),
        ((tmp_path / "metrics.json", "--to", "every-eval-ever", *named), ".json"),
        ((tmp_path / "texts", "--to", "inspect"), ".json"),
    ):
        code, out, err = uds_lens("export", *words, "--out", tmp_path / "out", "--json")
        assert code == 0, err
        files = json.loads(out)["files"]
        assert files[0].endswith(ending) and all(Path(file).is_file() for file in files)
    for words, message in (
        ((tmp_path / "audit", "--to", "hub"), "--to hub needs --dataset"),
        ((tmp_path / "audit", "--to", "inspect"), "holds DepthAudit: expected an elicitation"),
        ((tmp_path, "--to", "open-unlearning"), "holds no saved result: expected an audit"),
    ):
        code, _, err = uds_lens("export", *words, "--out", tmp_path / "out")
        assert code == 1 and message in err and err.count("\n") == 1
