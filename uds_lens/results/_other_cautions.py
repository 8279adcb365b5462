"""Warnings about everything except audits: metrics, elicited answers, transplants, and tables of many models.

The measuring code passes numbers and names; the sentences are written here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from uds_lens.results._cautions import FEW, Caution, about_first_rows
from uds_lens.results._intervals import FEW_CLUSTERS, IntervalBasis
from uds_lens.results._verdict import LEVEL

if TYPE_CHECKING:
    import pandas as pd

FEW_MODELS = 5  # with fewer models, ranks and their probabilities come with a caution

FEW_JUDGED = 10  # if fewer models pass the filters, a mean over them comes with a caution

FEW_FILTERED = 20  # if fewer models pass both filters, a dashboard names the metric

LITTLE = 0.3  # score of full below which a probe is called weak

_STUDY = "our study of 3.9M-parameter Llamas"


def sentence(text: str) -> str:
    """Add a full stop, leaving the first letter as it is because it may begin a name.

    >>> sentence("es: constant")
    'es: constant.'
    """
    return text if text.endswith(".") else f"{text}."


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count != 1)}"


def _and_more(names: Sequence[str], most: int, *, of: str = "") -> str:
    """List the first names and count the rest.

    >>> _and_more(["a", "b", "c"], 2)
    'a, b and 1 more'
    """
    return ", ".join(names[:most]) + (f" and {len(names) - most} more{of}" if len(names) > most else "")


# Metrics of one model.


def about_sample(sample: Mapping[str, Any]) -> str:
    """Describe a record from `MetricData.sample`, with a caution if a file's first rows were taken.

    Example:
        >>> about_sample({"limit": 2, "of": {"forget": 9}, "sample": "random", "seed": 0})
        'Random sample of at most 2 examples per set (forget: of 9; seed 0).'
    """
    subjects = sample.get("subjects", {})
    about = "" if "forget" not in subjects else ", {asked} of {of} subjects".format(**subjects["forget"])
    forget = f"forget: of {sample['of']['forget']}{about}"
    if sample["sample"] == "random":
        return f"Random sample of at most {sample['limit']} examples per set ({forget}; seed {sample['seed']})."
    text = f"Only the first rows of each set, at most {sample['limit']} ({forget})."
    if sample["sample"] == "first_of_each":
        few = "" if "entities" not in subjects else " ({asked} of {of} subjects)".format(**subjects["entities"])
        text += f" Rows with entities are the first rows of their own file{few}, not the rows with the same questions."
    return f"{text} {about_first_rows(sample.get('sorted_by', 'unknown'))}"


def about_sampled_metrics(sample: Mapping[str, Any], errors: Mapping[str, float]) -> str:
    """Describe a sample, with the largest standard error of the means (by label) as estimates for the full data."""
    known = {label: error for label, error in errors.items() if not math.isnan(error)}
    if not known:
        return about_sample(sample)
    worst = max(known, key=lambda label: known[label])
    return (
        f"{about_sample(sample)} As estimates for all examples, the means have a standard error of at most "
        f"{known[worst]:.3f} ({worst}). The intervals also allow for subjects or examples that are not in the data."
    )


def about_few(
    by_basis: Mapping[IntervalBasis, Sequence[str]], by_examples: Mapping[int, Sequence[str]]
) -> Iterator[str]:
    """Say which metrics, by label, are based on few subjects or examples."""
    for basis, labels in sorted(by_basis.items()):
        rough = f"treat subject-level intervals as rough ({FEW_CLUSTERS} or more subjects are needed)"
        said = "there is no interval" if basis.n == 1 else rough
        yield f"Only {basis.counted} for {', '.join(labels)}: {said}."
    for n, labels in sorted(by_examples.items()):
        few = _counted(n, "example")
        yield f"Only {few} for {', '.join(labels)}: {FEW} or more examples are needed for reliable intervals."


def about_trust(doubtful: Sequence[str], failing: Sequence[str]) -> Iterator[str]:
    """Say which metrics our study found unfaithful; each is a label with its F."""
    if doubtful:
        yield (
            f"In {_STUDY}, these metrics were hardly better than chance (0.5) at distinguishing models trained on the "
            f"forget set from other models: {', '.join(doubtful)}. It is unknown whether this applies to your model; "
            "report other metrics as well (docs: The other metrics)."
        )
    if failing:
        yield (
            f"In {_STUDY}, the faithfulness F of these metrics was at or below chance (0.5) for at least one of nine "
            "pairs of a kind of model that knows the facts and a kind that does not (shown with F for the worst pair, "
            f"five runs each): {', '.join(failing)} (docs: The other metrics)."
        )


# Elicited answers.


def without_retain(*, holdout: bool) -> str:
    """Say what a score means if there is no model without the knowledge for comparison."""
    others = " and with questions that no model learned" if holdout else ""
    return (
        "No retain model: any model might score this high by chance, so no score here is evidence of knowledge on its "
        f"own. control_frame() offers a weaker comparison, with the reference answers of other subjects{others}."
    )


def about_power(where: str, full: float, retain: float | None, *, none: bool) -> str:
    """Say that a probe has little or no power, because even `full` answers little more than `retain`."""
    if none:
        return (
            f"{where} has no power here: full scores {full:.2f}, retain {retain:.2f}. If the probe extracts nothing, "
            "that says nothing about the unlearned model."
        )
    beside = "" if retain is None else f" (retain {retain:.2f})"
    return (
        f"{where} has little power here: even full scores only {full:.2f}{beside}. If the probe extracts little, that "
        "says little about the unlearned model."
    )


def about_probe(name: str, *, capacity: bool, not_run: str | None) -> Iterator[str]:
    """Say why a probe is left out: it gives the answer away, or applies to no row."""
    if capacity:
        yield f"{name} gives the answer away: it measures capacity, not knowledge, and is left out."
    if not_run is not None:
        yield f"{name} was not run: it applies to no row (first reason: {not_run})."


def about_known(n: int, kept: Mapping[str, Any]) -> str:
    """Say that only questions that `full` answers correctly were scored."""
    return (
        f"Only the {n} of {kept['of']} questions that full answers correctly were scored ({kept['probe']}, recall of "
        f"{kept['least']:g} or more). Since these questions are selected by outcome, power and shares are larger than "
        "they would be over all questions."
    )


def about_asked(sample: Mapping[str, Any], error: float) -> str:
    """Describe the sample of questions that were asked, with the largest resulting standard error (NaN if unknown)."""
    asked = f"{sample['limit']} of {sample['of']} rows"
    if sample["sample"] != "random":
        return f"Only the first {asked} were asked. {about_first_rows(sample.get('sorted_by', 'unknown'))}"
    known = "" if math.isnan(error) else f" The standard error due to sampling is at most {error:.3f}."
    return (
        f"A random sample was asked: {asked} (seed {sample['seed']}).{known} The intervals show how much the results "
        "would vary with other subjects."
    )


def about_subjects_asked(basis: IntervalBasis | None) -> Iterator[str]:
    """Warn if the intervals of an elicitation are based on few subjects."""
    if basis is None or not basis.n:
        return
    if basis.n == 1:
        yield "Only 1 subject: there are no intervals, p-values or shares."
    elif basis.few:
        yield f"Only {basis.counted}: treat the intervals as rough ({FEW_CLUSTERS} or more subjects are needed)."


# Transplants.


def about_transplant(*, controlled: bool, n_retains: int, bound: float, basis: IntervalBasis) -> Iterator[Caution]:
    """Warn about what a transplant lacks; `bound` is the threshold for the hidden score with one retain model."""
    if not controlled:
        text = "No control facts were given: a transplant that breaks the model looks the same as one that finds "
        yield Caution("caution", f"{text}nothing.", "no control")
    if n_retains == 1:
        text = (
            "With one retain model, it is unknown how much a model that never learned the facts would seem to hide, "
            f"so only a hidden score above {bound:g} counts."
        )
        yield Caution("note", text, "one retain")
    if basis.few:
        text = f"Only {basis.counted}: intervals are rough or missing"
        text += ", and blocks were chosen on other examples of the same subject." if basis.n == 1 else "."
        yield Caution("caution", text, f"{basis.n} subjects")


# Relearning at several settings.


def about_relearning(summary: Mapping[str, Any]) -> Iterator[str]:
    """Say how much relearning brings back at its worst setting, and how much more than in `retain`."""
    bound = f"{100 * summary['max_loss']:g}% of utility"
    for model in ("unlearned", "retain"):
        worst, paper = ({key: summary[f"{model}_{way}_{key}"] for key in _REGAINED} for way in ("worst", "paper"))
        if summary[f"{model}_worst_setting"] is None:
            yield f"! {model}: every setting costs more than {bound}"
        else:
            yield (
                f"{model}: relearning regains at most {_number(worst['back'])} ({summary['metric']} "
                f"{_number(worst['after'])}, {summary[f'{model}_worst_setting']}); the paper's setting regains "
                f"{_number(paper['back'])} ({summary['metric']} {_number(paper['after'])})."
            )
    low, high = _number(summary["excess_low"]), _number(summary["excess_high"])
    interval = "" if low == "-" else f" [{low}, {high}]"
    yield (
        f"Excess over retain: {_number(summary['excess'])}{interval} with each model at its worst setting; "
        f"{_number(summary['paper_excess'])} with the paper's setting; {_number(summary['held_out_excess'])} with "
        "settings chosen on one half of the subjects and scored on the other."
    )


_REGAINED = ("back", "after")


def _number(value: float | None) -> str:
    return "-" if value is None or value != value else f"{round(value, 3) + 0.0:.3f}"


# Metrics judged by pools of models whose knowledge is known, and by quantisation and relearning.


def significant_differences(pairs: pd.DataFrame, *, most: int = 12) -> str:
    """Say how many differences in F are significant, and name them if there are few.

    Args:
        pairs: `uds_lens.meta.compare_all(...)`.
        most: Maximum number of pairs to name.
    """
    tested = pairs[pairs["p_holm"].notna()]
    decided = tested[tested["p_holm"] < LEVEL]
    order = [
        f"{row.one} over {row.other}" if row.difference > 0 else f"{row.other} over {row.one}"
        for row in decided.itertuples()
    ]
    is_are = "are" if len(decided) > 1 else "is"
    said = (
        f"{len(decided) or 'None'} of {len(tested)} tested differences in F {is_are} significant (Holm-adjusted p < "
        f"{LEVEL:g})"
    )
    named = f": {', '.join(order)}" if 0 < len(order) <= most else ""
    left = "" if len(decided) == len(tested) else f"; the order{' in other pairs' * (len(decided) > 0)} is undecided"
    return f"{said}{named}{left}."


def about_new_variants(label: str, low: float, high: float) -> str:
    """Say what the intervals of F leave out, with the interval over variants for the metric with the highest F."""
    return (
        "The intervals of F cover only more models of the same variants (kinds of training). For new variants "
        f"(variants as clusters), the interval of {label} is {low:.2f} to {high:.2f}; click another metric to see its "
        "interval."
    )


def about_overlap(one: str, other: str) -> str:
    """Say that the published intervals do not settle the order; each argument is a metric with its F and interval."""
    return (
        f"The intervals of the two highest F values overlap: {one}, {other}. A paired test would need the values of "
        "the pool models, which are not in the released files, so the order is undecided."
    )


PUBLISHED = (
    "R compares the change in every model with the change in a single relearned retain model, whose interval is not "
    "published. If retain's change is near 0, R is small whatever a model does.",
    "The intervals of F are computed only from the sizes of the pools (Hanley and McNeil). Epochs of one run are not "
    "independent models, so the true intervals are wider.",
)
"""Limits of the paper's own evaluation of metrics."""


