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

from uds_lens._storage import plain, seal_of, sealed, sha256_bytes
from uds_lens.audit import Baseline
from uds_lens.elicitation import ElicitationResults, ElicitOptions
from uds_lens.elicitation._options import ProbeRecord
from uds_lens.elicitation._saving import Part, Said, read_part, write_part
from uds_lens.errors import ResultFormatError, UdsLensError
from uds_lens.metrics import MetricOptions, MetricResults
from uds_lens.metrics._results import Cost, MetricValue
from uds_lens.results import DepthAudit, audit_names
from uds_lens.study import plan
from uds_lens.study._folder import Part as StudyPart, Row, StudyFolder
from uds_lens.study._work_keys import digest
from uds_lens.unlearning import TrainOptions, make_config, read_record, recorded_config
from uds_lens.unlearning._alternates import read_alternates, write_alternates
from uds_lens.unlearning._record import make_record, write_record


class Kind(NamedTuple):
    """One kind of saved result."""

    load: Callable[[Path], Any]
    save: Callable[[Any, Path], object]
    record: str
    """The sealed file in its directory; "" where the result is one file."""


def kind_of(cls: Any, record: str = "") -> Kind:
    return Kind(cls.load, cls.save, record)


STUDY_PART = f"parts/npo--before--{digest({'es': 'a' * 32})[:12]}.json"


def load_study_part(place: Path) -> tuple[StudyPart, pd.DataFrame]:
    """A part with its values per example; the folder gives None for a broken one, which is measured again."""
    folder = StudyFolder(place)
    part = folder.read_part(place / STUDY_PART)
    if part is None:
        raise ResultFormatError("measured again")
    return part, folder.examples(part)


def save_study_part(found: tuple[StudyPart, pd.DataFrame], place: Path) -> None:
    assert StudyFolder(place).write_part(*found) == place / STUDY_PART


def save_record(record: dict[str, Any], place: Path) -> None:
    place.mkdir(exist_ok=True)
    write_record(record, place / "unlearning.json")


KINDS: dict[str, Kind] = {
    "audit": kind_of(DepthAudit, "manifest.json"),
    "controlled": kind_of(DepthAudit, "manifest.json"),
    "baseline": kind_of(Baseline, "manifest.json"),
    "metrics.json": kind_of(MetricResults),
    "elicitation": kind_of(ElicitationResults, "manifest.json"),
    "part.parquet": Kind(
        lambda place: read_part(place, key="k"), lambda part, place: write_part(part, place, key="k"), ""
    ),
    "model": Kind(read_record, save_record, "unlearning.json"),
    "alternates.json": Kind(
        read_alternates, lambda texts, place: write_alternates(place, EXAMPLES[: len(texts)], texts), ""
    ),
    "study": Kind(lambda place: StudyFolder(place).plan, StudyFolder.begin, "manifest.json"),
    "study part": Kind(load_study_part, save_study_part, STUDY_PART),
}
"""How each kind of saved result is written and read back."""

HOSTILE: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**63, 10**400, 0.5, -0.0, 1e308, 5e-324, "", "0", "x" * 5000, "\ud83d", "\u0000",
    "</script>", "NaN", "False", "../../etc/passwd", [], {}, [None], [[]], {"": None}, {"format": "uds_lens.x"},
    [0] * 100,
)  # fmt: skip


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
        "metrics.json": metric_results(audit),
        "elicitation": elicited,
        "part.parquet": elicited.parts[0],
        "model": training_record(audit),
        "alternates.json": [["It was Bo.", f"Nobody knows {seed}."], ["No\n\u2028one"]],
        "study": plan(
            {
                "name": f"s{seed}",
                "full": "/a",
                "retain": "/b",
                "data": {"forget": "/f.json"},
                "measure": {"metrics": ["es"]},
            }
        ),
        "study part": study_part(audit),
    }


def baseline(audit: DepthAudit) -> Baseline:
    return Baseline(
        config=audit.config,
        models={role: audit.models[role] for role in ("full", "retain")},
        **{name: getattr(audit, name) for name in ("examples", "skipped", "provenance", "n_tokens", "s_full")},
        **{name: getattr(audit, name) for name in ("s1_delta", "s1_norm_ratio", "s1_cosine")},
    )


def metric_results(audit: DepthAudit) -> MetricResults:
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
    return MetricResults(
        metrics={metric.name: metric for metric in metrics},
        models={"model": audit.models["unlearned"]},
        options=MetricOptions(),
        sizes={"forget": 2},
        generations={"forget": ("It was Ada.", "Ash")},
        provenance=audit.provenance,
        total=Cost(1.5, 2),
    )


def elicitation(audit: DepthAudit) -> ElicitationResults:
    """Two rows under two probes, one of them sampled too, of two models."""
    asked = [("plain", "greedy", 1), ("plain", "sampled", 2), ("cloze", "greedy", 1)]
    return ElicitationResults(
        options=ElicitOptions(samples=2),
        protocol="raw",
        models={role: audit.models[role] for role in ("retain", "unlearned")},
        examples=tuple(EXAMPLES[:2]),
        probes=tuple(
            ProbeRecord(name, "text", "nothing", "", (("b", "its prompt is too long"),)) for name in ("plain", "cloze")
        ),
        parts=tuple(
            Part(
                role=role,
                probe=name,
                decoding=decoding,
                said=(
                    Said(row=0, prompt="Who?", reference="Ada Vey", texts=("Ada.",) * n, details={"loss": audit.uds}),
                ),
                seconds=0.1,
            )
            for role in ("retain", "unlearned")
            for name, decoding, n in asked
        ),
        provenance=audit.provenance,
    )


