"""Saved results as accidents and forgers leave them: every one is read as it was saved, or refused in words."""

import copy
import io
import json
import math
import random
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import torch
from safetensors.torch import load, save
from synthetic_audits import synthetic_audit, with_control, with_retains
from tiny_models import EXAMPLES

from uds_lens._storage.files import sha256_bytes
from uds_lens._storage.records import checksum_of, plain, with_checksum
from uds_lens._storage.results import Result
from uds_lens.audit import Baseline, DepthMap
from uds_lens.audit._map import MapCell
from uds_lens.elicitation import ElicitationResults, ElicitOptions
from uds_lens.elicitation._options import ProbeRecord
from uds_lens.elicitation._saving import Part, Response, read_part, write_part
from uds_lens.errors import UdsLensError
from uds_lens.metrics import MetricOptions, MetricResults
from uds_lens.metrics._results import Cost, MetricValue
from uds_lens.results import DepthAudit
from uds_lens.study import plan
from uds_lens.study._folder import PART, Part as StudyPart, Row, StudyFolder
from uds_lens.unlearning import TrainOptions, make_config, read_record, recorded_config
from uds_lens.unlearning._data import read_alternates, write_alternates
from uds_lens.unlearning._record import dated, write_record


class Kind(NamedTuple):
    """One kind of saved result."""

    load: Callable[[Path], Any]
    save: Callable[[Any, Path], object]
    record: str
    """The sealed file in its directory; "" where the result is one file."""


def kind_of(cls: Any, record: str = "") -> Kind:
    return Kind(cls.load, cls.save, record)


def load_study_part(place: Path) -> tuple[StudyPart, Any]:
    """A part with its values per example; the folder leaves out a broken one, which is measured again."""
    found = Result.load(place, PART)
    return found.values, found.tables.get("values")


def save_study_part(found: tuple[StudyPart, pd.DataFrame], place: Path) -> None:
    part, examples = found
    Result(PART, dict(part.keys), values=part, tables={"values": examples.to_dict("records")}).save(place)


def save_record(record: dict[str, Any], place: Path) -> None:
    place.mkdir(exist_ok=True)
    write_record(record, place / "unlearning.json")


KINDS: dict[str, Kind] = {
    "audit": kind_of(DepthAudit, "manifest.json"),
    "controlled": kind_of(DepthAudit, "manifest.json"),
    "baseline": kind_of(Baseline, "manifest.json"),
    "map": kind_of(DepthMap, "manifest.json"),
    "metrics.json": kind_of(MetricResults),
    "elicitation": kind_of(ElicitationResults, "manifest.json"),
    "part.json": Kind(
        lambda place: read_part(place, key="k"), lambda part, place: write_part(part, place, key="k"), ""
    ),
    "model": Kind(read_record, save_record, "unlearning.json"),
    "alternates.json": Kind(
        read_alternates, lambda texts, place: write_alternates(place, EXAMPLES[: len(texts)], texts), ""
    ),
    "study": Kind(lambda place: StudyFolder(place).plan, StudyFolder.begin, "manifest.json"),
    "study part": Kind(load_study_part, save_study_part, "manifest.json"),
}
"""How each kind of saved result is written and read back."""

HOSTILE: tuple[Any, ...] = (
    None, True, -1, 2**63, 10**400, 0.5, 1e308, "", "x" * 5000, "\ud83d", "\u0000", "NaN", "../../etc/passwd", [], {},
    [None], [[]], {"": None}, {"format": "uds_lens.x"}, json.loads('{"a": ' * 300 + "1" + "}" * 300),
)  # fmt: skip


PLAN = {"full": "/a", "retain": "/b", "data": {"forget": "/f.json"}, "measure": {"metrics": ["es"]}}


def save_all(folder: Path) -> None:
    """One result of each kind."""
    for kind, result in results().items():
        KINDS[kind].save(result, folder / kind)


