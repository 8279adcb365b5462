"""Check that the checkpoints of an audit are compatible, from configs and tokenizers, before any weights are read."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

from torch import nn

from uds_lens._storage.records import digest
from uds_lens._types import AnswerProtocol, Protocol
from uds_lens.data._prompts import chosen_protocol
from uds_lens.errors import IncompatibleModelsError, ModelError, Setting, warn_once
from uds_lens.models._checkpoint import (
    checkpoint_record,
    load_config,
    load_tokenizer,
    require_known_quantisation,
    storage_of,
)
from uds_lens.models._fingerprint import arithmetic
from uds_lens.models._hooked import HookedModel

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from uds_lens.models._hooked import ModelSource


_SHAPE = {
    "architecture": "model_type",
    "depth (layers)": "num_hidden_layers",
    "width (d_model)": "hidden_size",
    "vocabulary size": "vocab_size",
    "attention heads": "num_attention_heads",
}

_MOST = 6  # number of differences that a message lists


@dataclass(frozen=True)
class CheckpointInfo:
    """Properties that must agree between checkpoints whose states are exchanged."""

    name: str
    """The checkpoint's name, as passed."""

    config: Any
    """Its transformers config."""

    arithmetic: Mapping[str, object]
    """Config entries that affect the computation: norm epsilon, rotary base, activation ..."""

    shape: Mapping[str, object]
    """Architecture, depth, width, vocabulary size and number of heads, from the config."""

    tokenizer: PreTrainedTokenizerFast | None
    """The tokenizer, or None if the checkpoint has none."""

    protocol: Protocol | None
    """The protocol used in training, if the record of the training (`unlearning.json`, `relearning.json`) names one."""

    tokenizer_hash: str | None
    """Hash of vocabulary, merges, normaliser and special tokens, but not of the chat template (the template of `full`
    is used)."""

    storage: str | None = None
    """The types in which a GGUF file stores the weights; None for other checkpoints."""


def read_checkpoint_info(
    source: ModelSource, *, revision: str | None = None, offline: bool = False, trust_remote_code: bool = False
) -> CheckpointInfo:
    """Read a checkpoint's shape and tokenizer without its weights."""
    if isinstance(source, HookedModel):
        return _info(source.name, source.hf.config, source.tokenizer)
    if isinstance(source, nn.Module):
        from uds_lens.models._hooked import adopt

        with adopt(source, None) as model:
            return _info(model.name, model.hf.config, model.tokenizer)
    if not isinstance(source, str | os.PathLike):
        raise ModelError(
            f"cannot open {type(source).__name__} as a model: expected a directory, a Hub id, a transformers "
            "model or a TransformerBridge."
        )
    where: dict[str, Any] = {"revision": revision, "offline": offline, "trust_remote_code": trust_remote_code}
    config = load_config(source, **where)
    require_known_quantisation(config, os.fspath(source))
    info = _info(os.fspath(source), config, load_tokenizer(source, **where))
    return replace(info, protocol=recorded_protocol(source), storage=storage_of(source))


def recorded_protocol(source: str | os.PathLike[str]) -> Protocol | None:
    """Return the protocol with which a checkpoint was trained, if its record names it."""
    recorded = checkpoint_record(source).get("protocol")
    return cast("Protocol", recorded) if recorded in ("raw", "chat") else None


def protocol_of(wanted: AnswerProtocol, infos: Mapping[str, CheckpointInfo], tokenizer: Any) -> Protocol:
    """Choose a protocol for several models: as requested, else from the first record that names it, else by tokenizer.

    If the protocol was chosen by default, a warning names the models that were trained with another protocol.
    """
    chosen = chosen_protocol(wanted, tokenizer, deciding_record(infos))
    recorded = {role: info.protocol for role, info in infos.items() if info.protocol is not None}
    for role, word in recorded.items():
        if wanted == "auto" and word != chosen:
            names = {"chat": "the chat template", "raw": "raw prompts"}
            warn_once(
                f"{role} {infos[role].name!r} was trained with {names[word]}, but is run with {names[chosen]}: the "
                "model may seem to know less than it does. ",
                Setting("protocol", word),
                " uses its training prompts.",
            )
    return chosen


def deciding_record(infos: Mapping[str, CheckpointInfo]) -> Protocol | None:
    """Return the protocol from the first record that names one, except for records of unlearned models."""
    words = (info.protocol for role, info in infos.items() if not role.startswith("unlearned"))
    return next((word for word in words if word is not None), None)


