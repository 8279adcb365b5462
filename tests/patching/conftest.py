"""Token batches over the tiny models' forget set."""

import functools

import pytest
from audit.conftest import _quick, _told_anew  # noqa: F401 - fixtures
from tiny_models import EXAMPLES, build_tokenizer

from uds_lens.data import encode, make_batch


@pytest.fixture(scope="session")
def batch_of():
    """`batch_of(scope, side, indices)`: rows of unequal length and unequal spans in one batch."""
    tokenizer = build_tokenizer()

    @functools.cache
    def of(scope="entity", side="left", indices=None):
        rows = encode(EXAMPLES, tokenizer, scope=scope).rows
        return make_batch(rows, indices=indices, pad_token_id=tokenizer.pad_token_id, padding_side=side)

    return of
