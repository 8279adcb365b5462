from ._columns import (
    FAITHFULNESS as FAITHFULNESS,
    LEAVE_ONE_OUT as LEAVE_ONE_OUT,
    MODELS as MODELS,
    PAIRS as PAIRS,
    POINTS as POINTS,
    PUBLISHED as PUBLISHED,
    RANKING as RANKING,
    REASONS as REASONS,
    REFERENCES as REFERENCES,
    ROBUSTNESS as ROBUSTNESS,
    SCORES as SCORES,
    SHIFTS as SHIFTS,
    SPLIT_HALF as SPLIT_HALF,
    STABILITY as STABILITY,
    SUMMARY as SUMMARY,
    SWAPS as SWAPS,
    THRESHOLDS as THRESHOLDS,
    TIED_CUTS as TIED_CUTS,
    VARIANTS as VARIANTS,
)
from ._direction import Points as Points, directions as directions, oriented as oriented
from ._faithfulness import (
    compare as compare,
    compare_all as compare_all,
    faithfulness as faithfulness,
    leave_one_variant_out as leave_one_variant_out,
    references_apart as references_apart,
    thresholds as thresholds,
    variant_table as variant_table,
)
from ._open_unlearning import read_open_unlearning as read_open_unlearning
from ._our_results import join_audits as join_audits, read_audits as read_audits, read_metrics as read_metrics
from ._perturbation import (
    RetainShift as RetainShift,
    one_directional_quantisation as one_directional_quantisation,
    one_directional_relearning as one_directional_relearning,
    retain_shift as retain_shift,
    symmetric_quantisation as symmetric_quantisation,
    symmetric_relearning as symmetric_relearning,
)
from ._published import hanley_mcneil as hanley_mcneil, read_published as read_published
from ._ranking import ScoreParts as ScoreParts, rank as rank, score_models as score_models, shifts as shifts
from ._robustness import (
    Tables as Tables,
    filter_counts as filter_counts,
    perturbation_points as perturbation_points,
    robustness as robustness,
    robustness_by_filter as robustness_by_filter,
    summary as summary,
    tied_cuts as tied_cuts,
)
from ._stability import Stability as Stability, stability as stability
from ._tables import (
    ModelTable as ModelTable,
    Published as Published,
    join_methods as join_methods,
    read_csv as read_csv,
    select as select,
)
