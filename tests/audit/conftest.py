"""Audits of the tiny models, each measured once for all tests that look at it."""

import functools

import pytest
from tiny_models import EXAMPLES

from uds_lens.errors import forget_warnings
from uds_lens.results import AuditConfig, DepthAudit, RunOptions

QUICK = RunOptions(device="cpu", engine="wavefront")


@pytest.fixture(scope="session", autouse=True)
def _quick(one_thread):
    return


@pytest.fixture(autouse=True)
def _told_anew():
    """Let each test hear the warnings that are given once."""
    forget_warnings()


@pytest.fixture(scope="session")
def audited(trio):
    """`audited(family, unlearned="unlearned", **settings)`: a finished audit on the tiny forget set."""

    @functools.cache
    def of(family="llama", unlearned="unlearned", **settings):
        paths = trio(family)
        config = AuditConfig(**settings)
        return DepthAudit.run(
            paths.full, paths.retain, getattr(paths, unlearned), EXAMPLES, config=config, options=QUICK
        )

    return of
