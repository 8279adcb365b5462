"""Hook utilities: read states of one model, patch them into another, score what is lost. Made for reuse."""

from uds_lens.patching.capture import as_hooked, capture
from uds_lens.patching.costs import ModelCosts
from uds_lens.patching.engines import choose_engine, choose_reading, fall_back, patched_logprobs
from uds_lens.patching.naive import (
    SpanPatch,
    run_hooked,
    run_hooks,
    run_patched,
    run_unhooked,
    scored_logprobs,
)
from uds_lens.patching.readout import target_logprobs
from uds_lens.patching.side_by_side import RowLayout, row_layout
from uds_lens.patching.sites import hook_name, patch_hooks
from uds_lens.patching.span_cache import SpanCache
from uds_lens.patching.target_on_batch import NaiveTarget, WavefrontTarget, open_target
from uds_lens.patching.wavefront import Recording, record, resume_patched

__all__ = [
    "ModelCosts",
    "NaiveTarget",
    "Recording",
    "RowLayout",
    "SpanCache",
    "SpanPatch",
    "WavefrontTarget",
    "as_hooked",
    "capture",
    "choose_engine",
    "choose_reading",
    "fall_back",
    "hook_name",
    "open_target",
    "patch_hooks",
    "patched_logprobs",
    "record",
    "resume_patched",
    "row_layout",
    "run_hooked",
    "run_hooks",
    "run_patched",
    "run_unhooked",
    "scored_logprobs",
    "target_logprobs",
]
