from ._answers import AnswerScores as AnswerScores, score_answers as score_answers
from ._catalogue import (
    METRICS as METRICS,
    Trust as Trust,
    add_metric as add_metric,
    all_needs as all_needs,
    metric as metric,
    metrics_frame as metrics_frame,
    resolve as resolve,
    studied as studied,
    withdraw_metric as withdraw_metric,
)
from ._data import (
    AnswerText as AnswerText,
    MetricData as MetricData,
    load_tofu_data as load_tofu_data,
    open_metric_data as open_metric_data,
)
from ._declaration import (
    Evidence as Evidence,
    Meaning as Meaning,
    MetricSpec as MetricSpec,
    Outcome as Outcome,
    Pass as Pass,
    Undefined as Undefined,
    geometric_mean as geometric_mean,
    harmonic_mean as harmonic_mean,
    mean_outcome as mean_outcome,
    needs_answers as needs_answers,
    needs_generations as needs_generations,
    needs_gradients as needs_gradients,
    needs_states as needs_states,
)
from ._definitions.aggregates import kept_truth as kept_truth, option_probability as option_probability
from ._definitions.es import exact_memorization as exact_memorization, extraction_strength as extraction_strength
from ._definitions.forget_quality import forget_quality as forget_quality
from ._definitions.membership_attacks import (
    auc as auc,
    mean_nll as mean_nll,
    min_k_score as min_k_score,
    normalised_auc as normalised_auc,
    zlib_score as zlib_score,
)
from ._definitions.muse import privleak as privleak
from ._definitions.prob import probability as probability, truth_ratio as truth_ratio
from ._evaluation import evaluate as evaluate
from ._fisher import (
    FisherMasks as FisherMasks,
    diagonal_fisher as diagonal_fisher,
    fisher_erasure as fisher_erasure,
    fisher_masks as fisher_masks,
    masked_fisher as masked_fisher,
)
from ._fluency import HeuristicFluency as HeuristicFluency, HubFluency as HubFluency, fluency_scorer as fluency_scorer
from ._gradients import gradient_norms as gradient_norms
from ._harness import harness_metric as harness_metric
from ._lens_beside_uds import LensComparison as LensComparison, compare_logit_lens as compare_logit_lens
from ._options import FluencyScorer as FluencyScorer, MetricOptions as MetricOptions
from ._passes import MetricCache as MetricCache
from ._results import (
    Cost as Cost,
    MetricResults as MetricResults,
    MetricValue as MetricValue,
    metrics_by_model as metrics_by_model,
)
from ._white_box import cka_erasure as cka_erasure, lens_logprobs as lens_logprobs, linear_cka as linear_cka
