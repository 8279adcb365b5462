from ._engines import open_target as open_target, patched_logprobs as patched_logprobs, record as record
from ._grids import patch_grid as patch_grid
from ._hooks import hook_name as hook_name, patch_hooks as patch_hooks, run_hooked as run_hooked
from ._plain import capture as capture
from ._readout import scored_logprobs as scored_logprobs, target_logprobs as target_logprobs
from ._side_by_side import row_layout as row_layout
from ._states import SpanCache as SpanCache
from ._window_hooks import SpanPatch as SpanPatch, run_patched as run_patched
