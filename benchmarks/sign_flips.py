"""How often do interval and p-value of a paired difference err where the true difference is 0?

    python benchmarks/sign_flips.py

Each subject has 5 to 15 questions; its difference is drawn from a population with mean 0, within -1 and 1, and its
questions scatter around it by 0.02. `normal`: standard deviation 0.15. `few either way`: all but a share of subjects
differ by about 0, these by 0.8 up or down. `few one way`: these differ by -0.8 and all others by the little more than 0
that makes the mean 0, so that the subjects asked may all differ alike. Prints a Markdown table: how often p < 0.05 (5%
is right), how often the 95% interval misses 0, how often there is a caution, and how often p < 0.05
without one.
"""

from __future__ import annotations

import argparse

import numpy as np

from uds_lens.results import contrast

POPULATIONS = (
    *(("normal", 0.0), ("few either way", 0.05), ("few either way", 0.1), ("few either way", 0.2)),
    *(("few one way", 0.02), ("few one way", 0.05), ("few one way", 0.1), ("few one way", 0.2)),
)


def subjects_differences(kind: str, share: float, n: int, chance: np.random.Generator) -> np.ndarray:
    """One difference for each subject."""
    if kind == "normal":
        return chance.normal(0, 0.15, n)
    few, spread = chance.random(n) < share, chance.normal(0, 0.01, n)
    if kind == "few either way":
        return spread + np.where(few, 0.8 * chance.choice([-1.0, 1.0], n), 0.0)
    return spread + np.where(few, -0.8, 0.8 * share / (1 - share))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tries", type=int, default=500)
    parser.add_argument("--resamples", type=int, default=499)
    args = parser.parse_args()
    print("| population | rare | subjects | p < 0.05 | misses 0 | caution | p < 0.05 without one |")
    print("|---|---|---|---|---|---|---|")
    for kind, share in POPULATIONS:
        for n in (6, 8, 12, 20, 50):
            found = []
            for seed in range(args.tries):
                chance = np.random.default_rng([seed, n, int(1000 * share)])
                groups = np.repeat(np.arange(n), chance.integers(5, 16, n))
                values = subjects_differences(kind, share, n, chance)[groups]
                values = (values + chance.normal(0, 0.02, len(groups))).clip(-1, 1)
                mean = contrast(values, groups, n_resamples=args.resamples, seed=seed)
                low, high = mean.interval
                warned = mean.caution is not None
                found.append((mean.p < 0.05, not low <= 0 <= high, warned, mean.p < 0.05 and not warned))
            shares = " | ".join(f"{100 * value:.1f}%" for value in np.mean(found, axis=0))
            print(f"| {kind} | {f'{100 * share:.0f}%' if share else ''} | {n} | {shares} |", flush=True)


if __name__ == "__main__":
    main()
