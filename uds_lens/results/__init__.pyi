from ._comparing import (
    AuditDifference as AuditDifference,
    Contrast as Contrast,
    audit_names as audit_names,
    compare as compare,
    compare_all as compare_all,
    contrast as contrast,
    models_frame as models_frame,
    site_groups as site_groups,
)
from ._depth_audit import DepthAudit as DepthAudit
from ._frames import (
    TAUS as TAUS,
    clip_shares as clip_shares,
    ke_counts as ke_counts,
    length_correlation as length_correlation,
    tau_rank_correlation as tau_rank_correlation,
    tau_sweep as tau_sweep,
    types_frame as types_frame,
)
from ._intervals import (
    IntervalBasis as IntervalBasis,
    bootstrap_interval as bootstrap_interval,
    interval_basis as interval_basis,
)
from ._records import ModelRecord as ModelRecord
from ._scores import (
    ke_mask as ke_mask,
    layer_erasure_ratio as layer_erasure_ratio,
    mean_uds as mean_uds,
    output_depth as output_depth,
    uds_per_example as uds_per_example,
)
from ._settings import AuditConfig as AuditConfig, RunOptions as RunOptions
from ._statistics import Correlation as Correlation, Interval as Interval, holm as holm, spearman as spearman
from ._verdict import (
    ReturnEvidence as ReturnEvidence,
    TransplantEvidence as TransplantEvidence,
    Verdict as Verdict,
    verdict as verdict,
)
