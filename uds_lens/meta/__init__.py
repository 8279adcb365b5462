"""Judging metrics and ranking methods: tables of many models in, tables out."""

from uds_lens.meta.csv_table import read_csv
from uds_lens.meta.cut_points import thresholds
from uds_lens.meta.declarations import Points
from uds_lens.meta.direction import directions, oriented
from uds_lens.meta.faithfulness_table import faithfulness
from uds_lens.meta.filters import filter_counts
from uds_lens.meta.made_by import join_methods
from uds_lens.meta.method_ranking import rank, shifts
from uds_lens.meta.metric_summary import summary
from uds_lens.meta.model_scores import ScoreParts, score_models
from uds_lens.meta.model_table import ModelTable, Published, select
from uds_lens.meta.open_unlearning import read_open_unlearning
from uds_lens.meta.our_results import join_audits, read_audits, read_metrics
from uds_lens.meta.pairs import compare, compare_all, holm
from uds_lens.meta.perturbation import (
    one_directional_quantisation,
    one_directional_relearning,
    symmetric_quantisation,
    symmetric_relearning,
)
from uds_lens.meta.published import read_published
from uds_lens.meta.published_interval import hanley_mcneil
from uds_lens.meta.ranking_stability import Stability, stability
from uds_lens.meta.relearned_retain import RetainShift, retain_shift
from uds_lens.meta.required_columns import (
    FAITHFULNESS,
    LEAVE_ONE_OUT,
    MODELS,
    PAIRS,
    POINTS,
    PUBLISHED,
    RANKING,
    REASONS,
    ROBUSTNESS,
    SCORES,
    SHIFTS,
    SPLIT_HALF,
    STABILITY,
    SUMMARY,
    SWAPS,
    THRESHOLDS,
    TIED_CUTS,
    VARIANTS,
)
from uds_lens.meta.robustness_table import perturbation_points, robustness, robustness_by_filter
from uds_lens.meta.tied_cuts import tied_cuts
from uds_lens.meta.variants import leave_one_variant_out, variant_table

__all__ = [
    "FAITHFULNESS",
    "LEAVE_ONE_OUT",
    "MODELS",
    "PAIRS",
    "POINTS",
    "PUBLISHED",
    "RANKING",
    "REASONS",
    "ROBUSTNESS",
    "SCORES",
    "SHIFTS",
    "SPLIT_HALF",
    "STABILITY",
    "SUMMARY",
    "SWAPS",
    "THRESHOLDS",
    "TIED_CUTS",
    "VARIANTS",
    "ModelTable",
    "Points",
    "Published",
    "RetainShift",
    "ScoreParts",
    "Stability",
    "compare",
    "compare_all",
    "directions",
    "faithfulness",
    "filter_counts",
    "hanley_mcneil",
    "holm",
    "join_audits",
    "join_methods",
    "leave_one_variant_out",
    "one_directional_quantisation",
    "one_directional_relearning",
    "oriented",
    "perturbation_points",
    "rank",
    "read_audits",
    "read_csv",
    "read_metrics",
    "read_open_unlearning",
    "read_published",
    "retain_shift",
    "robustness",
    "robustness_by_filter",
    "score_models",
    "select",
    "shifts",
    "stability",
    "summary",
    "symmetric_quantisation",
    "symmetric_relearning",
    "thresholds",
    "tied_cuts",
    "variant_table",
]
