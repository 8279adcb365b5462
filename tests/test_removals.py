"""Nothing outside the folder of a run is removed or replaced; `tests/published` asks the same of downloads."""

import pytest
from removals import outside, recorded
from study.conftest import toy_plan

import uds_lens as ul

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore::uds_lens.errors.UdsLensWarning")]


def test_what_goes_lies_in_the_folder_of_the_run(tmp_path, monkeypatch):
    """Training, interrupted and repeated, quantising, a sweep that makes its models, streaming, results saved twice."""
    world, run = ul.toy.load(), tmp_path / "run"
    rows, kept = world.examples[:4], world.retain_examples[:4]
    options = ul.unlearning.TrainOptions(redo=True)
    with recorded() as removed:
        for _ in range(2):
            made = ul.unlearning.unlearn(
                world.full, rows, kept, method=ul.unlearning.NPOConfig(epochs=1), out=run / "npo", options=options
            )
            audit = ul.DepthAudit.run(
                world.full, world.retain, made, rows, options=ul.RunOptions(stream=True, device="cpu")
            )
            audit.save(run / "audit")
        ul.unlearning.quantise(made, out=run / "nf4", device="cpu")
        sets = {"forget": [{"source": "toy:forget", "sample": 4}], "retain": [{"source": "toy:retain", "sample": 4}]}
        made_by = {"method": "ga", "settings": {"learning_rate": 1e-3, "epochs": 1, "batch_size": 4}}
        plan = toy_plan(["prob"], train=sets, unlearn=[made_by], perturb={"quantise": True})
        assert ul.study.run(plan, run / "sweep").is_complete
    assert any("npo" in str(place) for place in removed) and any("sweep" in place.parts for place in removed)
    assert outside(removed, run) == []
