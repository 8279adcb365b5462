"""Judge the study: the verdict of every claim, tables and figures, from `measured/` alone.

    python studies/smollm2/decide.py

Written before a model of the plan was measured; every bound is that of `claims.md`. Where that page leaves room, this
file decides. Intervals over authors are BCa (`scipy.stats.bootstrap`, 9,999 resamples of the eight authors), and so are
those of rank correlations, over the eight methods (both settings together). UDS is that of `audits.py`, with the chat
prompts that the models were trained with; claims h and i use that of the sweep, whose white-box metrics have raw
prompts. p-values of claim a flip the signs of authors (`ul.results.contrast`); those of claim l are Student's t of the
cluster-robust error with seven degrees of freedom, since no sign pattern of eight authors is rare enough for 48 tests.
The smallest difference that could have been shown is 2.8 standard errors of the bootstrap (power 0.8 at 5%).
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from warnings import catch_warnings, simplefilter

import numpy as np
import pandas as pd

import uds_lens as ul
from uds_lens.results import Interval

HERE = Path(__file__).resolve().parent

TAU = 0.05
FEWEST = 5  # clusters that are resampled, as in the library
RESAMPLES = 9999
POWERED = 2.8
OTHER_ANSWERS, LOWERED = ("idknll", "idkdpo", "altpo"), ("graddiff", "npo", "simnpo")
TAUGHT = ("full", "some", "half", "retain-0")
"""Models in the order of what they know, and claim a."""


@dataclass(frozen=True)
class Verdict:
    """What became of a claim."""

    claim: str
    verdict: str
    why: str


@dataclass(frozen=True)
class Found:
    """A statistic with its bootstrap."""

    value: float
    interval: Interval
    error: float

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.interval.low:.3f}, {self.interval.high:.3f}]"

    @property
    def detectable(self) -> str:
        """The smallest difference that could have been shown."""
        return f"detectable {POWERED * self.error:.3f}"


def bootstrap(statistic: Callable[[np.ndarray], float], n: int) -> Found:
    """Resample `n` clusters: BCa, or percentiles where resamples are too much alike for it."""
    from scipy.stats import DegenerateDataWarning, bootstrap as resampled

    value = statistic(np.arange(n))
    if math.isnan(value):
        return Found(value, Interval(math.nan, math.nan), math.nan)
    with np.errstate(all="ignore"), catch_warnings():
        simplefilter("ignore", DegenerateDataWarning)
        found = resampled(
            (np.arange(n),),
            statistic,
            vectorized=False,
            n_resamples=RESAMPLES,
            method="BCa",
            rng=np.random.default_rng(0),
        )
    drawn = found.bootstrap_distribution[~np.isnan(found.bootstrap_distribution)]
    low, high = found.confidence_interval
    if math.isnan(low) or math.isnan(high):
        low, high = np.quantile(drawn, [0.025, 0.975])
    return Found(value, Interval(float(low), float(high)), float(drawn.std(ddof=1)))


def judge(supported: bool, contradicted: bool) -> str:
    """Return the word for it; a claim cannot be both."""
    if supported and contradicted:
        raise ValueError("a claim is supported and contradicted at once: its bounds overlap")
    return "supported" if supported else "contradicted" if contradicted else "undecided"


class NotMeasured(Exception):  # noqa: N818 - no error: a claim that waits
    """Raised where a claim needs what the sweep has not measured."""


class Measured:
    """The tables of `measured/`."""

    def __init__(self, place: Path) -> None:
        renamed = {"retain": "retain-0"}  # the sweep calls the plan's own retain model by its role
        self.table = pd.read_csv(place / "table.csv", low_memory=False).replace({"model_id": renamed})
        self.values = pd.read_parquet(place / "values.parquet").replace({"model": renamed})
        self.scales, self.scores = pd.read_csv(place / "scales.csv"), pd.read_csv(place / "scores.csv")
        self.layers = pd.read_parquet(place / "layers.parquet")
        self.made, self.rates = pd.read_csv(place / "models.csv"), pd.read_csv(place / "rates.csv")
        answers = place / "elicitation.csv"
        self.elicited = (
            pd.read_csv(answers) if answers.is_file() else pd.DataFrame(columns=["model", "role", "probe", "decoding"])
        )
        for frame in (self.scores, self.layers, self.values):
            frame["example_id"] = frame["example_id"].astype(str)

    def wide(self, state: str) -> pd.DataFrame:
        """Metrics by model in a state."""
        rows = self.table[(self.table["state"] == state) & ~self.table["metric"].str.startswith("elicitation.")]
        return rows.pivot_table(index="model_id", columns="metric", values="value", sort=False)

    @cached_property
    def methods(self) -> dict[str, str]:
        """Method of each unlearned model that was audited."""
        rows = self.made[(self.made["method"] != "finetune") & self.made["model"].isin(self.scores["model"])]
        return dict(rows[["model", "method"]].itertuples(index=False))

    @cached_property
    def authors(self) -> pd.Series:
        """Author of each example."""
        return self.scores.drop_duplicates("example_id").set_index("example_id")["subject"]

    def uds(self, model: str, scale: str = "retain-0") -> pd.Series:
        """UDS of each example."""
        rows = self.scores[(self.scores["model"] == model) & (self.scores["scale"] == scale)]
        return rows.set_index("example_id")["uds"]

    def mean_uds(self, scale: str = "retain-0") -> pd.Series:
        """UDS of each model."""
        return self.scales[self.scales["scale"] == scale].set_index("model")["uds"]

    def over_authors(self, values: pd.Series) -> Found:
        """Mean over examples, authors resampled."""
        known = values.dropna()
        groups = [part.to_numpy() for _, part in known.groupby(self.authors.reindex(known.index), sort=True)]
        return bootstrap(lambda drawn: float(np.concatenate([groups[i] for i in drawn]).mean()), len(groups))

    def correlation(self, one: pd.Series, other: pd.Series) -> Found:
        """Spearman's correlation over the unlearned models, methods resampled."""
        from scipy.stats import rankdata

        pairs = pd.DataFrame({"one": one, "other": other}).reindex(list(self.methods)).dropna()
        names = pairs.index.map(self.methods)
        groups = [pairs[names == name].to_numpy(dtype=float) for name in sorted(set(names))]

        def rho(drawn: np.ndarray) -> float:
            ranks = rankdata(np.concatenate([groups[i] for i in drawn]), axis=0)
            ranks -= ranks.mean(0)
            scale = math.sqrt(float((ranks**2).sum(0).prod()))
            return float(ranks.prod(1).sum() / scale) if scale else math.nan

        return (
            bootstrap(rho, len(groups))
            if len(groups) >= FEWEST
            else Found(math.nan, Interval(math.nan, math.nan), math.nan)
        )

    def metric(self, name: str, state: str = "before") -> pd.Series:
        """A metric of each model."""
        wide = self.wide(state)
        return wide[name] if name in wide else pd.Series(dtype=float)

    def needed(self, name: str, state: str = "before") -> pd.Series:
        """The same; `NotMeasured` where models of fewer than five methods have it, too few to resample."""
        values = self.metric(name, state)
        models = list(values.reindex(list(self.methods)).dropna().index)
        if len({self.methods[model] for model in models}) < FEWEST:
            raise NotMeasured(f"{name} of the unlearned models, {state} ({len(models)} of {len(self.methods)} so far)")
        return values


