"""What rooms that let models answer share: where an answer ends, greedy and sampled continuations, ROUGE."""

from uds_lens.generation.continuations import Continuations, choose_tokens, sample_continuations
from uds_lens.generation.greedy_answers import answer_end_ids, generate_answers, greedy
from uds_lens.generation.known_beginnings import KnownBeginning, known_beginning
from uds_lens.generation.not_finite import raise_not_finite
from uds_lens.generation.reading import CachedTexts, Way, WholeTexts, growing_way, way_of
from uds_lens.generation.rouge_recall import rouge_l_recall
from uds_lens.generation.shared_prompts import (
    NotShared,
    PromptChunk,
    may_share_prompts,
    normed_behind_prompts,
    plan_chunks,
    shared_prompts,
)
from uds_lens.generation.token_scores import TokenScores, normed_at_window, read_tokens

__all__ = [
    "CachedTexts",
    "Continuations",
    "KnownBeginning",
    "NotShared",
    "PromptChunk",
    "TokenScores",
    "Way",
    "WholeTexts",
    "answer_end_ids",
    "choose_tokens",
    "generate_answers",
    "greedy",
    "growing_way",
    "known_beginning",
    "may_share_prompts",
    "normed_at_window",
    "normed_behind_prompts",
    "plan_chunks",
    "raise_not_finite",
    "read_tokens",
    "rouge_l_recall",
    "sample_continuations",
    "shared_prompts",
    "way_of",
]
