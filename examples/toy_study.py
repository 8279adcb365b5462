"""A study of the toy world from pools to verdict: which metrics tell who knows, and hold under attack?

    python examples/toy_study.py --out runs/toy_study

Eight models are fine-tuned from `retain`, four on the forget set and four on wrong answers to it; four unlearned models
of the toy world are quantised and relearn. Killed and started again it goes on. Under three minutes on two idle cores.
"""

from __future__ import annotations

import argparse
import logging
from pathlib import Path

import uds_lens as ul

METRICS = ("uds", "logit_lens", "truth_ratio", "es", "prob", "s_mia_min_k")
PARTS = ul.meta.ScoreParts(memorization=("es", "truth_ratio"), membership=("s_mia_min_k",))
LEARNT = {"learning_rate": [1e-3, 3e-3], "epochs": [2, 6], "batch_size": 16}

PLAN = {
    "name": "toy",
    "full": "toy:full",
    "retain": "toy:retain",
    "data": {"forget": "toy:forget", "holdout": "toy:holdout", "retain": "toy:retain", "limit": 16},
    "train": {"forget": [{"source": "toy:forget"}], "retain": [{"source": "toy:retain"}]},
    "pool": [
        {
            "variant": f"{kind}-answers",
            "knows": kind == "own",
            "start": "toy:retain",
            "data": [{"source": "toy:forget", "answers": kind}],
            "settings": LEARNT,
        }
        for kind in ("own", "wrong")
    ],
    "model": [{"name": name, "path": f"toy:{name}", "method": name} for name in ("npo", "rmu", "idkdpo", "undial")],
    "perturb": {
        "quantise": True,
        "relearn": {"settings": {"learning_rate": 1e-3, "batch_size": 16}, "retain_seeds": [0, 1, 2]},
    },
    "measure": {"metrics": list(METRICS), "utility": ["retain_q_prob", "retain_truth_ratio"]},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/toy_study"))
    parser.add_argument("--jobs", type=int, default=1)
    asked = parser.parse_args()
    logging.basicConfig(format="%(message)s")
    logging.getLogger("uds_lens.study").setLevel(logging.INFO)

    done = ul.study.run(PLAN, asked.out, jobs=asked.jobs)
    print(done)
    judge(ul.study.frames(asked.out), asked.out / "dashboard.html")
    if not done.is_complete:
        raise SystemExit(1)


def judge(frames: ul.study.StudyFrames, page: Path) -> None:
    """Faithfulness, robustness and both together, of every metric; the methods ranked; a page of all of it."""
    faithful = ul.meta.faithfulness(frames.pools, metrics=METRICS)
    cuts = ul.meta.thresholds(frames.pools, metrics=METRICS)
    tables = frames.tables(thresholds=cuts, faithful=faithful)
    robust = ul.meta.robustness_by_filter(tables, metrics=METRICS)
    useful = robust[(robust["filter"] == "utility") & (robust["models"] == "own")]
    summary = ul.meta.summary(faithful, useful)
    print(summary[["metric", "auc", "q", "r", "rob", "overall", "n"]].round(3).to_string(index=False))
    ranking = ul.meta.rank(frames.before, parts=PARTS)
    print(ranking[["method", "rank_without", "rank_with", "score_with"]].round(3).to_string(index=False))
    options = ul.report.DashboardOptions(parts=PARTS, title="A study of the toy world")
    ul.report.dashboard(frames.before, page, pools=frames.pools, robust=robust, options=options)
    print(page)


if __name__ == "__main__":
    main()
