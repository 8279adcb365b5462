"""Compare another implementation's S1 and S2 with those of a conformance kit: plain Python, nothing to install.

As a program: `python check.py mine.csv` in the folder of the kit.
"""

from __future__ import annotations

import csv
import json
import math
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

TRUE, NORMED = "resid_post", "post_norm"
"""The two conventions for the last layer: the residual stream itself, or the state behind the final norm."""

EXPLAINED = {
    NORMED: "post-norm last layer: the state behind the final norm was patched into the last layer, as the UDS paper's "
    "released script does. Its numbers compare with published ones; self-patching is no no-op there",
    "late": "off-by-one positions: the states were patched one token late, at the entity's tokens instead of the "
    "positions that predict them",
    "early": "off-by-one positions: the states were patched one token early",
    "no_space": "leading space: the continuation was tokenised without the space between prompt and entity",
    "answer": "whole answer for the entity: all tokens of the answer were patched and scored",
    "continuation": "whole answer for the entity: all tokens behind the prefix were patched and scored",
}
"""What each convention but the right one is called."""

TOLERANCE = 1e-3  # nats per token, and UDS: another order of additions in float32 moves them by less than a tenth of it

_MEAN = "mean"


class Verdict(NamedTuple):
    """Findings of a check."""

    conforms: bool
    """Whether all agrees, under either convention for the last layer."""
    findings: tuple[str, ...]
    """What differs, and the convention that explains it; first what holds for all rows."""


class _Theirs(NamedTuple):
    deltas: dict[tuple[str, int], tuple[float, float]]
    scores: dict[str, float]


def check(kit: Path, theirs: Path, *, tolerance: float = TOLERANCE) -> Verdict:
    """Compare a table with a kit."""
    ids = [str(record["id"]) for record in _lines(kit / "examples.jsonl")]
    expected: dict[str, dict[tuple[str, int], tuple[float, float]]] = {}
    for name in ("expected.jsonl", "conventions.jsonl"):
        for record in _lines(kit / name):
            rows = expected.setdefault(record["convention"], {})
            rows[str(record["id"]), int(record["layer"])] = (record["s1_delta"], record["s2_delta"])
    tau = float(json.loads((kit / "kit.json").read_text("utf-8"))["tau"])
    submitted = _table(theirs)
    findings, legal = [], True
    if (sample := _sample(ids, submitted)) is not None:
        findings.append(sample)
        legal = False
    if extra := sorted(set(submitted.deltas) - set(expected[TRUE])):
        known = [(name, layer) for name, layer in extra if name in ids]
        if known:
            findings.append(f"example {known[0][0]!r} has a layer {known[0][1]}, which the model does not have")
            legal = False
    wrong = _wrong(expected[TRUE], submitted, tolerance)
    if wrong:
        convention, words = _explained(expected, submitted, wrong, tolerance)
        findings.append(words)
        legal = legal and convention == NORMED
    scores = list(_scores(submitted, tau, tolerance))
    return Verdict(legal and not scores, (*findings, *scores))


def _lines(file: Path) -> Iterator[dict]:
    if not file.is_file():
        raise ValueError(f"no {file.name} in {str(file.parent)!r}: expected the folder of a conformance kit.")
    with file.open(encoding="utf-8") as lines:
        yield from (json.loads(line) for line in lines if line.strip())


def _table(file: Path) -> _Theirs:
    deltas: dict[tuple[str, int], tuple[float, float]] = {}
    scores: dict[str, float] = {}
    with file.open(encoding="utf-8-sig", newline="") as lines:
        for at, row in enumerate(csv.DictReader(lines), start=2):
            name = (row.get("id") or "").strip()
            try:
                if row.get("uds") is not None:
                    scores.setdefault(name, _number(row["uds"]))
                if name != _MEAN:
                    values = _number(row["s1_delta"]), _number(row["s2_delta"])
                    layer = float(row["layer"])  # pandas writes 0.0 where another cell of the column is empty
                    if not layer.is_integer():
                        raise ValueError(f"layer {row['layer']}")
                    if (name, int(layer)) in deltas:
                        raise ValueError(f"a second row of example {name!r}, layer {int(layer)}")
                    deltas[name, int(layer)] = values
            except (KeyError, TypeError, ValueError) as error:
                raise ValueError(
                    f"{file.name}, line {at}: expected numbers in the columns id, layer, s1_delta, s2_delta ({error})."
                ) from error
    if not deltas:
        raise ValueError(f"{file.name} has no rows: expected one per example and layer.")
    return _Theirs(deltas, scores)


def _number(text: str) -> float:
    return float(text) if text.strip() else math.nan


def _sample(ids: list[str], submitted: _Theirs) -> str | None:
    """Say which examples are missing or unknown."""
    there = {name for name, _ in submitted.deltas}
    if strangers := sorted(there - set(ids)):
        return f"example {strangers[0]!r} is not in the kit"
    missing = [name for name in ids if name not in there]
    if not missing:
        return None
    if there == set(ids[: len(there)]):
        return (
            f"first-N sample: the first {len(there)} of {len(ids)} examples alone; in a sorted data set they stand for "
            "a few subjects"
        )
    return f"{len(missing)} of {len(ids)} examples are missing, the first: {missing[0]!r}"


def _wrong(
    expected: Mapping[tuple[str, int], tuple[float, float]], submitted: _Theirs, tolerance: float
) -> list[tuple[str, int]]:
    """List the rows that differ, in the order of the kit; a layer that is missing differs."""
    there = {name for name, _ in submitted.deltas}
    nothing = (math.nan, math.nan)
    return [
        key
        for key, values in expected.items()
        if key[0] in there
        and not all(
            abs(own - value) <= tolerance for own, value in zip(submitted.deltas.get(key, nothing), values, strict=True)
        )
    ]