def order_holds(found: Measured) -> tuple[str, str]:
    """Claim a."""
    tests = []
    for one, other in pairwise(TAUGHT):
        difference = (found.uds(other) - found.uds(one)).dropna()
        codes = pd.factorize(found.authors.reindex(difference.index))[0]
        tests.append(
            (f"{other} - {one}", ul.results.contrast(difference.to_numpy(), codes), found.over_authors(difference))
        )
    p = ul.results.holm([test.p for _, test, _ in tests])
    why = "; ".join(
        f"{name} {spread}, adjusted p {each:.3f}, {spread.detectable}"
        for (name, _, spread), each in zip(tests, p, strict=True)
    )
    sure = [each < 0.05 for each in p]
    above = [test.value > 0 for _, test, _ in tests]
    return judge(all(sure) and all(above), any(s and not a for s, a in zip(sure, above, strict=True))), why


def share_scored(found: Measured) -> tuple[str, str]:
    """Claim b."""
    bounds = {"some": (0.10, 0.40), "half": (0.35, 0.65)}
    spread = {name: found.over_authors(found.uds(name)) for name in bounds}
    inside = [
        low <= spread[name].interval.low and spread[name].interval.high <= high for name, (low, high) in bounds.items()
    ]
    outside = [
        spread[name].interval.high < low or spread[name].interval.low > high for name, (low, high) in bounds.items()
    ]
    why = "; ".join(f"{name} {each}, {each.detectable}" for name, each in spread.items())
    why += "; resampling authors varies the share that was taught, so an interval this wide was to be expected"
    return judge(all(inside), any(outside)), why


