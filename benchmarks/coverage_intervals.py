"""Does a 95 % interval hold the truth 95 times out of 100? Simulated examples of subjects, with a known mean.

    python benchmarks/coverage_intervals.py

Each of 20 subjects has 15 to 20 examples. An example's score is a function of a normal number, of which the subject's
share is the intra-class correlation (ICC): `plain` the number itself, `depth` mostly near 0 or 1 as depth scores are,
`binary` 0 or 1, with 30 % or 10 % of ones. Prints a Markdown table: how often the interval by subject holds the mean
over all subjects there could be, how often an interval by example does, and their mean widths. With --ratios the same
for a ratio of two means over other subjects, as damage is: 20 subjects below, 8 or 20 above, scores that scatter by a
third, a half or the whole of their mean.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np
import torch
from scipy.stats import norm

from uds_lens.results import bootstrap_interval
from uds_lens.results.ratio_intervals import ratio_interval

SCORES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "plain": lambda u: u,
    "depth, mean 0.50": lambda u: norm.cdf(3 * u),
    "depth, mean 0.22": lambda u: norm.cdf(3 * (u - 0.8)),
    "binary, 30 %": lambda u: (u > norm.ppf(0.7)).astype(float),
    "binary, 10 %": lambda u: (u > norm.ppf(0.9)).astype(float),
}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tries", type=int, default=2000)
    parser.add_argument("--subjects", type=int, default=20)
    parser.add_argument("--resamples", type=int, default=999)
    parser.add_argument("--ratios", action="store_true", help="intervals of ratios")
    args = parser.parse_args()
    if args.ratios:
        print_ratios(args.tries, args.resamples)
        return
    print("| scores | ICC | by subject | width | by example | width |")
    print("|---|---|---|---|---|---|")
    for name, score in SCORES.items():
        truth = float(score(norm.ppf((np.arange(1_000_000) + 0.5) / 1_000_000)).mean())
        bounds = None if name == "plain" else (0.0, 1.0)
        for icc in (0.0, 0.3, 0.8):
            held, widths = np.zeros(2), np.zeros(2)
            for seed in range(args.tries):
                values, subjects = draw(score, icc, args.subjects, np.random.default_rng(seed))
                clustered = bootstrap_interval(
                    values, clusters=subjects, n_resamples=args.resamples, seed=seed, bounds=bounds
                )
                by_example = normal_interval(values)
                for place, (low, high) in enumerate((clustered, by_example)):
                    held[place] += low <= truth <= high
                    widths[place] += high - low
            held, widths = held / args.tries, widths / args.tries
            print(
                f"| {name} | {icc} | {held[0]:.1%} | {widths[0]:.3f} | {held[1]:.1%} | {widths[1]:.3f} |",
                flush=True,
            )


def print_ratios(tries: int, resamples: int) -> None:
    """How often the interval of a ratio holds it."""
    truth = 0.1
    print("| subjects above | scatter | ICC | holds the ratio | width |")
    print("|---|---|---|---|---|")
    for above in (8, 20):
        for scatter in (0.33, 0.5, 1.0):
            for icc in (0.3, 0.8):
                held = width = 0.0
                for seed in range(tries):
                    chance = np.random.default_rng(seed)
                    parts = [draw(lambda u: u, icc, subjects, chance) for subjects in (above, 20)]
                    top, bottom = (
                        mean * (1 + scatter * values)
                        for mean, (values, _) in zip((truth, 1.0), parts, strict=True)
                    )
                    low, high = ratio_interval(
                        top,
                        bottom,
                        top_clusters=parts[0][1],
                        bottom_clusters=parts[1][1],
                        n_resamples=resamples,
                        seed=seed,
                    )
                    held += low <= truth <= high
                    width += high - low
                print(
                    f"| {above} | {scatter} | {icc} | {held / tries:.1%} | {width / tries:.3f} |", flush=True
                )


def draw(
    score: Callable[[np.ndarray], np.ndarray], icc: float, n_subjects: int, chance: np.random.Generator
) -> tuple[torch.Tensor, list[int]]:
    """Scores of examples, and the subject of each."""
    subjects = np.repeat(np.arange(n_subjects), chance.integers(15, 21, n_subjects))
    shared = chance.standard_normal(n_subjects)[subjects]
    own = chance.standard_normal(len(subjects))
    return torch.tensor(score(np.sqrt(icc) * shared + np.sqrt(1 - icc) * own)), subjects.tolist()


def normal_interval(values: torch.Tensor) -> tuple[float, float]:
    """Mean and 1.96 standard errors over examples: with hundreds of them, what a bootstrap over examples gives."""
    mean, error = float(values.mean()), float(values.std()) / len(values) ** 0.5
    return mean - 1.96 * error, mean + 1.96 * error


if __name__ == "__main__":
    main()