def training_record(audit: DepthAudit) -> dict[str, Any]:
    made = make_record(
        make_config("npo", {"beta": 0.5}),
        protocol="raw",
        key="k" * 32,
        depends_on={"method": "npo", "dtype": "float32"},
        parent={"name": "ckpt/full", "fingerprint": "f" * 32},
        data={"forget": {"n": 4, "fingerprint": "a" * 32}},
        lora=None,
        options={name: value for name, value in asdict(TrainOptions()).items() if name != "log_to"},
        training={
            "steps": 2,
            "resumed_from_step": None,
            "device": "cpu",
            "n_devices": 1,
            "loss_curve": [{"step": 1, "loss": 0.5}, {"step": 2, "loss": 0.25}],
            "seconds": 1.5,
        },
    )
    return {
        **made,
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
        seconds={"making": 0.0},
        examples="examples/npo.parquet",
    )
    frame = pd.DataFrame({"metric": ["es", "es"], "example_id": ["a", "b"], "value": [0.25, audit.uds]})
    return part, frame


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
    except UdsLensError as error:
        return "refused" if len(str(error)) < 500 else f"long message on use: {str(error)[:300]}"
    except Exception as error:
        return f"raw {type(error).__name__} on use: {str(error)[:200]}"
    if told == original:
        return "same"
    return "forged" if forged else "altered and loaded"


def contents(found: Any) -> str:
    """Everything in a result as text, by way of what users do with it."""
    if isinstance(found, ElicitationResults):
        frames = (found.to_frame(), found.samples_frame(), found.ledger())
        told = [frame.to_csv() for frame in frames]
        return repr([told, found.options, found.provenance, found.models, found.examples, repr(found)])
    if isinstance(found, dict):
        return repr([found, recorded_config(found)])
    if isinstance(found, tuple) and isinstance(found[0], StudyPart):
        return repr([found[0], None if found[1] is None else found[1].to_csv()])
    if not isinstance(found, DepthAudit | Baseline | MetricResults):
        return repr(found)
    if isinstance(found, MetricResults):
        found.examples_frame(), found._repr_html_()
        return repr([found.to_frame().to_csv(), list(found), found.models, found.options, found.provenance])
    tensors = {name: value.numpy().tobytes() for name, value in vars(found).items() if isinstance(value, torch.Tensor)}
    told = [found.config, found.models, list(found.examples), list(found.skipped), found.provenance, sorted(tensors)]
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
    record = place / KINDS[kind].record
    if kind.endswith(".parquet") and rng.random() < 0.6:
        place.write_bytes(in_table(place.read_bytes(), rng))
        return True
    if kind.endswith(".parquet") or rng.random() < 0.35:
        files = sorted(file for file in place.rglob("*") if file.is_file()) if place.is_dir() else [place]
        in_bytes(rng.choice(files), rng)
        return False
    whole = json.loads(record.read_text(encoding="utf-8"))
    forged = rng.random() < 0.7
    seal = whole.pop("sha256")
    if forged and isinstance(whole.get("files"), dict) and kind != "model" and rng.random() < 0.4:
        in_content(place, whole, rng)
    elif forged and kind == "study part" and rng.random() < 0.4:
        content = in_table((place / whole["examples"]).read_bytes(), rng)
        (place / whole["examples"]).write_bytes(content)
        whole["examples_sha256"] = sha256_bytes(content)
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
    """Tensors, tables or texts of other kinds and shapes, with sums that fit."""
    name = rng.choice(sorted(manifest["files"]))
    change = {".safetensors": in_tensors, ".parquet": in_table, ".json": in_text}[Path(name).suffix]
    content = change((place / name).read_bytes(), rng)
    (place / name).write_bytes(content)
    manifest["files"][name] = sha256_bytes(content)


def in_text(content: bytes, rng: random.Random) -> bytes:
    record = json.loads(content)
    in_value(record, rng)
    return json.dumps(record).encode("utf-8", "backslashreplace")


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
    told = parquet.read_schema(pa.BufferReader(content)).metadata or {}
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
        table = pa.Table.from_pylist(rows, schema=schema)
        parquet.write_table(table.replace_schema_metadata(sealed_again(told, table, rng)), stream)
    except (pa.ArrowException, TypeError, ValueError):
        return content[: len(content) // 2]
    return stream.getvalue()


def sealed_again(told: dict[bytes, bytes], table: Any, rng: random.Random) -> dict[bytes, bytes]:
    """Metadata of a table, sometimes altered, with a seal that fits its rows where it had one."""
    if b"uds_lens" not in told:
        return {}
    head = json.loads(told[b"uds_lens"])
    head.pop("sha256")
    if rng.random() < 0.3:
        in_value(head, rng)
    head["sha256"] = seal_of({**plain(head), "rows": plain(table.to_pylist())})
    return {b"uds_lens": json.dumps(head).encode("utf-8", "backslashreplace")}
