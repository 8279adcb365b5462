"""Whether the files of a checkpoint and the model made of them hold the same weights."""

from __future__ import annotations

import os
import re
from typing import Any

from uds_lens.compat.transformers import unset_weights, unused_weights
from uds_lens.errors import ModelError, warn_once

_BUFFER = re.compile(r"(rotary_emb\.inv_freq|\.(attn|attention)\.(masked_)?bias)$")
"""Constants that earlier releases of transformers saved, and later ones compute."""

_IN_A_BLOCK = re.compile(r"\.(layers|h|blocks)\.\d+\.")
"""Names of weights in a block."""


def require_complete(info: dict[str, Any], source: str | os.PathLike[str], architecture: str) -> None:
    """Raise unless the files of a checkpoint fill the whole model, and the model uses all weights of its decoder.

    Others that it leaves out (a value head, an image tower) are named in a warning.

    Args:
        info: What `from_pretrained` tells of its loading.
        source: The checkpoint.
        architecture: Class of the model.

    Raises:
        ModelError: Naming some.
    """
    if unset := unset_weights(info):
        names = ", ".join(unset[:3])
        raise ModelError(
            f"checkpoint {os.fspath(source)!r} does not fill {len(unset)} weights of {architecture} ({names}, ...): "
            "they would be random. Save the complete model again."
        )
    unused = [name for name in unused_weights(info) if not _BUFFER.search(name)]
    if not unused:
        return
    told = f"{', '.join(unused[:3])}{', ...' if len(unused) > 3 else ''}"
    if inside := [name for name in unused if _IN_A_BLOCK.search(name)]:
        raise ModelError(
            f"checkpoint {os.fspath(source)!r} holds {len(inside)} weights that {architecture} does not use with its "
            f"config.json ({told}): a flag or a number in the config (a bias, num_hidden_layers ...) does not fit the "
            "files. Mend config.json, or save the complete model again."
        )
    warn_once(
        f"checkpoint {os.fspath(source)!r} holds {len(unused)} weights that {architecture} does not use ({told}): they "
        "take no part in what is measured."
    )
