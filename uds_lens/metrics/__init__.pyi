from ._catalogue import (
    METRICS as METRICS,
    metric as metric,
    metrics_frame as metrics_frame,
    studied as studied,
    withdraw_metric as withdraw_metric,
)
from ._data import MetricData as MetricData, load_tofu_data as load_tofu_data, open_metric_data as open_metric_data
from ._declaration import (
    Evidence as Evidence,
    Meaning as Meaning,
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
from ._white_box import cka_erasure as cka_erasure, linear_cka as linear_cka
