"""Greedy answers and sampled continuations, generated in batches.

Sampling processes each prompt once, copies its cache for every sample, and drops finished rows. Every sample has its
own stream of uniform random numbers, and each number selects a token from the cumulative distribution. A text therefore
depends only on the seed and the prompt, not on the batch, and two models with the same distribution generate the same
text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set as AbstractSet
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from uds_lens._progress import progress
from uds_lens._settings import validated
from uds_lens._types import NonNegativeFloat, PositiveFloat, PositiveInt, Protocol
from uds_lens.data._prompts import ChatStyle
from uds_lens.data._tokens import TokenSequence, answer_ends, answer_prompt, prompt_ids
from uds_lens.errors import ConfigError
from uds_lens.generation._reading import Way, generate, texts_growing, way_of
from uds_lens.models import HookedModel
from uds_lens.patching import row_layout


@validated
@dataclass(frozen=True, kw_only=True)
class GenerationSettings:
    """Settings for generating answers.

    Raises:
        ConfigError: A value is outside its range.
    """

    max_new_tokens: PositiveInt = 200
    """Maximum length of an answer, in tokens."""

    rows_at_once: PositiveInt = 64
    """Answers generated per batch."""

    repetition_penalty: PositiveFloat = 1.0
    """Repetition penalty: for tokens already in the text (prompt included), positive logits are divided by the penalty
    and negative logits are multiplied by it. 1 means no penalty, even if the model's generation config sets one."""

    progress: bool | None = None
    """Whether to show a progress bar; None shows it in terminals only."""


@dataclass(frozen=True)
class KnownBeginning:
    """The first tokens of a greedy answer, with its prompt."""

    prompt: tuple[int, ...]
    """Token ids of the prompt."""

    tokens: tuple[int, ...]
    """Token ids at the beginning of the answer."""

    def of(self, prompt: Sequence[int], *, ends: AbstractSet[int], limit: int) -> tuple[list[int], bool]:
        """Return the known tokens of the answer to `prompt` (at most `limit`), and whether the answer is complete.

        The end token is not included. No tokens are returned if `prompt` differs from the stored prompt.

        Example:
            >>> known = KnownBeginning((1, 5), (7, 8, 2))
            >>> known.of([1, 5], ends={2}, limit=9), known.of([1, 5], ends={3}, limit=9)
            (([7, 8], True), ([7, 8, 2], False))
        """
        if tuple(prompt) != self.prompt:
            return [], False
        tokens = list(self.tokens[:limit])
        end = next((place for place, token in enumerate(tokens) if token in ends), None)
        return (tokens, len(tokens) == limit) if end is None else (tokens[:end], True)


def known_beginning(row: TokenSequence, first_choices: Sequence[int]) -> KnownBeginning | None:
    """Derive the beginning of the greedy answer from the model's argmax tokens along a reference.

    Args:
        row: Prompt and reference; the reference tokens are the scored ones.
        first_choices: The argmax token at each scored position; empty if the row was not run.

    Returns:
        The reference tokens up to the first position where the argmax differs, followed by the argmax token there; None
        if `first_choices` is empty.

    Example:
        >>> row = TokenSequence(ids=(1, 5, 7, 8), targets=(7, 8, 2), scored=(1, 2, 3), patched=())
        >>> known_beginning(row, [7, 9, 2])
        KnownBeginning(prompt=(1, 5), tokens=(7, 9))
    """
    choices = [int(token) for token in first_choices]
    if not choices:
        return None
    pairs = zip(choices, row.targets, strict=True)
    agreed = next((place for place, (choice, target) in enumerate(pairs) if choice != target), len(choices))
    return KnownBeginning(row.ids[: row.scored[0] + 1], tuple(choices[: agreed + 1]))


def answer_end_ids(model: HookedModel, *, protocol: Protocol = "raw", chat: ChatStyle | None = None) -> frozenset[int]:
    """Return the tokens that end an answer, from the generation config, the tokenizer and the chat template."""
    configured = getattr(getattr(model.hf, "generation_config", None), "eos_token_id", None)
    several = configured if isinstance(configured, list | tuple) else [configured]
    ends = () if model.tokenizer is None else answer_ends(model.tokenizer, protocol=protocol, chat=chat)
    return frozenset(int(token) for token in (*several, *ends) if token is not None)


