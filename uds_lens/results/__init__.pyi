from ._comparing import (
    AuditDifference as AuditDifference,
)
from ._comparing import (
    Contrast as Contrast,
)
from ._comparing import (
    audit_names as audit_names,
)
from ._comparing import (
    compare as compare,
)
from ._comparing import (
    compare_all as compare_all,
)
from ._comparing import (
    contrast as contrast,
)
from ._comparing import (
    models_frame as models_frame,
)
from ._comparing import (
    site_groups as site_groups,
)
from ._depth_audit import DepthAudit as DepthAudit
from ._frames import (
    TAUS as TAUS,
)
from ._frames import (
    Correlation as Correlation,
)
from ._frames import (
    clip_shares as clip_shares,
)
from ._frames import (
    length_correlation as length_correlation,
)
from ._frames import (
    spearman as spearman,
)
from ._frames import (
    tau_rank_correlation as tau_rank_correlation,
)
from ._frames import (
    tau_sweep as tau_sweep,
)
from ._frames import (
    types_frame as types_frame,
)
from ._intervals import (
    IntervalBasis as IntervalBasis,
)
from ._intervals import (
    bootstrap_interval as bootstrap_interval,
)
from ._intervals import (
    interval_basis as interval_basis,
)
from ._records import ModelRecord as ModelRecord
from ._scores import (
    ke_mask as ke_mask,
)
from ._scores import (
    layer_erasure_ratio as layer_erasure_ratio,
)
from ._scores import (
    mean_uds as mean_uds,
)
from ._scores import (
    uds_per_example as uds_per_example,
)
from ._settings import (
    AuditConfig as AuditConfig,
)
from ._settings import (
    RunOptions as RunOptions,
)
from ._statistics import (
    Interval as Interval,
)
from ._statistics import (
    holm as holm,
)
