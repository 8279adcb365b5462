"""What a pass over a reference already says of the greedy answer: it is the reference up to the first other choice."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from uds_lens.checked_arguments import arguments_checked
from uds_lens.data import TokenSequence


@dataclass(frozen=True)
class KnownBeginning:
    """Tokens that a greedy answer begins with, and the prompt that they follow."""

    prompt: tuple[int, ...]
    """Token ids of the prompt."""

    tokens: tuple[int, ...]
    """Token ids of the answer's beginning."""

    @arguments_checked
    def of(self, prompt: Sequence[int], *, ends: AbstractSet[int], limit: int) -> tuple[list[int], bool]:
        """How far the answer to a prompt is known.

        Args:
            prompt: What the answer follows; nothing is known of the answer to another prompt.
            ends: Tokens that end an answer.
            limit: Longest answer, in tokens.

        Returns:
            Its first tokens, without an end token, and whether that is all of it.

        Example:
            >>> known = KnownBeginning((1, 5), (7, 8, 2))
            >>> known.of([1, 5], ends={2}, limit=9), known.of([1, 5], ends={3}, limit=9)
            (([7, 8], True), ([7, 8, 2], False))
        """
        if tuple(prompt) != self.prompt:
            return [], False
        found = list(self.tokens[:limit])
        end = next((place for place, token in enumerate(found) if token in ends), None)
        if end is not None:
            return found[:end], True
        return found, len(found) == limit


@arguments_checked
def known_beginning(row: TokenSequence, first_choices: Sequence[int]) -> KnownBeginning | None:
    """How the greedy answer to a prompt begins, from what a model chose at each token of a reference.

    Args:
        row: Prompt and reference, the reference's tokens scored.
        first_choices: The model's first choice for each of them; empty where they were not run.

    Returns:
        The reference up to the first token where the model chooses another, and that choice; None where nothing
        was run.

    Example:
        >>> row = TokenSequence(ids=(1, 5, 7, 8), targets=(7, 8, 2), scored=(1, 2, 3), patched=())
        >>> known_beginning(row, [7, 9, 2])
        KnownBeginning(prompt=(1, 5), tokens=(7, 9))
    """
    choices = [int(token) for token in first_choices]
    if not choices:
        return None
    pairs = zip(choices, row.targets, strict=True)
    agreed = next((place for place, (own, told) in enumerate(pairs) if own != told), len(choices))
    return KnownBeginning(row.ids[: row.scored[0] + 1], tuple(choices[: agreed + 1]))
