from . import (
    annotation as annotation,
    audit as audit,
    data as data,
    doctor as doctor,
    elicitation as elicitation,
    errors as errors,
    generation as generation,
    meta as meta,
    metrics as metrics,
    models as models,
    patching as patching,
    plots as plots,
    published as published,
    report as report,
    results as results,
    sharing as sharing,
    study as study,
    toy as toy,
    training as training,
    transplants as transplants,
    unlearning as unlearning,
    weights as weights,
)
from .annotation import annotate as annotate
from .audit import Baseline as Baseline
from .data import ForgetExample as ForgetExample, load_examples as load_examples, load_tofu as load_tofu
from .models import open_model as open_model
from .results import AuditConfig as AuditConfig, DepthAudit as DepthAudit, RunOptions as RunOptions
from .transplants import Transplant as Transplant, transplant as transplant

__version__: str
