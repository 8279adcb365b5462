"""Models by the hundred: a plan of what to make and measure, workers that can be killed at any time, one table."""

from uds_lens.study.plan_file import as_mapping, plan
from uds_lens.study.plan_records import (
    AskedSets,
    GivenModel,
    Measurement,
    Perturbations,
    PoolRuns,
    Relearning,
    StudyPlan,
    TrainingRows,
    TrainingSets,
    UnlearningRuns,
)
from uds_lens.study.slurm_workers import SlurmOptions
from uds_lens.study.study_estimate import StudyEstimate
from uds_lens.study.study_frames import StudyFrames, frames
from uds_lens.study.study_models import StudyModel, StudyState, study_models
from uds_lens.study.study_run import run
from uds_lens.study.study_status import StateFailure, StudyStatus, status
from uds_lens.study.study_table import COLUMNS, examples_table, table, write_table

__all__ = [
    "COLUMNS",
    "AskedSets",
    "GivenModel",
    "Measurement",
    "Perturbations",
    "PoolRuns",
    "Relearning",
    "SlurmOptions",
    "StateFailure",
    "StudyEstimate",
    "StudyFrames",
    "StudyModel",
    "StudyPlan",
    "StudyState",
    "StudyStatus",
    "TrainingRows",
    "TrainingSets",
    "UnlearningRuns",
    "as_mapping",
    "examples_table",
    "frames",
    "plan",
    "run",
    "status",
    "study_models",
    "table",
    "write_table",
]
