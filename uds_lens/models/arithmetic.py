"""Which entries of a transformers config change what the weights compute, and which do not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from uds_lens.compat.transformers import PLACE_ENTRY, QUANTISED_ENTRY

_NOT_COMPUTED = frozenset(
    (
        PLACE_ENTRY,
        QUANTISED_ENTRY,
        "architectures",
        "attention_dropout",
        "chunk_size_feed_forward",
        "dtype",
        "id2label",
        "initializer_range",
        "is_encoder_decoder",
        "label2id",
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
        "pretraining_tp",
        "problem_type",
        "return_dict",
        "router_aux_loss_coef",
        "torch_dtype",
        "transformers_version",
        "use_cache",
    )
)
"""Entries of a transformers config that do not change an evaluation forward with these weights."""

_FOR_LONG_TEXTS = ("max_position_embeddings", "n_positions", "n_ctx", "seq_length")
"""How long texts may be: no part of the computation where positions are rotated by one plain base."""

_ELSEWHERE = ("tie_word_embeddings", "vocab_size")
"""Entries that say how weights are stored, or are compared as part of the shape."""


def computing_entries(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of a config, as `to_dict` gives it, that may change an evaluation forward with given weights.

    >>> computing_entries({"rms_norm_eps": 1e-6, "use_cache": True, "bos_token_id": 1})
    {'rms_norm_eps': 1e-06}
    """
    return {k: v for k, v in settings.items() if k not in _NOT_COMPUTED and not k.endswith("_token_id")}


def arithmetic(config: Any) -> dict[str, Any]:
    """What must agree between models whose states are exchanged; nested entries as `rope_parameters.rope_theta`.

    Entries that the config's class does not know are left out, since its model does not read them.
    """
    text = config.get_text_config()
    known = type(text)().to_dict()
    settings = {name: value for name, value in computing_entries(text.to_dict()).items() if name in known}
    flat = dict(_flat(settings))
    plain_positions = (
        "max_position_embeddings" not in flat or flat.get("rope_parameters.rope_type") == "default"
    )
    left_out = (*_ELSEWHERE, *(_FOR_LONG_TEXTS if plain_positions else ()))
    return {
        name: value
        for name, value in flat.items()
        if name not in left_out and "dropout" not in name and not name.endswith("pdrop")
    }


def _flat(settings: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value
