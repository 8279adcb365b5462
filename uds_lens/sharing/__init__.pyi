from ._open_unlearning import (
    UnlearningRun as UnlearningRun,
    open_unlearning_run as open_unlearning_run,
    write_uds_eval as write_uds_eval,
)
