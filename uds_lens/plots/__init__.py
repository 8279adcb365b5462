"""Frames to plotly figures, one figure per file. Nothing here shows, saves or changes anything by itself."""

from uds_lens.plots.audit_differences import audit_differences
from uds_lens.plots.clip_bars import clip_bars
from uds_lens.plots.compare_layers import compare_layers
from uds_lens.plots.component_profile import component_profile
from uds_lens.plots.depth_elicited import depth_elicited
from uds_lens.plots.depth_utility import depth_utility
from uds_lens.plots.elicited_scores import elicited_scores
from uds_lens.plots.example_profile import example_profile
from uds_lens.plots.export import save_figure
from uds_lens.plots.faithfulness_forest import faithfulness_forest
from uds_lens.plots.filter_slopes import filter_slopes
from uds_lens.plots.forget_and_kept import forget_and_kept
from uds_lens.plots.layer_profile import layer_profile
from uds_lens.plots.length_scatter import length_scatter
from uds_lens.plots.lens_against_uds import lens_against_uds
from uds_lens.plots.ler_heatmap import ler_heatmap
from uds_lens.plots.method_dumbbell import method_dumbbell
from uds_lens.plots.metric_heatmap import metric_heatmap
from uds_lens.plots.pair_matrix import pair_matrix
from uds_lens.plots.palette import Theme
from uds_lens.plots.perturbation_scatter import perturbation_scatter
from uds_lens.plots.pool_histogram import pool_histogram
from uds_lens.plots.query_budget import query_budget
from uds_lens.plots.rank_probabilities import rank_probabilities
from uds_lens.plots.ranking import ranking
from uds_lens.plots.tau_curve import tau_curve
from uds_lens.plots.template import template
from uds_lens.plots.type_bars import type_bars
from uds_lens.plots.uds_distribution import uds_distribution
from uds_lens.plots.utility_frontier import utility_frontier

__all__ = [
    "Theme",
    "audit_differences",
    "clip_bars",
    "compare_layers",
    "component_profile",
    "depth_elicited",
    "depth_utility",
    "elicited_scores",
    "example_profile",
    "faithfulness_forest",
    "filter_slopes",
    "forget_and_kept",
    "layer_profile",
    "length_scatter",
    "lens_against_uds",
    "ler_heatmap",
    "method_dumbbell",
    "metric_heatmap",
    "pair_matrix",
    "perturbation_scatter",
    "pool_histogram",
    "query_budget",
    "rank_probabilities",
    "ranking",
    "save_figure",
    "tau_curve",
    "template",
    "type_bars",
    "uds_distribution",
    "utility_frontier",
]
