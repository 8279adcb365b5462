from ._batches import (
    BatchCost as BatchCost,
)
from ._batches import (
    TokenBatch as TokenBatch,
)
from ._batches import (
    batch_from_texts as batch_from_texts,
)
from ._batches import (
    cheapest_cuts as cheapest_cuts,
)
from ._batches import (
    cut_batches as cut_batches,
)
from ._batches import (
    make_batch as make_batch,
)
from ._batches import (
    plan_batches as plan_batches,
)
from ._batches import (
    positions_of as positions_of,
)
from ._benchmarks import (
    BENCHMARKS as BENCHMARKS,
)
from ._benchmarks import (
    Benchmark as Benchmark,
)
from ._benchmarks import (
    load_benchmark as load_benchmark,
)
from ._examples import (
    ForgetExample as ForgetExample,
)
from ._examples import (
    SkippedExample as SkippedExample,
)
from ._examples import (
    Span as Span,
)
from ._examples import (
    entity_span as entity_span,
)
from ._prompts import (
    CHAT_STYLES as CHAT_STYLES,
)
from ._prompts import (
    ChatStyle as ChatStyle,
)
from ._prompts import (
    RenderedExample as RenderedExample,
)
from ._prompts import (
    chat_style_named as chat_style_named,
)
from ._prompts import (
    chosen_protocol as chosen_protocol,
)
from ._prompts import (
    continuation_text as continuation_text,
)
from ._prompts import (
    prompt_text as prompt_text,
)
from ._prompts import (
    render as render,
)
from ._readers import (
    ExamplesLike as ExamplesLike,
)
from ._readers import (
    as_examples as as_examples,
)
from ._readers import (
    load_examples as load_examples,
)
from ._readers import (
    sample_examples as sample_examples,
)
from ._tofu import (
    load_tofu as load_tofu,
)
from ._tofu import (
    with_author_names as with_author_names,
)
from ._tokens import (
    AnswerSequence as AnswerSequence,
)
from ._tokens import (
    Encoded as Encoded,
)
from ._tokens import (
    TokenRow as TokenRow,
)
from ._tokens import (
    TokenSequence as TokenSequence,
)
from ._tokens import (
    answer_ends as answer_ends,
)
from ._tokens import (
    answer_prompt as answer_prompt,
)
from ._tokens import (
    answer_sequences as answer_sequences,
)
from ._tokens import (
    encode as encode,
)
from ._tokens import (
    entity_tokens as entity_tokens,
)
from ._tokens import (
    prompt_ids as prompt_ids,
)