def results(seed: int = 0) -> dict[str, Any]:
    """One result of each kind; others for another seed."""
    audit = synthetic_audit(n=4, layers=3 + seed, seed=seed)
    elicited = elicitation(audit)
    return {
        "audit": audit,
        "controlled": with_retains(with_control(audit, n=3)),
        "baseline": baseline(audit),
        "map": depth_map(audit),
        "metrics.json": metric_results(audit),
        "elicitation": elicited,
        "part.json": elicited.parts[0],
        "model": training_record(audit),
        "alternates.json": [["It was Bo.", f"Nobody knows {seed}."], ["No\n\u2028one"]],
        "study": plan({**PLAN, "name": f"s{seed}"}),
        "study part": study_part(audit),
    }


def baseline(audit: DepthAudit) -> Baseline:
    return Baseline(
        config=audit.config,
        models={role: audit.models[role] for role in ("full", "retain")},
        **{name: getattr(audit, name) for name in ("examples", "skipped", "provenance", "n_tokens", "s_full")},
        **{name: getattr(audit, name) for name in ("s1_delta", "s1_norm_ratio", "s1_cosine")},
    )


def depth_map(audit: DepthAudit) -> DepthMap:
    cells = (MapCell("resid_post", "entity"), MapCell("z", "all", 1))
    return DepthMap(
        models={"full": audit.models["full"], "source": audit.models["unlearned"]},
        examples=tuple(audit.examples),
        cells=cells,
        lost_by_token=audit.s2_delta[:, :, None, None].repeat(1, 1, 2, 3),
        config=audit.config,
    )


def metric_results(audit: DepthAudit) -> MetricResults:
    words = {"direction": "knowledge", "low": 0.0, "zero": "nothing is left", "one": "all is known"}
    known = {"ids": ("e0", "e1"), "per_example": (0.5, math.nan), "details": {"s1_delta": [[0.1, 0.2], [0.3, 0.4]]}}
    known |= {"label": "ES", "group": "memorization", "value": 0.5, "high": 1.0, "cost": Cost(1.5, 2)}
    unknown = {"label": "ZLib", "group": "membership", "value": math.nan, "high": math.inf, "reason": "no holdout"}
    return MetricResults(
        metrics={name: MetricValue(name=name, **words, **own) for name, own in (("es", known), ("zlib", unknown))},
        models={"model": audit.models["unlearned"]},
        options=MetricOptions(),
        sizes={"forget": 2},
        generations={"forget": ("It was Ada.", "Ash")},
        provenance=audit.provenance,
        total=Cost(1.5, 2),
    )


def elicitation(audit: DepthAudit) -> ElicitationResults:
    """Two rows under two probes, one of them sampled too, of two models."""

    def part(role: str, probe: str, decoding: str, n: int) -> Part:
        told = {"prompt": "Who?", "reference": "Ada Vey", "texts": ("Ada.",) * n, "details": {"loss": audit.uds}}
        return Part(role=role, probe=probe, decoding=decoding, responses=(Response(row=0, **told),), seconds=0.1)

    roles, skipped = ("retain", "unlearned"), (("b", "its prompt is too long"),)
    asked = [("plain", "greedy", 1), ("plain", "sampled", 2), ("cloze", "greedy", 1)]
    return ElicitationResults(
        options=ElicitOptions(samples=2),
        protocol="raw",
        models={role: audit.models[role] for role in roles},
        examples=tuple(EXAMPLES[:2]),
        probes=tuple(ProbeRecord(name, "text", "nothing", "", skipped) for name in ("plain", "cloze")),
        parts=tuple(part(role, *each) for role in roles for each in asked),
        provenance=audit.provenance,
    )


def training_record(audit: DepthAudit) -> dict[str, Any]:
    return {
        **dated(make_config("npo", {"beta": 0.5})),
        "protocol": "raw",
        "key": "k" * 32,
        "depends_on": {"method": "npo", "dtype": "float32"},
        "parent": {"name": "ckpt/full", "fingerprint": "f" * 32},
        "data": {"forget": {"n": 4, "fingerprint": "a" * 32}},
        "lora": None,
        "options": {k: v for k, v in asdict(TrainOptions()).items() if k not in ("log_to", "callbacks")},
        "steps": 2,
        "resumed_from_step": None,
        "device": "cpu",
        "n_devices": 1,
        "loss_curve": [{"step": 1, "loss": 0.5}, {"step": 2, "loss": 0.25}],
        "seconds": 1.5,
        "fingerprint": audit.models["unlearned"].fingerprint,
        "files": {"model.safetensors": [100, "c" * 64]},
    }


