"""Stage 1 on its own: reused for several models, saved, keyed by what it depends on, and never mixed up."""

import shutil
from dataclasses import replace

import pytest
import torch
from tiny_models import EXAMPLES

from uds_lens.audit import Baseline
from uds_lens.data import load_examples
from uds_lens.errors import IncompatibleModelsError, ModelError, ResultFormatError, UdsLensWarning
from uds_lens.results import AuditConfig, DepthAudit, RunOptions
from uds_lens.results._saving import AUDIT

CPU = RunOptions(device="cpu", engine="wavefront")


@pytest.fixture(scope="module")
def baseline(trio):
    return Baseline.measure(trio("llama").full, trio("llama").retain, EXAMPLES, options=CPU)


def measured(trio, examples=EXAMPLES, family="llama", retain="retain", **settings):
    paths = trio(family)
    return Baseline.measure(paths.full, getattr(paths, retain), examples, config=AuditConfig(**settings), options=CPU)


def assert_bitwise(left, right):
    for name in AUDIT.tensors:
        assert torch.equal(getattr(left, name), getattr(right, name)), name
    for name in ("config", "models", "uds", "uds_interval"):
        assert getattr(left, name) == getattr(right, name), name
    assert list(left.examples) == list(right.examples)


def test_two_stages_are_bitwise_one_run_and_several_models_each_as_if_alone(audited, baseline, trio):
    roles = ("unlearned", "retain", "full", "unlearned")
    models = [getattr(trio("llama"), role) for role in roles]
    audits = [*baseline.audit_all(models, options=CPU), *(baseline.audit(model, options=CPU) for model in models[:3])]
    for audit, role in zip(audits, (*roles, *roles[:3]), strict=True):
        assert_bitwise(audit, audited("llama", unlearned=role))
    assert baseline.audit_all([], options=CPU) == []


def test_a_saved_baseline_comes_back_and_opens_full_where_it_is(audited, baseline, trio, tmp_path):
    baseline.save(tmp_path / "base")
    again = Baseline.load(tmp_path / "base")
    for name in AUDIT.tensors:
        if not name.startswith("s2_"):
            assert torch.equal(getattr(again, name), getattr(baseline, name)), name
    for name in ("config", "models", "key", "examples", "skipped", "provenance"):
        assert getattr(again, name) == getattr(baseline, name)
    assert again.full is None
    moved = again.with_full(shutil.copytree(trio("llama").full, tmp_path / "moved"))
    for each in (again, moved):
        assert_bitwise(each.audit(trio("llama").unlearned, options=CPU), audited("llama"))
    with pytest.raises(ResultFormatError, match=r"holds a uds_lens\.Baseline, expected uds_lens\.DepthAudit"):
        DepthAudit.load(tmp_path / "base")


def test_another_full_and_one_that_is_gone_are_refused(baseline, trio, tmp_path):
    told = r"retain' is not the `full` this baseline was measured with .*or set its `full`"
    for full, words in ((trio("llama").retain, told), (tmp_path / "gone", "no directory")):
        with pytest.raises(ModelError, match=words):
            baseline.with_full(full).audit(trio("llama").unlearned, options=CPU)


def test_a_model_that_does_not_fit_is_refused_and_named(baseline, trio):
    with pytest.raises(IncompatibleModelsError, match=r"depth \(layers\): full '.*' has 4, unlearned 2 '.*' has 5"):
        baseline.audit_all([trio("llama").unlearned, trio("llama-tied").unlearned], options=CPU)


def test_the_key_changes_with_what_stage_1_depends_on(trio):
    changes = [
        {"site": "mlp_out"},
        {"scope": "all"},
        {"last_layer": "post_norm"},
        {"protocol": "raw"},
        {"dtype": "bfloat16"},
        {"exact_noop": False},
        {"retain": "unlearned"},
        {"examples": EXAMPLES[1:2]},
        {"examples": EXAMPLES[1::-1]},
    ]
    plain = measured(trio, EXAMPLES[:2])
    keys = {measured(trio, **{"examples": EXAMPLES[:2], **change}).key for change in ({}, *changes)}
    assert plain.key in keys and len(keys) == 1 + len(changes)
    older = {**plain.provenance, "versions": {**plain.provenance["versions"], "uds_lens": "0.0.1"}}
    assert replace(plain, provenance=older).key not in keys


def test_the_key_ignores_names_paths_and_what_comes_afterwards(baseline, trio, tmp_path):
    shutil.copytree(trio("llama").full, tmp_path / "copy")
    renamed = [replace(example, id=f"other {example.id}", type="x") for example in EXAMPLES]
    config, options = AuditConfig(tau=1.0, seed=5, confidence=0.5, n_bootstrap=200), replace(CPU, token_budget=64)
    again = Baseline.measure(tmp_path / "copy", trio("llama").retain, renamed, config=config, options=options)
    assert again.key == baseline.key and len(again.key) == 32


def test_each_baseline_on_which_nothing_is_measurable_says_so_once(trio):
    unlearned = trio("llama").unlearned
    one, two = measured(trio, EXAMPLES[:2], tau=1e6), measured(trio, EXAMPLES[:1], tau=1e6)
    for baseline in (one, two, replace(two, config=replace(two.config, tau=2e6))):
        with pytest.warns(UdsLensWarning, match=r"UDS is NaN: no example .*\(full='.*full', retain='.*retain'\)"):
            baseline.audit(unlearned, options=CPU)
        baseline.audit(unlearned, options=CPU)  # a warning would be an error here
    for place in (0, 2):
        lost = measured(trio, [replace(EXAMPLES[place], entity="Nobody")])
        with pytest.warns(UdsLensWarning, match="UDS is NaN: none of the 1 rows could be scored"):
            audit = lost.audit(unlearned, options=CPU)
        assert (len(audit.examples), len(audit.skipped)) == (0, 1) and audit.uds != audit.uds


@pytest.mark.long
def test_models_trained_on_less_of_the_forget_set_score_higher(shared_dir):
    models = shared_dir / "models" / "tofu-small"
    examples = load_examples(shared_dir / "data" / "tofu" / "forget10_filtered.json")[::12]
    options = RunOptions(device="cpu")
    baseline = Baseline.measure(models / "full", models / "retain90", examples, options=options)
    names = ("full", "retain99", "retain95", "retain90")
    options = RunOptions(device="cpu", engine="wavefront")
    audits = baseline.audit_all([models / name for name in names], options=options)
    full, retain99, retain95, retain90 = (audit.uds for audit in audits)
    assert 0.0 == full < retain99 < retain95 < retain90 == 1.0
    assert audits[0].n_measured >= 28
    assert baseline.provenance["engine"] == "wavefront"
    assert not audits[0].skipped
    assert retain99 < 0.35 < retain95 < 0.75
