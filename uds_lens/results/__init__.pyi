from ._comparing import (
    AuditDifference as AuditDifference,
    compare as compare,
    compare_all as compare_all,
    contrast as contrast,
    models_frame as models_frame,
)
from ._depth_audit import DepthAudit as DepthAudit
from ._frames import (
    clip_shares as clip_shares,
    ke_counts as ke_counts,
    length_correlation as length_correlation,
    tau_rank_correlation as tau_rank_correlation,
    tau_sweep as tau_sweep,
    types_frame as types_frame,
)
from ._intervals import bootstrap_interval as bootstrap_interval
from ._records import ModelRecord as ModelRecord
from ._scores import (
    ke_mask as ke_mask,
    layer_erasure_ratio as layer_erasure_ratio,
    mean_uds as mean_uds,
    output_depth as output_depth,
    uds_per_example as uds_per_example,
)
from ._settings import AuditConfig as AuditConfig, RunOptions as RunOptions
from ._statistics import Interval as Interval, holm as holm, spearman as spearman
from ._verdict import (
    ReturnEvidence as ReturnEvidence,
    TransplantEvidence as TransplantEvidence,
    Verdict as Verdict,
    verdict as verdict,
)
