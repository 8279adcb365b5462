"""A training run: its initial model, data, settings and key."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from uds_lens._compat.transformers import has_torch_attention, longest_text, rope_limit
from uds_lens._storage.records import digest
from uds_lens._types import Protocol
from uds_lens.data import ForgetExample
from uds_lens.data._prompts import chosen_protocol
from uds_lens.data._tokens import AnswerSequence
from uds_lens.errors import ModelError
from uds_lens.models._checkpoint import load_tokenizer, load_weights, on_device
from uds_lens.models._compatibility import recorded_protocol
from uds_lens.models._fingerprint import hashing
from uds_lens.models._hooked import pick_device
from uds_lens.unlearning._registry import Objective
from uds_lens.unlearning._settings import LoraSettings, MethodConfig, TrainOptions

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast


@dataclass(frozen=True)
class Parent:
    """The initial model of a run."""

    model: PreTrainedModel  # on its device, in evaluation mode, in the training dtype
    tokenizer: PreTrainedTokenizerFast  # the model's tokenizer
    name: str  # directory or Hub id, as given
    fingerprint: str  # fingerprint of the weights, in the training dtype
    protocol: Protocol | None = None  # prompt format that it was trained with, if recorded

    @property
    def pad_token_id(self) -> int:
        """Padding token, which is always masked; 0 if the model has no embedding for the tokenizer's padding token."""
        pad = self.tokenizer.pad_token_id
        pad = int(pad if pad is not None else self.tokenizer.eos_token_id or 0)
        return pad if pad < len(self.model.get_input_embeddings().weight) else 0

    @property
    def max_tokens(self) -> int | None:
        """Maximum sequence length of the model, if it has a limit."""
        return longest_text(self.model.config)

    def runs_apart(self, sequences: Iterable[AnswerSequence]) -> bool:
        """Return whether any sequence is so long that rotary frequencies depend on the batch's longest row."""
        limit = rope_limit(self.model.config)
        return limit is not None and any(len(sequence.ids) > limit.length for sequence in sequences)


def open_parent(source: str | os.PathLike[str], options: TrainOptions) -> Parent:
    """Open the initial model."""
    if not isinstance(source, str | os.PathLike):
        raise ModelError(
            f"training needs a directory or a Hub id, but got {type(source).__name__}: save the model first with "
            "save_pretrained, with its tokenizer next to it."
        )
    name, device = os.fspath(source), pick_device(options.device)
    where: Any = {name: getattr(options, name) for name in ("revision", "offline", "trust_remote_code")}
    model = load_weights(source, dtype=getattr(torch, options.dtype), device_map=None, **where)
    with hashing(model) as digest:
        model, tokenizer = on_device(model, device), load_tokenizer(source, **where)
    if tokenizer is None:
        raise ModelError(f"{name!r} has no tokenizer: save one next to the model with tokenizer.save_pretrained.")
    if getattr(model, "is_quantized", False):
        raise ModelError(f"{name!r} is quantised: train the original model and quantise the result.")
    if device.startswith("cuda") and has_torch_attention(model):
        model.set_attn_implementation("sdpa")
    return Parent(model, tokenizer, name, digest.result(), recorded_protocol(source))


RULES = 2  # incremented when equal settings give a different model than before, so that older results are not reused


@dataclass(frozen=True)
class CheckedRows:
    """Rows whose answer probabilities are reported before and after training."""

    name: str  # name of the set
    rows: tuple[ForgetExample, ...]  # the rows
    trained: bool  # whether the run trains on these rows


@dataclass(frozen=True, kw_only=True)
class Job:
    """Everything one training run needs."""

    config: MethodConfig  # method settings
    objective: Objective  # declaration of the method
    source: str | os.PathLike[str]  # the initial model
    forget: tuple[ForgetExample, ...]  # the forget set
    retain: tuple[ForgetExample, ...] = ()  # the retain set; empty if the method does not use one
    refusals: tuple[str, ...] = ()  # refusals; empty if the method does not use them
    lora: LoraSettings | None = None  # adapter settings, if any
    options: TrainOptions  # run options
    out: Path  # output directory
    record: str  # file name of the record
    checked: tuple[CheckedRows, ...] = ()  # rows to measure before and after training

    @property
    def saves_adapter(self) -> bool:
        """Whether only the adapter is saved, without the base model."""
        return self.lora is not None and self.lora.save == "adapter"

    @property
    def sides(self) -> dict[str, dict[str, Any]]:
        """Number of rows and fingerprint of each kind of data, independent of file names.

        Entities are included if they determine which alternates are valid.
        """
        entities = "alternates" in self.objective.needs

        def row(x: ForgetExample | str) -> Any:
            return x if isinstance(x, str) else [x.question, x.answer, *([x.entity] if entities else [])]

        sides: dict[str, Sequence[ForgetExample | str]] = {
            "forget": self.forget,
            "retain": self.retain,
            "refusals": self.refusals,
        }
        return {
            name: {"n": len(rows), "fingerprint": digest([row(x) for x in rows])}
            for name, rows in sides.items()
            if rows
        }

    def settled(self, parent: Parent) -> Job:
        """Return the same job with the protocol `auto` resolved for the model."""
        protocol = chosen_protocol(self.config.protocol, parent.tokenizer, parent.protocol)
        return replace(self, config=replace(self.config, protocol=protocol))

    def depends_on(self, parent: Parent, tokens: Sequence[AnswerSequence]) -> dict[str, Any]:
        """Return everything that affects the result by more than rounding error, as plain values."""
        options = self.options
        parts: dict[str, Any] = {
            "rules": RULES,
            "method": self.config.method,
            "config": self.config.to_dict(),
            "parent": parent.fingerprint,
            "tokens": digest([[sequence.n_prompt, *sequence.ids] for sequence in tokens]),
            **{f"{name} data": side["fingerprint"] for name, side in self.sides.items()},
            "lora": None if self.lora is None else self.lora.to_dict(),
            "dtype": options.dtype,
            "save_dtype": options.save_dtype,
            "mixed_precision": options.mixed_precision,
            "device_batch_size": options.device_batch_size,
        }
        if (source := self.objective.source) is not None:
            parts["source of the method"] = source
        rows, size = len(self.forget), self.config.batch_size
        if rows % size and (self.config.epochs > 1 or self.config.warmup_epochs):  # batches once spanned epochs
            parts["epochs"] = "whole"
        if "alternates" in self.objective.needs:  # sampling depends on the machine
            parts["device"] = parent.model.device.type
        if self.saves_adapter:
            parts["saved"] = "adapter"
        if parent.runs_apart(tokens):  # earlier versions trained such rows in batches
            parts["long rows"] = "alone"
        return parts
