"""Do the checkpoints of an audit fit together? Asked of configs and tokenizers, before any weight is read."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import nn

from uds_lens.errors import IncompatibleModelsError, ModelError, warn_once
from uds_lens.models._checkpoint import load_config, load_tokenizer
from uds_lens.models._fingerprint import arithmetic
from uds_lens.models._hooked import HookedModel

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from uds_lens.models._opening import ModelSource


_SHAPE = {
    "architecture": "model_type",
    "depth (layers)": "num_hidden_layers",
    "width (d_model)": "hidden_size",
    "vocabulary size": "vocab_size",
    "attention heads": "num_attention_heads",
}


_TOLD = 6
"""How many differences a message names."""


@dataclass(frozen=True)
class CheckpointInfo:
    """What must agree between checkpoints whose states are exchanged."""

    name: str
    """Name of the checkpoint, as given."""

    config: Any
    """Its transformers config."""

    arithmetic: Mapping[str, object]
    """Entries of the config that change what weights compute: epsilon of norms, rotary base, activation ..."""

    shape: Mapping[str, object]
    """Architecture, depth, width, vocabulary size, heads, from the config."""

    tokenizer: PreTrainedTokenizerFast | None
    """The tokenizer, or None where the checkpoint has none."""

    tokenizer_hash: str | None
    """Hash of vocabulary, merges, normaliser and special tokens; prompts are rendered with full's chat template."""


def read_checkpoint_info(
    source: ModelSource,
    *,
    revision: str | None = None,
    offline: bool = False,
    trust_remote_code: bool = False,
) -> CheckpointInfo:
    """Read a checkpoint's shape and tokenizer without its weights."""
    if isinstance(source, HookedModel):
        return _checkpoint_info(source.name, source.hf.config, source.tokenizer)
    if isinstance(source, nn.Module):
        from uds_lens.models._opening import _adopt

        with _adopt(source, None) as model:
            return _checkpoint_info(model.name, model.hf.config, model.tokenizer)
    if not isinstance(source, str | os.PathLike):
        raise ModelError(
            f"cannot open {type(source).__name__} as a model: expected a directory, a Hub id, a transformers "
            "model or a TransformerBridge."
        )
    config = load_config(source, revision=revision, offline=offline, trust_remote_code=trust_remote_code)
    tokenizer = load_tokenizer(
        source, revision=revision, offline=offline, trust_remote_code=trust_remote_code
    )
    return _checkpoint_info(os.fspath(source), config, tokenizer)


def check_compatible(infos: Mapping[str, CheckpointInfo]) -> PreTrainedTokenizerFast:
    """Check that all checkpoints match the first one, `full`, and return the tokenizer to use.

    Args:
        infos: By role (`full`, `retain`, `unlearned`), `full` first.

    Returns:
        The tokenizer of `full`, or the first one there is, with a warning.

    Raises:
        IncompatibleModelsError: Naming every property that differs and both values.
        ModelError: No checkpoint has a tokenizer.
    """
    (role, reference), *others = infos.items()
    problems = []
    for other_role, other in others:
        for what, value in reference.shape.items():
            if other.shape[what] != value:
                problems.append(
                    f"{what}: {role} {reference.name!r} has {value!r}, {other_role} {other.name!r} has "
                    f"{other.shape[what]!r}"
                )
        problems += [
            f"{name}: {role} {reference.name!r} has {one!r}, {other_role} {other.name!r} has {two!r}"
            for name, one, two in _differences(reference.arithmetic, other.arithmetic)
            if other.shape == reference.shape
        ]
        if (
            reference.tokenizer_hash
            and other.tokenizer_hash
            and other.tokenizer_hash != reference.tokenizer_hash
        ):
            problems.append(f"tokenizer: {role} {reference.name!r} and {other_role} {other.name!r} differ")
    if problems:
        more = f"\n  and {len(problems) - _TOLD} more" if len(problems) > _TOLD else ""
        raise IncompatibleModelsError(
            "the checkpoints do not fit together; hidden states can be exchanged only between models of one "
            "architecture, arithmetic and tokenizer.\n  " + "\n  ".join(problems[:_TOLD]) + more
        )
    return _shared_tokenizer(infos)


def _differences(one: Mapping[str, object], other: Mapping[str, object]) -> list[tuple[str, object, object]]:
    """Names of what differs, with both values; None where there is none."""
    names = sorted({*one, *other})
    return [(name, one.get(name), other.get(name)) for name in names if one.get(name) != other.get(name)]


def _shared_tokenizer(infos: Mapping[str, CheckpointInfo]) -> PreTrainedTokenizerFast:
    with_one = [(role, p.tokenizer) for role, p in infos.items() if p.tokenizer is not None]
    without = [f"{role} {p.name!r}" for role, p in infos.items() if p.tokenizer is None]
    if not with_one:
        raise ModelError(
            "none of the checkpoints has a tokenizer: save it beside the weights, with "
            "tokenizer.save_pretrained(directory). A live model gets one from ul.open_model(model, tokenizer=...)."
        )
    role, tokenizer = with_one[0]
    if without:
        warn_once(f"no tokenizer beside {', '.join(without)}: using that of {role}, unchecked.")
    return tokenizer


def _checkpoint_info(name: str, config: Any, tokenizer: PreTrainedTokenizerFast | None) -> CheckpointInfo:
    text = config.get_text_config()
    shape = {what: getattr(text, field, None) for what, field in _SHAPE.items()}
    return CheckpointInfo(
        name=name,
        config=config,
        arithmetic=arithmetic(config),
        shape=shape,
        tokenizer=tokenizer,
        tokenizer_hash=_tokenizer_hash(tokenizer),
    )


def _tokenizer_hash(tokenizer: PreTrainedTokenizerFast | None) -> str | None:
    if tokenizer is None:
        return None
    backend = getattr(tokenizer, "backend_tokenizer", None)
    state: dict[str, Any] = json.loads(backend.to_str()) if backend is not None else tokenizer.get_vocab()
    # Padding and truncation are settings of the last call, not of the tokenizer.
    state.pop("padding", None)
    state.pop("truncation", None)
    return hashlib.blake2b(json.dumps(state, sort_keys=True).encode(), digest_size=16).hexdigest()
