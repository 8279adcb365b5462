"""How often does elicitation call a difference real where there is none? Simulated scores of 20 subjects.

    python benchmarks/elicit_null.py

Unlearned and retain score alike: a question's difference has mean 0, and part of it is its subject's. Prints, for three
kinds of scores, how often the p-value of beyond retain lies below .05, how often its interval excludes 0, and how
often any of 4 probes on the same questions does so after Holm's adjustment.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np

from uds_lens.results import contrast, holm

SCORES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "normal": lambda u: u,
    "recall (0 to 1, mostly low)": lambda u: np.clip(0.15 + 0.15 * u, 0, 1),
    "all or nothing, 15%": lambda u: (u > 1.04).astype(float),
}
"""From a normal number, of which the subject's share is the intra-class correlation, to a score."""


def draw(score, icc: float, probes: int, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Differences `[probe, question]` of two models that know as much, and the subject of each question."""
    groups = np.repeat(np.arange(20), random.integers(15, 21, 20))

    def side() -> np.ndarray:
        shared = random.standard_normal((probes, 20))[:, groups]
        return score(np.sqrt(icc) * shared + np.sqrt(1 - icc) * random.standard_normal(shared.shape))

    return side() - side(), groups


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=500)
    parser.add_argument("--probes", type=int, default=4)
    parser.add_argument("--icc", type=float, nargs="*", default=[0.3])
    parser.add_argument("--resamples", type=int, default=999)
    asked = parser.parse_args()
    print("| scores | ICC | p below .05 | interval excludes 0 | any of the probes, after Holm |\n" + "|---" * 5 + "|")
    for name, score in SCORES.items():
        for icc in asked.icc:
            counts = np.zeros(3)
            for seed in range(asked.runs):
                random = np.random.default_rng(seed)
                differences, groups = draw(score, icc, asked.probes, random)
                found = [contrast(each, groups, n_resamples=asked.resamples, seed=seed) for each in differences]
                counts[0] += found[0].p < 0.05
                counts[1] += not found[0].interval.low <= 0 <= found[0].interval.high
                counts[2] += min(holm([each.p for each in found])) < 0.05
            told = " | ".join(f"{share:.1%}".replace("%", " %") for share in counts / asked.runs)
            print(f"| {name} | {icc} | {told} |", flush=True)


if __name__ == "__main__":
    main()
