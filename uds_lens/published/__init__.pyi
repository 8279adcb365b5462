from ._compare import (
    BY_METRIC as BY_METRIC,
    COMPARED as COMPARED,
    OF_POOLS as OF_POOLS,
    Comparison as Comparison,
    beside as beside,
    compare as compare,
)
from ._measured import ReleasedRuns as ReleasedRuns, read_released as read_released
from ._plan import DEFAULT_METRICS as DEFAULT_METRICS, plan as plan, write_plan as write_plan
from ._registry import (
    POOL_VALUES as POOL_VALUES,
    VALUES as VALUES,
    ModelGroup as ModelGroup,
    PublishedModel as PublishedModel,
    find as find,
    models as models,
    pool_values as pool_values,
    registry_frame as registry_frame,
    values as values,
)
from ._run import run as run
