"""Saved audits and baselines: a directory with a JSON manifest, a safetensors file and a parquet table.

The manifest names the format and its version, holds the SHA-256 of the other files, and is sealed itself; it is what
makes a directory a result. Directories appear whole or not at all. Nothing is pickled, and nothing read is trusted:
sums, kinds and shapes are checked, on the bytes that are then parsed.
"""

from __future__ import annotations

import io
import os
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from uds_lens._storage import (
    atomic_files,
    conform,
    located,
    parse_json,
    plain,
    read_file,
    read_table_rows,
    require_fresh,
    sealed,
    settled,
    sha256_bytes,
    unsealed,
)
from uds_lens.data import ForgetExample, SkippedExample
from uds_lens.errors import ConfigError, ResultFormatError, Setting, UdsLensError
from uds_lens.results._records import ModelRecord, printable
from uds_lens.results._settings import AuditConfig
from uds_lens.results._stage_1 import ControlFacts, RetainStage1, Stage1

if TYPE_CHECKING:
    import pyarrow as pa


# The tensors of a saved result: each with the shape and dtype it must have.

Shape = tuple[int | None, ...]
"""Of a tensor; None stands for the number of layers, which `s1_delta` tells."""


def tensors_from(content: bytes, shapes: Mapping[str, Shape], *, told: str) -> dict[str, Tensor]:
    """The tensors in a safetensors file.

    Args:
        content: Its bytes.
        shapes: What it must hold; names that end in `n_tokens` are whole numbers.
        told: What to call it in messages.

    Raises:
        ResultFormatError: It is no such file, holds other tensors, or one of another shape or dtype.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        found = load(content)
    except (SafetensorError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise ResultFormatError(f"{told} holds no tensors: {str(error)[:160]}.") from error
    if wrong := sorted(set(shapes) ^ set(found)):
        raise ResultFormatError(f"{told} must hold {', '.join(shapes)[:300]}; see {wrong[0][:60]!r}.")
    first = found["s1_delta"]
    layers = first.shape[-1] if first.ndim == 2 else -1
    for name, asked in shapes.items():
        _require(name, found[name], tuple(layers if size is None else size for size in asked), told)
    return {name: found[name] for name in shapes}


def _require(name: str, tensor: Tensor, shape: tuple[int, ...], told: str) -> None:
    counts = name.endswith("n_tokens")
    dtypes: Sequence[torch.dtype] = (torch.int64,) if counts else (torch.float32, torch.float64)
    if tuple(tensor.shape) != shape or tensor.dtype not in dtypes:
        raise ResultFormatError(
            f"{told}: {name} must have shape {shape} and dtype {dtypes[-1]}; got {tuple(tensor.shape)} and "
            f"{tensor.dtype}."
        )


# The examples of a saved result: a Parquet table, as bytes.

_LISTS = ("paraphrased_answers", "perturbed_answers")


def examples_to_parquet(examples: Sequence[ForgetExample]) -> bytes:
    """One row per example, in order."""
    import pyarrow as pa
    from pyarrow import parquet

    schema = _schema()
    columns = {name: [getattr(example, name) for example in examples] for name in schema.names}
    stream = io.BytesIO()
    parquet.write_table(pa.table(columns, schema=schema), stream)
    return stream.getvalue()


def examples_from_parquet(content: bytes, *, told: str) -> tuple[ForgetExample, ...]:
    """The examples in a file.

    Args:
        content: Its bytes.
        told: What to call it in messages.

    Raises:
        ResultFormatError: It is no such table, or a cell is not what it should be.
    """
    found = read_table_rows(content, schema=_schema(), told=told, what="table of examples")
    return tuple(_example(row, told) for row in found.rows)


def _example(row: dict[str, Any], told: str) -> ForgetExample:
    if row["row"] is None:
        raise ResultFormatError(f"{told} holds an example without its row.")
    try:
        return ForgetExample(**{**row, **{name: tuple(row[name] or ()) for name in _LISTS}})
    except UdsLensError as error:
        raise ResultFormatError(f"{told}: {str(error)[:300]}") from error


def _schema() -> pa.Schema:
    import pyarrow as pa

    kinds = {"row": pa.int64(), **dict.fromkeys(_LISTS, pa.list_(pa.string()))}
    return pa.schema([(field.name, kinds.get(field.name, pa.string())) for field in fields(ForgetExample)])


# What a saved result holds only where it was measured: control facts, and several retain models.

CONTROL_FILE = "control.parquet"
"""Name of the table of control facts."""

PARTS = {"control": dict, "retains": list}
"""Entries of the manifest that may be missing, with their kinds."""

_FACTS = ("n_tokens", "s_full", "s1_delta")
_RETAIN = ("s1_delta", "s1_norm_ratio", "s1_cosine")


@dataclass(frozen=True)
class SavedParts:
    """What they add to a directory."""

    tensors: dict[str, Tensor] = field(default_factory=dict)
    """By name."""
    files: dict[str, bytes] = field(default_factory=dict)
    """Beside the tensors."""
    members: dict[str, Any] = field(default_factory=dict)
    """Of the manifest."""


@dataclass(frozen=True, kw_only=True)
class _Control:
    """The entry of the control facts."""

    ids_hash: str
    sample: dict[str, Any] | None
    skipped: tuple[SkippedExample, ...]


def parts_of(result: Stage1, control_tensors: Sequence[str]) -> SavedParts:
    """What control facts and several retain models of a result add.

    Args:
        result: What is saved.
        control_tensors: Tensors of the result itself that are about control facts.
    """
    found = SavedParts()
    if (control := result.control) is not None:
        own = {f"control_{name}": getattr(control, name) for name in _FACTS}
        found.tensors.update(own | {name: getattr(result, name) for name in control_tensors})
        found.files[CONTROL_FILE] = examples_to_parquet(control.examples)
        skipped = [vars(each) for each in control.skipped]
        found.members["control"] = plain(
            {"ids_hash": control.ids_hash, "sample": control.sample, "skipped": skipped}
        )
    if result.retains:
        found.members["retains"] = [retain.model.to_dict() for retain in result.retains]
        for name in (*_RETAIN, *(() if control is None else ("control_s1_delta",))):
            found.tensors[f"retains_{name}"] = torch.stack([getattr(each, name) for each in result.retains])
    return found


def part_shapes(
    manifest: Mapping[str, Any], n: int, n_facts: int, control_tensors: Sequence[str]
) -> dict[str, Shape]:
    """The tensors that a manifest promises, with `n` examples and `n_facts` control facts."""
    shapes: dict[str, Shape] = {}
    if "control" in manifest:
        shapes |= {"control_n_tokens": (n_facts,), "control_s_full": (n_facts,)}
        shapes |= dict.fromkeys(("control_s1_delta", *control_tensors), (n_facts, None))
    if "retains" in manifest:
        several = len(manifest["retains"])
        shapes |= {f"retains_{name}": (several, n, None) for name in _RETAIN}
        if "control" in manifest:
            shapes["retains_control_s1_delta"] = (several, n_facts, None)
    return shapes


def parts_from(
    manifest: Mapping[str, Any], tensors: dict[str, Tensor], facts: tuple[ForgetExample, ...], *, told: str
) -> dict[str, Any]:
    """`control` and `retains` of a result; their tensors are taken out of `tensors`.

    Raises:
        ResultFormatError: An entry of the manifest is not what it should be.
    """
    found: dict[str, Any] = {}
    if "control" in manifest:
        entry = conform(_Control, manifest["control"], where=f"{told}: control")
        own: dict[str, Any] = {name: tensors.pop(f"control_{name}") for name in _FACTS}
        found["control"] = ControlFacts(examples=facts, **vars(entry), **own)
    if "retains" in manifest:
        found["retains"] = _retains(manifest["retains"], tensors, told)
    return found


def _retains(records: list[Any], tensors: dict[str, Tensor], told: str) -> tuple[RetainStage1, ...]:
    if len(records) < 2:
        raise ResultFormatError(
            f"{told}: retains must hold several retain models, or be missing; got {len(records)}."
        )
    names = [name for name in tensors if name.startswith("retains_")]
    own = {name.removeprefix("retains_"): tensors.pop(name) for name in names}
    return tuple(
        RetainStage1(
            model=conform(ModelRecord, record, where=f"{told}: retains[{i}]"),
            **{name: stacked[i] for name, stacked in own.items()},
        )
        for i, record in enumerate(records)
    )


VERSION = 3
"""Version of the format; raised when older releases could misread a result."""

PLAIN = 2
"""Version of results without control facts and with one retain model: written as such, so that older releases read
them."""

UNSEALED = 1
"""Version of release 0.1, whose manifest had no seal; still read."""

_MANIFEST, _TENSORS, _EXAMPLES = "manifest.json", "tensors.safetensors", "examples.parquet"
_MEMBERS = {"format", "version", "config", "models", "provenance", "skipped", "files"}
_MOST_ATTEMPTS = 100
"""Readings of a result that is saved again all the time, before it is given up."""

_DEEPEST = 12
"""Levels of a provenance."""


@dataclass(frozen=True)
class SavedKind:
    """What one kind of saved result holds beside configuration, examples and provenance."""

    name: str
    """Its class."""

    roles: tuple[str, ...]
    """Models it records."""

    tensors: tuple[str, ...]
    """Names of its tensors; the first axis of each is the example."""

    control: tuple[str, ...]
    """Names of its tensors on control facts, where it has some."""

    more: str
    """Name of the manifest's entry for readers, which is not read back."""


