"""Several retain models: identities for each of them, what counts as a layer, the spread, what is comparable."""

import dataclasses
import json
import math

import pytest
import torch
from synthetic_audits import record, synthetic_audit, with_control, with_retains

from uds_lens.errors import ConfigError, ResultFormatError
from uds_lens.results import AuditConfig, DepthAudit, compare
from uds_lens.results._comparing import why_not_comparable
from uds_lens.results._stage_1 import RetainStage1

from .conftest import made


def against(s1s, s2, **changes):
    """An audit against retain models with these S1."""
    parts = [torch.tensor(s1, dtype=torch.float64) for s1 in s1s]
    audit = made(torch.stack(parts).mean(0).tolist(), s2, **changes)
    near = torch.ones_like(parts[0])
    retains = tuple(
        RetainStage1(model=record(f"retain{i}", f"{i}" * 32, 3), s1_delta=s1, s1_norm_ratio=near, s1_cosine=near)
        for i, s1 in enumerate(parts)
    )
    return dataclasses.replace(audit, retains=retains)


ONE = [[1.0, 2.0, 0.3], [0.5, 0.0, 0.9]]
TWO = [[0.8, 3.0, 0.1], [0.7, 0.2, 1.1]]
THREE = [[1.2, 2.5, -0.2], [0.6, 0.1, 1.0]]


def test_each_retain_model_scores_one_on_its_own_scale_and_full_zero_on_every_scale():
    s1s = [ONE, TWO, THREE]
    for place, s1 in enumerate(s1s):
        by_retain = against(s1s, s1).uds_by_retain
        assert by_retain[place] == 1.0 and min(by_retain) < 1.0
    full = against(s1s, [[0.0] * 3] * 2)
    assert full.uds_by_retain == full.retain_spread == (0.0, 0.0, 0.0) and full.uds == 0.0


def test_layers_go_by_the_mean_and_a_layer_without_a_scale_has_no_weight():
    s2 = [[0.5, 1.0, 0.05], [0.3, 0.1, 0.2]]
    audit = against([ONE, TWO, THREE], s2)
    assert audit.ke_mask.tolist() == [[True, True, True], [True, True, True]]
    third = [(0.5 + 1.0) / (1.2 + 2.5), (0.3 + 0.1 + 0.2) / (0.6 + 0.1 + 1.0)]
    assert audit.uds_by_retain[2] == pytest.approx(sum(third) / 2)
    first = [(0.5 + 1.0 + 0.05) / 3.3, (0.3 + 0.2) / 1.4]
    assert audit.uds_by_retain[0] == pytest.approx(sum(first) / 2)
    low, high, deviation = audit.retain_spread
    assert (low, high) == (min(audit.uds_by_retain), max(audit.uds_by_retain))
    assert deviation == pytest.approx(torch.tensor(audit.uds_by_retain, dtype=torch.float64).std())
    strict = dataclasses.replace(audit, config=AuditConfig(n_bootstrap=200, tau=0.5))
    assert strict.ke_mask.tolist() == [[True, True, False], [True, False, True]]


def test_a_retain_model_without_any_scale_is_nan():
    audit = against([ONE, [[-1.0] * 3] * 2], ONE, config=AuditConfig(n_bootstrap=200, tau=0.0))
    assert math.isnan(audit.uds_by_retain[1]) and all(map(math.isnan, audit.retain_spread))
    assert any("nothing is measurable" in text for text in audit.warnings)


def test_the_table_has_a_row_for_each():
    audit = with_retains(synthetic_audit())
    frame = audit.retains_frame()
    assert frame["retain"].tolist() == ["ckpt/retain-1", "ckpt/retain-2"]
    assert frame["uds"].tolist() == list(audit.uds_by_retain)
    assert ((frame["uds_low"] < frame["uds"]) & (frame["uds"] < frame["uds_high"])).all()
    assert list(audit.roles) == ["full", "retain 1", "retain 2", "unlearned"]
    assert f"retains=2 [{frame['uds'].min():.3f}, {frame['uds'].max():.3f}], " in repr(audit)
    assert "over 2 retain models" in audit._repr_html_()
    summary = audit.summary()
    assert (summary["n_retains"], summary["uds_by_retain"]) == (2, frame["uds"].tolist())
    assert list(summary["models"]) == list(audit.roles)


def test_the_spread_is_told_and_a_wide_one_warned_of():
    near, far = with_retains(synthetic_audit(n=40)), with_retains(synthetic_audit(n=40), scales=(0.6, 1.4))
    for audit, level in ((near, "note"), (far, "caution")):
        ((found, text),) = ((c.level, c.text) for c in audit.cautions if "retain models" in c.text)
        assert found == level and text.startswith("Measured against 2 retain models: the scores range")


def test_a_retain_model_among_several_is_recognised():
    audit = with_retains(synthetic_audit())
    same = {**audit.models, "unlearned": audit.retains[1].model}
    assert dataclasses.replace(audit, models=same).equal_weights == [("retain 2", "unlearned")]


def test_only_the_same_retain_models_are_comparable():
    one, other = with_retains(synthetic_audit(seed=1)), with_retains(synthetic_audit(seed=2))
    assert why_not_comparable(one, other) is None
    turned = dataclasses.replace(other, retains=other.retains[::-1])
    assert why_not_comparable(one, turned) is None
    with pytest.raises(ConfigError, match="differ in both the retain and the unlearned model"):
        compare(one, synthetic_audit(seed=2))


def test_a_stand_in_is_named_and_compares_with_its_like_only():
    config = AuditConfig(n_bootstrap=200, stand_in="base")
    audit = synthetic_audit(n=40, erased=1.5, config=config)
    assert audit.reading == "erased, as in base" or "retain" not in audit.reading
    (text,) = (text for text in audit.warnings if text.startswith("There is no retain model"))
    assert "'ckpt/retain', the model before fine-tuning, is used instead" in text
    with pytest.raises(ConfigError, match=r"they differ in stand_in \(base and None\)|stand_in"):
        compare(audit, synthetic_audit(n=40))
    with pytest.raises(ConfigError, match="stand_in must be one of 'base'"):
        AuditConfig(stand_in="other")


def test_saved_and_loaded(tmp_path):
    """With control facts and several retain models, over one without."""
    plain = synthetic_audit()
    plain.save(tmp_path / "a")
    audit = with_retains(with_control(plain))
    audit.save(tmp_path / "a")
    manifest = json.loads((tmp_path / "a" / "manifest.json").read_text())
    assert sorted(manifest["models"]) == ["full", "retain 1", "retain 2", "unlearned"]
    again = DepthAudit.load(tmp_path / "a")
    assert repr(again.summary()) == repr(audit.summary())
    assert torch.equal(again.control_s2_delta, audit.control_s2_delta)
    assert again.control.examples == audit.control.examples and again.control.skipped == audit.control.skipped
    for name in ("s1_delta", "s1_cosine", "control_s1_delta"):
        for one, other in zip(again.retains, audit.retains, strict=True):
            assert torch.equal(getattr(one, name), getattr(other, name))
    (tmp_path / "a" / "control.parquet").write_bytes(b"")
    with pytest.raises(ResultFormatError, match=r"control\.parquet' was altered"):
        DepthAudit.load(tmp_path / "a")
    plain.save(tmp_path / "a")
    assert not (tmp_path / "a" / "control.parquet").exists() and DepthAudit.load(tmp_path / "a").control is None
