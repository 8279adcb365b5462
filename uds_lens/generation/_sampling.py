"""Sampled continuations: each prompt is read once, its cache repeated for the samples, finished rows dropped.

Every sample has its own stream of uniform numbers, and each token is the one its number meets in the cumulative
distribution. So a text depends on seed and prompt only, not on what runs beside it, and two models with the same
distribution generate the same text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from uds_lens._progress import progress
from uds_lens._settings import validated
from uds_lens._types import NonNegativeFloat, PositiveInt
from uds_lens.errors import ConfigError
from uds_lens.generation._greedy import GenerationSettings
from uds_lens.generation._reading import Way, generate, texts_growing, way_of
from uds_lens.models import HookedModel


@validated
@dataclass(frozen=True, kw_only=True)
class SamplingSettings(GenerationSettings):
    """Greedy or sampled continuations: how many, how long, how random.

    Raises:
        ConfigError: A value is outside its range.
    """

    rows_at_once: PositiveInt = 256
    """Continuations side by side; all samples of one prompt, where those are more."""

    samples: PositiveInt = 1
    """Continuations of each prompt."""

    temperature: NonNegativeFloat = 0.0
    """Logits are divided by it; 0 takes the likeliest token."""

    top_k: PositiveInt | None = None
    """Sample from this many likeliest tokens; None for all."""


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
    settings: SamplingSettings | None = None,
    seeds: Sequence[int] | None = None,
    names: Sequence[str] | None = None,
    desc: str = "answers",
) -> Continuations:
    """Continue tokenised prompts, greedily or by sampling from the k likeliest tokens.

    Args:
        model: The model.
        prompts: Token ids, unpadded, none empty.
        ends: Tokens that end a text.
        settings: Samples, temperature, length; None means `SamplingSettings()`, which is greedy.
        seeds: One per prompt, from which its samples' numbers are drawn; needed unless greedy.
        names: Names of the prompts in an error; default their numbers.
        desc: Label of the progress bar.

    Returns:
        The continuations, in the order of the prompts.

    Raises:
        ConfigError: A temperature above 0 without seeds.
        ModelError: NaN or infinite logits; names the prompt.
    """
    settings = settings or SamplingSettings()
    limit, samples, temperature = settings.max_new_tokens, settings.samples, settings.temperature
    if temperature > 0 and seeds is None:
        raise ConfigError(f"sampling at temperature {temperature:g} needs one seed per prompt.")
    names = [str(i) for i in range(len(prompts))] if names is None else names
    generated: list[list[list[int]]] = [[[] for _ in range(samples)] for _ in prompts]
    steps = 0
    groups = list(_groups(model, prompts, settings))
    for way, rows, which in progress(groups, desc=desc, unit="batch", enabled=settings.progress):
        streams: Tensor | None = None
        if temperature > 0 and seeds is not None:
            streams = torch.cat([_uniforms(seeds[i], samples, limit)[which] for i in rows])

        def choose(
            logits: Float[Tensor, "row d_vocab"], alive: list[int], step: int, streams: Tensor | None = streams
        ) -> Int[Tensor, "row"]:
            if streams is None:
                return logits.argmax(-1)
            return choose_tokens(logits.float(), streams[alive, step], temperature=temperature, top_k=settings.top_k)

        count = len(range(samples)[which])
        growing = texts_growing(model, [prompts[i] for i in rows], way)
        if count > 1:
            growing.repeat(count)
        owners = [i for i in rows for _ in range(count)]
        texts, passes = generate(
            model, growing, [limit] * len(owners), choose, ends=ends, names=[names[i] for i in owners]
        )
        steps += passes
        for n, i in enumerate(rows):
            generated[i][which] = texts[n * count : (n + 1) * count]
    return Continuations(generated, sum(map(len, prompts)), steps)


def choose_tokens(
    logits: Float[Tensor, "row d_vocab"],
    uniforms: Float[Tensor, "row"],
    *,
    temperature: float,
    top_k: int | None = None,
) -> Int[Tensor, "row"]:
    """Return the token that each uniform number meets, among the k likeliest in falling order of probability.

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
    """Draw each sample's numbers; the first samples are the same however many there are, the first steps too."""
    rows = []
    for sample in range(samples):
        generator = torch.Generator().manual_seed((seed + sample * 0x9E3779B97F4A7C15) % (1 << 63))
        rows.append(torch.rand(steps, generator=generator, dtype=torch.float64))
    return torch.stack(rows)


def _groups(
    model: HookedModel, prompts: Sequence[Sequence[int]], settings: SamplingSettings
) -> Iterator[tuple[Way, list[int], slice]]:
    """Yield prompts of one length, so that no row is padded, how they grow, and which of their samples."""
    by_length: dict[int, list[int]] = {}
    for place, prompt in enumerate(prompts):
        by_length.setdefault(len(prompt), []).append(place)
    for length, rows in sorted(by_length.items()):
        way = way_of(model, length, settings.max_new_tokens)
        if way == "one by one":
            yield from ((way, [row], slice(n, n + 1)) for row in rows for n in range(settings.samples))
        else:
            size = max(1, settings.rows_at_once // settings.samples)
            yield from ((way, rows[first : first + size], slice(None)) for first in range(0, len(rows), size))
