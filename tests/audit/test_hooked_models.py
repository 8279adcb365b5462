"""Audits of models that carry somebody's hooks: run as they are, by the reference, with no short cut by weights."""

import pytest
import torch
from tiny_models import EXAMPLES, boot, load_plain

from uds_lens.errors import PatchError, UdsLensWarning
from uds_lens.models import open_model
from uds_lens.results import AuditConfig, DepthAudit, RunOptions

AUTO = RunOptions(device="cpu")


def with_zeroed_blocks(paths, kind):
    """`full`, with every block's output zeroed by the means of its kind."""
    if kind == "bridge":
        bridge = boot(paths.full)
        for layer in range(4):
            bridge.add_perma_hook(f"blocks.{layer}.hook_resid_post", lambda state, hook: state * 0)
        return bridge
    model, _ = load_plain(paths.full)
    if kind == "opened":
        model = open_model(model)
    for block in (model.hf if kind == "opened" else model).model.layers:
        block.register_forward_hook(lambda module, args, output: torch.zeros_like(output))
    return model


def hooked(folder, layer, hook, part=""):
    model, _ = load_plain(folder)
    model.model.layers[layer].get_submodule(part).register_forward_hook(hook)
    return model


@pytest.mark.parametrize("kind", ["live", "bridge", "opened"])
def test_zeroed_blocks_are_patched_in_as_zeros(trio, kind):
    paths = trio("llama")
    audit = DepthAudit.run(paths.full, paths.retain, with_zeroed_blocks(paths, kind), EXAMPLES, options=AUTO)
    assert not audit.equal_weights, "weights alone do not decide here"
    assert (audit.s2_norm_ratio == 0).all()
    assert (audit.s2_delta != 0).all()


def test_a_hook_that_changes_nothing_changes_no_number(trio, audited):
    paths, seen = trio("llama"), []
    full = hooked(paths.full, 1, lambda m, a, out: seen.append(tuple(out.shape)), part="mlp")
    with pytest.warns(UdsLensWarning, match="has user hooks or a patched forward, so it is run"):
        audit = DepthAudit.run(full, paths.retain, paths.unlearned, EXAMPLES, options=AUTO)
    assert audit.provenance["engine"] == "naive"
    torch.testing.assert_close(audit.s2_delta, audited("llama").s2_delta, atol=1e-5, rtol=0)
    assert all(len(shape) == 3 and shape[0] > 1 for shape in seen), "hooks see whole padded batches"


@pytest.mark.filterwarnings("ignore::uds_lens.errors.UdsLensWarning")
def test_hooks_of_full_decide_what_is_measured(trio, audited):
    """The last block's output is scaled: no weight shows it."""
    paths = trio("llama")
    full = hooked(paths.full, 2, lambda m, a, out: out * 0.5)
    audit = DepthAudit.run(full, paths.retain, paths.full, EXAMPLES, options=AUTO)
    assert not torch.allclose(audit.s_full, audited("llama").s_full)
    assert (audit.s2_delta[:, 2] != 0).all(), "the plain model's states are not the hooked one's"
    assert (audit.s2_delta[:, :2].abs() < 1e-5).all()


@pytest.mark.parametrize(
    ("role", "site", "engine", "words"),
    [
        (0, "resid_post", "wavefront", r"its blocks cannot run alone\. Use engine='naive'"),
        (2, "mlp_out", "auto", r"which a Bridge might not run.*So 'mlp_out' is not available: use site='resid_post'"),
    ],
)
def test_what_cannot_run_with_hooks_is_refused(trio, role, site, engine, words):
    models = list(trio("llama"))
    models[role] = hooked(models[role], 0, lambda *_: None)
    options = RunOptions(device="cpu", engine=engine)
    with pytest.raises(PatchError, match=words):
        DepthAudit.run(*models, EXAMPLES, config=AuditConfig(site=site), options=options)