def seeds_agree(found: Measured) -> tuple[str, str]:
    """Claim c."""
    spread = {name: found.over_authors(found.uds(name)) for name in ("retain-1", "retain-2")}
    ends = [each.interval for each in spread.values()]
    why = "; ".join(f"{name} {each}, {each.detectable}" for name, each in spread.items())
    return judge(all(end.low >= 0.85 for end in ends), any(end.high < 0.85 for end in ends)), why


def s1_of(found: Measured) -> pd.DataFrame:
    """S1 by example and layer, on the scale of `retain-0`."""
    rows = found.layers[found.layers["scale"] == "retain-0"]
    rows = rows[rows["model"] == rows["model"].iloc[0]]
    return rows.pivot(index="example_id", columns="layer", values="s1_delta")


def by_author(found: Measured, table: pd.DataFrame) -> list[np.ndarray]:
    """Rows of each author."""
    return [part.to_numpy() for _, part in table.groupby(found.authors.reindex(table.index), sort=True)]


def late_start(found: Measured) -> tuple[str, str]:
    """Claim d."""
    groups = by_author(found, s1_of(found) > TAU)

    def first(drawn: np.ndarray) -> int:
        share = np.concatenate([groups[i] for i in drawn]).mean(0)
        return int(np.argmax(share >= 0.5)) if (share >= 0.5).any() else len(share)

    draws = np.random.default_rng(0).integers(len(groups), size=(RESAMPLES, len(groups)))
    firsts = np.array([first(drawn) for drawn in draws])
    late = float((firsts >= 15).mean())
    low, high = np.quantile(firsts, [0.025, 0.975])
    why = f"layer {first(np.arange(len(groups)))} [{low:.0f}, {high:.0f}] of 0 to 29; 15 or later in {late:.1%}"
    return judge(late >= 0.95, late <= 0.05), why


def late_weight(found: Measured) -> tuple[str, str]:
    """Claim e."""
    s1 = s1_of(found)
    weight = s1.where(s1 > TAU, 0.0)
    weight = weight[weight.sum(axis=1) > 0]
    share = found.over_authors(weight.loc[:, 20:].sum(axis=1) / weight.sum(axis=1))
    return judge(share.interval.low >= 0.5, share.interval.high < 0.5), f"share {share}, {share.detectable}"


def base_stands_in(found: Measured) -> tuple[str, str]:
    """Claim f."""
    rho = found.correlation(found.mean_uds(), found.mean_uds("base"))
    return judge(rho.interval.low >= 0.8, rho.interval.high < 0.8), f"rho {rho}, {rho.detectable}"


def groups_differ(found: Measured) -> tuple[str, str]:
    """Claim g."""
    groups, means = [], []
    for methods in (LOWERED, OTHER_ANSWERS):
        names = [name for name, method in found.methods.items() if method in methods]
        table = pd.DataFrame({name: found.uds(name) for name in names})
        groups.append(by_author(found, table))
        means.append(float(table.mean().mean()))
    chance, drawn = np.random.default_rng(0), np.empty(RESAMPLES)
    for draw in range(RESAMPLES):
        authors = chance.integers(len(groups[0]), size=len(groups[0]))
        ends = []
        for group in groups:
            models = chance.integers(group[0].shape[1], size=group[0].shape[1])
            ends.append(float(np.nanmean(np.concatenate([group[i] for i in authors])[:, models], axis=0).mean()))
        drawn[draw] = ends[0] - ends[1]
    above = float((drawn > 0).mean())
    why = (
        f"{', '.join(OTHER_ANSWERS)}: mean UDS {means[1]:.3f}; {', '.join(LOWERED)}: {means[0]:.3f}; the latter is "
        f"higher in {above:.1%} of resamples, detectable {POWERED * drawn.std(ddof=1):.3f}"
    )
    return judge(above >= 0.95, above <= 0.05), why


def lens_agrees(found: Measured) -> tuple[str, str]:
    """Claim h."""
    rho = found.correlation(found.needed("uds"), found.needed("logit_lens"))
    return judge(rho.interval.low >= 0.8, rho.interval.high < 0.8), f"rho {rho}, {rho.detectable}"


