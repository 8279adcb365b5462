from ._costs import ModelCosts as ModelCosts
from ._engines import (
    NaiveTarget as NaiveTarget,
)
from ._engines import (
    WavefrontTarget as WavefrontTarget,
)
from ._engines import (
    choose_engine as choose_engine,
)
from ._engines import (
    choose_reading as choose_reading,
)
from ._engines import (
    fall_back as fall_back,
)
from ._engines import (
    open_target as open_target,
)
from ._engines import (
    patched_logprobs as patched_logprobs,
)
from ._plain import (
    SpanPatch as SpanPatch,
)
from ._plain import (
    as_hooked as as_hooked,
)
from ._plain import (
    capture as capture,
)
from ._plain import (
    run_hooked as run_hooked,
)
from ._plain import (
    run_hooks as run_hooks,
)
from ._plain import (
    run_patched as run_patched,
)
from ._plain import (
    run_unhooked as run_unhooked,
)
from ._plain import (
    scored_logprobs as scored_logprobs,
)
from ._readout import target_logprobs as target_logprobs
from ._side_by_side import (
    RowLayout as RowLayout,
)
from ._side_by_side import (
    row_layout as row_layout,
)
from ._states import (
    SpanCache as SpanCache,
)
from ._states import (
    hook_name as hook_name,
)
from ._states import (
    patch_hooks as patch_hooks,
)
from ._wave import (
    Recording as Recording,
)
from ._wave import (
    record as record,
)
from ._wave import (
    resume_patched as resume_patched,
)
