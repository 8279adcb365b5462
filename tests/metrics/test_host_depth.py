"""Host depth as a metric is that of a transplant without control facts; references run once for several models."""

import pytest

import uds_lens as ul
from uds_lens.metrics import MetricCache, MetricOptions, evaluate

from .conftest import RUN


def test_it_is_that_of_a_transplant_and_references_run_once():
    world, cache = ul.toy.load(), MetricCache()
    few = world.examples[::3]
    asked = {"metrics": ["host_depth"], "full": world.full, "retain": world.retain, "run": RUN, "cache": cache}
    found = evaluate(world.unlearned["idkdpo"], few, **asked)
    config = ul.AuditConfig(protocol="raw", entity_space=MetricOptions().entity_space)  # that of white-box metrics
    wanted = ul.transplant(world.full, world.retain, world.unlearned["idkdpo"], few, config=config, options=RUN)
    assert found["host_depth"].value == pytest.approx(wanted.host_depth, abs=1e-6)
    assert found["host_depth"].per_example == pytest.approx(
        wanted.host_depth_per_example.tolist(), abs=1e-5, nan_ok=True
    )
    assert found["host_depth"].details["admitted"] == int(wanted.admitted.sum())
    assert found["host_depth"].details["output_depth"] == pytest.approx(wanted.output_depth, abs=1e-6)
    assert found.total.reference_forwards > 0
    itself = evaluate(world.retain, few, **asked)
    assert itself["host_depth"].value == 1.0 and itself.total.reference_forwards == 0


def test_a_full_that_is_retain_leaves_it_undefined():
    world = ul.toy.load()
    found = evaluate(
        world.half, world.examples[:6], metrics=["host_depth"], full=world.retain, retain=world.retain, run=RUN
    )
    assert "retain knows all of these answers" in found["host_depth"].reason