def check_compatible(infos: Mapping[str, CheckpointInfo]) -> PreTrainedTokenizerFast:
    """Check that all checkpoints match the first one, `full`, and return the tokenizer to use.

    Args:
        infos: By role (`full`, `retain`, `unlearned`), `full` first.

    Returns:
        The tokenizer of `full`, or, with a warning, the first one available.

    Raises:
        IncompatibleModelsError: A property differs; the message lists such properties with both values.
        ModelError: No checkpoint has a tokenizer.
    """
    (role, reference), *others = infos.items()
    problems = []
    for other_role, other in others:
        pairs = [(reference.shape, other.shape)]
        if other.shape == reference.shape:
            pairs.append((reference.arithmetic, other.arithmetic))
        problems += [
            f"{name}: {role} {reference.name!r} has {one.get(name)!r}, {other_role} {other.name!r} has "
            f"{two.get(name)!r}"
            for one, two in pairs
            for name in sorted({*one, *two})
            if one.get(name) != two.get(name)
        ]
        hashes = {reference.tokenizer_hash, other.tokenizer_hash} - {None}
        if len(hashes) > 1 and not _one_vocabulary(reference, other):
            problems.append(f"tokenizer: {role} {reference.name!r} and {other_role} {other.name!r} differ")
    if problems:
        more = f"\n  and {len(problems) - _MOST} more" if len(problems) > _MOST else ""
        raise IncompatibleModelsError(
            "the checkpoints are incompatible; hidden states can be exchanged only between models with the "
            "same architecture, computation and tokenizer.\n  " + "\n  ".join(problems[:_MOST]) + more
        )
    with_one = [(role, info.tokenizer) for role, info in infos.items() if info.tokenizer is not None]
    without = [f"{role} {info.name!r}" for role, info in infos.items() if info.tokenizer is None]
    if not with_one:
        raise ModelError(
            "none of the checkpoints has a tokenizer: save one next to the weights, with "
            "tokenizer.save_pretrained(directory). For a live model, use ul.open_model(model, tokenizer=...)."
        )
    role, tokenizer = with_one[0]
    if without:
        warn_once(f"no tokenizer for {', '.join(without)}: using the tokenizer of {role} without a check.")
    return tokenizer


def require_embedded(model: Any, inputs: Iterable[tuple[str, Sequence[int]]], *, name: str) -> None:
    """Check that a transformers model has an embedding for every token in some inputs."""
    embedding = model.get_input_embeddings()
    size = getattr(embedding, "num_embeddings", None) or len(embedding.weight)
    for question, ids in inputs:
        if max(ids, default=0) >= size:
            raise ModelError(
                f"{name[:100]!r}: token {max(ids)} of {question[:80]!r} is beyond the model's embedding of {size} "
                "rows. Use the model's own tokenizer, or resize the embedding to match the tokenizer."
            )


def _info(name: str, config: Any, tokenizer: PreTrainedTokenizerFast | None) -> CheckpointInfo:
    text = config.get_text_config()
    return CheckpointInfo(
        name=name,
        config=config,
        arithmetic=arithmetic(config),
        shape={property_: getattr(text, field, None) for property_, field in _SHAPE.items()},
        tokenizer=tokenizer,
        protocol=None,
        tokenizer_hash=None if tokenizer is None else _tokenizer_hash(tokenizer),
    )


def _one_vocabulary(one: CheckpointInfo, other: CheckpointInfo) -> bool:
    """Return whether tokenizers give the same ids if one is from a GGUF file, which keeps tokens but not all settings.

    llama.cpp pads a vocabulary to the size of the embedding, so one tokenizer may have more tokens.
    """
    if one.storage is None and other.storage is None:
        return False
    few, many = sorted((info.tokenizer.get_vocab() for info in (one, other) if info.tokenizer is not None), key=len)
    return few.items() <= many.items()


def _tokenizer_hash(tokenizer: PreTrainedTokenizerFast) -> str:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    return digest(tokenizer.get_vocab()) if backend is None else _hash_of_backend(backend.to_str())


@lru_cache(maxsize=1)  # cached: the models of an audit share a tokenizer, and serialising it is slow
def _hash_of_backend(text: str) -> str:
    state: dict[str, Any] = json.loads(text)
    for last_call in ("padding", "truncation"):
        state.pop(last_call, None)
    return digest(state)