AUDIT = SavedKind(
    "DepthAudit",
    roles=("full", "retain", "unlearned"),
    tensors=(
        "n_tokens",
        "s_full",
        "s1_delta",
        "s2_delta",
        "s1_norm_ratio",
        "s1_cosine",
        "s2_norm_ratio",
        "s2_cosine",
    ),
    control=("control_s2_delta",),
    more="summary",
)
"""What a saved audit holds."""


def is_audit(path: str | os.PathLike[str]) -> bool:
    """Whether a directory says that it is a saved `DepthAudit`; whether it is whole shows when it is loaded."""
    return _format(located(path)) == f"uds_lens.{AUDIT.name}"


def audits_in(folder: str | os.PathLike[str], *, depth: int = 2) -> list[Path]:
    """Directories in a folder that say that they are a saved `DepthAudit`, of any version, sorted.

    Args:
        folder: Where to look; nothing is found where there is no such folder.
        depth: How far down. Results are not entered, nor are hidden directories.
    """
    folder = located(folder)
    if depth < 1 or not folder.is_dir():
        return []
    found: list[Path] = []
    for place in sorted(folder.iterdir()):
        if place.is_dir() and not place.name.startswith("."):
            kind = _format(place)
            if kind == f"uds_lens.{AUDIT.name}":
                found.append(place)
            elif kind is None:
                found += audits_in(place, depth=depth - 1)
    return found


