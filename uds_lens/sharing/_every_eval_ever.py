"""Records of Every Eval Ever (schema 0.3.0): one JSON per evaluation, and JSON lines with a row per example."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from uds_lens._storage import atomic_write_marked, check_folder, check_writable, plain
from uds_lens.errors import ConfigError, ResultFormatError, Setting
from uds_lens.metrics import METRICS, MetricResults
from uds_lens.results import DepthAudit
from uds_lens.results._hub import ADDRESS, shared_name

if TYPE_CHECKING:
    from uds_lens.results import Interval

SCHEMA = "0.3.0"
"""The version of the schema that is written and read."""

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_HALF = "score >= 0.5 (erased more than half); no judgement of an answer"


@dataclass(frozen=True)
class _Measured:
    """One metric, in the words of the record."""

    name: str
    meaning: str
    value: float
    interval: Interval
    direction: str
    low: float
    high: float
    rows: Sequence[tuple[str, float]]
    """Id and score of each example."""


def write_every_eval_ever(
    result: DepthAudit | MetricResults,
    folder: str | os.PathLike[str],
    *,
    dataset: str,
    model: str | None = None,
    schema: str = SCHEMA,
) -> tuple[Path, Path]:
    """Write a result as a record of Every Eval Ever, with intervals, and its values per example.

    The files are `data/COLLECTION/OWNER/NAME/ID.json` and `ID_samples.jsonl` below `folder`, where ID follows from
    what was measured: the same result gives the same files. A metric without a value is left out.

    Args:
        result: An audit, or metrics of a model.
        folder: Where `data` is.
        dataset: The forget set: its id on the Hub, such as "locuslab/TOFU", or a name.
        model: Id of the model on the Hub; None takes the name that was measured, of a path its last part under
            "local".
        schema: Version of the schema; there is one that is known.

    Returns:
        The record, and the rows.

    Raises:
        ConfigError: `schema` is another version, or no metric has a value that may be quoted.
        ResultFormatError: A record of another version is there.

    Example:
        >>> import tempfile
        >>> import uds_lens as ul
        >>> world = ul.toy.load()
        >>> audit = ul.DepthAudit.run(world.full, world.retain, world.full, world.examples[:1])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     [file.suffix for file in write_every_eval_ever(audit, folder, dataset="toy")]
        ['.json', '.jsonl']

    References:
        https://github.com/evaleval/every_eval_ever
    """
    if schema != SCHEMA:
        raise ConfigError(
            Setting("schema"),
            f" must be {SCHEMA!r}, the version of Every Eval Ever that is written here; got {schema!r}.",
        )
    measured = [score for score in _measured(result) if not math.isnan(score.value)]
    if not measured:
        why = result.fatal[0] if isinstance(result, DepthAudit) and result.fatal else "all are NaN"
        raise ConfigError(f"there is no value that may be quoted: {why}")
    record = result.models["unlearned" if isinstance(result, DepthAudit) else "model"]
    name = model or shared_name(record.name)
    owner, _, last = name.rpartition("/")
    collection = re.sub(r"[^a-z0-9.-]+", "-", dataset.rpartition("/")[2].lower()).strip("-") or "forget-set"
    identity = json.dumps([name, record.fingerprint, dataset, [(m.name, m.value) for m in measured]])
    ident = str(uuid.UUID(bytes=hashlib.sha256(identity.encode()).digest()[:16], version=4))
    below = Path("data") / collection / (owner or "local") / last
    created = str(result.provenance.get("created") or "1970-01-01T00:00:00+00:00")
    seconds = str(int(datetime.fromisoformat(created).timestamp()))
    shared = {"schema_version": SCHEMA, "evaluation_id": f"{collection}/{owner or 'local'}/{last}/{ident}"}
    rows = [{**shared, "model_id": name, **row} for score in measured for row in _rows(score, result, ident)]
    text = "".join(json.dumps(plain(row), ensure_ascii=False, allow_nan=False) + "\n" for row in rows)
    place = check_folder(folder) / below
    head, lines = place / f"{ident}.json", place / f"{ident}_samples.jsonl"
    content = {
        **shared,
        "evaluation_timestamp": created,
        "retrieved_timestamp": seconds,
        "source_metadata": {
            "source_name": "uds_lens",
            "source_type": "evaluation_run",
            "source_organization_name": "unknown",
            "evaluator_relationship": "other",
        },
        "eval_library": {
            "name": "uds_lens",
            "version": result.provenance.get("versions", {}).get("uds_lens", "unknown"),
            "additional_details": {"url": ADDRESS},
        },
        "model_info": {
            "name": name,
            "id": name,
            **({"developer": owner} if owner else {}),
            "additional_details": {
                "deployment_type": "self_deployed",
                "model_availability": "open_weights" if owner else "unknown",
                "weights": record.fingerprint,
                **{role: shared_name(model.name) for role, model in result.models.items()},
            },
        },
        "evaluation_results": [_result(score, result, dataset, ident) for score in measured],
        "detailed_evaluation_results": {
            "format": "jsonl",
            "file_path": (below / lines.name).as_posix(),
            "hash_algorithm": "sha256",
            "checksum": hashlib.sha256(text.encode()).hexdigest(),
            "total_rows": len(rows),
        },
    }
    if head.is_file():
        require_schema(head)
    for file in (lines, head):
        check_writable(file, directory=False)
    place.mkdir(parents=True, exist_ok=True)
    atomic_write_marked(lines, text)
    atomic_write_marked(head, json.dumps(plain(content), indent=2, ensure_ascii=False, allow_nan=False) + "\n")
    return head, lines


def require_schema(file: Path) -> None:
    """Raise `ResultFormatError` unless a file is a record of the version that is known."""
    try:
        schema = json.loads(file.read_text(encoding="utf-8")).get("schema_version")
    except (ValueError, AttributeError, RecursionError):
        schema = None
    if schema != SCHEMA:
        raise ResultFormatError(
            f"{str(file)!r} is of schema {schema!r} of Every Eval Ever, and {SCHEMA!r} is written here: choose another "
            "folder."
        )


def _measured(result: DepthAudit | MetricResults) -> Iterator[_Measured]:
    if isinstance(result, DepthAudit):
        if result.fatal:
            return
        scores = zip(result.examples, result.uds_per_example.tolist(), strict=True)
        rows = [(example.id, score) for example, score in scores]
        meaning = (
            "Unlearning Depth Score: 0 knowledge intact in hidden states, 1 erased as in a model that never saw it"
        )
        yield _Measured("uds", meaning, result.uds, result.uds_interval, "erasure", 0.0, 1.0, rows)
        return
    for metric in result:
        rows = (
            list(zip(metric.ids, metric.per_example, strict=True)) if len(metric.ids) == len(metric.per_example) else []
        )
        meaning = f"{metric.label}: 0 = {metric.zero}, 1 = {metric.one}"
        bounds = (metric.low, metric.high)
        yield _Measured(metric.name, meaning, metric.value, metric.interval, metric.direction, *bounds, rows)


def _result(entry: _Measured, result: DepthAudit | MetricResults, dataset: str, ident: str) -> dict[str, Any]:
    defined = [score for _, score in entry.rows if not math.isnan(score)]
    details: dict[str, Any] = {"score": entry.value}
    low, high = entry.interval
    if not math.isnan(low):
        level = result.config.confidence if isinstance(result, DepthAudit) else 0.95
        interval = {"lower": low, "upper": high, "confidence_level": level, "method": "bootstrap over subjects"}
        details["uncertainty"] = {"confidence_interval": interval, "num_samples": len(defined)}
    hub = _HUB_ID.fullmatch(dataset) is not None
    source = {"dataset_name": dataset, "source_type": "hf_dataset" if hub else "other"}
    kind = METRICS[entry.name].group if entry.name in METRICS else "own"
    return {
        "evaluation_result_id": f"{ident}/{entry.name}",
        "evaluation_name": f"unlearning.{entry.name}",
        "source_data": source | ({"hf_repo": dataset, "samples_number": len(entry.rows)} if hub else {}),
        "metric_config": {
            "evaluation_description": entry.meaning,
            "metric_id": f"uds_lens.{entry.name}",
            "metric_name": entry.name,
            "metric_kind": kind,
            "lower_is_better": entry.direction == "knowledge",  # for a model that was to forget
            "score_type": "continuous",
            "min_score": _bound(entry.low),
            "max_score": _bound(entry.high),
            "additional_details": {"higher_means": entry.direction},
        },
        "score_details": details,
    }


def _bound(value: float) -> float | str:
    return value if math.isfinite(value) else "Infinity" if value > 0 else "-Infinity"


def _rows(entry: _Measured, result: DepthAudit | MetricResults, ident: str) -> Iterator[dict[str, Any]]:
    """Yield a row for each example that has a score; texts where the result holds them."""
    examples = {example.id: example for example in result.examples} if isinstance(result, DepthAudit) else {}
    for example_id, score in entry.rows:
        if math.isnan(score):
            continue
        example = examples.get(example_id)
        question = "" if example is None else example.question
        reference = [] if example is None else [example.answer]
        hashed = hashlib.sha256("".join([question, *reference]).encode()).hexdigest()
        metadata = {"is_correct": _HALF, "higher_means": entry.direction}
        if example is not None and example.subject:
            metadata["subject"] = example.subject
        yield {
            "evaluation_name": f"unlearning.{entry.name}",
            "evaluation_result_id": f"{ident}/{entry.name}",
            "sample_id": example_id,
            "sample_hash": hashed if example is not None else None,
            "interaction_type": "single_turn",
            "input": {"raw": question, "reference": reference},
            "output": {"raw": []},
            "messages": None,
            "answer_attribution": [],
            "evaluation": {"score": score, "is_correct": score >= 0.5},
            "metadata": metadata,
        }
