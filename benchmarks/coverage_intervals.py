"""Does a 95% interval hold the truth 95 times out of 100? Simulated examples of subjects, with a known mean.

    python benchmarks/coverage_intervals.py

Each of 20 subjects has 15 to 20 examples. An example's score is a function of a normal number, of which the subject's
share is the intra-class correlation (ICC): `plain` the number itself, `depth` mostly near 0 or 1 as depth scores are,
`binary` 0 or 1, with 30% or 10% of ones. Prints a Markdown table: how often the interval by subject holds the mean
over all subjects there could be, how often an interval by example does, and their mean widths. With --ratios the same
for a ratio of two means over other subjects, as damage is: 20 subjects below, 8 or 20 above, scores that scatter by a
third, a half or the whole of their mean.

With --rare, scores that are nearly all-or-nothing by subject and rare: .03 or .97, 1 to 40 examples a subject, the
subject's share of .97 drawn from a beta distribution. The bootstrap alone stands beside the interval that a bounded
score gets; "or caution" also counts the tries in which an audit warns of few subjects. With --alike, scores about .5
and one subject in 50 or in 20 that scores 0; "or note" also counts the tries in which an audit says that its subjects
score alike. With --elicitation the same for elicitation's share E: recall is `binary` with a full model that recalls
all, `noisy` with scores around .7, or `partly` where the full model itself recalls only some questions; beside it the
percentile bootstrap over subjects. With --correlation the same for the rank correlation of depth with recall, which 10
or 50% of the questions show.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd
import torch
from scipy.stats import norm, rankdata

from uds_lens.elicitation import depth_correlation, share
from uds_lens.results import bootstrap_interval
from uds_lens.results._intervals import FEW_CLUSTERS, left_by_one, ratio_interval

SCORES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "plain": lambda u: u,
    "depth, mean 0.50": lambda u: norm.cdf(3 * u),
    "depth, mean 0.22": lambda u: norm.cdf(3 * (u - 0.8)),
    "binary, 30%": lambda u: (u > norm.ppf(0.7)).astype(float),
    "binary, 10%": lambda u: (u > norm.ppf(0.9)).astype(float),
}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tries", type=int, default=2000)
    parser.add_argument("--subjects", type=int, default=20)
    parser.add_argument("--resamples", type=int, default=999)
    parser.add_argument("--ratios", action="store_true", help="intervals of ratios")
    parser.add_argument("--rare", action="store_true", help="rare all-or-nothing subjects")
    parser.add_argument("--alike", action="store_true", help="a rare subject among those that score alike")
    parser.add_argument("--elicitation", action="store_true", help="elicitation's share E")
    parser.add_argument("--correlation", action="store_true", help="rank correlation of depth with recall")
    args = parser.parse_args()
    if args.rare:
        print_rare(args.tries, args.resamples)
        return
    if args.alike:
        print_alike(args.tries, args.resamples)
        return
    if args.elicitation:
        print_shares(args.tries, args.resamples)
        return
    if args.correlation:
        print_correlations(args.tries)
        return
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
            print(f"| {name} | {icc} | {held[0]:.1%} | {widths[0]:.3f} | {held[1]:.1%} | {widths[1]:.3f} |", flush=True)


def print_ratios(tries: int, resamples: int) -> None:
    """How often the interval of a ratio holds it."""
    truth = 0.1
    print("| subjects in the numerator | scatter | ICC | covers the ratio | width |")
    print("|---|---|---|---|---|")
    for above in (8, 20):
        for scatter in (0.33, 0.5, 1.0):
            for icc in (0.3, 0.8):
                held = width = 0.0
                for seed in range(tries):
                    chance = np.random.default_rng(seed)
                    parts = [draw(lambda u: u, icc, subjects, chance) for subjects in (above, 20)]
                    top, bottom = (
                        mean * (1 + scatter * values) for mean, (values, _) in zip((truth, 1.0), parts, strict=True)
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
                print(f"| {above} | {scatter} | {icc} | {held / tries:.1%} | {width / tries:.3f} |", flush=True)


def print_rare(tries: int, resamples: int) -> None:
    """How often the interval holds the mean where few subjects are of the other kind."""
    print("| mean | ICC | subjects | bootstrap alone | width | interval | width | or caution |")
    print("|---|---|---|---|---|---|---|---|")
    for mean in (0.11, 0.24):
        for icc in (0.5, 0.9):
            for n_subjects in (5, 8, 10, 20, 40):
                ends = np.empty((tries, 2, 2))
                for seed in range(tries):
                    kinds, subjects, _ = recalled((mean - 0.03) / 0.94, icc, n_subjects, seed)
                    values = torch.tensor(0.03 + 0.94 * kinds)
                    for place, bounds in enumerate((None, (0.0, 1.0))):
                        ends[seed, place] = bootstrap_interval(
                            values, clusters=subjects.tolist(), n_resamples=resamples, seed=seed, bounds=bounds
                        )
                alone, whole = ends[:, 0].clip(0, 1), ends[:, 1]
                warned = n_subjects < FEW_CLUSTERS
                shown = (covers(whole, mean) | warned).mean()
                print(
                    f"| {mean} | {icc} | {n_subjects} | {told(alone, mean)} | {told(whole, mean)} | {shown:.1%} |",
                    flush=True,
                )


def print_alike(tries: int, resamples: int) -> None:
    """How often the interval holds the mean where few subjects are of another kind, and all others score about .5."""
    print("| subjects | one in | deviation | interval | note | or note |")
    print("|---|---|---|---|---|---|")
    for n_subjects in (10, 20, 50):
        for rare in (50, 20):
            for deviation in (0.0, 0.03, 0.1):
                found = np.empty((tries, 2), dtype=bool)
                for seed in range(tries):
                    chance = np.random.default_rng(seed)
                    middle = np.repeat(chance.normal(0.5, deviation, n_subjects), 18)
                    values = np.clip(chance.normal(middle, 0.1), 0, 1)
                    values[np.repeat(chance.random(n_subjects) < 1 / rare, 18)] = 0.0
                    interval = bootstrap_interval(
                        torch.from_numpy(values),
                        clusters=np.repeat(np.arange(n_subjects), 18).tolist(),
                        n_resamples=resamples,
                        seed=seed,
                        bounds=(0.0, 1.0),
                    )
                    holds = interval.low <= 0.5 * (1 - 1 / rare) <= interval.high
                    found[seed] = holds, left_by_one(interval, float(values.mean()), n_subjects)
                held, noted = found.T
                shares = f"{held.mean():.1%} | {noted.mean():.1%} | {(held | noted).mean():.1%}"
                print(f"| {n_subjects} | {rare} | {deviation} | {shares} |", flush=True)


def print_shares(tries: int, resamples: int) -> None:
    """How often the interval of E holds it."""
    print("| recall | E | ICC | subjects | percentile | width | interval | width | or caution |")
    print("|---|---|---|---|---|---|---|---|---|")
    for recall in ("binary", "noisy", "partly"):
        for truth in (0.1, 0.5):
            for icc in (0.5, 0.9):
                for n_subjects in (5, 8, 20):
                    ends = []
                    for seed in range(tries):
                        kinds, subjects, chance = recalled(truth, icc, n_subjects, seed)
                        beyond, power = elicited(recall, kinds, subjects, chance)
                        found = share(beyond, power, subjects, n_resamples=resamples, seed=seed)
                        if found.reason is None:
                            ends.append((percentile(beyond, power, subjects, resamples, seed), found.interval))
                    old, new = np.array(ends).transpose(1, 0, 2)
                    shown = (covers(new, truth) | (n_subjects < FEW_CLUSTERS)).mean()
                    cell = f"| {recall} | {truth} | {icc} | {n_subjects}"
                    print(f"{cell} | {told(old, truth)} | {told(new, truth)} | {shown:.1%} |", flush=True)


def print_correlations(tries: int) -> None:
    """How often the interval of the rank correlation of depth with recall holds it."""
    print("| recalled | ICC | subjects | rho | interval | width | no interval |")
    print("|---|---|---|---|---|---|---|")
    for part in (0.1, 0.5):
        for icc in (0.5, 0.9):
            truth = rho(*depth_and_recall(part, icc, 40_000, 0)[:2])
            for n_subjects in (5, 8, 20):
                ends = []
                for seed in range(tries):
                    depth, recall, subjects = depth_and_recall(part, icc, n_subjects, seed)
                    frame = pd.DataFrame({"uds": depth, "beyond_retain": recall, "subject": subjects.astype(str)})
                    frame["probe"], frame["decoding"] = "cloze", "greedy"
                    ends.append(depth_correlation(frame, probe="cloze").interval)
                found = np.array(ends)
                some = ~np.isnan(found).any(-1)
                cell = f"| {part} | {icc} | {n_subjects} | {truth:.2f}"
                print(f"{cell} | {told(found[some], truth)} | {1 - some.mean():.1%} |", flush=True)


def covers(ends: np.ndarray, truth: float) -> np.ndarray:
    """Which of the intervals hold the truth."""
    return np.asarray((ends[:, 0] <= truth + 1e-9) & (truth - 1e-9 <= ends[:, 1]))


def told(ends: np.ndarray, truth: float) -> str:
    """Two cells: coverage (an interval that is NaN does not cover) and mean width."""
    return f"{covers(ends, truth).mean():.1%} | {np.nanmean(ends[:, 1] - ends[:, 0]):.3f}"


def recalled(mean: float, icc: float, n_subjects: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.random.Generator]:
    """0 or 1 for each example of 1 to 40 of a subject, whose own share of ones is drawn from a beta distribution."""
    chance = np.random.default_rng(seed)
    subjects = np.repeat(np.arange(n_subjects), chance.integers(1, 41, n_subjects))
    own = chance.beta(mean * (1 / icc - 1), (1 - mean) * (1 / icc - 1), n_subjects)
    return (chance.random(len(subjects)) < own[subjects]).astype(float), subjects, chance


def elicited(
    recall: str, kinds: np.ndarray, subjects: np.ndarray, chance: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Score beyond retain, and that of the full model."""
    n = len(kinds)
    if recall == "binary":
        return kinds, np.ones(n)
    if recall == "partly":
        known = chance.beta(3, 2, int(subjects.max()) + 1)[subjects]
        power = (chance.random(n) < known).astype(float)
        return kinds * power, power
    power = chance.normal(0.7, 0.15, n).clip(0, 1)
    return kinds * power + chance.normal(0, 0.05, n), power


