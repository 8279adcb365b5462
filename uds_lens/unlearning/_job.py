"""Everything one training run needs, and what its result depends on."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import torch
from annotated_types import Ge, Lt
from torch import nn

from uds_lens._compat.peft import quiet_wrapping
from uds_lens._compat.transformers import has_torch_attention
from uds_lens._settings import validated
from uds_lens._types import PositiveInt
from uds_lens.data import AnswerSequence, ForgetExample, chosen_protocol
from uds_lens.errors import ModelError
from uds_lens.models import fingerprint, pick_device
from uds_lens.models._checkpoint import load_tokenizer, load_weights
from uds_lens.unlearning._configs import MethodConfig
from uds_lens.unlearning._options import TrainOptions
from uds_lens.unlearning._registry import Objective

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast


# The model a training run starts from.


@dataclass(frozen=True)
class Parent:
    """The model a run starts from."""

    model: PreTrainedModel
    """On its device, in evaluation mode, in the dtype it is trained in."""

    tokenizer: PreTrainedTokenizerFast
    """Its tokenizer."""

    name: str
    """As it was given."""

    fingerprint: str
    """Fingerprint of its weights as they train."""

    @property
    def pad_token_id(self) -> int:
        """A token for padding, masked everywhere."""
        pad = self.tokenizer.pad_token_id
        return int(pad if pad is not None else self.tokenizer.eos_token_id or 0)

    @property
    def max_tokens(self) -> int | None:
        """Longest sequence of the model, if it has one."""
        limit = getattr(self.model.config.get_text_config(), "max_position_embeddings", None)
        return int(limit) if limit else None


def open_parent(source: str | os.PathLike[str], options: TrainOptions) -> Parent:
    """Open the model to start from.

    Raises:
        ModelError: It cannot be opened, has no tokenizer, or is a live model (training would change it).
    """
    if not isinstance(source, str | os.PathLike):
        raise ModelError(
            f"training starts from a directory or a Hub id, got {type(source).__name__}: save the model first with "
            "save_pretrained, and its tokenizer beside it."
        )
    where: dict[str, Any] = {
        "revision": options.revision,
        "offline": options.offline,
        "trust_remote_code": options.trust_remote_code,
    }
    device = pick_device(options.device)
    model = load_weights(source, dtype=getattr(torch, options.dtype), device=device, device_map=None, **where)
    tokenizer = load_tokenizer(source, **where)
    if tokenizer is None:
        raise ModelError(
            f"{os.fspath(source)!r} has no tokenizer: save it there with tokenizer.save_pretrained."
        )
    if getattr(model, "is_quantized", False):
        raise ModelError(
            f"{os.fspath(source)!r} is quantised: train the model before it was, and quantise the result."
        )
    if device.startswith("cuda") and has_torch_attention(model):
        model.set_attn_implementation("sdpa")
    return Parent(model, tokenizer, os.fspath(source), fingerprint(model))


# Training low-rank adapters instead of all weights, through PEFT.


@validated
@dataclass(frozen=True, kw_only=True)
class LoraSettings:
    """Low-rank adapters on linear layers. They are merged into the weights when a run ends."""

    rank: PositiveInt = 8
    """Rank of each adapter."""

    alpha: PositiveInt = 16
    """Scale: an adapter's output is multiplied by alpha / rank."""

    dropout: Annotated[float, Ge(0), Lt(1)] = 0.0
    """Dropout before an adapter."""

    target_modules: str | tuple[str, ...] = "all-linear"
    """Names of the modules that get one; "all-linear" takes every linear layer but the head."""


def add_adapters(model: nn.Module, settings: LoraSettings) -> Any:
    """A PEFT model whose adapters train and whose own weights do not."""
    from peft import LoraConfig, get_peft_model

    targets = settings.target_modules
    adapters = LoraConfig(
        task_type="CAUSAL_LM",
        r=settings.rank,
        lora_alpha=settings.alpha,
        lora_dropout=settings.dropout,
        target_modules=targets if isinstance(targets, str) else list(targets),
    )
    with quiet_wrapping():
        return get_peft_model(model, adapters)


# Hashes of the data a run trains on, as text and as tokens.


def data_fingerprint(
    examples: Sequence[ForgetExample] | Sequence[str], *, with_entities: bool = False
) -> str:
    """Hash of questions and answers (or of texts) in order: 32 hexadecimal digits, independent of file and path.

    Args:
        examples: The rows.
        with_entities: Whether the entities count too, as they do where alternates are told from the truth by them.
    """

    def row(x: Any) -> Any:
        if isinstance(x, str):
            return x
        return [x.question, x.answer, x.entity] if with_entities else [x.question, x.answer]

    return digest([row(x) for x in examples])


def tokens_fingerprint(sequences: Sequence[AnswerSequence]) -> str:
    """Hash of answers in tokens, and of where they begin."""
    return digest([[sequence.n_prompt, *sequence.ids] for sequence in sequences])


def digest(value: Any) -> str:
    """BLAKE2b of plain values: 32 hexadecimal digits."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


RULES = 2
"""Counts up when equal settings begin to give another model, so that older results are not taken for new ones."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """Everything one training run needs."""

    config: MethodConfig
    """What to train."""

    objective: Objective
    """Its declaration."""

    source: str | os.PathLike[str]
    """The model to start from."""

    forget: tuple[ForgetExample, ...]
    """The forget set."""

    retain: tuple[ForgetExample, ...]
    """The retain set, empty where the method has no use for it."""

    refusals: tuple[str, ...]
    """Refusals, empty where the method has no use for them."""

    lora: LoraSettings | None
    """Adapters, or None."""

    options: TrainOptions
    """How to run it."""

    out: Path
    """Directory of the result."""

    record: str
    """File name of the record."""

    @property
    def sides(self) -> dict[str, dict[str, Any]]:
        """Number and fingerprint of each kind of data."""
        entities = "alternates" in self.objective.needs
        sides: dict[str, Sequence[Any]] = {
            "forget": self.forget,
            "retain": self.retain,
            "refusals": self.refusals,
        }
        return {
            name: {"n": len(rows), "fingerprint": data_fingerprint(rows, with_entities=entities)}
            for name, rows in sides.items()
            if rows
        }

    def settled(self, parent: Parent) -> Job:
        """The same with the protocol that `auto` stands for with this model's tokenizer.

        Raises:
            ConfigError: A system turn or a date was given, and prompts are raw.
        """
        protocol = chosen_protocol(self.config.protocol, parent.tokenizer)
        return replace(self, config=replace(self.config, protocol=protocol))

    def depends_on(self, parent: Parent, sequences: Sequence[AnswerSequence]) -> dict[str, Any]:
        """What the result depends on by more than rounding, as plain values.

        Args:
            parent: The model to start from.
            sequences: Forget and retain answers in tokens: they depend on the tokenizer too.
        """
        options = self.options
        parts: dict[str, Any] = {
            "rules": RULES,
            "method": self.config.method,
            "config": self.config.to_dict(),
            "parent": parent.fingerprint,
            "tokens": tokens_fingerprint(sequences),
            **{f"{name} data": side["fingerprint"] for name, side in self.sides.items()},
            "lora": None if self.lora is None else asdict(self.lora),
            "dtype": options.dtype,
            "save_dtype": options.save_dtype,
            "mixed_precision": options.mixed_precision,
            "device_batch_size": options.device_batch_size,
        }
        if "alternates" in self.objective.needs:  # what is sampled depends on the machine
            parts["device"] = parent.model.device.type
        return parts