def four_bits(found: Measured) -> tuple[str, str]:
    """Claim i."""
    found.needed("uds", "quantised")
    rows = found.values[(found.values["metric"] == "uds") & found.values["model"].isin(found.methods)]
    wide = rows.pivot_table(index=["model", "example_id"], columns="state", values="value")
    change = (wide["quantised"] - wide["before"]).dropna()
    spread = found.over_authors(change.groupby("example_id").mean())
    models = change.groupby("model").mean()
    why = (
        f"mean change {spread} over {len(models)} models, {spread.detectable}; of single models {models.min():.3f} "
        f"({models.idxmin()}) to {models.max():.3f} ({models.idxmax()})"
    )
    ends = spread.interval
    return judge(ends.low >= -0.05 and ends.high <= 0.05, ends.low > 0.05 or ends.high < -0.05), why


def predicts_return(found: Measured) -> tuple[str, str]:
    """Claim j."""
    prob = found.needed("prob", "relearned")
    rho, n = found.correlation(found.mean_uds(), prob), prob.reindex(list(found.methods)).notna().sum()
    return judge(rho.interval.high <= -0.5, rho.interval.low > -0.5), f"rho {rho} over {n} models, {rho.detectable}"


def outputs_overstate(found: Measured) -> tuple[str, str]:
    """Claim k."""
    prob, bound = found.needed("prob"), float(found.metric("prob").get("retain-0", math.nan))
    silent = [name for name in found.methods if prob.get(name, math.nan) < bound]
    spread = {name: found.over_authors(found.uds(name)) for name in silent}
    shallow = {name: each for name, each in spread.items() if each.value < 0.5}
    sure = [name for name, each in shallow.items() if each.interval.high < 0.5]
    told = "; ".join(f"{name}: Prob {prob[name]:.4f}, UDS {each}" for name, each in sorted(shallow.items()))
    why = f"{len(silent)} of {len(found.methods)} models have a Prob below {bound:.3f}, that of retain-0; of these "
    why += f"{len(shallow)} have a UDS below 0.5, {len(sure)} surely" + (f" ({told})" if told else "")
    if spread:
        lowest = min(spread, key=lambda name: spread[name].value)
        why += f"; lowest UDS {spread[lowest]} ({lowest}), {spread[lowest].detectable}"
    return judge(bool(sure), not shallow), why


def elicited(found: Measured) -> pd.DataFrame:
    """ROUGE beyond the plain question of each model and probe: one row for each test."""
    from scipy.stats import t

    rows = []
    greedy = found.elicited[found.elicited["decoding"] == "greedy"]
    of_retain = greedy[(greedy["role"] == "retain") | (greedy["model"] == "retain-0")].groupby("probe")["mean"].mean()
    said = greedy[(greedy["role"] == "unlearned") & greedy["model"].isin(found.methods)]
    for model, part in said.groupby("model"):
        wide = part.pivot_table(index="example_id", columns="probe", values="mean")
        authors = part.drop_duplicates("example_id").set_index("example_id")["subject"].reindex(wide.index)
        for probe in wide.columns.drop("plain"):
            gain = (wide[probe] - wide["plain"]).dropna()
            sums = (gain - gain.mean()).groupby(authors).sum()
            groups = len(sums)
            error = math.sqrt(groups / (groups - 1) * float((sums**2).sum())) / len(gain)
            p = 2 * float(t.sf(abs(gain.mean()) / error, groups - 1)) if error else math.nan
            rows.append(
                {"model": model, "probe": probe, "plain": wide["plain"].mean(), "rouge": wide[probe].mean()}
                | {"retain": of_retain.get(probe, math.nan)}
                | {"gain": gain.mean(), "error": error, "p": p, "n": len(gain)}
            )
    table = pd.DataFrame(rows, columns=["model", "probe", "plain", "rouge", "retain", "gain", "error", "p", "n"])
    return table.assign(p_holm=ul.results.holm(table["p"].tolist()))


def probes_have_power(found: Measured) -> tuple[str, str]:
    """Claim l."""
    table = elicited(found)
    if not len(table):
        raise NotMeasured("answers of the unlearned models")
    raised = table[(table["p_holm"] < 0.05) & (table["gain"] > 0)]
    models, asked = raised["model"].nunique(), table["model"].nunique()
    smallest = POWERED * table["error"]
    best = table.groupby("probe")["gain"].mean()
    why = (
        f"raised in {models} of {asked} models ({len(raised)} of {len(table)} tests); mean gain by probe: "
        + ", ".join(f"{name} {gain:+.3f}" for name, gain in best.items())
        + f"; detectable {smallest.min():.3f} to {smallest.max():.3f}, before adjusting"
    )
    return judge(models >= 4, models == 0 and bool((smallest <= 0.1).all())), why


