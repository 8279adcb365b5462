from ._inspect import write_inspect_logs as write_inspect_logs
from ._open_unlearning import (
    UnlearningRun as UnlearningRun,
    open_unlearning_run as open_unlearning_run,
    write_uds_eval as write_uds_eval,
)
