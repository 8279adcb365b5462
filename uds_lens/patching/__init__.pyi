from ._costs import ModelCosts as ModelCosts
from ._engines import (
    WavefrontTarget as WavefrontTarget,
    choose_engine as choose_engine,
    choose_reading as choose_reading,
    fall_back as fall_back,
    open_target as open_target,
    patched_logprobs as patched_logprobs,
    record as record,
)
from ._grids import patch_grid as patch_grid
from ._hooks import (
    as_hooked as as_hooked,
    hook_name as hook_name,
    patch_hooks as patch_hooks,
    run_hooked as run_hooked,
    run_hooks as run_hooks,
    run_unhooked as run_unhooked,
)
from ._plain import NaiveTarget as NaiveTarget, capture as capture
from ._readout import scored_logprobs as scored_logprobs, target_logprobs as target_logprobs
from ._recording import Recording as Recording
from ._side_by_side import RowLayout as RowLayout, row_layout as row_layout
from ._states import SpanCache as SpanCache
from ._window_hooks import SpanPatch as SpanPatch, run_patched as run_patched
