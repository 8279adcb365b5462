"""Audits of the tiny models, each measured once for all tests that look at it, and audits made by hand."""

import torch
from audit.conftest import _quick, audited  # noqa: F401 - fixtures
from synthetic_audits import record

from uds_lens.data import ForgetExample, SkippedExample
from uds_lens.results import AuditConfig, DepthAudit

NAN = float("nan")


def made(s1, s2, *, types=None, n_tokens=None, skipped=0, names=None, prints=None, **changes):
    """A `DepthAudit` with these deltas (lists of rows) and no model behind it; the rest is plain and can be changed."""
    s1, s2 = (torch.tensor(values, dtype=torch.float64) for values in (s1, s2))
    n = len(s1)
    ones = torch.ones_like(s1)
    roles = ("full", "retain", "unlearned")
    names = {role: f"models/{role}" for role in roles} | (names or {})
    prints = {role: role[0] * 32 for role in roles} | (prints or {})
    values = {
        "config": AuditConfig(n_bootstrap=200),
        "models": {role: record(names[role], prints[role], 3) for role in roles},
        "examples": tuple(
            ForgetExample(
                id=f"e{i}",
                question=f"Q{i}?",
                answer=f"It is A{i}.",
                prefix="It is",
                entity=f"A{i}",
                type=None if types is None else types[i],
                row=10 * i,
            )
            for i in range(n)
        ),
        "skipped": tuple(SkippedExample(f"s{i}", 100 + i, "No entity is given.", f"S{i}?") for i in range(skipped)),
        "provenance": {"ids_hash": "0" * 32, "versions": {"uds_lens": "0.1.0"}, "first_prompt": None},
        "n_tokens": torch.tensor(n_tokens if n_tokens else [i + 1 for i in range(n)], dtype=torch.long),
        "s_full": torch.linspace(-1.0, -0.1, n, dtype=torch.float64),
        "s1_delta": s1,
        "s2_delta": s2,
        **dict.fromkeys(("s1_norm_ratio", "s1_cosine", "s2_norm_ratio", "s2_cosine"), ones),
    }
    return DepthAudit(**{**values, **changes})
