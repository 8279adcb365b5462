from ._models import (
    StudyModel as StudyModel,
)
from ._models import (
    StudyState as StudyState,
)
from ._models import (
    study_models as study_models,
)
from ._plan import (
    GivenModel as GivenModel,
)
from ._plan import (
    Measurement as Measurement,
)
from ._plan import (
    Perturbations as Perturbations,
)
from ._plan import (
    PoolRuns as PoolRuns,
)
from ._plan import (
    QuestionSets as QuestionSets,
)
from ._plan import (
    Relearning as Relearning,
)
from ._plan import (
    StudyPlan as StudyPlan,
)
from ._plan import (
    TrainingRows as TrainingRows,
)
from ._plan import (
    TrainingSets as TrainingSets,
)
from ._plan import (
    UnlearningRuns as UnlearningRuns,
)
from ._plan import (
    as_mapping as as_mapping,
)
from ._plan import (
    plan as plan,
)
from ._run import run as run
from ._slurm import SlurmOptions as SlurmOptions
from ._status import (
    StateFailure as StateFailure,
)
from ._status import (
    StudyEstimate as StudyEstimate,
)
from ._status import (
    StudyStatus as StudyStatus,
)
from ._status import (
    status as status,
)
from ._tables import (
    COLUMNS as COLUMNS,
)
from ._tables import (
    StudyFrames as StudyFrames,
)
from ._tables import (
    examples_table as examples_table,
)
from ._tables import (
    frames as frames,
)
from ._tables import (
    table as table,
)
from ._tables import (
    write_table as write_table,
)