def save_result(result: Stage1, path: str | os.PathLike[str], kind: SavedKind, *, more: Any) -> None:
    """Write a result to a directory, whole or not at all; what else stands in that directory stays.

    Args:
        result: What to save.
        path: Directory; an earlier result there is replaced.
        kind: What it holds.
        more: The manifest's entry for readers.

    Raises:
        ResultFormatError: Something else than a saved result stands there.
        StorageError: The system refuses to write.
    """
    from safetensors.torch import save

    place = require_fresh(path, directory=True, format=f"uds_lens.{kind.name}")
    parts = parts_of(result, kind.control)
    tensors = {name: getattr(result, name) for name in kind.tensors} | parts.tensors
    tensors = {name: tensor.clone().contiguous() for name, tensor in tensors.items()}
    files = {_TENSORS: save(tensors), _EXAMPLES: examples_to_parquet(result.examples), **parts.files}
    manifest = {
        "format": f"uds_lens.{kind.name}",
        "version": VERSION if parts.members else PLAIN,
        "config": result.config.to_dict(),
        "models": {role: record.to_dict() for role, record in result.models.items()},
        "provenance": plain(result.provenance),
        "skipped": [vars(skipped) for skipped in result.skipped],
        **parts.members,
        kind.more: plain(more),
        "files": {name: sha256_bytes(content) for name, content in files.items()},
    }
    atomic_files(place, {**files, _MANIFEST: sealed(manifest)}, own={CONTROL_FILE})


