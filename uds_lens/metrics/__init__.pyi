from ._answers import (
    AnswerScores as AnswerScores,
)
from ._answers import (
    score_answers as score_answers,
)
from ._catalogue import (
    METRICS as METRICS,
)
from ._catalogue import (
    Trust as Trust,
)
from ._catalogue import (
    add_metric as add_metric,
)
from ._catalogue import (
    all_needs as all_needs,
)
from ._catalogue import (
    metric as metric,
)
from ._catalogue import (
    metrics_frame as metrics_frame,
)
from ._catalogue import (
    resolve as resolve,
)
from ._catalogue import (
    studied as studied,
)
from ._catalogue import (
    withdraw_metric as withdraw_metric,
)
from ._data import (
    AnswerText as AnswerText,
)
from ._data import (
    MetricData as MetricData,
)
from ._data import (
    load_tofu_data as load_tofu_data,
)
from ._data import (
    open_metric_data as open_metric_data,
)
from ._declaration import (
    Evidence as Evidence,
)
from ._declaration import (
    Meaning as Meaning,
)
from ._declaration import (
    MetricSpec as MetricSpec,
)
from ._declaration import (
    Outcome as Outcome,
)
from ._declaration import (
    Pass as Pass,
)
from ._declaration import (
    Undefined as Undefined,
)
from ._declaration import (
    geometric_mean as geometric_mean,
)
from ._declaration import (
    harmonic_mean as harmonic_mean,
)
from ._declaration import (
    mean_outcome as mean_outcome,
)
from ._declaration import (
    needs_answers as needs_answers,
)
from ._declaration import (
    needs_generations as needs_generations,
)
from ._declaration import (
    needs_states as needs_states,
)
from ._definitions.em import exact_memorization as exact_memorization
from ._definitions.es import extraction_strength as extraction_strength
from ._definitions.membership_attacks import (
    auc as auc,
)
from ._definitions.membership_attacks import (
    mean_nll as mean_nll,
)
from ._definitions.membership_attacks import (
    min_k_score as min_k_score,
)
from ._definitions.membership_attacks import (
    normalised_auc as normalised_auc,
)
from ._definitions.membership_attacks import (
    zlib_score as zlib_score,
)
from ._definitions.model_utility import (
    kept_truth as kept_truth,
)
from ._definitions.model_utility import (
    option_probability as option_probability,
)
from ._definitions.prob import probability as probability
from ._definitions.truth_ratio import truth_ratio as truth_ratio
from ._evaluation import (
    evaluate as evaluate,
)
from ._evaluation import (
    fluency_scorer as fluency_scorer,
)
from ._fisher import (
    FisherMasks as FisherMasks,
)
from ._fisher import (
    diagonal_fisher as diagonal_fisher,
)
from ._fisher import (
    fisher_erasure as fisher_erasure,
)
from ._fisher import (
    fisher_masks as fisher_masks,
)
from ._fisher import (
    masked_fisher as masked_fisher,
)
from ._fluency import (
    FluencyScorer as FluencyScorer,
)
from ._fluency import (
    HeuristicFluency as HeuristicFluency,
)
from ._fluency import (
    HubFluency as HubFluency,
)
from ._lens_beside_uds import (
    LensComparison as LensComparison,
)
from ._lens_beside_uds import (
    compare_logit_lens as compare_logit_lens,
)
from ._options import MetricOptions as MetricOptions
from ._passes import MetricCache as MetricCache
from ._results import (
    Cost as Cost,
)
from ._results import (
    MetricResults as MetricResults,
)
from ._results import (
    MetricValue as MetricValue,
)
from ._results import (
    metrics_by_model as metrics_by_model,
)
from ._white_box import (
    cka_erasure as cka_erasure,
)
from ._white_box import (
    lens_logprobs as lens_logprobs,
)
from ._white_box import (
    linear_cka as linear_cka,
)
