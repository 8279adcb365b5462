"""The scripts that need a larger machine than this one run at toy size."""

import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
SHARED = REPOSITORY.parent / "shared"


@pytest.mark.skipif(not (SHARED / "models" / "tofu-small").is_dir(), reason="no ../shared/models/tofu-small")
@pytest.mark.filterwarnings("ignore")
def test_the_gpu_benchmark_runs_on_a_cpu(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.syspath_prepend(str(REPOSITORY / "benchmarks"))
    import gpu

    size = "--device cpu --dtype float32 --rows 4 --layers 2 --width 64 --vocabulary 4096 --repeats 1"
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--shared", str(SHARED), *size.split()])
    gpu.main()
    printed = capsys.readouterr().out
    assert "not a GPU" in printed and "one more model, recording kept" in printed
    apart = float(printed.split("largest difference of S2: ")[1].split()[0])
    assert apart < 1e-5
    assert "in NF4" in printed and "Ten metrics" in printed