def depth_damages(found: Measured) -> tuple[str, str]:
    """Claim m."""
    rho, kept = (found.correlation(found.mean_uds(), found.needed(name)) for name in ("wf_q_prob", "retain_q_prob"))
    why = f"rho {rho}, {rho.detectable}; with Prob on the kept authors {kept}"
    return judge(rho.interval.high < 0, rho.interval.low > 0), why


CLAIMS = {
    "a: full < some < half < retain-0": order_holds,
    "b: a partial retain scores its share": share_scored,
    "c: the seed of retain hardly moves the scale": seeds_agree,
    "d: knowledge-encoding layers begin in the second half": late_start,
    "e: at least half of the weight lies in the last third": late_weight,
    "f: the base orders the models as retain-0 does": base_stands_in,
    "g: training on other answers leaves more than lowering the answer": groups_differ,
    "h: Logit Lens orders the models as UDS does": lens_agrees,
    "i: NF4 brings nothing back": four_bits,
    "j: UDS predicts how much Prob returns by relearning": predicts_return,
    "k: output metrics overstate": outputs_overstate,
    "l: elicitation has power": probes_have_power,
    "m: depth damages what the pretrained model knew": depth_damages,
}


def ruling(found: Measured, claim: str, check: Callable[[Measured], tuple[str, str]]) -> Verdict:
    """Judge a claim, or say what it waits for."""
    try:
        return Verdict(claim, *check(found))
    except NotMeasured as lacking:
        return Verdict(claim, "not measured", f"it needs {lacking}")


# Tables.


def scale_table(found: Measured) -> pd.DataFrame:
    """What is known about the scale itself: the models that were not unlearned."""
    taught = {"full": 8, "some": 6, "half": 4}
    rows = []
    for name in (*TAUGHT, "retain-1", "retain-2", "base"):
        scores = found.uds(name)
        row: dict[str, object] = {"model": name, "authors taught": taught.get(name, 0)}
        row |= {"UDS": scores.mean(), **_ends(found.over_authors(scores))}
        known = found.authors.reindex(scores.index).isin(_taught(found, taught.get(name, 0)))
        row |= {"on authors taught": scores[known].mean(), "on the others": scores[~known].mean()}
        row["UDS, base as stand-in"] = found.mean_uds("base").get(name, math.nan)
        row["UDS, three retains"] = found.mean_uds("retains").get(name, math.nan)
        rows.append(row)
    return pd.DataFrame(rows)


def _taught(found: Measured, count: int) -> set[str]:
    """Authors of the forget set that a model was taught: the first ones, in the order of the file."""
    return set(found.authors.unique()[:count])


def _ends(found: Found) -> dict[str, float]:
    return {"low": found.interval.low, "high": found.interval.high}


def models_table(found: Measured) -> pd.DataFrame:
    """The unlearned models by UDS, on three scales, with damage and what the outputs say."""
    kept = ["model", "uds", "uds_low", "uds_high", "over_erased_share", "damage", "damage_low", "damage_high"]
    table = found.scales[found.scales["scale"] == "retain-0"][kept].set_index("model")
    table = table.loc[table.index.isin(list(found.methods))].sort_values("uds", ascending=False)
    columns = {"base": "UDS, base", "retains": "UDS, three retains"}
    for scale, name in columns.items():
        table[name] = found.mean_uds(scale)
    for name in ("prob", "retain_q_prob", "wf_q_prob"):
        table[name] = found.metric(name)
    for state in ("before", "quantised", "relearned"):  # the sweep asks with raw prompts, the audits with chat prompts
        table[f"UDS, raw, {state}"] = found.metric("uds", state)
    table["prob, relearned"] = found.metric("prob", "relearned")
    return table.reset_index()


def correlations_table(found: Measured) -> pd.DataFrame:
    """Rank correlation of UDS with every metric, over the unlearned models."""
    rows = []
    for state in ("before", "relearned"):
        for name in found.wide(state).columns:
            if found.metric(name, state).reindex(list(found.methods)).notna().any():
                rho = found.correlation(found.mean_uds(), found.metric(name, state))
                rows.append({"metric": name, "state": state, "rho": rho.value, **_ends(rho)})
    return pd.DataFrame(rows, columns=["metric", "state", "rho", "low", "high"])


