"""The audit equals an implementation written a second time, and its identities hold exactly."""

import functools
import math
from pathlib import Path

import pytest
import torch
from audit import independent
from tiny_models import CORE, EXAMPLES, each_family, load_plain

from uds_lens.results import AuditConfig, DepthAudit, RunOptions

NAIVE = RunOptions(device="cpu", engine="naive")


def as_tensor(values):
    """Nested lists to float64, None to NaN."""
    if isinstance(values[0], list):
        return torch.stack([as_tensor(row) for row in values])
    return torch.tensor([float("nan") if v is None else float(v) for v in values], dtype=torch.float64)


def assert_same(audit, expected, tolerance):
    for name in ("s_full", "s_unlearned", "s_retain", "s1_delta", "s2_delta"):
        gap = (getattr(audit, name) - as_tensor(expected[name])).abs().max()
        assert gap <= tolerance, (name, float(gap))
    told = audit.output_depth_per_example, as_tensor(expected["output_depth"])
    torch.testing.assert_close(*told, atol=20 * tolerance, rtol=0, equal_nan=True)  # divided by more than tau


@pytest.fixture
def audited(audited):
    """Audits with the raw prompts that the independent implementation writes."""
    return functools.partial(audited, protocol="raw")


@pytest.mark.parametrize("family", each_family(CORE))
def test_an_audit_equals_the_independent_implementation(audited, trio, family):
    audit = audited(family)
    expected = independent.audit(*trio(family), EXAMPLES)
    assert_same(audit, expected, 1e-5)
    assert audit.ke_mask.tolist() == expected["ke"]
    ler, uds = as_tensor(expected["ler"]), as_tensor(expected["uds_per_example"])
    # A ratio is as uncertain as its parts: 1e-5 nats over at least tau = 0.05.
    torch.testing.assert_close(audit.ler, ler, atol=5e-4, rtol=0, equal_nan=True)
    torch.testing.assert_close(audit.uds_per_example, uds, atol=5e-4, rtol=0, equal_nan=True)
    assert audit.uds == pytest.approx(expected["uds"], abs=5e-4)
    assert 0.02 < audit.uds < 0.98, "too easy: the score says nothing about errors in between"


@pytest.mark.parametrize("scope", ["boundary", "all"])
def test_other_scopes_equal_the_independent_implementation(audited, trio, scope):
    assert_same(audited("llama", scope=scope), independent.audit(*trio("llama"), EXAMPLES, scope=scope), 1e-5)


@pytest.mark.parametrize("family", each_family(["llama"]))
def test_bfloat16_differs_by_its_rounding_only(audited, trio, family):
    audit = audited(family, dtype="bfloat16")
    expected = independent.audit(*trio(family), EXAMPLES, dtype=torch.bfloat16)
    # Other batch shapes round other ways: logits near 4 come in steps of 0.02 and each block adds its own
    # rounding. Single examples may move by a few steps; a wrong position or mask moves the mean by 0.2 or more.
    for name in ("s_full", "s1_delta", "s2_delta"):
        difference = (getattr(audit, name) - as_tensor(expected[name])).abs()
        assert difference.mean() < 0.02, name
        assert difference.max() < 0.15, name
    assert torch.isfinite(audit.s1_delta).all()
    assert audit.models["full"].dtype == "bfloat16"


def require_output_depth(audit: DepthAudit, expected: float) -> None:
    """Output depth is exact too; of random models whose retain answers no worse it is undefined."""
    if bool((audit.s_full - audit.s_retain > audit.config.tau).any()):
        assert audit.output_depth == expected and audit.output_depth_interval == (expected, expected)
    else:
        assert math.isnan(audit.output_depth)


@pytest.mark.parametrize("family", each_family(["llama"]))  # known by its weights: no family has a part in it
def test_full_as_unlearned_scores_exactly_zero(audited, family):
    audit = audited(family, unlearned="full")
    assert torch.equal(audit.s2_delta, torch.zeros_like(audit.s2_delta))
    assert audit.uds == 0.0 and audit.uds_interval == (0.0, 0.0)
    require_output_depth(audit, 0.0)
    torch.testing.assert_close(audit.s2_cosine, torch.ones_like(audit.s2_cosine), atol=1e-6, rtol=0)
    assert torch.equal(audit.s2_norm_ratio, torch.ones_like(audit.s2_norm_ratio))


@pytest.mark.parametrize("family", each_family())
def test_self_patching_is_a_no_op_without_the_shortcut(audited, family):
    audit = audited(family, unlearned="full", exact_noop=False)
    assert audit.s2_delta.abs().max() <= 1e-6
    assert audit.s1_delta.abs().max() > 0.1


@pytest.mark.parametrize("family", each_family(["llama", "neox"]))
def test_retain_as_unlearned_scores_exactly_one(audited, family):
    audit = audited(family, unlearned="retain", exact_noop=family != "neox")
    assert audit.uds == 1.0 and audit.uds_interval == (1.0, 1.0)
    require_output_depth(audit, 1.0)
    assert torch.equal(audit.ler[audit.ke_mask], torch.ones(int(audit.ke_mask.sum()), dtype=torch.float64))
    assert torch.equal(audit.s1_delta, audit.s2_delta)


def test_retain_scores_exactly_one_from_a_copy_in_memory_and_under_another_engine(trio):
    paths = trio("qwen2")
    copy, _ = load_plain(paths.retain)
    for unlearned in (copy, paths.retain):
        audit = DepthAudit.run(*list(paths)[:2], unlearned, EXAMPLES, options=NAIVE)
        assert audit.uds == 1.0
        assert (audit.ler[audit.ke_mask] == 1.0).all()


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_the_normed_last_layer_changes_the_last_layer_only(audited, trio, family):
    true, script = audited(family), audited(family, last_layer="post_norm")
    torch.testing.assert_close(true.s1_delta[:, :-1], script.s1_delta[:, :-1], atol=1e-5, rtol=0)
    assert (true.s1_delta[:, -1] - script.s1_delta[:, -1]).abs().max() > 0.05
    assert AuditConfig(last_layer="post_norm", protocol="raw") == script.config
    itself = audited(family, unlearned="full", last_layer="post_norm")
    assert (itself.s2_delta[:, :-1] == 0).all()
    assert itself.s2_delta[:, -1].abs().max() > 0.01


def test_each_checkpoint_is_read_once(trio, monkeypatch):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    read = []
    for of in (AutoModelForCausalLM, AutoTokenizer):

        def noting(place, *args, of=of, load=of.from_pretrained, **options):
            read.append((of.__name__, Path(place).name))
            return load(place, *args, **options)

        monkeypatch.setattr(of, "from_pretrained", noting)
    paths = trio("llama")
    DepthAudit.run(paths.full, paths.retain, paths.unlearned, EXAMPLES, options=RunOptions(device="cpu"))
    assert sorted(read) == [
        (of, role) for of in ("AutoModelForCausalLM", "AutoTokenizer") for role in ("full", "retain", "unlearned")
    ]
