from ._models import study_models as study_models
from ._parts import SlurmOptions as SlurmOptions
from ._plan import Relearning as Relearning, StudyPlan as StudyPlan, plan as plan
from ._relearn_grid import RelearnGridResults as RelearnGridResults, relearn_grid as relearn_grid
from ._relearn_settings import RelearnGrid as RelearnGrid
from ._run import StudyStatus as StudyStatus, run as run, status as status
from ._tables import (
    COLUMNS as COLUMNS,
    StudyFrames as StudyFrames,
    examples_table as examples_table,
    frames as frames,
    table as table,
    write_table as write_table,
)
