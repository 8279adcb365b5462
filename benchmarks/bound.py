"""The least arithmetic an audit, and one more unlearned model, can cost: multiply-adds of matrix products.

Counted is what no way of patching saves, from embeddings to scored unembeddings. Norms, rotary positions, softmax,
exponentials of the log-probabilities, padding, hashes and tokenising are not.

Assumed: every row runs by itself (an audit runs what rows begin with alike once, and may pass this bound), all layers
of all rows are measured, and blocks are dense. A plain forward has some of what is not counted in its seconds: told in
plain forwards, a share of 100% is a plain forward's efficiency, and could be passed.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from uds_lens.data import Encoded


class Bound(NamedTuple):
    """Multiply-adds."""

    forward: float
    """One plain forward over all rows, without logits."""
    source: float
    """The source: the same, but its last block beyond the keys and values only at the windows."""
    variants: float
    """T (L - 1) L / 2 token-layers of patched variants per row."""
    unembedding: float
    """L scored unembeddings per entity token."""

    own: float
    """One scored unembedding per entity token: the log-probabilities of `full` itself."""

    @property
    def one_more(self) -> float:
        """One more model, `full` recorded already, in plain forwards."""
        return (self.source + self.variants + self.unembedding) / self.forward

    @property
    def whole(self) -> float:
        """Both stages with one unlearned model: `full` is run as sources are, and two of them are patched into it."""
        return (3 * self.source + 2 * (self.variants + self.unembedding) + self.own) / self.forward


def least_work(config: Any, encoded: Encoded) -> Bound:
    """Count the matrix products of a Llama-like decoder; attention over S keys counts per query."""
    d, layers, inner = config.hidden_size, config.num_hidden_layers, config.intermediate_size
    head = config.head_dim
    queries, keys = config.num_attention_heads * head, config.num_key_value_heads * head
    key_value = 2 * d * keys
    block = 2 * d * queries + key_value + 3 * d * inner
    forward = source = variants = own = 0.0
    for row in encoded.rows:
        length, window = len(row.ids), len(row.window)
        per_token = block + queries * (length + 1)  # causal: half of 2 x length keys on average
        at_window = block + 2 * queries * length
        forward += length * per_token * layers
        source += length * per_token * (layers - 1) + length * key_value + window * (at_window - key_value)
        variants += window * at_window * layers * (layers - 1) / 2
        own += len(row.scored) * d * config.vocab_size
    return Bound(forward, source, variants, layers * own, own)
