"""The plain way to measure the metrics, as published scripts do: one pass per metric over whole sequences.

Batches stand in input order and are padded to their longest row, logits are made of every token, and a batch of answers
is generated until its longest has ended. What a metric makes of token scores is the library's, every pass is its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from audit_cost import whole_texts
from reference import padded, replaced
from torch import Tensor

from uds_lens.data import Encoded, answer_sequences
from uds_lens.data._tokens import answer_prompt
from uds_lens.generation import rouge_l_recall
from uds_lens.metrics import (
    MetricData,
    MetricOptions,
    auc,
    exact_memorization,
    extraction_strength,
    geometric_mean,
    kept_truth,
    linear_cka,
    mean_nll,
    min_k_score,
    normalised_auc,
    option_probability,
    probability,
    truth_ratio,
    zlib_score,
)
from uds_lens.metrics._definitions.aggregates import MULTIPLE_CHOICE, SETS
from uds_lens.models import HookedModel

ROWS_AT_ONCE = 32
"""Rows of a batch."""

Scores = tuple[list[float], list[bool], list[float]]
"""Of one answer: log-probabilities, first choice or not, standardised log-probabilities."""


@dataclass(frozen=True)
class Plain:
    """Three open models and what they are asked."""

    full: HookedModel
    retain: HookedModel
    model: HookedModel
    data: MetricData
    encoded: Encoded
    options: MetricOptions

    @torch.no_grad()
    def answers(self, model: HookedModel, name: str, *, standardised: bool = False) -> list[Scores]:
        """Token scores of every answer of a set."""
        pairs = [(text.question, text.answer) for text in self.data.texts(name)]
        rows = answer_sequences(model.tokenizer, pairs)
        found: list[Scores] = []
        for start in range(0, len(rows), ROWS_AT_ONCE):
            part = rows[start : start + ROWS_AT_ONCE]
            ids, mask = padded([list(row.ids) for row in part])
            logits = model.hf(ids, attention_mask=mask).logits
            for own, row in zip(logits, part, strict=True):
                logp = own[row.n_prompt - 1 : len(row.ids) - 1].float().log_softmax(-1)
                targets = torch.tensor(row.labelled)
                picked = logp.gather(-1, targets[:, None])[:, 0]
                scaled = picked
                if standardised:
                    p = logp.exp()
                    mean = (p * logp).sum(-1)
                    spread = (p * (logp - mean[:, None]).square()).sum(-1)
                    scaled = (picked - mean) / spread.clamp(min=1e-6).sqrt()
                found.append((picked.tolist(), (logp.argmax(-1) == targets).tolist(), scaled.tolist()))
        return found

    def probabilities(self, name: str) -> list[list[float]]:
        """Probability of every answer of a set, by example."""
        found: list[list[float]] = [[] for _ in self.data.examples(name)]
        for text, scores in zip(self.data.texts(name), self.answers(self.model, name), strict=True):
            found[text.owner].append(probability(scores[0]))
        return found

    @torch.no_grad()
    def generations(self, name: str, *, start: str = "") -> list[str]:
        """Greedy answers to the questions of a set."""
        tokenizer: Any = self.model.tokenizer
        prompts = [answer_prompt(example.question, start=start) for example in self.data.examples(name)]
        coded = tokenizer(prompts)["input_ids"]
        texts = []
        for first in range(0, len(coded), ROWS_AT_ONCE):
            part = coded[first : first + ROWS_AT_ONCE]
            longest = max(map(len, part))
            ids = torch.tensor([[0] * (longest - len(row)) + row for row in part])
            mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in part])
            whole = self.model.hf.generate(
                input_ids=ids,
                attention_mask=mask,
                do_sample=False,
                max_new_tokens=self.options.max_new_tokens,
                eos_token_id=tokenizer.eos_token_id,
                pad_token_id=tokenizer.pad_token_id,
            )
            texts += tokenizer.batch_decode(whole[:, longest:], skip_special_tokens=True)
        return [text.strip() for text in texts]

    @torch.no_grad()
    def states(self, model: HookedModel) -> list[Tensor]:
        """Residual stream at the entity of every example, `[layer, token, d_model]`."""
        found = []
        texts = whole_texts(model.tokenizer, self.encoded.rows)
        for start in range(0, len(texts), ROWS_AT_ONCE):
            kept = _block_outputs(model.hf, *padded(texts[start : start + ROWS_AT_ONCE]))
            for i, row in enumerate(self.encoded.rows[start : start + ROWS_AT_ONCE]):
                found.append(torch.stack([states[i, list(row.scored)] for states in kept]))
        return found

    @torch.no_grad()
    def lens(self, model: HookedModel) -> Tensor:
        """Logit Lens of every layer through the head of `full`, `[example, layer]`."""
        head = self.full.hf
        values = []
        for states, row in zip(self.states(model), self.encoded.rows, strict=True):
            logp = head.lm_head(head.model.norm(states)).float().log_softmax(-1)
            targets = torch.tensor(row.targets).expand(len(states), -1)
            values.append(logp.gather(-1, targets[..., None])[..., 0].double().mean(-1))
        return torch.stack(values)

    def fisher(self, model: HookedModel) -> list[Tensor]:
        """Diagonal Fisher information of each layer, from one backward pass per example over all weights."""
        module = model.hf.requires_grad_(True)
        layers = [sorted(block.named_parameters()) for block in module.model.layers]
        total = [torch.zeros(sum(p.numel() for _, p in named)) for named in layers]
        for ids, row in zip(whole_texts(model.tokenizer, self.encoded.rows), self.encoded.rows, strict=True):
            module.zero_grad()
            logits = module(torch.tensor([ids])).logits[0, list(row.scored)]
            torch.nn.functional.cross_entropy(logits.float(), torch.tensor(row.targets)).backward()
            for into, named in zip(total, layers, strict=True):
                into += torch.cat([p.grad.flatten() for _, p in named]).square()
        module.zero_grad()
        module.requires_grad_(False)
        return [into / len(self.encoded.rows) for into in total]

    @torch.no_grad()
    def patched(self, source: HookedModel) -> Tensor:
        """Log-probability of each entity with each layer of `full` patched, `[example, layer]`: a forward per layer."""
        texts = whole_texts(source.tokenizer, self.encoded.rows)
        blocks = self.full.hf.model.layers
        found = torch.full((len(texts), len(blocks)), torch.nan, dtype=torch.float64)
        for start in range(0, len(texts), ROWS_AT_ONCE):
            part = self.encoded.rows[start : start + ROWS_AT_ONCE]
            ids, mask = padded(texts[start : start + ROWS_AT_ONCE])
            for layer, new in enumerate(_block_outputs(source.hf, ids, mask)):
                handle = blocks[layer].register_forward_hook(partial(replaced, part=part, new=new))
                logits = self.full.hf(ids, attention_mask=mask).logits
                handle.remove()
                for i, row in enumerate(part):
                    logp = logits[i, list(row.scored)].float().log_softmax(-1)
                    own = logp.gather(-1, torch.tensor(row.targets)[:, None])
                    found[start + i, layer] = own.double().mean()
        return found


def _block_outputs(module: Any, ids: Tensor, mask: Tensor) -> list[Tensor]:
    """What leaves each block."""
    kept: list[Tensor] = []
    handles = [
        block.register_forward_hook(lambda module, args, output: kept.append(output)) for block in module.model.layers
    ]
    module(ids, attention_mask=mask)
    for handle in handles:
        handle.remove()
    return kept


@dataclass(frozen=True)
class Work:
    """How a metric is measured."""

    of_model: Callable[[Any], float]
    """The metric, from what the references gave, by running the model."""

    of_references: Callable[[], Any] = lambda: None
    """What `full` and `retain` are run for."""


ATTACKS: dict[str, Callable[[Scores, str], float]] = {
    "mia_loss": lambda scores, text: mean_nll(scores[0]),
    "mia_zlib": lambda scores, text: zlib_score(scores[0], text),
    "mia_min_k": lambda scores, text: min_k_score(scores[0], k=MetricOptions().min_k),
    "mia_min_kpp": lambda scores, text: min_k_score(scores[2], k=MetricOptions().min_k),
}
"""Score of one answer."""


def works(plain: Plain) -> dict[str, Work]:
    """The 20 metrics, the masks of Fisher as one."""
    answers = [[example.answer] for example in plain.data.forget]
    rephrased = [list(example.paraphrased_answers) for example in plain.data.forget]
    prefix, both = plain.options.jailbreak_prefix, (plain.full, plain.retain)
    found = {
        "es": Work(lambda _: _mean(extraction_strength(s[1]) for s in plain.answers(plain.model, "forget"))),
        "em": Work(lambda _: _mean(exact_memorization(s[1]) for s in plain.answers(plain.model, "forget"))),
        "prob": Work(lambda _: _mean(p for (p,) in plain.probabilities("forget"))),
        "paraprob": Work(lambda _: _mean(map(geometric_mean, plain.probabilities("forget/paraphrased")))),
        "truth_ratio": Work(lambda _: _truth_ratio(plain)),
        "rouge": Work(lambda _: _rouge(plain, answers)),
        "para_rouge": Work(lambda _: _rouge(plain, rephrased)),
        "jailbreak_rouge": Work(lambda _: _rouge(plain, answers, start=prefix)),
    }
    for name in ATTACKS:
        found[name] = Work(partial(_attacked_model, plain, name))
    for name in ATTACKS:
        found[f"s_{name}"] = Work(partial(_beside_retain, plain, name), partial(_attacked, plain, plain.retain, name))
    return found | {
        "cka": Work(
            lambda known: _cka(known[0], known[1], plain.states(plain.model)),
            lambda: [plain.states(model) for model in both],
        ),
        "fisher_masked": Work(
            lambda known: _fisher(known[0], known[1], plain.fisher(plain.model)),
            lambda: [plain.fisher(model) for model in both],
        ),
        "logit_lens": Work(
            lambda known: _depth(known, plain.lens(plain.model), plain.options.tau),
            lambda: [plain.lens(model) for model in both],
        ),
        "uds": Work(
            lambda known: _depth(known, plain.patched(plain.model), plain.options.tau),
            lambda: [plain.lens(plain.full)[:, -1:], plain.patched(plain.retain)],
        ),
    }


def utility_parts(plain: Plain) -> dict[str, float]:
    """The nine parts of Model Utility, each by its own passes."""
    found = {}
    for short, name in SETS.items():
        choice = name in MULTIPLE_CHOICE
        own = [p for (p,) in plain.probabilities(name)]
        if choice:
            wrong = plain.probabilities(f"{name}/perturbed")
            own = [option_probability(*pair) for pair in zip(own, wrong, strict=True)]
        found[f"{short}_q_prob"] = _mean(own)
        answers = [example.answer for example in plain.data.examples(name)]
        found[f"{short}_q_rouge"] = _mean(rouge_l_recall(answers, plain.generations(name)))
        right, wrong = (
            plain.probabilities(each) for each in (name if choice else f"{name}/paraphrased", f"{name}/perturbed")
        )
        found[f"{short}_truth_ratio"] = _mean(kept_truth(*pair) for pair in zip(right, wrong, strict=True))
    return found


def _attacked(plain: Plain, model: HookedModel, name: str) -> float:
    sides = []
    for which in ("forget", "holdout"):
        texts = [text.answer for text in plain.data.texts(which)]
        scores = plain.answers(model, which, standardised=name == "mia_min_kpp")
        sides.append([ATTACKS[name](*pair) for pair in zip(scores, texts, strict=True)])
    return auc(*sides)


def _attacked_model(plain: Plain, name: str, _: None) -> float:
    return _attacked(plain, plain.model, name)


def _beside_retain(plain: Plain, name: str, of_retain: float) -> float:
    return normalised_auc(_attacked(plain, plain.model, name), of_retain)


def _mean(values: Any) -> float:
    defined = [value for value in values if not math.isnan(value)]
    return sum(defined) / len(defined)


def _truth_ratio(plain: Plain) -> float:
    sides = (plain.probabilities(f"forget/{kind}") for kind in ("paraphrased", "perturbed"))
    return _mean(truth_ratio(*pair) for pair in zip(*sides, strict=True))


def _rouge(plain: Plain, references: Sequence[Sequence[str]], start: str = "") -> float:
    texts = plain.generations("forget", start=start)
    return _mean(
        _mean(rouge_l_recall(list(several), [text] * len(several)))
        for several, text in zip(references, texts, strict=True)
    )


def _cka(full: list[Tensor], retain: list[Tensor], model: list[Tensor]) -> float:
    erased, weight = 0.0, 0.0
    for layer in range(len(full[0])):
        f, r, m = (torch.cat([states[layer] for states in each]).double() for each in (full, retain, model))
        of_full, of_model = linear_cka(f, r), linear_cka(m, r)
        erasure = min(max((of_model - of_full) / (1 - of_full + 1e-12), 0.0), 1.0)
        erased, weight = erased + erasure * (1 - of_full), weight + 1 - of_full
    return erased / weight


def _fisher(full: list[Tensor], retain: list[Tensor], model: list[Tensor], fraction: float = 0.01) -> float:
    """The mask of 1%; smaller ones are its first entries, and cost nothing more."""
    erased, weight = 0.0, 0.0
    for f, r, m in zip(full, retain, model, strict=True):
        excess = (r - f).clamp(min=0.0)
        top = excess.topk(max(1, int(fraction * len(excess)))).indices
        top = top[excess[top] > 0]
        f_mean, r_mean, m_mean = (float(values[top].double().mean()) for values in (f, r, m))
        gap = r_mean - f_mean
        erased += gap * (1 - min(max((r_mean - m_mean) / (gap + 1e-30), 0.0), 1.0))
        weight += gap
    return erased / weight


def _depth(references: Sequence[Tensor], model: Tensor, tau: float) -> float:
    """From log-probabilities: those of `full`, with `retain` in its place, and with the model."""
    full, retain = references
    s1, s2 = full - retain, full - model
    kept = s1 > tau
    ratio = torch.where(kept, s2 / s1, 0.0).clamp(0, 1)
    weights = torch.where(kept, s1, 0.0)
    return _mean(((ratio * weights).sum(-1) / weights.sum(-1)).tolist())
