"""Names and meanings of the columns in every table that this package takes or returns, in order."""

from __future__ import annotations

MODELS = {
    "model": "name of the model; unique",
    "knows": "pool: True (P, trained on the forget set), False (N, never saw it), missing (in neither pool)",
    "variant": "kind of training within the pool",
    "run": "training run; checkpoints of one run are not independent",
    "method": "unlearning method; empty for references",
    "config": "configuration of the method, as text",
    "base": "base model, if a table has several; models of different base models are never ranked together",
    "split": "forget split, if a table has several",
    "lr": "learning rate",
    "epochs": "epochs",
    "utility_rel": "utility relative to full, uncapped",
    "conditions": "everything the numbers depend on apart from the model itself (settings, questions, full, retain), "
    "as JSON; models with different conditions are neither ranked nor judged together",
}
"""Columns of a table of models, apart from its metrics; one row per model. Only `model` is always required."""

BESIDE = {
    "output_depth": "output depth: depth of the unpatched answers, on the scale of UDS",
    "host_depth": "host depth: share of the answers still lost with blocks of retain in the model, if a transplant "
    "was measured",
    "hidden": "output_depth - host_depth",
}
"""Columns shown next to UDS, from audits and their transplants; they are not part of a score."""

REASONS = {
    "model": "name of the model",
    "metric": "name of the metric",
    "reason": "why the value is NaN, as a sentence",
}
"""Columns of `ModelTable.reasons`."""

FAITHFULNESS = {
    "metric": "name",
    "direction": "what a higher value means: knowledge or erasure",
    "auc": "F: probability that a model that knows ranks above one that does not (ties count half); 0.5 is chance",
    "standard_error": "DeLong's standard error of `auc`",
    "low": "lower end of the interval: DeLong on the logit scale; Wilson's at F = 0 or 1",
    "high": "upper end",
    "interval": "kind of interval from low to high: delong or wilson",
    "cluster_low": "lower end of the interval for these variants only: bootstrap within pool and variant that keeps "
    "the models of a run together",
    "cluster_high": "upper end",
    "variants_low": "lowest F with one variant left out",
    "variants_high": "highest F with one variant left out",
    "new_variants_low": "lower end of the interval for new variants: t on the logit scale, with whole variants as "
    "clusters",
    "new_variants_high": "upper end",
    "mean_p": "mean value over P, on the metric's own scale",
    "mean_n": "mean value over N",
    "n_p": "number of models in P with a value",
    "n_n": "number of models in N with a value",
    "n_missing": "number of models in the pools without a value",
    "n_runs": "number of clusters in the cluster bootstrap",
    "tied_share": "share of P-N pairs with equal values",
    "share_at_0": "share of models with a value of 0",
    "share_at_1": "share of models with a value of 1",
    "reason": "why there is no F, or no interval",
    "cluster_reason": "why there is no cluster interval, or no range over variants",
}
"""Columns of `faithfulness`."""

PAIRS = {
    "one": "first metric",
    "other": "second metric",
    "auc_one": "F of the first metric, on the models with values of both metrics",
    "auc_other": "F of the second metric, on the same models",
    "difference": "auc_one - auc_other",
    "correlation": "correlation between the two F values, by DeLong's method",
    "standard_error": "DeLong's standard error of the difference",
    "low": "lower end of DeLong's interval for the difference",
    "high": "upper end",
    "p": "DeLong's two-sided p value for no difference",
    "p_holm": "p, Holm-adjusted over the pairs in the table",
    "cluster_standard_error": "standard error of the difference, from the cluster bootstrap",
    "cluster_low": "lower end of the interval from the cluster bootstrap",
    "cluster_high": "upper end",
    "cluster_p": "p value from the cluster bootstrap",
    "cluster_p_holm": "cluster_p, Holm-adjusted over the pairs in the table",
    "detectable": "smallest difference that is detected with probability 0.8 at this standard error, unadjusted",
    "n_p": "number of models in P with values of both metrics",
    "n_n": "number of models in N with values of both metrics",
    "reason": "why there is no test",
    "cluster_reason": "why there is no cluster test",
}
"""Columns of `compare_all`, and index of `compare`."""

