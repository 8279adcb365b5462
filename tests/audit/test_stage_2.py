"""Stage 2 only where `full` holds knowledge: the score of all layers, from fewer, and nothing that was not measured."""

import math
from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

import uds_lens as ul
from uds_lens import plots
from uds_lens.audit import Baseline
from uds_lens.audit._resume import Question
from uds_lens.errors import ConfigError, ModelError
from uds_lens.results import AuditConfig, DepthAudit, RunOptions

ALL = RunOptions(device="cpu", progress=False, engine="wavefront", stage_2="all", stream=False)
PART = replace(ALL, stage_2="knowledge")


@pytest.fixture(scope="module")
def examples(world):
    return world.examples[:10]


@pytest.fixture(scope="module")
def baseline(world, examples):
    found = Baseline.measure(world.full, world.retain, examples, options=ALL)
    tau = round(float(found.s1_delta.quantile(0.6)), 2)  # nearly all layers of the toy world count at the default
    return replace(found, config=replace(found.config, tau=tau))


@pytest.fixture(scope="module")
def tau(baseline):
    return baseline.config.tau


@pytest.fixture(scope="module")
def everywhere(world, baseline):
    return baseline.audit(world.half, options=ALL)


@pytest.fixture(scope="module")
def partly(world, baseline):
    return baseline.audit(world.half, options=PART)


def test_the_score_is_that_of_all_layers(world, examples, baseline, everywhere, partly, tau):
    counting = everywhere.ke_mask
    assert 0 < counting.sum() < counting.numel() / 2  # or the test would show nothing
    models = (world.full, world.retain, world.half)
    with baseline.recorded(options=PART) as recorded:
        ways = {
            "baseline": partly,
            "recorded": recorded.audit(world.half),
            "streamed": baseline.audit(world.half, options=replace(PART, stream=True)),
            "naive": baseline.audit(world.half, options=replace(PART, engine="naive")),
            "in one run": DepthAudit.run(*models, examples, config=AuditConfig(tau=tau), options=PART),
        }
    for way, audit in ways.items():
        assert torch.equal(audit.s2_delta.isnan(), ~counting), way
        assert_close(audit.s2_delta[counting], everywhere.s2_delta[counting], atol=1e-5, rtol=0)
        assert audit.uds == pytest.approx(everywhere.uds, abs=1e-6), way
        assert audit.uds_interval == pytest.approx(everywhere.uds_interval, abs=1e-6), way
        for name in ("s2_cosine", "s2_norm_ratio"):
            assert_close(getattr(audit, name), getattr(everywhere, name), atol=1e-6, rtol=0)
        assert audit.stage_2_tau == tau, way
    assert partly.cautions == everywhere.cautions
    assert torch.equal(ways["streamed"].s2_delta[counting], partly.s2_delta[counting])
    assert everywhere.stage_2_tau is None


def test_what_is_known_without_patching_is_there(world, baseline):
    zero, one = baseline.audit_all([world.full, world.retain], options=PART)
    assert (zero.uds, one.uds) == (0.0, 1.0) and not zero.s2_delta.any()
    assert torch.equal(one.s2_delta, baseline.s1_delta) and one.stage_2_tau is None


def test_a_lower_tau_is_refused_and_a_higher_one_scored(partly, everywhere, tau, tmp_path):
    assert partly.with_tau(2 * tau).uds == pytest.approx(everywhere.with_tau(2 * tau).uds, abs=1e-6)
    told = rf"measured only where full encodes knowledge at tau {tau:g}, but at tau 0\.01"
    with pytest.raises(ConfigError, match=told):
        partly.with_tau(0.01)
    partly.save(tmp_path / "audit")
    loaded = DepthAudit.load(tmp_path / "audit")
    assert loaded.stage_2_tau == tau and loaded.uds == partly.uds
    sweep = partly.tau_sweep([0.01, tau, 2 * tau])
    assert math.isnan(sweep["uds"][0]) and sweep["uds"][1] == partly.uds
    assert sweep.drop(columns="uds").equals(everywhere.tau_sweep([0.01, tau, 2 * tau]).drop(columns="uds"))
    assert "was not measured at every layer" in plots.tau_curve(sweep).layout.title.subtitle.text


def test_frames_and_figures_say_what_was_not_measured(partly, everywhere):
    frame, whole = partly.layers_frame(), everywhere.layers_frame()
    assert frame["n_s2"].tolist() == frame["n_ke"].tolist() and (whole["n_s2"] == len(partly.examples)).all()
    assert frame["s2_mean"].isna().equals(frame["n_s2"] < len(partly.examples))
    assert frame["ler_mean"].to_numpy() == pytest.approx(whole["ler_mean"].to_numpy(), abs=1e-5, nan_ok=True)
    for draw in (plots.layer_profile, lambda f: plots.compare_layers({"a": f}, value="s2")):
        assert "Gap in S2" in draw(frame).layout.title.subtitle.text
        assert "Gap in S2" not in draw(whole).layout.title.subtitle.text
    one = [audit.to_frame().head(audit.n_layers) for audit in (partly, everywhere)]
    for draw in (lambda a, f: plots.example_profile(f, question="Who?"), lambda a, f: a.plot_heatmap()):
        figures = [draw(audit, f) for audit, f in zip((partly, everywhere), one, strict=True)]
        said = [figure.layout.title.subtitle.text.replace("<br>", " ") for figure in figures]
        assert said[0] == f"{said[1]} S2 was measured only where S1 is above tau."
    long = partly.to_frame()
    assert long["s2_delta"].isna().equals(~long["ke"])


def test_with_control_facts_all_layers_are_measured(world, examples):
    audit = DepthAudit.run(
        world.full, world.retain, world.half, examples[:3], control=world.retain_examples[:3], options=PART
    )
    assert audit.stage_2_tau is None and not audit.s2_delta.isnan().any()


def test_both_stages_of_streamed_models_are_refused(world, examples):
    with pytest.raises(ModelError, match="before stage 1 shows which layers encode the knowledge"):
        DepthAudit.run(world.full, world.retain, world.half, examples[:2], options=replace(PART, stream=True))


def test_a_partial_audit_is_kept_only_where_it_is_asked_for(world, examples, partly, tmp_path):
    partly.save(tmp_path)

    def found(options):
        question = Question(str(world.full), str(world.retain), examples, partly.config, options)
        return question.audit_at(tmp_path, str(world.half))

    assert found(PART) is not None and found(ALL) is None and found(replace(ALL, stage_2="auto")) is None


def test_sweeps_and_callbacks_measure_only_what_counts(baseline, tmp_path):
    from uds_lens.study._plan import StudyPlan, running_settings

    plan = StudyPlan.__new__(StudyPlan)
    for running, expected in (({}, "knowledge"), ({"stage_2": "all"}, "all")):
        object.__setattr__(plan, "running", running)
        assert running_settings(plan).stage_2 == expected
    assert ul.training.DepthCallback(baseline, every=1).options.stage_2 == "knowledge"
    assert ul.training.DepthCallback(baseline, every=1, options=ALL).options.stage_2 == "all"
