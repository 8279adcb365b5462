"""Results as logs of inspect_ai, read back by its reader."""

import importlib.resources
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from cli.conftest import uds_lens  # noqa: F401 - a fixture
from synthetic_audits import synthetic_audit
from synthetic_elicitations import synthetic_elicitation

from uds_lens.errors import ResultFormatError
from uds_lens.results import DepthAudit
from uds_lens.sharing import write_inspect_logs


@pytest.fixture(scope="module")
def audit() -> DepthAudit:
    return synthetic_audit()


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
    synthetic_elicitation(audit).save(tmp_path / "texts")

    for words, ending in (
        ((tmp_path / "audit", "--to", "open-unlearning"), "UDS_EVAL.json"),
        ((tmp_path / "texts", "--to", "inspect"), ".json"),
    ):
        code, out, err = uds_lens("export", *words, "--out", tmp_path / "out", "--json")
        assert code == 0, err
        files = json.loads(out)["files"]
        assert files[0].endswith(ending) and all(Path(file).is_file() for file in files)
    for words, message in (
        ((tmp_path / "audit", "--to", "inspect"), "holds DepthAudit: expected an elicitation"),
        ((tmp_path, "--to", "open-unlearning"), "holds no saved result: expected an audit"),
    ):
        code, _, err = uds_lens("export", *words, "--out", tmp_path / "out")
        assert code == 1 and message in err and err.count("\n") == 1