VARIANTS = {
    "metric": "name",
    "variant_p": "variant of P",
    "variant_n": "variant of N",
    "auc": "F between these two variants",
    "low": "lower end of the interval of F for more runs of these two variants, with runs as clusters",
    "high": "upper end",
    "n_p": "number of models in P",
    "n_n": "number of models in N",
    "tied_share": "share of tied pairs",
}
"""Columns of `variant_table`."""

THRESHOLDS = {
    "metric": "name",
    "threshold": "threshold on m (m = value, or 1 - value for erasure metrics): unlearned means m <= threshold",
    "value": "the threshold on the metric's own scale",
    "chosen": "True for the lowest of the best cuts",
    "youden": "J: share of P above the cut minus share of N above the cut",
    "n_best": "number of cuts that reach this J",
    "n_p_below": "number of models in P at or below the cut: wrongly called unlearned",
    "n_n_below": "number of models in N at or below the cut",
    "n_models": "number of unlearned models (argument `models`) at or below the cut; missing if none were given",
    "reason": "why there is no cut",
}
"""Columns of `thresholds`."""

POINTS = {
    "model": "name of the model",
    "metric": "name",
    "before": "m before the perturbation",
    "quantised": "m after quantisation",
    "relearned": "m after relearning",
    "change": "relearned - before (Du)",
    "shift": "change in retain's m (Dr), mean over its relearnings",
    "q": "Q of this model",
    "r": "R of this model at `shift`",
    "useful": "utility_rel >= min_utility; True if this filter is off",
    "forgot": "before <= threshold; True if this filter is off",
    "kept": "whether the model passes both filters",
}
"""Columns of `perturbation_points`."""

ROBUSTNESS = {
    "metric": "name",
    "filter": "none, utility, threshold, utility+threshold",
    "models": "own (each metric's own models) or common (models that pass for all metrics)",
    "n": "number of models that pass and have a value before the perturbation",
    "q": "mean Q; NaN with a reason where undefined",
    "q_low": "lower end of the t interval of q on the logit scale, with the clusters named in `clusters`",
    "q_high": "upper end",
    "q_runs_low": "lower end of the interval of q with runs as clusters, for more runs of the same methods",
    "q_runs_high": "upper end",
    "r": "mean R; NaN with a reason where undefined, for example if the interval of retain's shift contains 0",
    "r_low": "lower end of the interval of r at the mean shift, computed as for q",
    "r_high": "upper end",
    "r_runs_low": "lower end of the interval of r with runs as clusters",
    "r_runs_high": "upper end",
    "r_at_shift": "mean R at the mean shift, even if the interval of the shift contains 0",
    "r_shift_low": "smallest mean R for a shift within its interval",
    "r_shift_high": "largest",
    "shift": "Dr: mean shift of retain under relearning",
    "shift_low": "lower end of its interval; NaN with a single relearning",
    "shift_high": "upper end",
    "n_shift": "number of relearnings of retain",
    "rob": "harmonic mean of q and r",
    "clusters": "unit of the intervals and of resampling: method, run or, without these columns, model",
    "n_clusters": "number of clusters among the models that pass",
    "interval_reason": "why q and r have no interval",
    "n_q": "models in q",
    "n_r": "models in r",
    "threshold": "cut in use; NaN if there is none",
    "unmoved_q": "number of models whose value quantisation does not change, so that their Q is 1",
    "unmoved_r": "number of models whose value relearning does not change",
    "above_r": "number of models whose m rises more than retain's",
    "relative_move": "mean |m' - m| under quantisation divided by |mean_P - mean_N|; NaN without pools",
    "q_reason": "why q is NaN",
    "r_reason": "why r is NaN",
    "caution": "caveats to read before quoting the row",
}
"""Columns of `robustness` and `robustness_by_filter`."""

SUMMARY = {
    "metric": "name",
    "auc": "F",
    "q": "Q",
    "r": "R",
    "rob": "harmonic mean of q and r",
    "overall": "harmonic mean of auc and rob",
    "n": "number of models that Q and R are averaged over",
    "rank_auc": "rank by F, 1 is best; ties share the better rank",
    "rank_rob": "rank by Rob",
    "rank_overall": "rank by Overall",
    "reason": "why something is NaN",
}
"""Columns of `summary`."""