def study_part(audit: DepthAudit) -> tuple[StudyPart, pd.DataFrame]:
    part = StudyPart(
        model="npo",
        state="before",
        keys={"es": "a" * 32},
        rows=(Row(metric="es", value=0.5, reason=None, n=2, seconds=0.1, item="es"),),
        fingerprint=audit.models["unlearned"].fingerprint,
        parent=None,
        seconds=0.0,
    )
    frame = pd.DataFrame({"metric": ["es", "es"], "example_id": ["a", "b"], "value": [0.25, audit.uds]})
    return part, frame


def scratch(place: Path) -> list[Path]:
    """What saves leave when they are killed."""
    return [path for path in place.rglob(".*") if path.name.endswith(".part")]


def outcome(kind: str, place: Path, original: str, *, forged: bool) -> str:
    """What became of one altered result: "refused", "same", "forged" (sealed again, and fit), or what went wrong."""
    try:
        told = contents(KINDS[kind].load(place))
    except UdsLensError as error:
        return "refused" if len(str(error)) < 500 else f"long message: {str(error)[:300]}"
    except Exception as error:
        return f"raw {type(error).__name__}: {str(error)[:200]}"
    if told == original:
        return "same"
    return "forged" if forged else "altered and loaded"


SHOWN = {
    ElicitationResults: ("to_frame", "samples_frame", "ledger", "__repr__"),
    MetricResults: ("to_frame", "examples_frame", "_repr_html_"),
    DepthMap: ("cells_frame", "__repr__"),
    DepthAudit: ("summary", "examples_frame", "layers_frame", "retains_frame", "__repr__"),
}


def contents(found: Any) -> str:
    """Everything in a result as text, by way of what users do with it."""
    told = [recorded_config(found)] if isinstance(found, dict) else []
    for show in SHOWN.get(type(found), ()):
        shown = getattr(found, show)()
        told.append(shown.to_csv() if isinstance(shown, pd.DataFrame) else shown)
    if isinstance(found, DepthAudit) and found.control is not None:
        told.append(found.control_frame().to_csv())
    parts = vars(found).items() if hasattr(found, "__dict__") else [("", found)]
    own = {
        name: part.numpy().tobytes() if isinstance(part, torch.Tensor) else part
        for name, part in parts
        if not name.startswith("_")
    }
    return repr([told, own])


def altered(kind: str, source: Path, place: Path, rng: random.Random) -> bool:
    """Copy a result and alter the copy; True where it was sealed again afterwards."""
    shutil.rmtree(place, ignore_errors=True) if place.is_dir() else place.unlink(missing_ok=True)
    (shutil.copytree if source.is_dir() else shutil.copyfile)(source, place)
    record, forged = place / KINDS[kind].record, rng.random() < 0.6
    if rng.random() < 0.35:
        in_bytes(rng.choice(sorted(file for file in (place, *place.rglob("*")) if file.is_file())), rng)
        return False
    whole = json.loads(record.read_text(encoding="utf-8"))
    seal, changed = whole.pop("sha256"), rng.random() < 0.4
    if forged and changed and whole.get("files") and kind != "model":
        name = rng.choice(sorted(whole["files"]))
        change = {".safetensors": in_tensors, ".parquet": in_table, ".json": in_text}[Path(name).suffix]
        whole["files"][name] = rewritten(place / name, change, rng)
    elif forged and changed and kind == "study part":
        whole["values"]["examples_sha256"] = rewritten(place / whole["values"]["examples"], in_table, rng)
    else:
        in_value(whole, rng)
    try:
        record.write_bytes(with_checksum(plain(whole)) if forged else json.dumps({**whole, "sha256": seal}).encode())
    except (ValueError, RecursionError):
        record.write_text(json.dumps(whole))
    return forged


