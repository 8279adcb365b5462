"""Saved results as accidents and forgers leave them: every one is read as it was saved, or refused in words."""

import copy
import io
import json
import math
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save
from synthetic_audits import synthetic_audit, with_control, with_retains

from uds_lens.audit import Baseline
from uds_lens.errors import ResultFormatError
from uds_lens.metrics import MetricOptions, MetricResults
from uds_lens.metrics.metric_results import Cost, MetricValue
from uds_lens.results import DepthAudit, audit_names
from uds_lens.storage import plain, sealed, sha256_bytes

KINDS: dict[str, Any] = {
    "audit": DepthAudit,
    "controlled": DepthAudit,
    "baseline": Baseline,
    "metrics.json": MetricResults,
}

HOSTILE: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**63, 10**400, 0.5, -0.0, 1e308, 5e-324, "", "0", "x" * 5000, "\ud83d", "\u0000",
    "</script>", "NaN", "False", "../../etc/passwd", [], {}, [None], [[]], {"": None}, {"format": "uds_lens.x"},
    [0] * 100,
)  # fmt: skip


def save_all(folder: Path) -> None:
    """One result of each kind."""
    audit = synthetic_audit(n=4, layers=3)
    audit.save(folder / "audit")
    with_retains(with_control(audit, n=3)).save(folder / "controlled")
    Baseline(
        config=audit.config,
        models={role: audit.models[role] for role in ("full", "retain")},
        **{
            name: getattr(audit, name) for name in ("examples", "skipped", "provenance", "n_tokens", "s_full")
        },
        **{name: getattr(audit, name) for name in ("s1_delta", "s1_norm_ratio", "s1_cosine")},
    ).save(folder / "baseline")
    words = {"direction": "knowledge", "low": 0.0, "zero": "nothing is left", "one": "all is known"}
    metrics = [
        MetricValue(
            name="es", label="ES", group="memorization", value=0.5, high=1.0, ids=("e0", "e1"),
            per_example=(0.5, math.nan), details={"s1_delta": [[0.1, 0.2], [0.3, 0.4]]}, cost=Cost(1.5, 2), **words,
        ),
        MetricValue(
            name="zlib", label="ZLib", group="membership", value=math.nan, high=math.inf, reason="no holdout", **words
        ),
    ]  # fmt: skip
    MetricResults(
        metrics={metric.name: metric for metric in metrics},
        models={"model": audit.models["unlearned"]},
        options=MetricOptions(),
        sizes={"forget": 2},
        generations={"forget": ("It was Ada.", "Ash")},
        provenance=audit.provenance,
        total=Cost(1.5, 2),
    ).save(folder / "metrics.json")


def outcome(kind: str, place: Path, original: str, *, forged: bool) -> str:
    """What became of one altered result: "refused", "same", "forged" (sealed again, and fit), or what went wrong."""
    try:
        found = KINDS[kind].load(place)
    except ResultFormatError as error:
        return "refused" if len(str(error)) < 500 else f"long message: {str(error)[:300]}"
    except Exception as error:
        return f"raw {type(error).__name__} on loading: {str(error)[:200]}"
    try:
        told = contents(found)
    except Exception as error:
        return f"raw {type(error).__name__} on use: {str(error)[:200]}"
    if told == original:
        return "same"
    return "forged" if forged else "altered and loaded"


def contents(found: Any) -> str:
    """Everything in a result as text, by way of what users do with it."""
    if isinstance(found, MetricResults):
        found.examples_frame(), found._repr_html_()
        return repr([found.to_frame().to_csv(), list(found), found.models, found.options, found.provenance])
    tensors = {
        name: value.numpy().tobytes()
        for name, value in vars(found).items()
        if isinstance(value, torch.Tensor)
    }
    told = [
        found.config,
        found.models,
        list(found.examples),
        list(found.skipped),
        found.provenance,
        sorted(tensors),
    ]
    if isinstance(found, DepthAudit):
        told += [
            found.summary(),
            found.examples_frame().to_csv(),
            found.layers_frame().to_csv(),
            audit_names([found]),
            found.retains_frame().to_csv(),
        ]
        if found.control is not None:
            told += [found.control_frame().to_csv(), list(found.control.skipped), found.control.sample]
    return repr([told, sorted(tensors.items()), repr(found)])


def altered(kind: str, source: Path, place: Path, rng: random.Random) -> bool:
    """Copy a result and alter the copy; True where it was sealed again afterwards."""
    remove(place)
    if source.is_dir():
        shutil.copytree(source, place)
    else:
        shutil.copyfile(source, place)
    record = place / "manifest.json" if place.is_dir() else place
    if rng.random() < 0.35:
        files = sorted(place.iterdir()) if place.is_dir() else [place]
        in_bytes(rng.choice(files), rng)
        return False
    whole = json.loads(record.read_text(encoding="utf-8"))
    forged = rng.random() < 0.7
    seal = whole.pop("sha256")
    if forged and place.is_dir() and rng.random() < 0.4:
        in_content(place, whole, rng)
    else:
        for _ in range(rng.choice((1, 1, 1, 3))):
            in_value(whole, rng)
    if forged:
        try:
            record.write_bytes(sealed(plain(whole)))
        except (ValueError, RecursionError):
            record.write_text(json.dumps(whole))
        return True
    record.write_text(json.dumps({**whole, "sha256": seal}), encoding="utf-8")
    return False


