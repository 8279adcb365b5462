"""Sampled continuations: each prompt is read once, its cache repeated for the samples, finished rows dropped.

Every sample has a stream of uniform numbers of its own, and a token is what its number meets in the cumulative
distribution. So a text depends on seed and prompt only: not on what runs beside it, and two models that give the same
distribution give the same text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from uds_lens._progress import progress
from uds_lens.errors import ConfigError
from uds_lens.generation._reading import CachedTexts, Way, WholeTexts, raise_not_finite, way_of
from uds_lens.models import HookedModel


@dataclass(frozen=True)
class Continuations:
    """New tokens of every prompt and sample."""

    tokens: list[list[list[int]]]
    """`[prompt][sample]`: token ids, without the end token."""

    prefilled: int
    """Prompt tokens that went through the model: each prompt's once."""

    steps: int
    """Forward passes, prompts included."""


@torch.no_grad()
def sample_continuations(
    model: HookedModel,
    prompts: Sequence[Sequence[int]],
    *,
    ends: frozenset[int],
    max_new_tokens: int,
    samples: int = 1,
    temperature: float = 0.0,
    top_k: int | None = None,
    seeds: Sequence[int] | None = None,
    rows_at_once: int = 256,
    names: Sequence[str] | None = None,
    desc: str = "answers",
    show: bool | None = None,
) -> Continuations:
    """Continue tokenised prompts, greedily or by sampling from the k likeliest tokens.

    Args:
        model: The model.
        prompts: Token ids, unpadded, none empty.
        ends: Tokens that end a text.
        max_new_tokens: Longest continuation.
        samples: Continuations of each prompt.
        temperature: Logits are divided by it; 0 takes the likeliest token.
        top_k: How many tokens to choose from; None for all.
        seeds: One per prompt, from which its samples' numbers are drawn; needed unless greedy.
        rows_at_once: Continuations side by side; all samples of one prompt, where those are more.
        names: What to call the prompts in an error; default their numbers.
        desc: Label of the progress bar.
        show: Progress bar on, off, or (None) in terminals only.

    Returns:
        The continuations, in the order of the prompts.

    Raises:
        ConfigError: An option is outside its range.
        ModelError: NaN or infinite logits; names the prompt.
    """
    _check(samples=samples, max_new_tokens=max_new_tokens, rows_at_once=rows_at_once, top_k=top_k)
    if temperature < 0 or (temperature > 0 and seeds is None):
        raise ConfigError(
            f"sampling needs a temperature above 0 and one seed per prompt; got {temperature:g}."
        )
    found: list[list[list[int]]] = [[[] for _ in range(samples)] for _ in prompts]
    steps = 0
    uniforms: list[Tensor | None] = [None] * len(prompts)
    if temperature > 0 and seeds is not None:
        uniforms = [_uniforms(seed, samples, max_new_tokens) for seed in seeds]
    groups = _groups(model, prompts, samples, max_new_tokens, rows_at_once)
    for way, rows, which in progress(groups, desc=desc, unit="batch", enabled=show):
        told = [str(i) if names is None else names[i] for i in rows]
        streams = [own[which] for i in rows if (own := uniforms[i]) is not None]
        choose = _chooser(temperature, top_k, torch.cat(streams) if streams else None)
        kind = WholeTexts if way == "whole" else CachedTexts
        growing = kind(model, [prompts[i] for i in rows])
        count = len(range(samples)[which])
        texts, passes = _walk(model, growing, count, choose, ends=ends, limit=max_new_tokens, names=told)
        steps += passes
        for n, i in enumerate(rows):
            found[i][which] = texts[n * count : (n + 1) * count]
    return Continuations(found, sum(map(len, prompts)), steps)


_Choose = Callable[[Float[Tensor, "row d_vocab"], list[int], int], Int[Tensor, "row"]]


