"""Examples, readers, prompts, entity spans and token batches."""

from uds_lens.data.answer_tokens import (
    AnswerSequence,
    answer_ends,
    answer_prompt,
    answer_sequences,
)
from uds_lens.data.batching import cut_batches, plan_batches
from uds_lens.data.benchmarks import BENCHMARKS, Benchmark, load_benchmark
from uds_lens.data.chat_style import CHAT_STYLES, ChatStyle, chat_style_named
from uds_lens.data.example import ForgetExample, SkippedExample
from uds_lens.data.partition import BatchCost, cheapest_cuts
from uds_lens.data.prompts import RenderedExample, chosen_protocol, continuation_text, prompt_text, render
from uds_lens.data.readers import ExamplesLike, as_examples, load_examples
from uds_lens.data.sampling import sample_examples
from uds_lens.data.spans import Span, entity_span
from uds_lens.data.tofu import load_tofu
from uds_lens.data.tofu_names import with_author_names
from uds_lens.data.token_batch import TokenBatch, batch_from_texts, make_batch
from uds_lens.data.token_sequence import Encoded, TokenRow, TokenSequence, encode, entity_tokens, prompt_ids

__all__ = [
    "BENCHMARKS",
    "CHAT_STYLES",
    "AnswerSequence",
    "BatchCost",
    "Benchmark",
    "ChatStyle",
    "Encoded",
    "ExamplesLike",
    "ForgetExample",
    "RenderedExample",
    "SkippedExample",
    "Span",
    "TokenBatch",
    "TokenRow",
    "TokenSequence",
    "answer_ends",
    "answer_prompt",
    "answer_sequences",
    "as_examples",
    "batch_from_texts",
    "chat_style_named",
    "cheapest_cuts",
    "chosen_protocol",
    "continuation_text",
    "cut_batches",
    "encode",
    "entity_span",
    "entity_tokens",
    "load_benchmark",
    "load_examples",
    "load_tofu",
    "make_batch",
    "plan_batches",
    "prompt_ids",
    "prompt_text",
    "render",
    "sample_examples",
    "with_author_names",
]
