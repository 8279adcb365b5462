"""`Result`: the form in which every measurement is stored, and how it is written and read.

A result's manifest contains kind, models, settings, other values, provenance and cautions, as JSON with a checksum. A
result whose kind has no tables is this single JSON file. Any other result is a directory with `manifest.json`,
`tensors.safetensors` and one Parquet file per table, and the manifest contains the SHA-256 of each file. Nothing is
pickled, and no file is trusted: checksums, types and shapes are verified on the very bytes that are parsed.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from uds_lens._storage.files import (
    Place,
    atomic_files,
    atomic_write_bytes,
    check_writable,
    located,
    read_file,
    read_one_version,
    sha256_bytes,
)
from uds_lens._storage.records import checked_record, conform, plain, with_checksum
from uds_lens._storage.tables import read_table_rows
from uds_lens.errors import ResultFormatError

if TYPE_CHECKING:
    import pyarrow as pa


VERSION = 1  # version of the format; raised when older releases could misread a result

MANIFEST, TENSORS = "manifest.json", "tensors.safetensors"

Columns: TypeAlias = Mapping[str, Literal["string", "int64", "double", "strings"]]  # of a table, keyed by column
Shape: TypeAlias = tuple[int | None, ...]  # of a tensor; None stands for the number of layers, given by `s1_delta`
Row: TypeAlias = Mapping[str, Any]  # of a table


@dataclass(frozen=True)
class Kind:
    """A kind of result: its tables, and the classes that validate its contents."""

    name: str  # usually the name of its public class
    settings: Any = dict
    values: Any = dict  # plain values in addition to models, settings and provenance
    model: Any = dict  # the record of a model
    origin: Any = dict  # the part of the provenance that is read back
    tables: Mapping[str, Columns] = field(default_factory=dict)  # if empty, the result is a single file

    @property
    def format(self) -> str:
        """The manifest's `format`."""
        return f"uds_lens.{self.name}"


