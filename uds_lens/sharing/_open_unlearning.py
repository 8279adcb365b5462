"""Open-Unlearning runs: find the models to audit in Hydra's record of the training, and write results."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from uds_lens._storage.files import atomic_write_marked, check_writable, located
from uds_lens._storage.records import plain
from uds_lens.data._prompts import CHAT_DATE, ChatStyle
from uds_lens.errors import ConfigError, ResultFormatError, Setting
from uds_lens.meta import _hydra as hydra
from uds_lens.meta._tables import recorded_setup
from uds_lens.results._records import versions

if TYPE_CHECKING:
    from uds_lens.results import DepthAudit

_WEIGHTS = ("config.json", "adapter_config.json")
"""A folder with weights contains one of these files."""


@dataclass(frozen=True, kw_only=True)
class UnlearningRun:
    """The parts of an Open-Unlearning run that an audit needs."""

    task: Path
    """The run's folder, such as `saves/unlearn/TASK`."""

    checkpoints: Mapping[str, Path]
    """Folders with weights, by name: `checkpoint-N` in order of steps, then the final weights under the task's name."""

    base: str | None
    """Base model."""

    split: str | None
    """The forget split."""

    full: str | None
    """The model before unlearning: directory or Hub id."""

    retain: str | None
    """The retain model for this base model and split: one trained next to the run or, failing that, the published one;
    None if there is neither."""

    examples: str | None
    """Source of the published forget set with entities, for `load_examples`; None if there is none."""

    protocol: Literal["chat"] | None
    """The prompt protocol of the run; None if it used a format other than the tokenizer's template."""

    chat: ChatStyle
    """System prompt and date in the run's prompts."""


def open_unlearning_run(task: str | os.PathLike[str]) -> UnlearningRun:
    """Read the models and prompts of an Open-Unlearning run from `.hydra/config.yaml` in its folder.

    Args:
        task: Output folder of the training run, such as `saves/unlearn/TASK`.

    Returns:
        The run. `retain` is the neighbouring folder `saves/finetune/tofu_BASE_retain90` (MUSE:
        `muse_BASE_News_retrain`) or, failing that, the published model for that base model and split.

    Raises:
        ResultFormatError: There is no record of a training run, or no folder with weights.

    Example:
        >>> open_unlearning_run("nowhere")
        Traceback (most recent call last):
            ...
        uds_lens.errors.ResultFormatError: no .hydra/config.yaml of a training run in 'nowhere': name the folder of...
    """
    folder = Path(task)
    config = hydra.read_config(folder)
    if config is None or hydra.value(config, "mode") == "eval":
        raise ResultFormatError(
            f"no .hydra/config.yaml of a training run in {str(folder)!r}: name the folder of a run, such as "
            "saves/unlearn/TASK."
        )
    steps = sorted(
        (path for path in folder.glob("checkpoint-*") if path.name.partition("-")[2].isdecimal()),
        key=lambda path: int(path.name.partition("-")[2]),
    )
    checkpoints = {path.name: path for path in steps if _has_weights(path)}
    if _has_weights(folder):
        checkpoints[folder.resolve().name] = folder
    if not checkpoints:
        raise ResultFormatError(
            f"no weights in {str(folder)!r}, nor in its checkpoint-* folders: expected config.json next to them."
        )
    base, split = recorded_setup(config)
    full = hydra.text(config, "model.model_args.pretrained_model_name_or_path")
    template = hydra.value(config, "model.template_args")
    settings: Mapping[str, Any] = template if isinstance(template, dict) else {}
    chat = settings.get("apply_chat_template") is True
    style = ChatStyle()
    if chat:
        style = ChatStyle(
            system_prompt=settings.get("system_prompt") or None, chat_date=str(settings.get("date_string") or CHAT_DATE)
        )
    return UnlearningRun(
        task=folder,
        checkpoints=checkpoints,
        base=base,
        split=split,
        full=None if full is None else _local(full, folder),
        retain=_retain(config, base, split, folder),
        examples="tofu-annotated:" if split == "forget10" else None,
        protocol="chat" if chat else None,
        chat=style,
    )


def _has_weights(folder: Path) -> bool:
    return any((folder / name).is_file() for name in _WEIGHTS)


def _local(name: str, task: Path) -> str:
    """Resolve a recorded path, which is relative to the folder that contains `saves`."""
    if not Path(name).exists() and len(task.resolve().parents) > 2:
        beside = task.resolve().parents[2] / name
        if beside.exists():
            return str(beside)
    return name