RANKING = {
    "method": "unlearning method",
    "rank": "rank by `score`; ties share the better rank",
    "n_tied_rank": "number of methods that share this rank",
    "model": "configuration that represents the method",
    "score": "score_with or score_without, as requested",
    "score_without": "harmonic mean of memorization, mia and utility",
    "score_with": "harmonic mean of memorization, privacy (harmonic mean of mia and depth) and utility",
    "rank_without": "rank by score_without",
    "rank_with": "rank by score_with",
    "memorization": "harmonic mean of 1 - m over the memorization metrics",
    "mia": "harmonic mean of the normalised attacks",
    "depth": "the depth metric (UDS)",
    "utility": "utility_rel, capped at 1",
    "utility_rel": "uncapped",
    "n_configs": "number of configurations of the method",
    "n_eligible": "number of configurations that are complete and keep enough utility",
    "n_tied": "number of configurations with the same selection score as the chosen one (1: no tie)",
    "tied": "names of the configurations counted in n_tied, joined by spaces",
    "margin": "selection score of the chosen configuration minus that of the next best configuration (0 in a tie)",
    "reason": "why there is no score, or how a tie was broken",
}
"""Columns of `rank`."""

SHIFTS = {
    "method": "unlearning method",
    "model_without": "configuration chosen without depth",
    "model_with": "configuration chosen with depth",
    "moved": "whether model_without and model_with differ",
    "depth_without": "depth of the configuration chosen without depth",
    "depth_with": "depth of the configuration chosen with depth",
    "depth_change": "depth_with - depth_without",
}
"""Columns of `shifts`."""

STABILITY = {
    "method": "unlearning method",
    "resampled": "configurations or examples",
    "view": "score without or with depth",
    "rank": "rank; ties share the better rank",
    "probability": "share of resamples in which the method has this rank",
}
"""Columns of `Stability.ranks`."""

SCORES = {
    "method": "unlearning method",
    "resampled": "configurations or examples",
    "view": "score without or with depth",
    "score": "score on all data",
    "low": "lower end of the percentile interval",
    "high": "upper end",
    "p_best": "share of resamples in which the method is first",
    "n_chosen": "number of different configurations chosen in the resamples",
    "p_chosen": "share of resamples that choose the configuration chosen on all data",
}
"""Columns of `Stability.scores`."""

SWAPS = {
    "resampled": "configurations or examples",
    "view": "score without or with depth",
    "above": "one method",
    "below": "another method",
    "probability": "share of resamples in which `above` has the higher score than `below`; ties count half",
}
"""Columns of `Stability.swaps`."""

PUBLISHED = {
    "metric": "name",
    "label": "display name",
    "category": "the paper's family",
    "tags": "letters: O output, R needs retain, I internal",
    "auc": "F",
    "mean_p": "mean over P, on the metric's own scale",
    "mean_n": "mean over N, on the metric's own scale",
    "q": "Q under both filters",
    "r": "R under both filters",
    "rob": "robustness, as in the file",
    "n": "number of models that q and r are averaged over, as printed in the repository's figures",
    "threshold": "cut on m, as printed in the repository's figures",
    "q_utility": "Q under the utility filter alone (124 models), as printed in the repository's figures",
    "r_utility": "R under the utility filter alone, as for q_utility",
    "rob_printed": "robustness in the paper's table, three decimals",
    "overall_printed": "Overall in the paper's table",
}
"""Columns of `Published.metrics`."""

COLUMNS = {
    "models": MODELS,
    "reasons": REASONS,
    "faithfulness": FAITHFULNESS,
    "pairs": PAIRS,
    "variants": VARIANTS,
    "thresholds": THRESHOLDS,
    "points": POINTS,
    "robustness": ROBUSTNESS,
    "summary": SUMMARY,
    "ranking": RANKING,
    "shifts": SHIFTS,
    "stability": STABILITY,
    "scores": SCORES,
    "swaps": SWAPS,
    "published": PUBLISHED,
}
"""The columns of each table, by table name."""
