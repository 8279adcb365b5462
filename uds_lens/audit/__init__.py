"""The audit: baseline (stage 1), depth audit (both stages), scores as pure functions, analyses, saved results."""

from uds_lens.audit.analyses import (
    TAUS,
    Correlation,
    clip_shares,
    length_correlation,
    spearman,
    tau_rank_correlation,
    tau_sweep,
    types_frame,
)
from uds_lens.audit.baseline import Baseline
from uds_lens.audit.comparison import models_frame, site_groups
from uds_lens.audit.config import AuditConfig, RunOptions
from uds_lens.audit.depth_audit import DepthAudit
from uds_lens.audit.naming import audit_names
from uds_lens.audit.recorded import RecordedBaseline
from uds_lens.audit.records import ModelRecord
from uds_lens.audit.scores import (
    Interval,
    bootstrap_interval,
    ke_mask,
    layer_erasure_ratio,
    mean_uds,
    uds_per_example,
)

__all__ = [
    "TAUS",
    "AuditConfig",
    "Baseline",
    "Correlation",
    "DepthAudit",
    "Interval",
    "ModelRecord",
    "RecordedBaseline",
    "RunOptions",
    "audit_names",
    "bootstrap_interval",
    "clip_shares",
    "ke_mask",
    "layer_erasure_ratio",
    "length_correlation",
    "mean_uds",
    "models_frame",
    "site_groups",
    "spearman",
    "tau_rank_correlation",
    "tau_sweep",
    "types_frame",
    "uds_per_example",
]