def few_pool_models(n_p: int, n_n: int) -> Iterator[str]:
    """Warn if the pools that judge the metrics are small."""
    if min(n_p, n_n) < FEW_MODELS:
        yield f"F is computed from only {n_p} models with the knowledge and {n_n} without, too few to rank the metrics."


def few_filtered(numbers: Mapping[str, float]) -> Iterator[str]:
    """Warn about metrics for which few models pass the filters."""
    few = {name: n for name, n in numbers.items() if n < FEW_FILTERED}
    if few:
        said = [f"{name} {few[name]:.0f}" for name in sorted(few, key=lambda name: few[name])]
        named = _and_more(said, 6, of=f" below {FEW_FILTERED}")
        yield f"With both filters, each metric is judged on different models, and some on only a few: {named}."


def about_robustness(row: Mapping[str, Any], tied: Sequence[float], dominated: Iterable[str]) -> Iterator[str]:
    """Say what Q and R of one metric are based on.

    Args:
        row: As in `uds_lens.meta.COLUMNS["robustness"]`.
        tied: Thresholds that separate the pools equally well, if there are several.
        dominated: Sentences from `about_dominated` about the metric's intervals.
    """
    if tied:
        yield (
            f"{len(tied)} thresholds separate the pools equally well ({min(tied):.3g} to {max(tied):.3g}; the lowest "
            "is used), so both the models that pass the filters and the numbers depend on this choice"
        )
    yield from dominated
    if row["n"] < FEW_JUDGED:
        yield f"only {row['n']} models pass the filters"
    if row["n_q"] and 10 * row["unmoved_q"] >= row["n_q"]:
        yield f"quantisation does not change the metric for {row['unmoved_q']} of {row['n_q']} models: Q = 1"
    if row["n_r"] and 10 * row["unmoved_r"] >= row["n_r"]:
        yield f"relearning does not change the metric for {row['unmoved_r']} of {row['n_r']} models"
    if row["n_shift"] == 1:
        yield "retain's change comes from a single relearning run, so R has no interval for it"
    for name, count in (("quantised", row["n_q"]), ("relearned", row["n_r"])):
        if count and count < row["n"]:
            yield f"{row['n'] - count} models have no {name} value"


