"""What the dashboard explains: metrics, methods, sources, findings and cautions, made from its tables."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from uds_lens import meta
from uds_lens.meta._ranking import View
from uds_lens.metrics import METRICS

if TYPE_CHECKING:
    import pandas as pd

    from uds_lens.report._dashboard_tables import Tables

# Texts beside the templates: formula and meaning by metric; names of methods (ours, the UDS paper's, the trainers of
# Open-Unlearning) as their authors write them; publications.
_TEXTS = json.loads((Path(__file__).parent / "page" / "words.json").read_text(encoding="utf-8"))

_ALSO = {"s_mia_zlib": "s_mia_loss", "s_mia_min_k": "s_mia_loss", "s_mia_min_kpp": "s_mia_loss"}


def definition(metric: str) -> Sequence[str] | None:
    """Return formula and meaning of a metric; None for one that is not ours.

    >>> definition("s_mia_zlib")[0] == definition("s_mia_loss")[0], definition("mine")
    (True, None)
    """
    name = "fisher_masked" if metric.startswith("fisher_masked_0.") else _ALSO.get(metric, metric)
    return _TEXTS["definitions"].get(name)


def method_name(method: str) -> str:
    """Write a method's name as its authors do; an unknown one as it is.

    >>> method_name("simnpo"), method_name("GradAscent"), method_name("mine")
    ('SimNPO', 'GradAscent', 'mine')
    """
    return str(_TEXTS["methods"].get(str(method).lower().replace("_", ""), method))


class Source(NamedTuple):
    """A publication: authors, year and title; its address, empty if only in print."""

    text: str
    url: str


def sources(metrics: Iterable[str], methods: Iterable[str]) -> list[Source]:
    """Return the publications behind what is on the page, the UDS paper first."""
    named, used = [str(name) for name in metrics], {str(method).lower() for method in methods}
    wanted = ["uds", "open_unlearning"]
    if named or used & {"graddiff", "idknll", "idkdpo"}:
        wanted.append("tofu")
    for key in ("es", "em", "rouge", "mia_loss", "mia_zlib", "mia_min_k", "mia_min_kpp", "cka", "logit_lens"):
        wanted += [key] if any(name in (key, f"s_{key}") for name in named) else []
    for key in ("s_mia", "fisher"):
        wanted += [key] if any(name.startswith(key) for name in named) else []
    wanted += [key for key in ("npo", "simnpo", "altpo", "rmu", "undial") if key in used]
    return [Source(*_TEXTS["papers"][key]) for key in (*wanted, *(["hanley", "delong", "holm"] if named else []))]


FULL_FILTER = "utility+threshold"  # the paper's filter: enough utility, and the metric calls them unlearned

_NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


def count(n: float, thing: str) -> str:
    """Write a number of things, small ones in words.

    >>> count(1, "metric"), count(12, "model")
    ('one metric', '12 models')
    """
    word = _NUMBERS[int(n)] if 0 <= n <= 10 else f"{n:.0f}"
    return f"{word} {thing}" + ("" if n == 1 else "s")


def ordinal(n: float) -> str:
    """Write a place.

    >>> ordinal(1), ordinal(3), ordinal(12), ordinal(22)
    ('1st', '3rd', '12th', '22nd')
    """
    last = 0 if 10 < n % 100 < 14 else n % 10
    return f"{n:.0f}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(int(last), 'th') }"


def metric_label(name: str) -> str:
    """Return the label of a metric of ours, else its name."""
    return METRICS[name].label if name in METRICS else name


def labels(metrics: pd.DataFrame) -> dict[str, str]:
    """Return the label of each metric of a table, where there is none its name."""
    column = metrics["label"] if "label" in metrics.columns else [None] * len(metrics)
    return {
        str(name): label if isinstance(label, str) else str(name)
        for name, label in zip(metrics["metric"], column, strict=True)
    }


def default_title(tables: Tables) -> str:
    """Ask what the tables can answer: without pools and perturbations no metric is judged."""
    questions = ["which metrics can be trusted"] if len(tables.metrics) else []
    questions += [("and " if questions else "") + "which methods forget"] if len(tables.models) else []
    asked = ", ".join(questions) or "what do the tables show"
    return f"{asked[:1].upper()}{asked[1:]}?"


def judged(tables: Tables, setting: str, models: str = "own") -> pd.DataFrame:
    """Return F, Q, R, Rob and Overall with places at one filter setting, one metric per family."""
    import pandas as pd

    rows = tables.robust[(tables.robust["filter"] == setting) & (tables.robust["models"] == models)]
    if not len(tables.main) or not len(rows):
        return pd.DataFrame(columns=list(meta.SUMMARY))
    return meta.summary(tables.main, rows)


def findings(tables: Tables) -> list[str]:
    """Return the summary of the page, a few sentences."""
    return [*_of_metrics(tables), *_of_methods(tables)]


def _of_metrics(tables: Tables) -> Iterator[str]:
    label = labels(tables.metrics)
    settings = list(dict.fromkeys(tables.robust["filter"]))
    first = FULL_FILTER if FULL_FILTER in settings else (settings or [""])[-1]
    table = judged(tables, first)
    if len(table) and table["overall"].notna().any():
        top = table.loc[table["overall"].idxmax()]
        both = ", both the highest" if top["rank_auc"] == top["rank_rob"] == 1 else ""
        share = "" if math.isnan(top["p_first"]) else f"; it comes first in {100 * top['p_first']:.0f}% of resamples"
        yield (
            f"{label[top['metric']]} has the highest Overall score, {top['overall']:.3f} (F {top['auc']:.3f}, Rob "
            f"{top['rob']:.3f}{both}){share}."
        )
        q, r, low = table["q"].mean(), table["r"].mean(), int((table["r"] < 0.5).sum())
        if r < q:
            yield (
                f"Metrics are less robust to relearning than to quantisation: mean Q {q:.2f}, mean R {r:.2f}; "
                f"{low} of {len(table)} metrics have R below 0.5."
            )
        else:
            yield f"Metrics are less robust to quantisation than to relearning: mean Q {q:.2f}, mean R {r:.2f}."
        yield from _of_filters(tables, top["metric"], first, settings, label)
    elif tables.metrics["auc"].notna().any():
        top = tables.metrics.loc[tables.metrics["auc"].idxmax()]
        yield f"{label[top['metric']]} has the highest F, {top['auc']:.3f}."


def _of_filters(tables: Tables, metric: str, first: str, settings: list[str], label: dict[str, str]) -> Iterator[str]:
    words = {"utility": "the utility filter alone", "none": "no filter", "threshold": "the threshold alone"}
    others = []
    for setting in settings:
        table = judged(tables, setting)
        row = table[table["metric"] == metric]
        if setting == first or not len(row) or not row["rank_rob"].iloc[0] > 1:
            continue
        best = table.loc[table["rob"].idxmax()]
        others.append(
            f"with {words[setting]} it ranks {ordinal(row['rank_rob'].iloc[0])} ({row['rob'].iloc[0]:.3f}), "
            f"and {label[best['metric']]} first ({best['rob']:.3f})"
        )
    if others:
        yield f"The rank of {label[metric]} in robustness depends on the filter: {', '.join(others)}."


def _of_methods(tables: Tables) -> Iterator[str]:
    if not tables.ranked:
        return
    by = tables.options.select_by
    ranking = _ranking(tables, by)
    top = ranking.iloc[0]
    if math.isnan(top["score_with"]):
        return
    moved = [
        f"{method_name(row['method'])} {row['rank_without']:.0f} to {row['rank_with']:.0f}"
        for row in ranking.to_dict("records")
        if row["rank_without"] != row["rank_with"] and not math.isnan(row["score_with"])
    ]
    tied = int((ranking["rank_with"] == 1).sum())
    first = f"{method_name(top['method'])} ranks first of" if tied == 1 else f"{tied} methods tie for first place among"
    yield (
        f"With depth in the score, {first} {len(ranking)} methods ({top['score_with']:.3f})."
        + (f" Depth changes ranks: {', '.join(moved)}." if moved else " Depth changes no rank.")
    )
    other = _ranking(tables, "with" if by == "without" else "without")
    places = dict(zip(other["method"], other["rank_with"], strict=True))
    differ = [
        f"{method_name(row['method'])} would rank {ordinal(places[row['method']])}"
        for row in ranking.to_dict("records")
        if places[row["method"]] != row["rank_with"] and not math.isnan(row["rank_with"])
    ]
    if differ:
        rule = "with depth" if by == "without" else "without depth"
        yield f"If configurations were chosen by the score {rule}, {'; '.join(differ)}."


def _ranking(tables: Tables, by: View) -> pd.DataFrame:
    options = tables.options
    return meta.rank(tables.models, select_by=by, min_utility=options.min_utility, parts=options.parts)


def cautions(tables: Tables) -> list[str]:
    """Return what to know before quoting a number of the page."""
    return [
        *tables.gaps,
        *_same_variants(tables),
        *_open_order(tables),
        *_few_models(tables),
        *_ties(tables),
        *_published(tables),
    ]


def _same_variants(tables: Tables) -> Iterator[str]:
    metrics = tables.metrics
    if "new_variants_low" not in metrics.columns or not metrics["new_variants_low"].notna().any():
        return
    top = metrics.loc[metrics["auc"].idxmax()]
    yield (
        "The intervals of F cover only further models of the variants in the pools. For new variants (variants as "
        f"clusters), the interval of {labels(metrics)[str(top['metric'])]} is {top['new_variants_low']:.2f} to "
        f"{top['new_variants_high']:.2f}; click a metric for its own."
    )


def _open_order(tables: Tables) -> Iterator[str]:
    main, label = tables.main, labels(tables.metrics)
    if len(main) < 2 or main["auc"].notna().sum() < 2:
        return
    if tables.pairs is not None:
        tested = tables.pairs[tables.pairs["p_holm"].notna()]
        decided = int((tested["p_holm"] < 0.05).sum())
        yield (
            f"{count(decided, 'difference').capitalize()} in F of {len(tested)} tested "
            f"{'is' if decided == 1 else 'are'} significant (Holm-adjusted p < 0.05); the order of the others is "
            "undecided."
        )
        return
    top = main.sort_values("auc", ascending=False).iloc[:2].to_dict("records")
    if top[1]["high"] > top[0]["low"]:
        one, other = (f"{label[row['metric']]} {row['auc']:.3f} ({row['low']:.3f} to {row['high']:.3f})" for row in top)
        yield (
            f"The intervals of the two highest F values overlap: {one}, {other}. A paired test needs the values of "
            "the pool models, which are not in the released files: the order is undecided."
        )


def _few_models(tables: Tables) -> Iterator[str]:
    rows = tables.robust[(tables.robust["filter"] == FULL_FILTER) & (tables.robust["models"] == "own")]
    few, label = rows[rows["n"] < 20].sort_values("n"), labels(tables.metrics)
    if len(few):
        named = ", ".join(f"{label.get(r.metric, r.metric)} {r.n:.0f}" for r in few.head(6).itertuples())
        yield (
            f"With both filters each metric is judged on different models, some on only a few: {named}"
            + (f" and {len(few) - 6} more below 20." if len(few) > 6 else ".")
        )
    if "caution" in rows.columns:
        for row in rows[rows["caution"].notna()].head(4).itertuples():
            yield f"{row.metric}: {row.caution}"


def _ties(tables: Tables) -> Iterator[str]:
    if not tables.ranked:
        return
    ranking = _ranking(tables, tables.options.select_by)
    ties = ranking[ranking["n_tied"] > 1].to_dict("records")
    if len(ties) > 2:
        named = ", ".join(f"{method_name(row['method'])} {row['n_tied']:.0f}" for row in ties)
        yield (
            f"In {len(ties)} methods, several configurations have the same score and cannot be distinguished "
            f"({named}); the one shown is the best in the other parts of the score."
        )
    else:
        for row in ties:
            yield f"{method_name(row['method'])}: {row['reason']}."
    scores = tables.models["score_with"]
    if zero := int((scores == 0).sum()):
        yield f"{zero} of {len(scores)} scores are exactly 0: a harmonic mean is 0 as soon as one part is."
    if missing := int(scores.isna().sum()):
        yield f"No score for {count(missing, 'model')}, because a part of it has no value (see the model's row)."


def _published(tables: Tables) -> Iterator[str]:
    if tables.published:
        yield (
            "R compares each model with the shift of one relearned retain model, the same number for all. The "
            "interval of that shift is not published; where it is near 0, R is small whatever a model does."
        )
        yield (
            "The intervals of F are computed from the sizes of the pools alone (Hanley and McNeil). Epochs of one run "
            "are not independent models, so the true intervals are wider."
        )