@dataclass(frozen=True)
class Result:
    """A measurement in its stored form; classes such as `DepthAudit` are views of it."""

    kind: Kind
    settings: Any
    models: Mapping[str, Any] = field(default_factory=dict)  # by role
    provenance: Mapping[str, Any] = field(default_factory=dict)
    values: Any = field(default_factory=dict)
    tensors: Mapping[str, Any] = field(default_factory=dict)
    tables: Mapping[str, Sequence[Row]] = field(default_factory=dict)
    cautions: Sequence[str] = ()  # for people who read the file; not read back
    summary: Any = None  # also for people; not read back
    where: str = ""  # where it was read from, for error messages

    def save(self, path: Place) -> None:
        """Write the result atomically, replacing only a result of the same kind; other files in the directory stay."""
        from safetensors.torch import save

        place = check_writable(path, directory=bool(self.kind.tables), format=self.kind.format)
        files = {f"{name}.parquet": _parquet(rows, self.kind.tables[name]) for name, rows in self.tables.items()}
        if self.tensors:
            files[TENSORS] = save({name: tensor.clone().contiguous() for name, tensor in self.tensors.items()})
        manifest = {
            "format": self.kind.format,
            "version": VERSION,
            "models": self.models,
            "settings": self.settings,
            "values": self.values,
            "provenance": self.provenance,
            "cautions": self.cautions,
            "summary": self.summary,
            "files": {name: sha256_bytes(content) for name, content in files.items()},
        }
        content = with_checksum(plain(_members(manifest)))
        if self.kind.tables:
            own = {TENSORS, *(f"{name}.parquet" for name in self.kind.tables)}
            atomic_files(place, {**files, MANIFEST: content}, own=own)
        else:
            atomic_write_bytes(place, content)

    @classmethod
    def load(cls, path: Place, kind: Kind) -> Result:
        """Read a result. During an overwrite, either the old or the new version is read, never a mixture.

        Raises:
            ResultFormatError: A file is missing, altered, of another kind or version, or has invalid contents.
        """
        if kind.tables:
            return read_one_version(path, MANIFEST, lambda folder: cls._read(folder, folder / MANIFEST, kind))
        return cls._read(located(path), located(path), kind)

    @classmethod
    def _read(cls, place: Path, record: Path, kind: Kind) -> Result:
        where = repr(str(place))
        if not record.is_file():
            form = f"a directory with {MANIFEST}" if kind.tables else "a JSON file"
            raise ResultFormatError(f"no saved {kind.name} in {where}: expected {form}, written by save().")
        members = checked_record(read_file(record), where=where, format=kind.format, version=VERSION)
        manifest = conform(_Manifest, {name: members[name] for name in members if name not in _UNREAD}, where=where)
        conform(kind.origin, manifest.provenance, where=f"{where}: provenance")
        models = manifest.models
        columns = {f"{name}.parquet": (name, of) for name, of in kind.tables.items()}
        tables, tensors = {}, {}
        for name, known in manifest.files.items():
            file = repr(str(place / name))
            if name not in (TENSORS, *columns):
                raise ResultFormatError(f"{where}: a {kind.name} has no file {name[:60]!r}.")
            if sha256_bytes(content := read_file(place / name)) != known:
                raise ResultFormatError(f"{file} was altered after it was saved: run the measurement again.")
            if name == TENSORS:
                tensors = _tensors(content, where=file)
            else:
                table, of = columns[name]
                tables[table] = read_table_rows(content, schema=_schema(of), where=file)
        return cls(
            kind,
            conform(kind.settings, manifest.settings, where=f"{where}: settings"),
            models={role: conform(kind.model, of, where=f"{where}: {role[:20]}") for role, of in models.items()},
            provenance=manifest.provenance,
            values=conform(kind.values, manifest.values, where=where),
            tensors=tensors,
            tables=tables,
            where=where,
        )

    def table(self, name: str) -> Sequence[Row]:
        """Return the rows of a table."""
        if name not in self.tables:
            raise ResultFormatError(f"{self.where} is not a complete {self.kind.name}: it lacks {name}.parquet.")
        return self.tables[name]

    def shaped(
        self, shapes: Mapping[str, Shape], optional: Mapping[str, Shape] = MappingProxyType({})
    ) -> dict[str, Any]:
        """Return the tensors after checking their shapes; tensors in `optional` may be missing."""
        import torch

        where = f"{TENSORS} of {self.where}"
        shapes = {**shapes, **{name: shape for name, shape in optional.items() if name in self.tensors}}
        if wrong := sorted(set(shapes) ^ set(self.tensors)):
            raise ResultFormatError(f"{where} must contain {', '.join(shapes)[:300]}; see {wrong[0][:60]!r}.")
        first = self.tensors.get("s1_delta")
        layers = first.shape[-1] if first is not None and first.ndim == 2 else -1
        for name, sizes in shapes.items():
            tensor, shape = self.tensors[name], tuple(layers if size is None else size for size in sizes)
            dtypes = (torch.int64,) if name.endswith("n_tokens") else (torch.float32, torch.float64)
            if tuple(tensor.shape) != shape or tensor.dtype not in dtypes:
                raise ResultFormatError(
                    f"{where}: {name} must have shape {shape} and dtype {dtypes[-1]}; got {tuple(tensor.shape)} and "
                    f"{tensor.dtype}."
                )
        return {name: self.tensors[name] for name in shapes}


_UNREAD = ("format", "version", "cautions", "summary")  # members that are checked earlier, or only for human readers


@dataclass(frozen=True, kw_only=True)
class _Manifest:
    """The members of a manifest that are read back."""

    models: dict[str, dict[str, Any]]
    settings: dict[str, Any]
    values: dict[str, Any]
    provenance: dict[str, Any]
    files: dict[str, str]


def _members(value: Any) -> Any:
    """Convert all dataclasses and named tuples in a value to JSON objects."""
    if is_dataclass(value):
        value = {part.name: getattr(value, part.name) for part in fields(value)}
    elif hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, Mapping):
        return {name: _members(part) for name, part in value.items()}
    return [_members(part) for part in value] if isinstance(value, list | tuple) else value


def _tensors(content: bytes, *, where: str) -> dict[str, Any]:
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        return load(content)
    except (SafetensorError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise ResultFormatError(f"{where} holds no tensors: {str(error)[:160]}.") from error


def _schema(columns: Columns) -> pa.Schema:
    import pyarrow as pa

    kinds = {"string": pa.string(), "int64": pa.int64(), "double": pa.float64(), "strings": pa.list_(pa.string())}
    return pa.schema([(name, kinds[kind]) for name, kind in columns.items()])


def _parquet(rows: Sequence[Row], columns: Columns) -> bytes:
    import pyarrow as pa
    from pyarrow import parquet

    stream = io.BytesIO()
    parquet.write_table(pa.Table.from_pylist(list(rows), schema=_schema(columns)), stream, compression="zstd")
    return stream.getvalue()
