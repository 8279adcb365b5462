"""Make the unlearned models small: they differ little from `full`, and differences compress where weights do not."""

from __future__ import annotations

import json
import lzma
import shutil
from pathlib import Path

import numpy as np
from safetensors.numpy import save

from uds_lens.toy._packed import PACKED, ordered, weights

PLAIN = ("npo",)  # stays a folder in every clone: the conformance kit names it


def pack(world: Path) -> None:
    """Replace the unlearned models of a world by one file, which `uds_lens.toy.load` unpacks to the same bytes.

    A difference is a number of steps from one bfloat16 to the next. Signs move to the lowest bit (zigzag) and the two
    bytes of all numbers apart, so that most of the higher ones are 0.
    """
    places = json.loads((world / "world.json").read_text("utf-8"))["checkpoints"]
    header, full = weights(world / "full")
    packed = {}
    for name, place in places.items():
        if not place.startswith("unlearned/") or name in PLAIN:
            continue
        own_header, own = weights(world / place)
        if own_header != header:
            raise SystemExit(f"{name} has other tensors than full.")
        steps = ordered(own) - ordered(full)
        zigzag = (steps << 1) ^ (steps >> 15)
        packed[name] = np.ascontiguousarray(zigzag.view(np.uint8).reshape(-1, 2).T)
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "lc": 0, "pb": 0}]
    (world / PACKED).write_bytes(lzma.compress(save(packed), filters=filters))
    for name in packed:
        shutil.rmtree(world / places[name])