def _walk(
    model: HookedModel,
    growing: CachedTexts | WholeTexts,
    samples: int,
    choose: _Choose,
    *,
    ends: frozenset[int],
    limit: int,
    names: Sequence[str],
) -> tuple[list[list[int]], int]:
    """Tokens of every row (prompt by prompt, sample by sample), and the number of forward passes."""
    if samples > 1:
        growing.repeat(samples)
    found: list[list[int]] = [[] for _ in growing.states]
    alive = list(range(len(found)))
    steps = 1
    for step in range(limit):
        logits = model.anatomy.unembed(growing.states).float()
        broken = (~logits.isfinite().all(-1)).nonzero()[:, 0].tolist()
        if broken:
            raise_not_finite(model.name, names[alive[broken[0]] // samples])
        chosen = choose(logits, alive, step).tolist()
        going = [n for n, token in enumerate(chosen) if token not in ends]
        for n in going:
            found[alive[n]].append(chosen[n])
        if not going or step == limit - 1:
            break
        alive = [alive[n] for n in going]
        growing.grow(going, [chosen[n] for n in going])
        steps += 1
    return found, steps


def _chooser(temperature: float, top_k: int | None, streams: Float[Tensor, "row step"] | None) -> _Choose:
    if streams is None:
        return lambda logits, rows, step: logits.argmax(-1)

    def choose(logits: Float[Tensor, "row d_vocab"], rows: list[int], step: int) -> Int[Tensor, "row"]:
        return choose_tokens(logits, streams[rows, step], temperature=temperature, top_k=top_k)

    return choose


def choose_tokens(
    logits: Float[Tensor, "row d_vocab"],
    uniforms: Float[Tensor, "row"],
    *,
    temperature: float,
    top_k: int | None = None,
) -> Int[Tensor, "row"]:
    """The token that each uniform number meets, among the k likeliest in falling order of probability.

    Args:
        logits: Before the temperature.
        uniforms: In [0, 1).
        temperature: Above 0.
        top_k: How many to choose from; 1 is greedy, None is all.

    Returns:
        Token ids.

    Example:
        >>> logits = torch.tensor([[0.0, 2.0, 1.0]]).log_softmax(-1)
        >>> [int(choose_tokens(logits, torch.tensor([u]), temperature=1.0, top_k=2)) for u in (0.0, 0.7, 0.8)]
        [1, 1, 2]
    """
    k = logits.shape[-1] if top_k is None else min(top_k, logits.shape[-1])
    best, tokens = logits.topk(k, dim=-1)
    mass = (best / temperature).softmax(-1).double().cumsum(-1)
    target = uniforms.to(logits.device, torch.float64)[:, None] * mass[:, -1:]
    place = torch.searchsorted(mass, target, right=True).clamp(max=k - 1)
    return tokens.gather(-1, place)[:, 0]


def _uniforms(seed: int, samples: int, steps: int) -> Float[Tensor, "sample step"]:
    """Numbers of each sample; the first samples are the same however many there are, the first steps too."""
    rows = []
    for sample in range(samples):
        generator = torch.Generator().manual_seed((seed + sample * 0x9E3779B97F4A7C15) % (1 << 63))
        rows.append(torch.rand(steps, generator=generator, dtype=torch.float64))
    return torch.stack(rows)


def _groups(
    model: HookedModel, prompts: Sequence[Sequence[int]], samples: int, new_tokens: int, rows_at_once: int
) -> list[tuple[Way, list[int], slice]]:
    """How prompts of one length grow, which, and which of their samples: no row is padded."""
    by_length: dict[int, list[int]] = {}
    for place, prompt in enumerate(prompts):
        by_length.setdefault(len(prompt), []).append(place)
    groups: list[tuple[Way, list[int], slice]] = []
    for length, rows in sorted(by_length.items()):
        way = way_of(model, length, new_tokens)
        if way == "one by one":
            groups += [(way, [row], slice(n, n + 1)) for row in rows for n in range(samples)]
        else:
            size = max(1, rows_at_once // samples)
            groups += [(way, rows[first : first + size], slice(None)) for first in range(0, len(rows), size)]
    return groups


def _check(**limits: int | None) -> None:
    for name, value in limits.items():
        if value is not None and value < 1:
            raise ConfigError(f"{name} must be at least 1; got {value}.")