def about_dominated(name: str, share: float, end: int, cluster: str, which: str, low: float, high: float) -> str:
    """Say that one cluster accounts for most of the distance between a mean (Q or R) and 0 or 1."""
    return (
        f"{share:.0%} of the distance of {name} from {end} comes from {cluster} {which}: the interval may be too "
        f"short; if another {cluster} could lie anywhere between 0 and 1, the interval would be {low:.2f} to {high:.2f}"
    )


# Methods that are ranked.


def about_scores(n: int, constant: Mapping[str, float]) -> Iterator[str]:
    """Warn if few models have a score, and about parts (by name) with the same value for all models."""
    if 0 < n < FEW_MODELS:
        models = "model has" if n == 1 else "models have"
        yield f"only {n} {models} a score: P(first) is about these models only, and the order of methods is undecided"
    for name, value in constant.items():
        yield f"{name} is {value:g} for all {n} models, so it cannot separate them"


def about_tie(n: int, score: float) -> str:
    """Say which of several configurations with the same score represents a method."""
    return f"{n}-way tie at {score:.3f}; the configuration shown is the best on the other parts of the score"


def about_ties(sizes: Mapping[str, int]) -> str:
    """Say the same for several methods, given the number of tied configurations of each."""
    named = ", ".join(f"{method} {n}" for method, n in sizes.items())
    return (
        f"For {len(sizes)} methods, several configurations have the same score and cannot be distinguished ({named}); "
        "for each method, the page shows the configuration that is best on the other parts of the score."
    )