def rewritten(file: Path, change: Callable[[bytes, random.Random], bytes], rng: random.Random) -> str:
    """Change a file; the sum that fits it."""
    file.write_bytes(change(file.read_bytes(), rng))
    return sha256_bytes(file.read_bytes())


def in_bytes(file: Path, rng: random.Random) -> None:
    """A flipped bit, a cut, a gap, or nothing left."""
    content = bytearray(file.read_bytes())
    at, way = rng.randrange(len(content)), rng.randrange(4)
    if way == 0:
        content[at] ^= 1 << rng.randrange(8)
    else:
        del content[0 if way == 3 else at : at + 9 if way == 2 else None]
    file.write_bytes(content)


def in_value(record: dict[str, Any], rng: random.Random) -> None:
    """Replace, remove or add a member somewhere."""
    node: Any = record
    for _ in range(rng.randrange(5)):
        values = node.values() if isinstance(node, dict) else node
        node = rng.choice([part for part in values if isinstance(part, dict | list) and part] or [node])
    value, way = copy.deepcopy(rng.choice(HOSTILE)), rng.randrange(4)
    place = rng.choice(sorted(node)) if isinstance(node, dict) else rng.randrange(len(node))
    if way == 0:
        del node[place]
    elif way == 1:
        node.append(value) if isinstance(node, list) else node.update({rng.choice(("more", "sha256", "")): value})
    else:
        node[place] = value


def in_text(content: bytes, rng: random.Random) -> bytes:
    record = json.loads(content)
    in_value(record, rng)
    return json.dumps(record).encode("utf-8", "backslashreplace")


def in_tensors(content: bytes, rng: random.Random) -> bytes:
    """A tensor of another kind or shape, without numbers, or gone; or one more."""
    tensors = load(content)
    name = rng.choice(sorted(tensors))
    tensor = tensors.pop(name)
    ways = [tensor.to(kind) for kind in (torch.float16, torch.int32, torch.int64, torch.bool, torch.float32)]
    ways += [tensor[:-1].clone(), tensor.unsqueeze(-1), tensor.flatten(), torch.zeros(0), torch.tensor(1.0)]
    ways.append(torch.full_like(tensor, -1 if tensor.dtype == torch.int64 else rng.choice((math.nan, math.inf))))
    way = rng.randrange(len(ways) + 2)
    if way < len(ways):
        tensors[name] = ways[way]
    elif way > len(ways):
        tensors |= {name: tensor, "more": torch.zeros(1)}
    return save(tensors) if rng.random() < 0.95 else save(tensors)[:-3]


def in_table(content: bytes, rng: random.Random) -> bytes:
    """A column of another kind, gone or new, or a row less; sealed again where it was sealed."""
    import pyarrow as pa
    from pyarrow import parquet

    table = parquet.read_table(pa.BufferReader(content))
    rows, told = table.to_pylist(), table.schema.metadata or {}
    name, way = rng.choice(sorted(rows[0])), rng.randrange(4)
    value = rng.choice((None, "", "x", "\u0000", 7, 0.5, True, b"\xff", ["a"], [None], {"a": 1}))
    if way == 0:
        rows = rows[:-1]
    else:
        rows = [{**{k: v for k, v in row.items() if way != 1 or k != name}} for row in rows]
        rows = [row | {name if way == 2 else "more": value} if way > 1 else row for row in rows]
    stream, metadata = io.BytesIO(), {}
    try:
        made = pa.Table.from_pylist(rows, schema=table.schema if way == 0 else None)
        if b"uds_lens" in told:
            head = json.loads(told[b"uds_lens"])
            del head["sha256"]
            if rng.random() < 0.3:
                in_value(head, rng)
            head["sha256"] = checksum_of({**plain(head), "rows": plain(made.to_pylist())})
            metadata = {b"uds_lens": json.dumps(head).encode("utf-8", "backslashreplace")}
        parquet.write_table(made.replace_schema_metadata(metadata), stream)
    except (pa.ArrowException, TypeError, ValueError):
        return content[: len(content) // 2]
    return stream.getvalue()
