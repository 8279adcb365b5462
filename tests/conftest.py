"""What every test may rely on: no network, one thread, and the shared data where it is at hand."""

import functools
import gc
import json
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# Tiny tensors: a second thread costs more than it gives. For torch, not loaded yet, and the programs that tests start.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import checked_annotations
import hypothesis
import pytest
from filelock import FileLock

REPOSITORY = Path(__file__).resolve().parents[1]

checked_annotations.install()

# Modules are compiled with their checks, which takes a process ten seconds: it is done once, also for the programs that
# tests start, where the environment asks for no bytecode too. A checkout that cannot be written is no error.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Everywhere())
    slow = [hypothesis.HealthCheck.too_slow]  # on a busy machine, which is not a failure
    hypothesis.settings.register_profile("no clock", deadline=None, suppress_health_check=slow)
    hypothesis.settings.load_profile("no clock")


def pytest_report_header() -> str:
    """Where a training lands depends on these."""
    names = ("OMP_NUM_THREADS", "ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "MKL_CBWR")
    return " ".join([f"numerics: {platform.machine()}", *(f"{x}={os.environ[x]}" for x in names if x in os.environ)])


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """What is imported stays: no collection of garbage walks it, neither now nor later."""
    gc.disable()
    # In a fresh clone the first worker compiles what the others then read.
    compiling = FileLock(Path(tempfile.gettempdir()) / f"uds_lens{str(REPOSITORY).replace(os.sep, '_')}.lock")
    compiling.acquire()
    if any((REPOSITORY / "uds_lens" / "__pycache__").glob("*jaxtyping*")):
        compiling.release()
    try:
        return (yield)
    finally:
        compiling.release(force=True)
        if "PYTEST_XDIST_WORKER" in os.environ:  # every worker comes to need them
            import plotly.graph_objects  # noqa: F401
            import scipy.stats  # noqa: F401
            import transformer_lens  # noqa: F401
            import transformers.trainer  # noqa: F401
        gc.freeze()
        gc.set_threshold(20_000, 20, 20)  # models are made by the hundred: the usual 700 take a twentieth of the time
        gc.enable()


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """The folder of data and checkpoints beside the repository, which the package itself does not need."""
    path = Path(os.environ.get("UDS_LENS_SHARED", REPOSITORY.parent / "shared"))
    if not path.is_dir():
        pytest.skip(f"no shared data at {path} (UDS_LENS_SHARED names another place)")
    return path


@pytest.fixture(scope="session")
def trio(tmp_path_factory: pytest.TempPathFactory) -> Callable:
    """`trio(family)`: directories of a tiny random model in full, retain and unlearned versions."""
    from tiny_models import VERSIONS, Trio, made_once, save_trio

    @functools.cache
    def of(family: str):
        folder = made_once(tmp_path_factory, family, functools.partial(save_trio, family))
        return Trio(family, *(folder / version for version in VERSIONS))

    return of


@pytest.fixture(scope="session")
def opened(trio: Callable) -> Callable:
    """`opened(family, version, dtype="float32")`: the open `HookedModel`, shared by all tests: never close it."""
    from uds_lens.models import open_model

    @functools.cache
    def of(family: str, version: str = "full", dtype: str = "float32"):
        return open_model(getattr(trio(family), version), dtype=dtype, device="cpu")

    return of


@pytest.fixture(scope="session")
def llama(opened: Callable) -> Callable:
    """The open models by version: `llama("retain")`."""
    return lambda version="full": opened("llama", version)


@pytest.fixture
def broken(trio: Callable) -> Any:
    """A live model whose logits are NaN; a checkpoint like that is refused when it is opened."""
    import torch
    from tiny_models import load_plain

    from uds_lens.models import HookedModel

    model, tokenizer = load_plain(trio("llama").full)
    with torch.no_grad():
        model.model.norm.weight.fill_(torch.nan)
    return HookedModel(model, tokenizer, name="broken", owned=False)


@pytest.fixture(scope="session")
def world() -> Any:
    """The toy world."""
    from uds_lens import toy

    return toy.load()


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """An entry for each time a model's weights are hashed during the test."""
    from uds_lens.models._fingerprint import digests_of

    hashes: list[bool] = []
    name = "uds_lens.models._fingerprint.digests_of"
    monkeypatch.setattr(name, lambda weights: hashes.append(True) or digests_of(weights))
    return hashes


@pytest.fixture(scope="module")
def monkeypatch_module() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patched:
        yield patched


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Switch the run-time type checker off: what a user without it meets is the library's own message."""
    import jaxtyping

    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


class Everywhere:
    """Fixtures that doctests have, too, though their files lie outside this folder."""

    @pytest.fixture
    def trusted(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The fast engine without its self-check, which takes as long as a whole audit of a tiny model."""
        for module in ("_runner", "_map"):
            monkeypatch.setattr(f"uds_lens.audit.{module}.choose_engine", lambda *_, **__: "wavefront")

    @pytest.fixture
    def words_only(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Pages without their figures, which take most of the time: tests/report and tests/plots look at those."""
        from plotly.graph_objects import Figure

        from uds_lens.plots import template

        class Blank:
            def __getattr__(self, name: str) -> Callable:
                return template if name == "template" else lambda *_, **__: Figure()

        for part in ("_model_figures", "_shared_figures"):
            monkeypatch.setattr(f"uds_lens.report._payload.{part}", lambda *_: {})
        monkeypatch.setattr("uds_lens.report._dashboard.plots", Blank())

    @pytest.fixture(autouse=True)
    def _doctests_are_quick(self, request: pytest.FixtureRequest) -> None:
        if isinstance(request.node, pytest.DoctestItem):
            request.getfixturevalue("trusted")
            request.getfixturevalue("words_only")


@pytest.fixture(scope="session")
def sweep(trio: Callable, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the forget set and copies of the three models, and in `out` a finished audit and its baseline."""
    from tiny_models import ROWS

    import uds_lens as ul

    run = ul.RunOptions(device="cpu", engine="wavefront")
    folder, models = tmp_path_factory.mktemp("sweep"), trio("llama")
    for role in ("full", "retain", "unlearned"):
        shutil.copytree(getattr(models, role), folder / role)
    (folder / "forget.json").write_text(json.dumps(ROWS), encoding="utf-8")
    baseline = ul.Baseline.measure(
        folder / "full", folder / "retain", ul.load_examples(folder / "forget.json"), options=run
    )
    baseline.save(folder / "out" / "baseline")
    baseline.audit(folder / "unlearned", options=run).save(folder / "out" / "unlearned")
    return folder


@pytest.fixture(autouse=True)
def _nothing_was_tried_before() -> None:
    """The engines' self-check runs again, as in a process of its own."""
    engines = sys.modules.get("uds_lens.patching._engines")
    if engines is not None:
        engines._agreed.clear()


@pytest.fixture(autouse=True, scope="module")
def _what_is_there_stays() -> None:
    """Modules, shared models and figures are not walked by each collection of garbage that follows."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def _program_is_built_once() -> Iterator[None]:
    """The command line makes its options at the first call; they are the same at every other."""
    import typer

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.main, "get_command", functools.cache(typer.main.get_command))
        yield


@pytest.fixture(scope="session")
def one_thread():
    """Tiny tensors: a second thread costs more than it gives."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
