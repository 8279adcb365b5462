"""Toy weights under the real ids: in a cache of the Hub, and behind a Hub on this machine that can refuse."""

import hashlib
import json
import shutil
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import unquote, urlsplit

import huggingface_hub.hf_api
import pytest
from huggingface_hub import constants

import uds_lens as ul
from uds_lens import study
from uds_lens._compat.huggingface_hub import is_reachable
from uds_lens.published import find
from uds_lens.study._plan import as_mapping

WEIGHTS = {"full": "full", "retain": "retain", "retain95": "half", "npo_lr1e5_b01_a1_ep5": "npo"}
"""Published names, and the toy checkpoints that stand for them; `others` take the rest."""

ROWS = 3


@pytest.fixture(scope="session")
def toy_tofu(tmp_path_factory) -> Path:
    """The toy world's questions in the files of TOFU."""
    world, folder = ul.toy.load(), tmp_path_factory.mktemp("tofu")

    def rows(name):
        return json.loads((world.path / f"{name}.json").read_text("utf-8"))[:ROWS]

    for name, source in {
        "forget10": "forget",
        "forget10_filtered": "forget",
        "forget10_perturbed": "forget",
        "holdout10": "holdout",
        "retain_perturbed": "retain",
    }.items():
        (folder / f"{name}.json").write_text(json.dumps(rows(source)), "utf-8")
    return folder


def in_float32(made: study.StudyPlan) -> study.StudyPlan:
    """The same plan in the dtype in which a CPU is fast."""
    plain = as_mapping(made)
    for part in ("options", "audit"):
        if part in plain["measure"]:
            plain["measure"][part]["dtype"] = "float32"
    return study.plan(plain)


def toy_weights(hub_id: str) -> Path:
    """The toy checkpoint that stands for a published model."""
    known = find(hub_id)
    return ul.toy.load().checkpoints[WEIGHTS.get(known.name, "simnpo")]


def commit_of(hub_id: str) -> str:
    return hashlib.sha1(hub_id.encode()).hexdigest()


def put_in_cache(cache: Path, hub_id: str) -> None:
    """Write a model into a cache as huggingface_hub lays it out."""
    folder = cache / f"models--{hub_id.replace('/', '--')}"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text(commit_of(hub_id))
    shutil.copytree(toy_weights(hub_id), folder / "snapshots" / commit_of(hub_id))


@pytest.fixture(scope="module", autouse=True)
def _trusted(monkeypatch_module):
    """The fast engine without its self-check, which takes longer than an audit of a toy model."""
    monkeypatch_module.setattr("uds_lens.audit._runner.choose_engine", lambda *_, **__: "wavefront")


@pytest.fixture(scope="module")
def cache(tmp_path_factory, monkeypatch_module) -> Path:
    """An empty cache of the Hub, and no network."""
    monkeypatch, place = monkeypatch_module, tmp_path_factory.mktemp("hub")
    for module in (constants, __import__("uds_lens.published._run", fromlist=["x"])):
        monkeypatch.setattr(module, "HF_HUB_CACHE", str(place))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return place


class Hub(ThreadingHTTPServer):
    """As much of the Hub as downloads ask: `refused` maps ids to a status, `asked` lists the weights that it gave."""

    def __init__(self):
        self.refused, self.asked, self.seen = {}, [], lambda: None  # set by tests
        super().__init__(("127.0.0.1", 0), Answers)
        Thread(target=self.serve_forever, daemon=True).start()


class Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        path = unquote(urlsplit(self.path).path).strip("/")
        parts = path.split("/")
        hub_id = "/".join(parts[2:4] if parts[0] == "api" else parts[:2])
        status = self.server.refused.get(hub_id, 200) if find(hub_id) else 404
        if status != 200:
            code = {403: "GatedRepo", 404: "RepoNotFound"}[status]
            return self.answer(status, b"{}", {"X-Error-Code": code, "X-Error-Message": code})
        files = {file.name: file for file in toy_weights(hub_id).iterdir()}
        if parts[0] == "api" and "tree" in parts:
            listed = [
                {"type": "file", "oid": commit_of(n), "size": f.stat().st_size, "path": n} for n, f in files.items()
            ]
            return self.answer(200, json.dumps(listed).encode(), {"Content-Type": "application/json"})
        if parts[0] == "api":
            told = {"id": hub_id, "sha": commit_of(hub_id), "siblings": [{"rfilename": name} for name in files]}
            return self.answer(200, json.dumps(told).encode(), {"Content-Type": "application/json"})
        self.server.seen()
        if self.command == "GET" and parts[-1].endswith(".safetensors"):
            self.server.asked.append(hub_id)
        content = files[parts[-1]].read_bytes()
        named = {"ETag": f'"{commit_of(parts[-1] + hub_id)}"', "X-Repo-Commit": commit_of(hub_id)}
        return self.answer(200, content, named)

    do_HEAD = do_GET

    def answer(self, status, content, headers):
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)


@pytest.fixture(scope="module")
def hub(cache, monkeypatch_module) -> Hub:
    """A Hub on this machine, and an empty cache."""
    monkeypatch, served = monkeypatch_module, Hub()
    address = f"http://127.0.0.1:{served.server_address[1]}"
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", address)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", address + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(huggingface_hub.hf_api.api, "endpoint", address)
    is_reachable.cache_clear()  # a test before this one may have found huggingface.co out of reach
    yield served
    is_reachable.cache_clear()
    served.shutdown()
    served.server_close()
