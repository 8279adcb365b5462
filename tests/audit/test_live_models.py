"""Models that the caller holds: audited like checkpoints, handed back as they were, one thread at a time."""

import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import pytest
import torch
from tiny_models import EXAMPLES, boot, build_model, build_tokenizer, each_family, load_plain, some_now

from uds_lens.audit import Baseline
from uds_lens.data import encode, make_batch
from uds_lens.elicitation import ElicitOptions, elicit
from uds_lens.errors import IncompatibleModelsError, ModelBusyError, ModelError, PatchError, UdsLensWarning
from uds_lens.metrics import evaluate
from uds_lens.models import HookedModel, open_model
from uds_lens.patching import capture
from uds_lens.results import AuditConfig, DepthAudit, RunOptions

CPU = RunOptions(device="cpu", engine="wavefront")
AUTO = RunOptions(device="cpu")


def n_hooks(model):
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


def test_live_models_give_the_same_audit_and_stay_as_they_were(audited, trio, tmp_path):
    live = [load_plain(path, attention="sdpa")[0] for path in trio("gpt2")]
    ids = torch.tensor([[1, 8, 30, 77, 5]])
    before = [(list(m.state_dict()), m.config.to_dict(), m(ids).logits, n_hooks(m)) for m in live]
    audit = DepthAudit.run(*live, EXAMPLES, options=AUTO)
    assert torch.equal(audit.s2_delta, audited("gpt2").s2_delta)
    for model, (names, config, logits, hooks) in zip(live, before, strict=True):
        assert list(model.state_dict()) == names
        assert model.config.to_dict() == config
        assert model.config._attn_implementation == "sdpa"
        assert torch.equal(model(ids).logits, logits)
        assert n_hooks(model) == hooks
        assert model.get_input_embeddings().weight.requires_grad
    live[2].save_pretrained(tmp_path / "saved")
    reloaded = load_plain(trio("gpt2").unlearned)[0].state_dict()
    assert all(torch.equal(value, reloaded[name]) for name, value in live[2].state_dict().items())
    build_tokenizer().save_pretrained(tmp_path / "saved")
    with open_model(tmp_path / "saved", device="cpu") as again:
        assert again.fingerprint == audit.models["unlearned"].fingerprint


@pytest.mark.parametrize("family", each_family(["llama"], of=["llama", "neox"]))
def test_live_bridges_give_the_same_audit(audited, trio, family):
    bridges = [boot(path) for path in trio(family)]
    for bridge in bridges:
        bridge(torch.tensor([[1, 8, 30]]))  # transformers installs hooks of its own at the first pass
    hooks = [n_hooks(bridge) for bridge in bridges]
    audit = DepthAudit.run(*bridges, EXAMPLES, options=AUTO)
    torch.testing.assert_close(audit.s2_delta, audited(family).s2_delta, atol=1e-5, rtol=0)
    assert audit.models["full"].fingerprint == audited(family).models["full"].fingerprint
    assert [n_hooks(bridge) for bridge in bridges] == hooks
    paths = trio(family)
    itself = DepthAudit.run(paths.full, paths.retain, bridges[0], EXAMPLES, options=CPU)
    assert itself.equal_weights == [("full", "unlearned")]
    assert (itself.s2_delta == 0).all() and itself.uds == 0.0


def test_one_live_model_may_play_every_part(trio):
    live, _ = load_plain(trio("llama").full)
    with pytest.warns(UdsLensWarning, match="UDS is NaN: no example has a layer where patching in retain's state"):
        audit = DepthAudit.run(live, live, live, EXAMPLES, options=CPU)
    assert audit.uds != audit.uds
    assert audit.equal_weights == [("full", "retain"), ("full", "unlearned"), ("retain", "unlearned")]


def test_live_models_without_a_tokenizer_are_told_how_to_bring_one():
    live = [build_model("llama", version) for version in ("full", "retain", "unlearned")]
    with pytest.raises(ModelError, match=r"none of the checkpoints has a tokenizer.*open_model\(model, tokenizer="):
        DepthAudit.run(*live, EXAMPLES, options=CPU)
    opened = [open_model(model, tokenizer=build_tokenizer()) for model in live]
    assert 0 < DepthAudit.run(*opened, EXAMPLES, options=CPU).uds < 1


def test_a_live_model_of_another_dtype_is_refused(trio):
    live, _ = load_plain(trio("llama").full, dtype=torch.bfloat16)
    with pytest.raises(ModelError, match="is bfloat16, but dtype='float32' was requested"):
        DepthAudit.run(live, *list(trio("llama"))[1:], EXAMPLES, options=CPU)
    audit = DepthAudit.run(live, *list(trio("llama"))[1:], EXAMPLES, config=AuditConfig(dtype="bfloat16"), options=CPU)
    assert audit.models["full"].dtype == "bfloat16"


def test_reading_states_leaves_no_hooks_even_after_an_error(trio):
    live, tokenizer = load_plain(trio("llama").full)
    before, rows = n_hooks(live), encode(EXAMPLES, tokenizer).rows
    batch, broken = (make_batch(rows, pad_token_id=3) for _ in range(2))
    broken.window.add_(10_000)
    with open_model(live) as model:
        for site in ("resid_post", "attn_out"):
            capture(model, batch, site=site)
            inside = (n_hooks(model.hf), n_hooks(model.bridge))
            with pytest.raises(IndexError):
                capture(model, broken, site=site)
            assert (n_hooks(model.hf), n_hooks(model.bridge)) == inside
    assert n_hooks(live) == before == 0


STATES = r"'nan' gives NaN or infinite .*, first for example 'fact-\d' \('.*weights are broken"
BEHIND = r"of 'nan' holds NaN or infinite weights"


