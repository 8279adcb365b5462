from ._models import StudyModel as StudyModel, StudyState as StudyState, study_models as study_models
from ._parts import SlurmOptions as SlurmOptions
from ._plan import (
    GivenModel as GivenModel,
    Measurement as Measurement,
    MetricPrompts as MetricPrompts,
    Perturbations as Perturbations,
    PoolRuns as PoolRuns,
    QuestionSets as QuestionSets,
    Relearning as Relearning,
    StudyPlan as StudyPlan,
    TrainingRows as TrainingRows,
    TrainingSets as TrainingSets,
    UnlearningRuns as UnlearningRuns,
    as_mapping as as_mapping,
    plan as plan,
)
from ._relearn_grid import GRID as GRID, RelearnGridResults as RelearnGridResults, relearn_grid as relearn_grid
from ._relearn_settings import RelearnGrid as RelearnGrid, RelearnSetting as RelearnSetting
from ._run import StateFailure as StateFailure, StudyStatus as StudyStatus, run as run, status as status
from ._tables import (
    COLUMNS as COLUMNS,
    StudyFrames as StudyFrames,
    examples_table as examples_table,
    frames as frames,
    table as table,
    write_table as write_table,
)