def generate_answers(
    model: HookedModel,
    questions: Sequence[str],
    *,
    protocol: Protocol,
    chat: ChatStyle | None = None,
    start: str = "",
    known: Sequence[KnownBeginning | None] | None = None,
    bare: bool = False,
    settings: GenerationSettings | None = None,
    desc: str = "generate",
) -> list[str]:
    """Generate greedy answers to questions.

    Prompts of similar length are left-padded and run in batches with a key-value cache; finished answers leave the
    batch. If batching or caching would change a model's results (`growing_way`), answers are generated one at a time,
    or the whole text is processed again for each token. The whole text is also processed again if it grows past the
    length at which rotary frequencies change ("longrope", "dynamic"). From the model's generation config, only the end
    tokens are used, not the sampling settings or `repetition_penalty`, for which `settings` has an option.

    Args:
        model: The model, with its tokenizer.
        questions: The questions.
        protocol: "raw" or "chat".
        chat: Settings of chat prompts; None means `ChatStyle()`.
        start: Beginning of the answer, which becomes part of the prompt and is not returned.
        known: Known beginning of each answer (from `known_beginning`), which need not be generated again.
        bare: Treat the questions as plain texts to be continued, without a template.
        settings: Answer length and batch size; None means `GenerationSettings()`.
        desc: Label of the progress bar.

    Returns:
        The answers in the order of the questions, without special tokens or surrounding white space.

    Raises:
        ModelError: The model outputs NaN or infinite logits; the message names the question.
    """
    settings = settings or GenerationSettings()
    tokenizer: Any = model.tokenizer
    protocol = "raw" if bare else protocol
    prompts = [answer_prompt(q, protocol=protocol, tokenizer=tokenizer, chat=chat, start=start) for q in questions]
    ids = prompt_ids(tokenizer, questions if bare else prompts, protocol=protocol)
    ends = answer_end_ids(model, protocol=protocol, chat=chat)
    if known is None or settings.repetition_penalty != 1.0:  # known tokens were chosen without a penalty
        known = [None] * len(ids)
    starts = [
        ([], False) if beginning is None else beginning.of(prompt, ends=ends, limit=settings.max_new_tokens)
        for prompt, beginning in zip(ids, known, strict=True)
    ]
    answers = [tokens for tokens, _ in starts]
    order = [i for i, (_, is_complete) in enumerate(starts) if not is_complete]
    order.sort(key=lambda i: len(ids[i]) + len(answers[i]))
    batches = range(0, len(order), settings.rows_at_once)
    for first in progress(batches, desc=desc, unit="batch", enabled=settings.progress):
        rows = order[first : first + settings.rows_at_once]
        new = greedy(
            model,
            [ids[i] for i in rows],
            begun=[answers[i] for i in rows],
            max_new_tokens=settings.max_new_tokens,
            ends=ends,
            names=[questions[i] for i in rows],
            repetition_penalty=settings.repetition_penalty,
        )
        for i, tokens in zip(rows, new, strict=True):
            answers[i] = tokens
    return [tokenizer.decode(tokens, skip_special_tokens=True).strip() for tokens in answers]


@torch.no_grad()
def greedy(
    model: HookedModel,
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    begun: Sequence[Sequence[int]] | None = None,
    ends: frozenset[int] | None = None,
    names: Sequence[str] | None = None,
    repetition_penalty: float = 1.0,
) -> list[list[int]]:
    """Continue tokenised prompts greedily, in batches.

    Args:
        model: The model.
        prompts: Token ids, unpadded.
        max_new_tokens: Maximum length of a continuation.
        begun: Known first tokens of each continuation (fewer than `max_new_tokens`), processed together with the
            prompt.
        ends: Tokens that end a continuation; None means `answer_end_ids(model)`.
        names: Names of the rows in error messages; default: row numbers.
        repetition_penalty: See `GenerationSettings`.

    Returns:
        New token ids per prompt, without the end token.

    Raises:
        ModelError: The model outputs NaN or infinite logits.
    """
    ends = answer_end_ids(model) if ends is None else ends
    names = [f"number {row}" for row in range(len(prompts))] if names is None else names
    generated = [[] for _ in prompts] if begun is None else [list(tokens) for tokens in begun]
    texts = [[*prompt, *tokens] for prompt, tokens in zip(prompts, generated, strict=True)]
    limits = [max_new_tokens - len(tokens) for tokens in generated]
    by_way: dict[Way, list[int]] = {}
    for row, (text, limit) in enumerate(zip(texts, limits, strict=True)):
        by_way.setdefault(way_of(model, len(text), limit), []).append(row)
    for way, rows in by_way.items():
        groups = [rows]
        if way == "one by one":
            groups = [[row] for row in rows]
        elif way == "side by side":
            groups = row_layout(model).split([rows], list(map(len, texts)))
        for group in groups:
            repeated = _Repetitions([texts[row] for row in group], repetition_penalty)
            new, _ = generate(
                model,
                texts_growing(model, [texts[row] for row in group], way),
                [limits[row] for row in group],
                partial(_likeliest, repeated),
                ends=ends,
                names=[names[row] for row in group],
            )
            for row, tokens in zip(group, new, strict=True):
                generated[row] += tokens
    return generated


def _likeliest(
    repeated: _Repetitions, logits: Float[Tensor, "row d_vocab"], alive: list[int], step: int
) -> Int[Tensor, "row"]:
    return repeated.remembered(repeated.penalised(logits, alive).argmax(-1), alive)


