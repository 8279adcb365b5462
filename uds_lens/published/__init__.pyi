from ._compare import COLUMNS as COLUMNS, Comparison as Comparison, beside as beside, compare as compare
from ._measured import read_released as read_released
from ._plan import plan as plan
from ._registry import (
    PublishedModel as PublishedModel,
    find as find,
    models as models,
    pool_values as pool_values,
    values as values,
)
from ._run import run as run