def remove(place: Path) -> None:
    shutil.rmtree(place) if place.is_dir() else place.unlink(missing_ok=True)


def in_bytes(file: Path, rng: random.Random) -> None:
    """A flipped bit, a cut, a gap, a copy, nothing, or noise."""
    content = bytearray(file.read_bytes())
    at, way = rng.randrange(len(content)), rng.randrange(7)
    if way <= 1:
        content[at] ^= 1 << rng.randrange(8)
    elif way == 2:
        del content[at:]
    elif way == 3:
        del content[at : at + rng.randrange(1, 50)]
    elif way == 4:
        content[at:at] = content[: rng.randrange(1, 50)]
    elif way == 5:
        content = bytearray()
    else:
        content[at : at + 8] = rng.randbytes(8)
    file.write_bytes(content)


def in_value(record: dict[str, Any], rng: random.Random) -> None:
    """Replace, remove, rename or add a member somewhere."""
    node: Any = record
    for _ in range(rng.randrange(5)):
        inner = [
            part
            for part in (node.values() if isinstance(node, dict) else node)
            if isinstance(part, dict | list) and part
        ]
        if not inner:
            break
        node = rng.choice(inner)
    value = nested(rng.choice((3, 30, 300))) if rng.random() < 0.05 else copy.deepcopy(rng.choice(HOSTILE))
    if isinstance(node, list):
        way = rng.randrange(3)
        if way == 0 or not node:
            node.append(value)
        elif way == 1:
            node[rng.randrange(len(node))] = value
        else:
            node.pop(rng.randrange(len(node)))
        return
    name, way = rng.choice(sorted(node)) if node else "", rng.randrange(5)
    if way <= 2:
        node[name] = value
    elif way == 3:
        node.pop(name, None)
    else:
        node[rng.choice(("more", "", "sha256", "__class__", name + "s"))] = value


def nested(depth: int) -> Any:
    value: Any = None
    for _ in range(depth):
        value = {"a": value}
    return value


def in_content(place: Path, manifest: dict[str, Any], rng: random.Random) -> None:
    """Tensors or examples of other kinds and shapes, with sums that fit."""
    name = rng.choice(("tensors.safetensors", "examples.parquet"))
    change = in_tensors if name.startswith("tensors") else in_table
    content = change((place / name).read_bytes(), rng)
    (place / name).write_bytes(content)
    if isinstance(manifest.get("files"), dict):
        manifest["files"][name] = sha256_bytes(content)


def in_tensors(content: bytes, rng: random.Random) -> bytes:
    tensors = load(content)
    name = rng.choice(sorted(tensors))
    tensor = tensors[name]
    ways: list[Callable[[], Any]] = [
        lambda: tensor.to(
            rng.choice((torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.bool, torch.float32))
        ),
        lambda: tensor[:-1].clone(),
        lambda: tensor.unsqueeze(-1),
        lambda: tensor.flatten(),
        lambda: torch.zeros(0),
        lambda: torch.tensor(1.0),
        lambda: (
            torch.full_like(tensor, -1)
            if tensor.dtype == torch.int64
            else torch.full_like(tensor, rng.choice((math.nan, math.inf)))
        ),
        lambda: torch.cat([tensor, tensor], dim=-1),
    ]
    way = rng.randrange(len(ways) + 2)
    if way == len(ways):
        del tensors[name]
    elif way > len(ways):
        tensors["more"] = torch.zeros(1)
    else:
        tensors[name] = ways[way]()
    return save(tensors) if rng.random() < 0.95 else save(tensors)[:-3]


def in_table(content: bytes, rng: random.Random) -> bytes:
    import pyarrow as pa
    from pyarrow import parquet

    rows = parquet.read_table(pa.BufferReader(content)).to_pylist()
    name = rng.choice(sorted(rows[0]))
    value = rng.choice((None, "", "x", "\u0000", 7, 0.5, True, b"\xff", ["a"], [None], {"a": 1}))
    schema = parquet.read_schema(pa.BufferReader(content))
    way = rng.randrange(5)
    if way == 0:
        rows = [{**row, name: value} for row in rows]
        schema = None
    elif way == 1:
        rows = [{key: cell for key, cell in row.items() if key != name} for row in rows]
        schema = None
    elif way == 2:
        rows = rows[:-1]
    elif way == 3:
        rows[0] = {**rows[0], name: None}
    else:
        rows = [{**row, "more": value} for row in rows]
        schema = None
    stream = io.BytesIO()
    try:
        parquet.write_table(pa.Table.from_pylist(rows, schema=schema), stream)
    except (pa.ArrowException, TypeError, ValueError):
        return content[: len(content) // 2]
    return stream.getvalue()