def _retain(config: hydra.Config, base: str | None, split: str | None, task: Path) -> str | None:
    """Return the retain model: the one trained next to the run or, failing that, the published one."""
    from uds_lens.published import find

    if base is None or split is None:
        return None
    if split in ("News", "Books"):
        name = f"muse_{base}_{split}_retrain"
        published = find(f"MUSE-{split}_retrain") if base.startswith("Llama-2-7b") else None
    else:
        percent = split.removeprefix("forget")
        left = hydra.text(config, "retain_split") or (
            f"retain{100 - int(percent)}" if percent.isdecimal() else "retain"
        )
        name = f"tofu_{base}_{left}"
        published = find(name)
    beside = task.resolve().parent.parent / "finetune" / name
    if _has_weights(beside):
        return str(beside)
    return None if published is None else published.hub_id


def write_uds_eval(audit: DepthAudit, folder: str | os.PathLike[str]) -> tuple[Path, Path]:
    """Write `UDS_EVAL.json` and `UDS_SUMMARY.json` in the layout of Open-Unlearning's evaluations.

    Each entry has `agg_value`, and `uds` also has `value_by_index`, keyed by the examples' ids. The entries are `uds`,
    `uds_low` and `uds_high` (its interval), `output_depth`, and `damage` if control facts were measured. If the verdict
    is withheld, scores are null, and the warnings give the reason.

    Args:
        audit: The audit.
        folder: Folder for the run's results, such as `saves/unlearn/TASK/evals`; created if needed.

    Returns:
        The two files.

    Raises:
        ResultFormatError: A file with one of these names exists that this function did not write.

    Example:
        >>> import uds_lens as ul
        >>> world = ul.toy.load()
        >>> audit = ul.DepthAudit.run(world.full, world.retain, world.retain, world.examples[:3])
        >>> import json, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     json.loads(write_uds_eval(audit, folder)[1].read_text())["uds"]
        1.0
    """
    place = located(folder)
    detailed, short = place / "UDS_EVAL.json", place / "UDS_SUMMARY.json"
    check_writable(detailed, directory=False)
    check_writable(short, directory=False)
    fatal = bool(audit.fatal)
    low, high = audit.uds_interval
    values = {"uds": audit.uds, "uds_low": low, "uds_high": high}
    if not math.isnan(audit.output_depth):
        values["output_depth"] = audit.output_depth
    if audit.control is not None:
        values["damage"] = audit.damage
    entries: dict[str, dict[str, Any]] = {
        name: {"agg_value": None if fatal or math.isnan(value) else float(value)} for name, value in values.items()
    }
    entries["uds"] |= {
        "value_by_index": {
            example.id: {"score": None if fatal or math.isnan(score) else score}
            for example, score in zip(audit.examples, audit.uds_per_example.tolist(), strict=True)
        },
        "n_measured": audit.n_measured,
        "confidence": audit.config.confidence,
        "prompts": audit.prompts,
        "warnings": list(audit.warnings),
        "models": {role: record.name for role, record in audit.models.items()},
        "uds_lens": versions()["uds_lens"],
    }
    summary = {name: entry["agg_value"] for name, entry in entries.items() if entry["agg_value"] is not None}
    summary = {"uds": None, **summary}
    for file, content in ((detailed, entries), (short, summary)):
        atomic_write_marked(file, json.dumps(plain(content), indent=4, ensure_ascii=False, allow_nan=False) + "\n")
    return detailed, short


def require_answers(run: UnlearningRun, *, full: str | None, retain: str | None, examples: str | None) -> None:
    """Raise a `ConfigError` that names the options missing from a run's record."""
    given = {"full": full or run.full, "retain": retain or run.retain, "examples": examples or run.examples}
    absent = [name for name, value in given.items() if value is None]
    if not absent:
        return
    what = f"{run.base or 'base model not known'}, {run.split or 'split not known'}"
    why = {
        "full": "the run's record names no model",
        "retain": "neither next to the run nor published",
        "examples": "no forget set with entities is published for this split (uds-lens annotate marks entities)",
    }
    parts: list[str | Setting] = []
    for name in absent:
        parts += [Setting(name), f" ({why[name]}); "]
    raise ConfigError(f"{str(run.task)!r} is of {what}: give ", *parts[:-1], str(parts[-1]).removesuffix("; "), ".")
