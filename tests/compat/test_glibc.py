"""Memory between what is used goes back to the system."""

import sys

import psutil

from uds_lens._compat.glibc import _trim, give_back_memory


def test_memory_that_was_freed_between_used_pieces_goes_back() -> None:
    if sys.platform != "linux" or _trim() is None:
        give_back_memory()  # without effect, and without an error
        return
    pieces = [b"%d" % number * 40_000 for number in range(10, 410)]
    del pieces[::2]
    kept = psutil.Process().memory_info().rss
    give_back_memory()
    assert kept - psutil.Process().memory_info().rss > 10_000_000, (
        "malloc_trim of the C library no longer empties holes in its heaps: streamed models then hold more than "
        "their blocks, see uds_lens/_compat/glibc.py"
    )
    assert len(pieces) == 200