def percentile(
    beyond: np.ndarray, power: np.ndarray, subjects: np.ndarray, resamples: int, seed: int
) -> tuple[float, float]:
    """Percentile bootstrap of the ratio, whole subjects drawn."""
    top, bottom = np.bincount(subjects, beyond), np.bincount(subjects, power)
    n = len(top)
    times = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=resamples)
    under = times @ bottom
    low, high = np.quantile((times @ top)[under > 0] / under[under > 0], [0.025, 0.975])
    return low, high


def depth_and_recall(part: float, icc: float, n_subjects: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Depth, mostly near 0 or 1, and recall, 0 or 1, which go against each other; and the subjects."""
    chance = np.random.default_rng(seed)
    subjects = np.repeat(np.arange(n_subjects), chance.integers(5, 21, n_subjects))
    pull = np.array([[1.0, -0.6], [-0.6, 1.0]])
    shared = chance.multivariate_normal([0, 0], pull, n_subjects)[subjects]
    latent = np.sqrt(icc) * shared + np.sqrt(1 - icc) * chance.multivariate_normal([0, 0], pull, len(subjects))
    return norm.cdf(3 * latent[:, 0]), (latent[:, 1] > norm.ppf(1 - part)).astype(float), subjects


def rho(one: Sequence[float] | np.ndarray, other: Sequence[float] | np.ndarray) -> float:
    """Spearman's; NaN where one of them is constant."""
    if np.ptp(one) == 0 or np.ptp(other) == 0:
        return float("nan")
    return float(np.corrcoef(rankdata(one), rankdata(other))[0, 1])


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
