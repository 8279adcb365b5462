from ._columns import (
    FAITHFULNESS as FAITHFULNESS,
)
from ._columns import (
    LEAVE_ONE_OUT as LEAVE_ONE_OUT,
)
from ._columns import (
    MODELS as MODELS,
)
from ._columns import (
    PAIRS as PAIRS,
)
from ._columns import (
    POINTS as POINTS,
)
from ._columns import (
    PUBLISHED as PUBLISHED,
)
from ._columns import (
    RANKING as RANKING,
)
from ._columns import (
    REASONS as REASONS,
)
from ._columns import (
    ROBUSTNESS as ROBUSTNESS,
)
from ._columns import (
    SCORES as SCORES,
)
from ._columns import (
    SHIFTS as SHIFTS,
)
from ._columns import (
    SPLIT_HALF as SPLIT_HALF,
)
from ._columns import (
    STABILITY as STABILITY,
)
from ._columns import (
    SUMMARY as SUMMARY,
)
from ._columns import (
    SWAPS as SWAPS,
)
from ._columns import (
    THRESHOLDS as THRESHOLDS,
)
from ._columns import (
    TIED_CUTS as TIED_CUTS,
)
from ._columns import (
    VARIANTS as VARIANTS,
)
from ._direction import (
    Points as Points,
)
from ._direction import (
    directions as directions,
)
from ._direction import (
    oriented as oriented,
)
from ._faithfulness import (
    compare as compare,
)
from ._faithfulness import (
    compare_all as compare_all,
)
from ._faithfulness import (
    faithfulness as faithfulness,
)
from ._faithfulness import (
    leave_one_variant_out as leave_one_variant_out,
)
from ._faithfulness import (
    thresholds as thresholds,
)
from ._faithfulness import (
    variant_table as variant_table,
)
from ._filters import (
    filter_counts as filter_counts,
)
from ._open_unlearning import read_open_unlearning as read_open_unlearning
from ._our_results import (
    join_audits as join_audits,
)
from ._our_results import (
    read_audits as read_audits,
)
from ._our_results import (
    read_metrics as read_metrics,
)
from ._perturbation import (
    RetainShift as RetainShift,
)
from ._perturbation import (
    one_directional_quantisation as one_directional_quantisation,
)
from ._perturbation import (
    one_directional_relearning as one_directional_relearning,
)
from ._perturbation import (
    retain_shift as retain_shift,
)
from ._perturbation import (
    symmetric_quantisation as symmetric_quantisation,
)
from ._perturbation import (
    symmetric_relearning as symmetric_relearning,
)
from ._published import (
    hanley_mcneil as hanley_mcneil,
)
from ._published import (
    read_published as read_published,
)
from ._ranking import (
    ScoreParts as ScoreParts,
)
from ._ranking import (
    rank as rank,
)
from ._ranking import (
    score_models as score_models,
)
from ._ranking import (
    shifts as shifts,
)
from ._robustness import (
    Tables as Tables,
)
from ._robustness import (
    perturbation_points as perturbation_points,
)
from ._robustness import (
    robustness as robustness,
)
from ._robustness import (
    robustness_by_filter as robustness_by_filter,
)
from ._robustness import (
    tied_cuts as tied_cuts,
)
from ._stability import (
    Stability as Stability,
)
from ._stability import (
    stability as stability,
)
from ._summary import summary as summary
from ._tables import (
    ModelTable as ModelTable,
)
from ._tables import (
    Published as Published,
)
from ._tables import (
    join_methods as join_methods,
)
from ._tables import (
    read_csv as read_csv,
)
from ._tables import (
    select as select,
)
