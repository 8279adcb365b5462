"""What every test may rely on: no network, two threads, and the shared data where it is at hand."""

import os
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest
import torch

REPOSITORY = Path(__file__).resolve().parents[1]


def pytest_configure() -> None:
    torch.set_num_threads(2)


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """The folder of data and checkpoints beside the repository, which the package itself does not need."""
    path = Path(os.environ.get("UDS_LENS_SHARED", REPOSITORY.parent / "shared"))
    if not path.is_dir():
        pytest.skip(f"no shared data at {path} (UDS_LENS_SHARED names another place)")
    return path
