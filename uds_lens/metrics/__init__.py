"""Twenty-two metrics of unlearning, Utility, the aggregates, and your own, behind one call: `evaluate`.

Names come on first use, so that reading `METRICS` loads no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from uds_lens.metrics.answer_scores import AnswerScores, score_answers
    from uds_lens.metrics.catalogue import METRICS, add_metric, metric, withdraw_metric
    from uds_lens.metrics.declaration import (
        Meaning,
        MetricSpec,
        Outcome,
        Pass,
        mean_outcome,
        needs_answers,
        needs_generations,
        needs_states,
    )
    from uds_lens.metrics.definitions.em import exact_memorization
    from uds_lens.metrics.definitions.es import extraction_strength
    from uds_lens.metrics.definitions.membership_attacks import (
        auc,
        mean_nll,
        min_k_score,
        normalised_auc,
        zlib_score,
    )
    from uds_lens.metrics.definitions.model_utility import kept_truth, option_probability
    from uds_lens.metrics.definitions.prob import probability
    from uds_lens.metrics.definitions.truth_ratio import truth_ratio
    from uds_lens.metrics.evaluation import evaluate, fluency_scorer
    from uds_lens.metrics.evidence import Evidence
    from uds_lens.metrics.fisher_diagonals import diagonal_fisher
    from uds_lens.metrics.fluency_scorers import FluencyScorer, HeuristicFluency, HubFluency
    from uds_lens.metrics.lens_beside_uds import LensComparison, compare_logit_lens
    from uds_lens.metrics.lens_readout import lens_logprobs
    from uds_lens.metrics.lookup import all_needs, metrics_frame, resolve
    from uds_lens.metrics.masked_weights import FisherMasks, fisher_erasure, fisher_masks, masked_fisher
    from uds_lens.metrics.means import Undefined, geometric_mean, harmonic_mean
    from uds_lens.metrics.metric_cache import MetricCache
    from uds_lens.metrics.metric_data import AnswerText, MetricData, load_tofu_data, open_metric_data
    from uds_lens.metrics.metric_options import MetricOptions
    from uds_lens.metrics.metric_results import Cost, MetricResults, MetricValue
    from uds_lens.metrics.models_table import metrics_by_model
    from uds_lens.metrics.state_similarity import cka_erasure, linear_cka
    from uds_lens.metrics.trust import Trust, studied

__all__ = [
    "METRICS",
    "AnswerScores",
    "AnswerText",
    "Cost",
    "Evidence",
    "FisherMasks",
    "FluencyScorer",
    "HeuristicFluency",
    "HubFluency",
    "LensComparison",
    "Meaning",
    "MetricCache",
    "MetricData",
    "MetricOptions",
    "MetricResults",
    "MetricSpec",
    "MetricValue",
    "Outcome",
    "Pass",
    "Trust",
    "Undefined",
    "add_metric",
    "all_needs",
    "auc",
    "cka_erasure",
    "compare_logit_lens",
    "diagonal_fisher",
    "evaluate",
    "exact_memorization",
    "extraction_strength",
    "fisher_erasure",
    "fisher_masks",
    "fluency_scorer",
    "geometric_mean",
    "harmonic_mean",
    "kept_truth",
    "lens_logprobs",
    "linear_cka",
    "load_tofu_data",
    "masked_fisher",
    "mean_nll",
    "mean_outcome",
    "metric",
    "metrics_by_model",
    "metrics_frame",
    "min_k_score",
    "needs_answers",
    "needs_generations",
    "needs_states",
    "normalised_auc",
    "open_metric_data",
    "option_probability",
    "probability",
    "resolve",
    "score_answers",
    "studied",
    "truth_ratio",
    "withdraw_metric",
    "zlib_score",
]

_FILES = {
    "answer_scores": (
        "AnswerScores",
        "score_answers",
    ),
    "catalogue": (
        "METRICS",
        "add_metric",
        "withdraw_metric",
        "metric",
    ),
    "declaration": (
        "Meaning",
        "MetricSpec",
        "Outcome",
        "Pass",
        "mean_outcome",
        "needs_answers",
        "needs_generations",
        "needs_states",
    ),
    "definitions.em": ("exact_memorization",),
    "definitions.es": ("extraction_strength",),
    "definitions.membership_attacks": (
        "auc",
        "mean_nll",
        "min_k_score",
        "normalised_auc",
        "zlib_score",
    ),
    "definitions.model_utility": (
        "kept_truth",
        "option_probability",
    ),
    "definitions.prob": ("probability",),
    "definitions.truth_ratio": ("truth_ratio",),
    "evaluation": (
        "evaluate",
        "fluency_scorer",
    ),
    "models_table": ("metrics_by_model",),
    "evidence": ("Evidence",),
    "fisher_diagonals": ("diagonal_fisher",),
    "masked_weights": (
        "FisherMasks",
        "fisher_erasure",
        "fisher_masks",
        "masked_fisher",
    ),
    "fluency_scorers": (
        "FluencyScorer",
        "HeuristicFluency",
        "HubFluency",
    ),
    "lens_beside_uds": (
        "LensComparison",
        "compare_logit_lens",
    ),
    "lens_readout": ("lens_logprobs",),
    "state_similarity": (
        "cka_erasure",
        "linear_cka",
    ),
    "lookup": (
        "all_needs",
        "metrics_frame",
        "resolve",
    ),
    "means": (
        "Undefined",
        "geometric_mean",
        "harmonic_mean",
    ),
    "metric_cache": ("MetricCache",),
    "metric_data": (
        "AnswerText",
        "MetricData",
        "load_tofu_data",
        "open_metric_data",
    ),
    "metric_options": ("MetricOptions",),
    "metric_results": (
        "Cost",
        "MetricResults",
        "MetricValue",
    ),
    "trust": (
        "Trust",
        "studied",
    ),
}
"""Names by the file that holds them."""

_HOME = {name: file for file, names in _FILES.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'uds_lens.metrics' has no attribute {name!r}")
    value = getattr(import_module(f"uds_lens.metrics.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
