from ._columns import COLUMNS as COLUMNS
from ._direction import directions as directions, oriented as oriented
from ._faithfulness import (
    compare as compare,
    compare_all as compare_all,
    faithfulness as faithfulness,
    thresholds as thresholds,
    variant_table as variant_table,
)
from ._open_unlearning import read_open_unlearning as read_open_unlearning
from ._our_results import join_audits as join_audits, read_audits as read_audits, read_metrics as read_metrics
from ._perturbation import (
    one_directional_quantisation as one_directional_quantisation,
    one_directional_relearning as one_directional_relearning,
    symmetric_quantisation as symmetric_quantisation,
    symmetric_relearning as symmetric_relearning,
)
from ._published import hanley_mcneil as hanley_mcneil, read_published as read_published
from ._ranking import ScoreParts as ScoreParts, rank as rank, score_models as score_models, shifts as shifts
from ._robustness import (
    Tables as Tables,
    perturbation_points as perturbation_points,
    robustness as robustness,
    robustness_by_filter as robustness_by_filter,
    summary as summary,
)
from ._stability import Stability as Stability, stability as stability
from ._tables import (
    ModelTable as ModelTable,
    Published as Published,
    join_methods as join_methods,
    read_csv as read_csv,
    select as select,
)