@pytest.mark.parametrize(
    ("role", "name", "options", "words"),
    [
        (0, "model.layers.1.mlp.up_proj.weight", AUTO, STATES),
        (1, "model.layers.1.mlp.up_proj.weight", CPU, STATES),
        (2, "model.layers.1.mlp.up_proj.weight", AUTO, STATES),
        (2, "model.norm.weight", CPU, BEHIND),  # of a source norm and head are not used: it is broken all the same
        (2, "lm_head.weight", CPU, BEHIND),
    ],
)
def test_broken_weights_are_an_error_that_names_model_and_example(trio, role, name, options, words):
    sources = list(trio("llama"))
    model, tokenizer = load_plain(sources[role])
    with torch.no_grad():
        model.get_parameter(name).view(-1)[3] = torch.nan
    sources[role] = HookedModel(model, tokenizer, name="nan", owned=False)
    with pytest.raises(ModelError, match=words):
        DepthAudit.run(*sources, EXAMPLES, options=options)


def test_checkpoints_that_do_not_fit_are_refused_before_any_weight_is_read(trio, tmp_path):
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((trio("llama-tied").full / name).read_bytes())
    with pytest.raises(IncompatibleModelsError, match=r"depth \(layers\): full '.*' has 4, unlearned '.*' has 5"):
        DepthAudit.run(trio("llama").full, trio("llama").retain, tmp_path, EXAMPLES)
    with pytest.raises(IncompatibleModelsError, match="retain"):
        Baseline.measure(trio("llama").full, trio("llama-tied").retain, EXAMPLES)


def test_a_site_that_a_family_does_not_have_is_named(trio, audited):
    words = r"GPTNeoXForCausalLM has no 'resid_mid'.*Use site='resid_post', 'attn_out' or 'mlp_out'"
    with pytest.raises(PatchError, match=words):
        audited("neox", site="resid_mid")
    assert 0 <= audited("neox", site="attn_out").uds <= 1


@pytest.mark.parametrize("what", some_now(["directory", "live"], of=["directory", "live", "bridge", "hooked", "naive"]))
def test_layers_that_were_not_changed_cost_exactly_nothing_however_full_comes(trio, tmp_path, what):
    """In bfloat16, where packed and padded rows differ by rounding; the unlearned model differs from layer 2 on."""
    full, retain, _ = trio("llama")
    changed, tokenizer = load_plain(full, dtype=torch.bfloat16)
    with torch.no_grad():
        changed.model.layers[2].mlp.down_proj.weight.mul_(1.5)
    for part in (changed, tokenizer):
        part.save_pretrained(tmp_path)
    if what == "bridge":
        full = boot(full, torch.bfloat16)
    if what in ("live", "hooked"):
        full, _ = load_plain(full, dtype=torch.bfloat16)
    told: object = nullcontext()
    if what == "hooked":
        full.model.layers[0].register_forward_hook(lambda m, a, out: None)
        told = pytest.warns(UdsLensWarning, match="so it is run with the naive engine")
    options = RunOptions(device="cpu", engine="naive" if what == "naive" else "auto")
    with told:
        half = AuditConfig(dtype="bfloat16")
        audit = DepthAudit.run(full, retain, tmp_path, EXAMPLES[:3], config=half, options=options)
    assert bool((audit.s2_delta[:, :2] == 0.0).all())
    assert bool((audit.s2_delta[:, 2:] != 0.0).any(0).all())


QUIET = RunOptions(device="cpu", progress=False, engine="wavefront")


def test_two_audits_in_two_threads(trio, audited):
    """One in half precision: transformers sets the default dtype of the whole process while it opens a model."""
    configs = {"llama": None, "qwen2": AuditConfig(dtype="bfloat16")}

    def measured(family):
        return DepthAudit.run(*trio(family), EXAMPLES, config=configs[family], options=QUIET)

    alone = {"llama": audited("llama"), "qwen2": measured("qwen2")}
    with warnings.catch_warnings(), ThreadPoolExecutor(2) as pool:
        warnings.simplefilter("ignore")  # each thread would end the other's catching of warnings
        for _ in range(2):
            for family, found in zip(alone, pool.map(measured, alone), strict=True):
                for name in ("s_full", "s1_delta", "s2_delta"):
                    assert torch.equal(getattr(found, name), getattr(alone[family], name)), (family, name)
    assert torch.get_default_dtype() == torch.float32
    open_model(trio("llama").full, device="cpu").close()


def test_an_open_model_is_for_one_audit_at_a_time(trio, audited):
    """The other thread hears so at once; a handle that metrics borrow is the same model."""
    paths = trio("llama")
    with open_model(paths.full, device="cpu") as full, ThreadPoolExecutor(1) as another:
        asks = (
            lambda: DepthAudit.run(full, paths.retain, paths.unlearned, EXAMPLES, options=QUIET),
            lambda: evaluate(full, EXAMPLES, metrics=["prob"], run=QUIET),
            lambda: elicit(full, EXAMPLES, probes=["plain"], options=ElicitOptions(samples=0), run=QUIET),
        )
        busy = "is in use by another thread: a HookedModel serves one thread at a time"
        with Baseline.measure(full, paths.retain, EXAMPLES, options=QUIET).recorded(options=QUIET) as recorded:
            for ask in asks:
                with pytest.raises(ModelBusyError, match=busy):
                    another.submit(ask).result()
            found = recorded.audit(paths.unlearned)
        assert torch.equal(found.s2_delta, audited("llama").s2_delta)
        assert 0 <= evaluate(full, EXAMPLES, metrics=["prob"], run=QUIET)["prob"].value <= 1
