from ._batches import (
    TokenBatch as TokenBatch,
    batch_from_texts as batch_from_texts,
    make_batch as make_batch,
    positions_of as positions_of,
)
from ._benchmarks import (
    BENCHMARKS as BENCHMARKS,
    load_benchmark as load_benchmark,
    load_tofu as load_tofu,
    with_author_names as with_author_names,
)
from ._counterfactuals import counterfactuals as counterfactuals
from ._examples import ForgetExample as ForgetExample, SkippedExample as SkippedExample, entity_span as entity_span
from ._prompts import CHAT_STYLES as CHAT_STYLES
from ._readers import load_examples as load_examples, sample_examples as sample_examples
from ._tokens import (
    Encoded as Encoded,
    answer_prompt as answer_prompt,
    answer_sequences as answer_sequences,
    encode as encode,
)
