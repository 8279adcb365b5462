"""Export elicitations as logs for inspect_ai's viewer and data frames, one per model, probe and decoding."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from uds_lens._storage.files import atomic_write_marked, check_writable, located
from uds_lens._storage.records import plain
from uds_lens.results._hub import shared_name
from uds_lens.results._records import versions

if TYPE_CHECKING:
    from uds_lens.elicitation import ElicitationResults
    from uds_lens.elicitation._saving import Part

_LOG_VERSION = 2
"""Version of the log format."""

_SCORER = "rouge_l_recall"


def write_inspect_logs(
    results: ElicitationResults, folder: str | os.PathLike[str], *, dataset: str = "forget set"
) -> list[Path]:
    """Write the generated texts of an elicitation as inspect_ai logs (`inspect view --log-dir FOLDER`).

    Each log is for one model, probe and decoding, with a sample per row and an epoch per text. Scores are ROUGE-L
    recall of the reference and, where the row has one, of the entity. Logs do not compare models; retain has its own
    logs.

    Args:
        results: The elicitation.
        folder: Folder for the logs, created if needed.
        dataset: Name of the forget set.

    Returns:
        The files.

    Raises:
        ResultFormatError: A file with the same name exists that was not written by this function.

    References:
        https://inspect.aisi.org.uk/eval-logs.html
    """
    place = located(folder)
    contents = {}
    for part in results.parts:
        log = _log(results, part, dataset)
        words = re.sub(r"[^A-Za-z0-9+=.-]+", "-", f"{part.role}-{part.probe}-{part.decoding}").strip("-")
        contents[place / f"{words[:80]}-{log['eval']['run_id'][:8]}.json"] = log
    for file in contents:
        check_writable(file, directory=False)
    for file, log in contents.items():
        atomic_write_marked(file, json.dumps(plain(log), indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    return list(contents)


def _log(results: ElicitationResults, part: Part, dataset: str) -> dict[str, Any]:
    record = results.models["unlearned" if part.role == "holdout" else part.role]
    model = f"hf/{shared_name(record.name)}"
    created = str(results.provenance.get("created") or "1970-01-01T00:00:00+00:00")
    samples = [sample for place in range(len(part.responses)) for sample in _samples(results, part, place, model)]
    identity = [part.role, part.probe, part.decoding, record.fingerprint, [sample["id"] for sample in samples]]
    digest = hashlib.sha256(json.dumps(identity).encode()).hexdigest()
    return {
        "version": _LOG_VERSION,
        "status": "success",
        "eval": {
            "task": f"uds_lens/{part.probe}",
            "eval_id": digest[:22],
            "run_id": digest[22:44],
            "task_id": digest[:22],
            "created": created,
            "model": model,
            "dataset": {
                "name": dataset,
                "samples": len(part.responses),
                "sample_ids": [sample["id"] for sample in samples if sample["epoch"] == 1],
            },
            "config": {"epochs": max((s["epoch"] for s in samples), default=1)},
            "packages": {"uds_lens": versions()["uds_lens"]},
            "metadata": {
                "role": part.role,
                "decoding": part.decoding,
                "protocol": results.protocol,
                "weights": record.fingerprint,
                "control": "the log with the same probe and decoding and the role retain",
            },
        },
        "plan": {"name": "plan", "steps": [{"solver": f"uds_lens/{part.probe}", "params": {}}]},
        "results": {
            "total_samples": len(samples),
            "completed_samples": len(samples),
            "scores": [
                {"name": name, "scorer": name, "metrics": {"mean": {"name": "mean", "value": value}}}
                for name in (_SCORER, "entity_recall")
                if (value := _mean(samples, name)) is not None
            ],
        },
        "stats": {"started_at": created, "completed_at": created},
        "samples": samples,
    }


def _samples(results: ElicitationResults, part: Part, place: int, model: str) -> list[dict[str, Any]]:
    """Return one row's texts as samples, with one epoch per text."""
    response = part.responses[place]
    example = results.rows_of(part.role)[response.row]
    scores = results.scores[part.role, part.probe, part.decoding][response.row]
    samples = []
    for epoch, (text, score) in enumerate(zip(response.texts, scores, strict=True), start=1):
        values = {_SCORER: score.recall, "entity_recall": score.entity}
        samples.append(
            {
                "id": example.id,
                "epoch": epoch,
                "input": response.prompt,
                "target": response.reference,
                "output": {
                    "model": model,
                    "choices": [{"message": {"role": "assistant", "content": text}, "stop_reason": "stop"}],
                },
                "scores": {
                    name: {"value": float(value), "answer": text}
                    for name, value in values.items()
                    if not math.isnan(value)
                },
                "metadata": {"subject": example.subject, "question": example.question, **response.details},
            }
        )
    return samples


def _mean(samples: list[dict[str, Any]], name: str) -> float | None:
    values = [sample["scores"][name]["value"] for sample in samples if name in sample["scores"]]
    return math.fsum(values) / len(values) if values else None
