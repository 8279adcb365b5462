"""How few rows are enough for a first look."""

import dataclasses

import pytest
from tiny_models import some_now

import uds_lens as ul
from uds_lens.errors import ConfigError

WORLD = ul.toy.load()
RUN = ul.RunOptions(device="cpu", progress=False)
MODELS = (WORLD.full, WORLD.retain, WORLD.half)


@pytest.mark.parametrize("precision", some_now([0.3], of=[0.3, 0.03]))
def test_it_is_the_first_sample_that_is_precise_enough(precision: float) -> None:
    limit = ul.audit.limit_for(*MODELS, WORLD.examples, precision=precision, options=RUN)
    sizes = [16, 32]  # six subjects: at least 16 rows; all are 48

    def share(size: int) -> float:
        audit = ul.DepthAudit.run(*MODELS, WORLD.examples, config=ul.AuditConfig(limit=size), options=RUN)
        low, high = audit.uds_interval
        assert audit.sample_error is not None
        return audit.sample_error.standard_error / (high - low)

    assert limit == next((size for size in sizes if share(size) <= precision), 48)


def test_what_it_cannot_do() -> None:
    with pytest.raises(ConfigError, match="precision must be above 0"):
        ul.audit.limit_for(*MODELS, WORLD.examples, precision=0)
    first = dataclasses.replace(ul.AuditConfig(), sample="first", limit=20)
    with pytest.raises(ConfigError, match="needs a random sample"):
        ul.audit.limit_for(*MODELS, WORLD.examples, config=first)