def _explained(
    expected: Mapping[str, Mapping[tuple[str, int], tuple[float, float]]],
    submitted: _Theirs,
    wrong: list[tuple[str, int]],
    tolerance: float,
) -> tuple[str | None, str]:
    """Return the convention that explains the rows that differ, and say so."""
    (name, layer), right = wrong[0], expected[TRUE][wrong[0]]
    own = submitted.deltas.get(wrong[0], (math.nan, math.nan))
    first = (
        f"first row that differs: example {name!r}, layer {layer}: s1_delta {own[0]:.6f} and s2_delta {own[1]:.6f}, "
        f"expected {right[0]:.6f} and {right[1]:.6f} ({len(wrong)} rows differ)"
    )
    left = {other: len(_wrong(expected[other], submitted, tolerance)) for other in expected if other != TRUE}
    best = min(left, key=lambda other: left[other])
    if not left[best]:
        return best, f"{first}. {EXPLAINED[best]}."
    nearest = f"the nearest is {EXPLAINED[best].partition(':')[0]} ({left[best]} rows differ)"
    return (
        None,
        f"{first}. No known convention explains it; {nearest if left[best] < len(wrong) else 'none is nearer'}.",
    )


def _scores(submitted: _Theirs, tau: float, tolerance: float) -> Iterator[str]:
    """Say which rule their scores follow, from their own S1 and S2."""
    if not any(score == score for score in submitted.scores.values()):
        return
    layers: dict[str, list[tuple[float, float]]] = {}
    for (name, _), values in submitted.deltas.items():
        layers.setdefault(name, []).append(values)
    right = {name: score(values, tau) for name, values in layers.items()}
    own = {name: submitted.scores.get(name, math.nan) for name in layers}
    zeros = [name for name, value in right.items() if math.isnan(value) and own[name] == 0]
    if zeros:
        yield (
            f"undefined as 0: example {zeros[0]!r} has no layer above tau, so that its score is not defined (an empty "
            "cell), and 0 is written"
        )
    if made_up := [name for name, value in right.items() if math.isnan(value) and own[name] == own[name] != 0]:
        yield (
            f"example {made_up[0]!r} has no layer above tau, so that its score is not defined (an empty cell), and "
            f"{own[made_up[0]]:.6f} is written"
        )
    names = [name for name, value in right.items() if not math.isnan(value)]
    if bad := [name for name in names if not abs(own[name] - right[name]) <= tolerance]:
        first = f"first score that differs: example {bad[0]!r}: {own[bad[0]]:.6f}, expected {right[bad[0]]:.6f}"
        yield f"{first}. {_rule(layers, own, names, tau, tolerance)}"
    if _MEAN in submitted.scores:
        yield from _mean(submitted.scores[_MEAN], [own[name] for name in names], len(layers), tolerance)


def _rule(
    layers: Mapping[str, list[tuple[float, float]]],
    own: Mapping[str, float],
    names: list[str],
    tau: float,
    tolerance: float,
) -> str:
    rules = {
        "no clip: ratios below 0 and above 1 are averaged as they are": (False, True),
        "unweighted mean: layers count alike instead of by their S1": (True, False),
        "no clip and unweighted mean": (False, False),
    }
    for words, (clip, weighted) in rules.items():
        if all(abs(own[name] - score(layers[name], tau, clip=clip, weighted=weighted)) <= tolerance for name in names):
            return f"{words}."
    return "No known rule explains it."


def _mean(written: float, own: list[float], total: int, tolerance: float) -> Iterator[str]:
    mean = sum(own) / len(own) if own else math.nan
    if abs(written - mean) <= tolerance or (math.isnan(written) and math.isnan(mean)):
        return
    if abs(written - sum(own) / total) <= tolerance:
        yield "undefined as 0: the mean counts examples without a score as 0; it is over those with a score alone"
    else:
        yield f"the mean is {written:.6f}, and that of the scores written next to it {mean:.6f}"


def score(layers: Iterable[tuple[float, float]], tau: float, *, clip: bool = True, weighted: bool = True) -> float:
    """Return UDS of one example from S1 and S2 of its layers; NaN where no layer has S1 above tau.

    >>> score([(1.0, 0.5), (3.0, 6.0), (0.01, 0.0)], 0.05), score([(1.0, 0.5), (3.0, 6.0)], 0.05, clip=False)
    (0.875, 1.625)
    """
    kept = [(one, two / one) for one, two in layers if one > tau]
    if not kept:
        return math.nan
    ratios = [min(max(ratio, 0.0), 1.0) if clip else ratio for _, ratio in kept]
    weights = [one if weighted else 1.0 for one, _ in kept]
    return sum(weight * ratio for weight, ratio in zip(weights, ratios, strict=True)) / sum(weights)


def main(words: list[str]) -> int:
    """Check the file that the words name; return the exit code."""
    if len(words) != 1:
        sys.stderr.write("usage: python check.py mine.csv\n")
        return 2
    try:
        verdict = check(Path(__file__).resolve().parent, Path(words[0]))
    except (OSError, ValueError, csv.Error) as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    sys.stdout.write("".join(f"{line}\n" for line in verdict.findings))
    sys.stdout.write("conforms\n" if verdict.conforms else "does not conform\n")
    return 0 if verdict.conforms else 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
