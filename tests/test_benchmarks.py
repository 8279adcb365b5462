"""The scripts that need a larger machine than this one run at toy size."""

import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import uds_lens as ul

REPOSITORY = Path(__file__).resolve().parents[1]
SHARED = REPOSITORY.parent / "shared"


@pytest.mark.long
@pytest.mark.skipif(not (SHARED / "models" / "tofu-small").is_dir(), reason="no ../shared/models/tofu-small")
@pytest.mark.filterwarnings("ignore")
def test_the_gpu_benchmark_runs_on_a_cpu(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.syspath_prepend(str(REPOSITORY / "benchmarks"))
    import gpu

    size = "--device cpu --dtype float32 --rows 4 --sizes 2x64 --vocabulary 4096 --repeats 1"
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--shared", str(SHARED), *size.split()])
    gpu.main()
    printed = capsys.readouterr().out
    assert "not a GPU" in printed and "one more model, recording kept" in printed
    apart = float(printed.split("largest difference of S2: ")[1].split()[0])
    assert apart < 1e-5
    assert "Largest difference of S2: 0 nats" in printed
    assert "in NF4" in printed and "Ten metrics" in printed


def test_annotation_baselines_stand_beside_the_ways(monkeypatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.syspath_prepend(str(REPOSITORY / "benchmarks"))
    import annotation_ways as ways

    row = ul.data.ForgetExample("0", "Who wrote Ash?", "Ash is by Ada, not by Bo.", entity="Ada", subject="a")
    rows = [row, replace(row, id="1", subject="b")]
    assert [row.answer[a:b] for a, b in ways.new_words(row)] == ["is", "by", "Ada", "not", "by", "Bo"]

    def tokenizer(text: str, **_: object) -> dict[str, list[tuple[int, int]]]:
        return {"offset_mapping": [match.span() for match in re.finditer(r"\w+|\W+", text)]}

    marks = {"by hand": list(map(ways.marked, rows)), ways.NEW: list(map(ways.new_words, rows))}
    marks |= {"answer": [[(0, 3)], []], ways.WHOLE: [[(0, len(row.answer))]] * 2}
    by_gpt = [[(10, 13), (22, 24)], []]
    ways.print_agreement(tokenizer, rows, marks, {"by hand": marks["by hand"], "by GPT-4o": by_gpt})
    head, _, *lines = capsys.readouterr().out.splitlines()
    cells = {line.split(" | ")[0].strip("| "): re.findall(r"[+-]?\d\.\d{3}", line) for line in lines}
    assert "2 rows by hand" in head and "1 rows by GPT-4o" in head
    # tokens: 1 by hand, 2 by GPT-4o, 6 words that the question lacks, 14 in all
    assert cells[ways.NEW] == [f"{2 / 7:.3f}", f"{4 / 8:.3f}"]
    assert cells[ways.WHOLE] == [
        f"{2 / 15:.3f}", f"{2 / 15 - 2 / 7:.3f}", f"{4 / 16:.3f}", f"{4 / 16 - 4 / 8:.3f}"
    ]  # fmt: skip
    assert cells["answer"] == ["0.000", f"{-2 / 7:.3f}", "0.000", "-0.500"]
    assert lines[-1].endswith("| 0% | 1 |")
