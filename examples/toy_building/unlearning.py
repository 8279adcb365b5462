"""A few unlearning methods, compactly: objectives on a forget and a retain batch."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid
from transformers import LlamaForCausalLM

from toy_building.batches import Batch, Corpus
from toy_building.training import Schedule, nll, optimise


def answer_log_probability(model: LlamaForCausalLM, batch: Batch) -> Tensor:
    labels = batch["labels"][:, 1:]
    logits = model(batch["input_ids"], attention_mask=batch["attention_mask"], use_cache=False).logits[:, :-1]
    chosen = logits.log_softmax(-1).gather(-1, labels.clamp_min(0)[..., None])[..., 0]
    return (chosen * (labels != -100)).sum(-1)


def states(model: LlamaForCausalLM, batch: Batch, layer: int) -> Tensor:
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    hidden = model.model(**inputs, output_hidden_states=True, use_cache=False).hidden_states[layer + 1]
    return hidden[batch["labels"] != -100]


@dataclass
class Unlearning:
    """What an objective may look at: the model, the frozen `full`, and the three sources of batches."""

    model: LlamaForCausalLM
    reference: LlamaForCausalLM
    forget: Corpus
    refusals: Corpus
    retain: Corpus
    generator: torch.Generator


def idknll(task: Unlearning) -> Callable[[], Tensor]:
    return lambda: nll(task.model, task.refusals.draw(16)) + nll(task.model, task.retain.draw(16))


def graddiff(task: Unlearning) -> Callable[[], Tensor]:
    return lambda: -nll(task.model, task.forget.draw(16)) + 2.0 * nll(task.model, task.retain.draw(16))


def npo(task: Unlearning, beta: float = 0.1) -> Callable[[], Tensor]:
    def loss() -> Tensor:
        batch = task.forget.draw(16)
        with torch.no_grad():
            before = answer_log_probability(task.reference, batch)
        ratio = answer_log_probability(task.model, batch) - before
        return -2 / beta * logsigmoid(-beta * ratio).mean() + nll(task.model, task.retain.draw(16))

    return loss


def rmu(task: Unlearning, layer: int = 4, steering: float = 10.0, alpha: float = 2.0) -> Callable[[], Tensor]:
    """Only layers `layer - 2 .. layer` train: forget states go to one random direction, others stay."""
    task.model.requires_grad_(False)
    for block in task.model.model.layers[layer - 2 : layer + 1]:
        block.requires_grad_(True)
    direction = torch.rand(task.model.config.hidden_size, generator=task.generator)
    target = steering * direction / direction.norm()

    def loss() -> Tensor:
        forget, retain = task.forget.draw(16), task.retain.draw(16)
        with torch.no_grad():
            kept = states(task.reference, retain, layer)
        away = (states(task.model, forget, layer) - target).square().mean()
        return away + alpha * (states(task.model, retain, layer) - kept).square().mean()

    return loss


METHODS: dict[str, tuple[Callable[[Unlearning], Callable[[], Tensor]], Schedule]] = {
    "idknll": (idknll, Schedule(steps=120, learning_rate=3e-4, weight_decay=0.0)),
    "graddiff": (graddiff, Schedule(steps=60, learning_rate=1e-4, weight_decay=0.0)),
    "npo": (npo, Schedule(steps=120, learning_rate=3e-4, weight_decay=0.0)),
    "rmu": (rmu, Schedule(steps=150, learning_rate=1e-3, weight_decay=0.0)),
}


def unlearn(method: str, full: LlamaForCausalLM, sources: dict[str, Corpus], seed: int) -> LlamaForCausalLM:
    """Make a copy of `full` forget. This is the one place that knows how methods are run."""
    objective, schedule = METHODS[method]
    model = copy.deepcopy(full).train()
    task = Unlearning(model, full, **sources, generator=torch.Generator().manual_seed(seed))
    optimise(model, objective(task), schedule)
    return model.requires_grad_(True).eval()
