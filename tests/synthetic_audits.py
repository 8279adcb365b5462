"""Audits made of random numbers: any size in no time, no model behind them."""

import dataclasses
from collections.abc import Sequence

import torch

from uds_lens.data import ForgetExample, SkippedExample
from uds_lens.results import AuditConfig, DepthAudit, ModelRecord
from uds_lens.results._stage_1 import ControlFacts, RetainStage1

TYPES = ("Person Name", "Award", "Book/Work Title", "Yes/No")


def synthetic_audit(
    *,
    n: int = 24,
    layers: int = 6,
    seed: int = 0,
    name: str = "ckpt/npo",
    questions: Sequence[str] | None = None,
    erased: float = 0.5,
    skipped: int = 1,
    config: AuditConfig | None = None,
) -> DepthAudit:
    """Knowledge that grows with depth and is gone by `erased`; the last example has no KE layer.

    Stage 1 depends on the sizes only, so that audits of one size share a baseline.
    """
    first = torch.Generator().manual_seed(n * 100 + layers)
    s1 = torch.rand(n, layers, generator=first, dtype=torch.float64) * torch.linspace(0.05, 4, layers).double()
    if n:
        s1[-1] = 0.0
    ratio = erased + 0.5 * torch.randn(n, layers, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    near = torch.ones_like(s1)
    return DepthAudit(
        config=config or AuditConfig(n_bootstrap=200),
        models={
            "full": record("ckpt/full", "f" * 32, layers),
            "retain": record("ckpt/retain", "a" * 32, layers),
            "unlearned": record(name, f"{seed:032x}", layers),
        },
        examples=[example(i, questions) for i in range(n)],
        skipped=[
            SkippedExample(id=f"s{i}", row=n + i, reason="the entity is not in the answer", question=f"Skipped {i}?")
            for i in range(skipped)
        ],
        provenance={
            "created": "2025-01-02T03:04:05+00:00",
            "command": "uds-lens audit --full ckpt/full",
            "versions": {"uds_lens": "0.1.0", "torch": "2.6"},
            "python": "3.11",
            "platform": "Linux",
            "engine": "wavefront",
            "device": "cpu",
            "first_prompt": "Question: Who?\nAnswer: ",
            "ids_hash": "0" * 32,
        },
        n_tokens=torch.tensor([1 + i % 5 for i in range(n)], dtype=torch.long),
        s_full=torch.full((n,), -0.1, dtype=torch.float64),
        s1_delta=s1,
        s2_delta=s1 * ratio,
        s1_norm_ratio=near,
        s1_cosine=0.9 * near,
        s2_norm_ratio=near,
        s2_cosine=0.8 * near,
    )


def example(i: int, questions: Sequence[str] | None = None) -> ForgetExample:
    question = questions[i] if questions and i < len(questions) else f"Question number {i} about author {i % 7}?"
    return ForgetExample(
        id=f"e{i}",
        question=question,
        answer=f"It is entity {i}.",
        prefix="It is",
        entity=f"entity {i}",
        type=TYPES[i % 4],
        row=i,
    )


def record(name: str, fingerprint: str, layers: int) -> ModelRecord:
    return ModelRecord(
        name=name,
        fingerprint=fingerprint,
        architecture="LlamaForCausalLM",
        dtype="float32",
        n_layers=layers,
        d_model=64,
    )


def with_control(audit: DepthAudit, *, n: int = 12, lost: float = 0.4, subjects: int = 4) -> DepthAudit:
    """The same audit with control facts about some subjects, on which the unlearned states cost `lost` nats."""
    layers = audit.n_layers
    facts = [dataclasses.replace(example(i), id=f"kept{i}", subject=f"person {i % subjects}") for i in range(n)]
    known = torch.linspace(0.5, 1.5, n, dtype=torch.float64)[:, None].expand(n, layers)
    control = ControlFacts(
        examples=tuple(facts),
        skipped=(SkippedExample("gone", n, "the entity is not in the answer", "Kept?"),),
        ids_hash="c" * 32,
        sample=None,
        n_tokens=torch.ones(n, dtype=torch.long),
        s_full=torch.full((n,), -0.1, dtype=torch.float64),
        s1_delta=0.05 * known,
    )
    return dataclasses.replace(audit, control=control, control_s2_delta=lost * known)


def with_retains(audit: DepthAudit, *, scales: Sequence[float] = (0.9, 1.1)) -> DepthAudit:
    """The same audit against several retain models, whose S1 are multiples of its own with this mean."""
    retains = tuple(
        RetainStage1(
            model=record(f"ckpt/retain-{i}", f"{i:x}" * 32, audit.n_layers),
            s1_delta=scale * audit.s1_delta,
            s1_norm_ratio=audit.s1_norm_ratio,
            s1_cosine=audit.s1_cosine,
            control_s1_delta=None if audit.control is None else audit.control.s1_delta,
        )
        for i, scale in enumerate(scales, start=1)
    )
    return dataclasses.replace(audit, retains=retains)
