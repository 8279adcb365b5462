"""Which models run on packed rows: families that were tested, by transformers' own code, with nothing in between.

A family is added here, and with its tiny model in `tests/tiny_models.py` to the tests that compare packed rows with
padded ones.
"""

from __future__ import annotations

import os
from typing import Any

from uds_lens.compat.accelerate import is_placed
from uds_lens.compat.transformers import attention_of, is_plain_decoder
from uds_lens.models import HookedModel, ModelSource
from uds_lens.models.live_changes import behaviour_changes
from uds_lens.patching.wavefront.packed_attention import configs_of
from uds_lens.patching.wavefront.padded_pass import runs_plainly

PACKED_FAMILIES = frozenset(
    {
        "gemma2",
        "gemma3_text",
        "gpt2",
        "gpt_neox",
        "llama",
        "mistral",
        "mixtral",
        "olmo2",
        "phi3",
        "qwen2",
        "qwen3",
        "qwen3_moe",
    }
)
"""Values of `model_type` whose blocks run on packed rows (tested against padded ones)."""


def packable(model: HookedModel) -> bool:
    """Whether an open model may run on packed rows.

    Its family is one that was tested, by transformers' own code and with eager attention; and nobody's hooks are on it,
    which may count on `[batch, pos, d_model]`.
    """
    eager = all(attention_of(config) == "eager" for config in configs_of(model.anatomy.layers))
    return eager and runs_plainly(model) and _is_plain(model.hf)


def is_tested_family(model: Any) -> bool:
    """Whether a transformers model is of a family whose rows, padded and packed, the tests compare with rows alone."""
    return is_plain_decoder(model) and model.config.get_text_config().model_type in PACKED_FAMILIES


def may_be_packable(source: ModelSource, model_type: object) -> bool:
    """The same of a model that need not be open yet: of a checkpoint, by its family alone."""
    if model_type not in PACKED_FAMILIES:
        return False
    if isinstance(source, str | os.PathLike):
        return True
    return packable(source) if isinstance(source, HookedModel) else _is_plain(source)


def _is_plain(model: Any) -> bool:
    # Not a Bridge, an adapter around a model, a checkpoint's own code.
    return is_tested_family(model) and not is_placed(model) and not behaviour_changes(model)