def about_missing_scores(zero: int, missing: int, of: int) -> Iterator[str]:
    """Count scores that are 0, and models without a score."""
    if zero:
        yield f"{zero} of {of} scores are exactly 0, because a harmonic mean is 0 if any of its parts is 0."
    if missing:
        yield f"No score for {_counted(missing, 'model')}, because a part of it has no value (see the model's row)."


def not_ranked(empty: Mapping[str, str | None]) -> str:
    """Say why no model has a score, given the parts without a value and their reasons."""
    without = ", ".join(f"{name} ({why})" if why else name for name, why in empty.items())
    said = f"no model has a value for {without}, which the score needs." if without else ""
    return f"Methods are not ranked: {said or 'no model has all parts of the score.'}"


def about_other_choice(row: Mapping[str, Any]) -> str:
    """Say which configuration the score with depth would choose, given a row of `uds_lens.meta.COLUMNS["shifts"]`."""
    return (
        f"If configurations were chosen by the score with depth, {row['method']} would be represented by "
        f"{row['model_with']} (depth {row['depth_change']:+.3f})."
    )


def about_resampling(
    single: Sequence[str], n_methods: int, unchanged: Sequence[str], *, examples: bool, nothing: bool
) -> Iterator[str]:
    """Say what resampling leaves unchanged.

    Args:
        single: Methods with one eligible configuration.
        n_methods: All methods.
        unchanged: Parts of the score that have no values per example.
        examples: Whether examples were resampled.
        nothing: Whether resampling examples changes no part of the score.
    """
    if len(single) == n_methods:
        yield (
            "every method has one eligible configuration, so resampling configurations changes nothing, and P(first) "
            "over them is undefined"
        )
    elif single:
        one = f"one eligible configuration{' each' * (len(single) > 1)}"
        yield (
            f"{', '.join(single)}: {one}, so the score never changes when configurations are resampled; P(first) over "
            "configurations is overconfident here"
        )
    if examples and nothing:
        yield (
            "no part of the score has per-example values for every model, so resampling examples changes nothing, and "
            "P(first) over them is undefined"
        )
    elif examples:
        yield f"resampling examples leaves {', '.join(unchanged)} unchanged: P(first) over examples is overconfident"


# Published values.


def about_published(row: Mapping[str, Any], *, prompts_differ: bool, known: str) -> str:
    """Say how the conditions of a measured value differ from those of the published one.

    Args:
        row: The joined row from `uds_lens.published.compare`.
        prompts_differ: Whether the prompts differ.
        known: Known problems of the published metric, in words.
    """
    said = [f"prompts: {row['prompts']} here, {row['prompts_published']} there"] if prompts_differ else []
    if row["dtype"] != "bfloat16":
        said.append(f"dtype: {row['dtype'] or 'unknown'} here, bfloat16 there")
    if row["metric"] == "uds" and row["last_layer"] != "post_norm":
        said.append("last layer: the residual stream here, the normed state there")
    said += [row["otherwise"], "measured on a sample of the questions" if row["sampled"] else ""]
    said += [{"exact": "", "rounded": "printed with 3 decimals"}.get(row["kind"], row["kind"]), known]
    return "; ".join(filter(None, said))


def about_difference(row: Mapping[str, Any], known: str) -> str:
    """Say by how much a value differs from the published one, without the metric's known problems."""
    return (
        f"{row['model']}, {row['metric']}: {row['measured']:.4f}, published {row['published']:.4f} "
        f"({row['difference']:+.4f}). {row['expect'].removesuffix(known).rstrip('; ')}"
    )
