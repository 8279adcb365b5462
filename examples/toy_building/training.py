"""The model of the toy world, and how it learns."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from toy_building.batches import Batch, Corpus

BATCH = 32


def new_model(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=64,
            intermediate_size=80,
            num_hidden_layers=8,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=512,
            tie_word_embeddings=True,
            initializer_range=0.05,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )


@dataclass(frozen=True)
class Schedule:
    """AdamW with linear warm-up over a twentieth of the steps, then a cosine down to nothing."""

    steps: int
    learning_rate: float
    weight_decay: float = 0.1

    def at(self, step: int) -> float:
        return min(1.0, 20 * (step + 1) / self.steps) * 0.5 * (1 + math.cos(math.pi * step / self.steps))


BASE = Schedule(steps=1200, learning_rate=3e-3)
FACTS = Schedule(steps=800, learning_rate=1e-3)


def optimise(model: LlamaForCausalLM, loss: Callable[[], Tensor], schedule: Schedule) -> None:
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    optimiser = torch.optim.AdamW(
        weights, lr=schedule.learning_rate, betas=(0.9, 0.98), weight_decay=schedule.weight_decay
    )
    rate = torch.optim.lr_scheduler.LambdaLR(optimiser, schedule.at)
    for _ in range(schedule.steps):
        loss().backward()
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimiser.step()
        rate.step()
        optimiser.zero_grad(set_to_none=True)


def learn(model: LlamaForCausalLM, corpus: Corpus, schedule: Schedule) -> LlamaForCausalLM:
    """Train a copy of `model` on the answers of `corpus`."""
    model = copy.deepcopy(model).train()
    optimise(model, lambda: nll(model, corpus.draw(BATCH)), schedule)
    return model.eval()


def nll(model: LlamaForCausalLM, batch: Batch) -> Tensor:
    """Mean negative log-likelihood of the answers' tokens."""
    return model(**batch, use_cache=False).loss


def load_checkpoint(path: Path) -> LlamaForCausalLM:
    return LlamaForCausalLM.from_pretrained(path, dtype=torch.float32, local_files_only=True).eval()
