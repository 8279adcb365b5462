from ._batches import (
    BatchCost as BatchCost,
    TokenBatch as TokenBatch,
    batch_from_texts as batch_from_texts,
    cheapest_cuts as cheapest_cuts,
    cut_batches as cut_batches,
    make_batch as make_batch,
    plan_batches as plan_batches,
    positions_of as positions_of,
)
from ._benchmarks import (
    BENCHMARKS as BENCHMARKS,
    Benchmark as Benchmark,
    load_benchmark as load_benchmark,
    load_tofu as load_tofu,
    with_author_names as with_author_names,
)
from ._counterfactuals import counterfactuals as counterfactuals
from ._examples import (
    ForgetExample as ForgetExample,
    SkippedExample as SkippedExample,
    Span as Span,
    entity_span as entity_span,
)
from ._prompts import (
    CHAT_STYLES as CHAT_STYLES,
    ChatStyle as ChatStyle,
    RenderedExample as RenderedExample,
    chat_style_named as chat_style_named,
    chosen_protocol as chosen_protocol,
    continuation_text as continuation_text,
    prompt_text as prompt_text,
    render as render,
)
from ._readers import (
    ExamplesLike as ExamplesLike,
    as_examples as as_examples,
    load_examples as load_examples,
    sample_examples as sample_examples,
)
from ._tokens import (
    AnswerSequence as AnswerSequence,
    Encoded as Encoded,
    TokenRow as TokenRow,
    TokenSequence as TokenSequence,
    answer_ends as answer_ends,
    answer_prompt as answer_prompt,
    answer_sequences as answer_sequences,
    encode as encode,
    entity_tokens as entity_tokens,
    prompt_ids as prompt_ids,
)