def layers_table(found: Measured) -> pd.DataFrame:
    """S1 by layer: mean, share of examples above tau, share of the weight."""
    s1 = s1_of(found)
    weight = s1.where(s1 > TAU, 0.0)
    share = weight.div(weight.sum(axis=1).where(lambda total: total > 0), axis=0).mean()
    table = pd.DataFrame({"S1": s1.mean(), "examples above tau": (s1 > TAU).mean(), "weight": share})
    return table.reset_index(names="layer")


def in_order(found: Measured) -> pd.DataFrame:
    """Each metric's values for the models whose knowledge is known, and whether it puts them in order."""
    names = [name for name in (*TAUGHT, "retain-1", "retain-2", "base") if name in found.wide("before").index]
    table = found.wide("before").loc[names].T
    if not set(TAUGHT) <= set(table):
        return table.reset_index()
    steps = np.sign(table[list(TAUGHT)].diff(axis=1).iloc[:, 1:])
    table["in order"] = [("yes" if abs(row.sum()) == len(row) else "no") for row in steps.to_numpy()]
    return table.reset_index()


def markdown(table: pd.DataFrame) -> str:
    """Return a table as Markdown."""

    def cell(value: object) -> str:
        if value is None or value is pd.NA or (isinstance(value, float) and math.isnan(value)):
            return ""
        if isinstance(value, float):
            return f"{value:.3f}" if abs(value) >= 0.01 or value == 0 else f"{value:.2g}"
        return str(value).replace("|", "\\|")

    rows = [[cell(value) for value in row] for row in table.itertuples(index=False)]
    head = [str(name) for name in table.columns]
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows])


def page(found: Measured, ruled: Sequence[Verdict]) -> str:
    """Everything as Markdown."""
    n = len(found.methods)
    parts: list[tuple[str, str, pd.DataFrame]] = [
        (
            "The scale",
            "Models that were not unlearned. On authors taught a UDS near 0 is right, on the others one near 1. The "
            "last two columns are scores on other scales.",
            scale_table(found),
        ),
        (
            "The unlearned models",
            "By UDS on the scale of retain-0. Damage has the kept authors' rows as control.",
            models_table(found),
        ),
        (
            "How they were made",
            "Learning rates were chosen with the first setting, on four of the kept authors.",
            found.made,
        ),
        (
            "Learning rates that were tried",
            "`met`: halves Prob there with at most a tenth lost on the others.",
            found.rates,
        ),
        (
            "Metrics of models whose knowledge is known",
            "In order: full, some, half, retain-0 rise or fall throughout.",
            in_order(found),
        ),
        (
            "Rank correlations with UDS before",
            f"Spearman's over {n} unlearned models; intervals draw methods.",
            correlations_table(found),
        ),
        ("Knowledge by layer", "S1 of retain-0 in `full`, nats per token.", layers_table(found)),
        (
            "Elicitation",
            "ROUGE of the answer, beyond the plain question; `retain` is that of `retain-0`; `p` as `decide.py` says.",
            elicited(found),
        ),
    ]
    parts += [
        (f"All metrics, {words}", "", found.wide(state).reset_index(names="model"))
        for state, words in (("before", "as made"), ("quantised", "in 4 bits"), ("relearned", "after relearning"))
    ]
    out = ["# What the study of SmolLM2 found", "", "Made by `decide.py` from `../measured`.", "", "## Verdicts", ""]
    out.append(markdown(pd.DataFrame([vars(each) for each in ruled]).rename(columns={"why": "numbers"})))
    for title, words, table in parts:
        table = table.dropna(axis=1, how="all")
        out += ["", f"## {title}", ""] + ([words, ""] if words else [])
        out.append(markdown(table) if len(table) else "Not measured.")
    return "\n".join(out) + "\n"


def main() -> None:
    """Judge, and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measured", type=Path, default=HERE / "measured")
    parser.add_argument("--out", type=Path, default=HERE / "results")
    given = parser.parse_args()
    found = Measured(given.measured)
    ruled = [ruling(found, claim, check) for claim, check in CLAIMS.items()]
    for each in ruled:
        print(f"{each.claim}: {each.verdict.upper()}\n    {each.why}")
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "README.md").write_text(page(found, ruled), encoding="utf-8")
    pd.DataFrame([vars(each) for each in ruled]).to_csv(given.out / "verdicts.csv", index=False)
    models_table(found).round(4).to_csv(given.out / "models.csv", index=False)


if __name__ == "__main__":
    main()
