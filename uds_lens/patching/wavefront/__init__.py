"""The fast engine: record `full` once, then let the variants of all layers run through its blocks in one pass."""

from uds_lens.patching.wavefront.packed_families import (
    PACKED_FAMILIES,
    is_tested_family,
    may_be_packable,
    packable,
)
from uds_lens.patching.wavefront.prefix import KeptKeys
from uds_lens.patching.wavefront.recording import Recording, record
from uds_lens.patching.wavefront.rows_layout import forward_pass
from uds_lens.patching.wavefront.trace import BlockCall, Trace
from uds_lens.patching.wavefront.walk import resume_patched

__all__ = [
    "PACKED_FAMILIES",
    "BlockCall",
    "KeptKeys",
    "Recording",
    "Trace",
    "forward_pass",
    "is_tested_family",
    "may_be_packable",
    "packable",
    "record",
    "resume_patched",
]