class _Repetitions:
    """Applies the repetition penalty to tokens that a text already contains."""

    def __init__(self, texts: Sequence[Sequence[int]], penalty: float) -> None:
        self._penalty = penalty
        self._held = [set(text) for text in texts]

    def penalised(self, logits: Float[Tensor, "row d_vocab"], alive: list[int]) -> Float[Tensor, "row d_vocab"]:
        if self._penalty == 1.0:
            return logits
        logits = logits.float()
        for row, own in zip(alive, logits, strict=True):
            places = torch.tensor(sorted(self._held[row]), device=own.device)
            own[places] = torch.where(own[places] < 0, own[places] * self._penalty, own[places] / self._penalty)
        return logits

    def remembered(self, tokens: Int[Tensor, "row"], alive: list[int]) -> Int[Tensor, "row"]:
        if self._penalty != 1.0:
            for row, token in zip(alive, tokens.tolist(), strict=True):
                self._held[row].add(token)
        return tokens


@validated
@dataclass(frozen=True, kw_only=True)
class SamplingSettings(GenerationSettings):
    """Settings for sampled continuations.

    Raises:
        ConfigError: A value is outside its range.
    """

    rows_at_once: PositiveInt = 256
    """Continuations per batch. All samples of one prompt always share a batch."""

    samples: PositiveInt = 1
    """Number of continuations per prompt."""

    temperature: NonNegativeFloat = 0.0
    """Sampling temperature; 0 selects the most likely token."""

    top_k: PositiveInt | None = None
    """Sample from this many of the most likely tokens; None samples from all tokens."""


@dataclass(frozen=True)
class Continuations:
    """New tokens for every prompt and sample."""

    tokens: list[list[list[int]]]
    """`[prompt][sample]`: token ids, without the end token."""

    prefilled: int
    """Number of prompt tokens processed, counting each prompt once."""

    steps: int
    """Number of forward passes, including those for the prompts."""


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
    """Continue tokenised prompts, greedily or by top-k sampling.

    Args:
        model: The model.
        prompts: Token ids without padding; no prompt may be empty.
        ends: Tokens that end a text.
        settings: Sampling settings; None means `SamplingSettings()`, which is greedy.
        seeds: One random seed per prompt; required unless decoding is greedy.
        names: Names of the prompts in error messages; default: prompt numbers.
        desc: Label of the progress bar.

    Returns:
        The continuations, in the order of the prompts.

    Raises:
        ConfigError: The temperature is above 0, but no seeds are given.
        ModelError: The model outputs NaN or infinite logits; the message names the prompt.
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

        count = len(range(samples)[which])
        growing = texts_growing(model, [prompts[i] for i in rows], way)
        if count > 1:
            growing.repeat(count)
        owners = [i for i in rows for _ in range(count)]
        repeated = _Repetitions([prompts[i] for i in owners], settings.repetition_penalty)

        def choose(
            logits: Float[Tensor, "row d_vocab"],
            alive: list[int],
            step: int,
            streams: Tensor | None = streams,
            repeated: _Repetitions = repeated,
        ) -> Int[Tensor, "row"]:
            if streams is None:
                return _likeliest(repeated, logits, alive, step)
            logits, drawn = repeated.penalised(logits.float(), alive), streams[alive, step]
            tokens = choose_tokens(logits, drawn, temperature=temperature, top_k=settings.top_k)
            return repeated.remembered(tokens, alive)

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
    """Select one of each row's k most likely tokens by inverse transform sampling, in order of decreasing probability.

    Args:
        logits: Logits before dividing by the temperature.
        uniforms: One number in [0, 1) per row.
        temperature: Temperature, above 0.
        top_k: Number of tokens to choose from; 1 is greedy, None means all tokens.

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
    """Draw each sample's random numbers; asking for more samples or steps does not change earlier numbers."""
    rows = []
    for sample in range(samples):
        generator = torch.Generator().manual_seed((seed + sample * 0x9E3779B97F4A7C15) % (1 << 63))
        rows.append(torch.rand(steps, generator=generator, dtype=torch.float64))
    return torch.stack(rows)


def _groups(
    model: HookedModel, prompts: Sequence[Sequence[int]], settings: SamplingSettings
) -> Iterator[tuple[Way, list[int], slice]]:
    """Yield batches of prompts of equal length (so that no row is padded), their `Way`, and the samples to draw."""
    for way, rows in rows_of_one_length(model, prompts, settings.max_new_tokens):
        if way == "one by one":
            yield from ((way, [row], slice(n, n + 1)) for row in rows for n in range(settings.samples))
        else:
            size = max(1, settings.rows_at_once // settings.samples)
            yield from ((way, rows[first : first + size], slice(None)) for first in range(0, len(rows), size))


def rows_of_one_length(
    model: HookedModel, prompts: Sequence[Sequence[int]], new_tokens: int
) -> Iterator[tuple[Way, list[int]]]:
    """Yield the prompts of each length, shortest first, and the `Way` in which their texts are generated."""
    by_length: dict[int, list[int]] = {}
    for place, prompt in enumerate(prompts):
        by_length.setdefault(len(prompt), []).append(place)
    for length, rows in sorted(by_length.items()):
        yield way_of(model, length, new_tokens), rows