def load_audit(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The fields of a saved `DepthAudit`; a folder of audits is refused with one of them named."""
    inside = audits_in(path) if _format(located(path)) is None else []
    if inside:
        raise ResultFormatError(
            f"{str(path)!r} is no saved DepthAudit, but holds {len(inside)}: load one of them, for example "
            f"DepthAudit.load({str(inside[0])!r}), or put them on one page: uds-lens report {path}"
        )
    return load_result(path, AUDIT)


def load_result(path: str | os.PathLike[str], kind: SavedKind) -> dict[str, Any]:
    """The fields of a saved result by name.

    A result that is saved again at the same time is read as one of its versions, never as a mixture.

    Raises:
        ResultFormatError: A file is missing, altered, or of another version or kind.
    """
    folder = settled(path)
    for attempt in range(_MOST_ATTEMPTS):
        before = _written(folder)
        content = _manifest_bytes(folder, kind)
        try:
            return _fields(content, folder, kind)
        except ResultFormatError:
            # Was another version put in place between the files? Bytes alone do not tell: it may be put back again.
            if _written(folder) == before or attempt + 1 == _MOST_ATTEMPTS:
                raise
    raise AssertionError("unreachable")


def _written(folder: Path) -> tuple[int, ...] | None:
    """Which writing of the manifest stands there; None where there is none."""
    try:
        told = (folder / _MANIFEST).stat()
    except OSError:
        return None
    return told.st_dev, told.st_ino, told.st_size, told.st_mtime_ns, told.st_ctime_ns


def _fields(content: bytes, folder: Path, kind: SavedKind) -> dict[str, Any]:
    told, manifest = repr(str(folder)), _manifest(content, folder, kind)
    tables = (_EXAMPLES, CONTROL_FILE) if "control" in manifest else (_EXAMPLES,)
    files = {name: _content(folder / name, manifest["files"]) for name in (_TENSORS, *tables)}
    examples, *more = (examples_from_parquet(files[name], told=repr(str(folder / name))) for name in tables)
    facts = more[0] if more else ()
    shapes = _shapes(kind, len(examples)) | part_shapes(manifest, len(examples), len(facts), kind.control)
    tensors = tensors_from(files[_TENSORS], shapes, told=repr(str(folder / _TENSORS)))
    parts = parts_from(manifest, tensors, facts, told=told)
    return {
        "config": conform(AuditConfig, manifest["config"], where=f"{told}: config"),
        "models": {
            role: conform(ModelRecord, record, where=f"{told}: models.{role}")
            for role, record in manifest["models"].items()
        },
        "provenance": manifest["provenance"],
        "skipped": tuple(
            conform(SkippedExample, row, where=f"{told}: skipped[{i}]")
            for i, row in enumerate(manifest["skipped"])
        ),
        "examples": examples,
        **parts,
        **tensors,
    }


def _manifest_bytes(folder: Path, kind: SavedKind) -> bytes:
    if not (folder / _MANIFEST).exists():
        raise ResultFormatError(
            f"no saved {kind.name} in {str(folder)!r}: expected a directory with {_MANIFEST}."
        )
    return read_file(folder / _MANIFEST)


def _manifest(content: bytes, folder: Path, kind: SavedKind) -> dict[str, Any]:
    """The manifest, with members of the right kinds; what is in them is checked where it is used."""
    manifest = unsealed(
        content,
        told=repr(str(folder)),
        format=f"uds_lens.{kind.name}",
        versions=(UNSEALED, PLAIN, VERSION),
        unsealed_versions=(UNSEALED,),
    )
    kinds = {"config": dict, "models": dict, "provenance": dict, "skipped": list, "files": dict}
    wrong = sorted((_MEMBERS | {kind.more}) ^ (set(manifest) - set(PARTS)))
    kinds |= {name: shape for name, shape in PARTS.items() if name in manifest}
    wrong += [name for name, shape in kinds.items() if not isinstance(manifest.get(name), shape)]
    if wrong:
        raise ResultFormatError(
            f"{str(folder)!r} is not a complete {kind.name}: see {wrong[0][:60]!r} in it."
        )
    if set(manifest["models"]) != set(kind.roles):
        raise ResultFormatError(
            f"{str(folder)!r} is not a complete {kind.name}: expected models {', '.join(kind.roles)}, got "
            f"{', '.join(sorted(manifest['models']))[:100]}."
        )
    _require_provenance(manifest["provenance"], folder)
    return manifest


def _require_provenance(found: Mapping[str, Any], folder: Path) -> None:
    """Raise unless what is read from a provenance later has its type, where it is there."""
    versions = found.get("versions", {})
    told = isinstance(versions, dict) and all(isinstance(value, str) for value in versions.values())
    texts = (found.get(name) for name in ("first_prompt", "ids_hash", "engine"))
    if not told or not all(isinstance(text, str | None) for text in texts):
        raise ResultFormatError(
            f"{str(folder)!r}: versions, ids_hash, engine and first_prompt of its provenance must be texts."
        )
    if _depth(found) > _DEEPEST:
        raise ResultFormatError(
            f"{str(folder)!r}: its provenance is nested more than {_DEEPEST} levels deep."
        )


def _depth(value: Any, level: int = 0) -> int:
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    if level > _DEEPEST:
        return level
    return max((_depth(part, level + 1) for part in parts), default=level)


def _content(file: Path, sums: Mapping[str, Any]) -> bytes:
    content = read_file(file)
    if sha256_bytes(content) != sums.get(file.name):
        raise ResultFormatError(f"{str(file)!r} was altered after it was saved: measure again.")
    return content


def _shapes(kind: SavedKind, n: int) -> dict[str, Shape]:
    """Its own tensors."""
    return {name: (n,) if name in ("n_tokens", "s_full") else (n, None) for name in kind.tensors}


def _format(folder: Path) -> str | None:
    """What the manifest in a directory says it is; None where there is none, or it says nothing."""
    try:
        found = parse_json(read_file(folder / _MANIFEST), told="").get("format")
    except ResultFormatError:
        return None
    return found if isinstance(found, str) else None


# Names of the directories in which the audits of several models are saved.


def directory_names(
    models: Sequence[str], *, given: Sequence[str] = (), reserved: Collection[str] = ()
) -> list[str]:
    """One name per model: the last part of its path or Hub id as it was typed, and more only of those that clash.

    Args:
        models: Directories or Hub ids. Links are not followed.
        given: Names to use instead, one per model.
        reserved: Names that are taken.

    Raises:
        ConfigError: The same model twice; or names that are too few, twice the same, taken, or no names of directories.

    Example:
        >>> directory_names(["ckpt/npo", "user/rmu"])
        ['npo', 'rmu']
        >>> directory_names(["npo/final", "rmu/final", "ckpt/ga"])
        ['npo-final', 'rmu-final', 'ga']
    """
    if given:
        return _checked(given, len(models), reserved)
    parts = [_parts(model) for model in models]
    depths = [1] * len(models)
    while True:
        names = ["-".join(path[-depth:]) for path, depth in zip(parts, depths, strict=True)]
        taken = Counter([*names, *reserved])
        longer = [i for i, name in enumerate(names) if taken[name] > 1 and depths[i] < len(parts[i])]
        if not longer:
            break
        for i in longer:
            depths[i] += 1
    if max(taken.values(), default=0) > 1:
        raise ConfigError(
            f"the unlearned models must have different names, other than {', '.join(reserved) or 'none'}; got "
            f"{', '.join(models)}: name them with ",
            Setting("name", ...),
            ", once for each.",
        )
    return names


def _parts(model: str) -> tuple[str, ...]:
    typed = printable(os.path.expanduser(model))
    path = PurePath(os.path.abspath(typed) if os.path.isdir(typed) else typed)
    return path.relative_to(path.anchor).parts or ("root",)


def _checked(names: Sequence[str], n_models: int, reserved: Collection[str]) -> list[str]:
    if len(names) != n_models:
        raise ConfigError(
            Setting("name"),
            f" must be given once for each model, in their order: {n_models} models, {len(names)} names.",
        )
    for name in names:
        if name in reserved or not name or name.startswith(".") or set(name) & set('/\\:*?"<>|\0'):
            raise ConfigError(
                Setting("name"), f" {name!r} cannot name the directory of a result: choose another."
            )
    twice = [name for name, n in Counter(names).items() if n > 1]
    if twice:
        raise ConfigError(Setting("name"), f" {twice[0]!r} is given twice.")
    return list(names)
