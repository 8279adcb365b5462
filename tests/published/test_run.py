"""Runs: one model at a time, killed and resumed, removed when measured; refusals are one sentence each."""

import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pytest
from test_removals import outside, recorded

import uds_lens as ul
from uds_lens import published, study
from uds_lens.errors import ConfigError, ModelError
from uds_lens.published._run import HUB, RECORD

from .conftest import commit_of, in_float32

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore::uds_lens.errors.UdsLensWarning")]

KNOWN, GATED, MISSING = "npo_lr1e5_b01_a1_ep5", "npo_lr1e5_b01_a2_ep5", "npo_lr1e5_b01_a5_ep5"


def on_disk(cache: Path) -> set[str]:
    """Models whose weights, whole or not, lie in a cache of the Hub."""
    found = set()
    for file in cache.glob("models--*/blobs/*"):
        with suppress(FileNotFoundError):  # downloads run beside this, and rename what is whole
            if file.stat().st_size > 100_000:
                found.add(file.parents[1].name)
    return found


@pytest.fixture(scope="module")
def ran(hub, cache, toy_tofu, tmp_path_factory, monkeypatch_module):
    """A plan that was killed in a download and resumed; what was seen meanwhile."""
    chosen = [published.find(name) for name in ("retain95", KNOWN, GATED, MISSING)]
    made = in_float32(published.plan(chosen, metrics=["uds", "es", "s_mia_loss"], data=toy_tofu))
    out, most = tmp_path_factory.mktemp("runs") / "npo", [0]
    hub.seen = lambda: most.append(len(on_disk(out / HUB)))
    hub.refused = {published.find(GATED).hub_id: 403, published.find(MISSING).hub_id: 404}
    real = huggingface_hub.snapshot_download

    def killed(name, **given):
        folder = real(name, **given)
        if name.endswith("_retain95"):  # as a kill leaves it: the weights on the disk, but not in the snapshot yet
            (Path(folder) / "model.safetensors").unlink()
            raise KeyboardInterrupt
        return folder

    with pytest.MonkeyPatch.context() as patched, pytest.raises(KeyboardInterrupt), recorded() as first:
        patched.setattr(huggingface_hub, "snapshot_download", killed)
        published.run(made, out)
    left = on_disk(out / HUB)
    before = study.table(out).set_index(["model_id", "metric"])
    hub.asked.clear()
    with recorded() as second:
        found = published.run(made, out)
    removed = [*first, *second]
    seen = {"most": max(most), "left": left, "before": before, "asked": list(hub.asked), "removed": removed}
    return {"out": out, "found": found, **seen}


def test_nothing_outside_the_folder_is_removed(ran):
    assert any(HUB in place.parts for place in ran["removed"])
    assert outside(ran["removed"], ran["out"]) == []


def test_never_more_than_three_models_on_the_disk(ran, cache):
    assert ran["most"] <= 3, "whenever the Hub is asked"
    assert len(ran["left"]) == 3, "a killed run leaves what it worked on"
    assert not (ran["out"] / HUB).exists() and not list(cache.iterdir()), "and nothing is left in either cache"


def test_what_was_measured_before_a_kill_is_kept(ran):
    after = study.table(ran["out"]).set_index(["model_id", "metric"])
    kept = ran["before"]
    assert {model for model, _ in kept.index} == {"full", "retain"}
    assert after.loc[kept.index, "seconds"].tolist() == kept["seconds"].tolist()
    ids = [published.find(name).hub_id for name in ("retain95", KNOWN)]
    assert sorted(ran["asked"]) == sorted(ids), "full and retain are still there"
    revisions = json.loads((ran["out"] / RECORD).read_text("utf-8"))["values"]["revisions"]
    assert revisions == {
        name: commit_of(name) for name in [*ids, *(published.find(each).hub_id for each in ("full", "retain"))]
    }
    assert after.loc[("full", "uds"), "value"] < 0.01 and after.loc[("retain", "uds"), "value"] == 1.0


def test_refusals_are_one_sentence_each(ran):
    found = ran["found"]
    assert (found.done, len(found.failed)) == (4, 2), found.failed
    reasons = {failure.model: failure.reason for failure in found.failed}
    assert reasons[GATED] == (
        f"ModelError: '{published.find(GATED).hub_id}' is gated: accept its licence at https://huggingface.co/"
        f"{published.find(GATED).hub_id}, log in with `hf auth login`, and run the same command again."
    )
    assert reasons[MISSING].startswith(f"ModelError: there is no model '{published.find(MISSING).hub_id}' on the Hub")


def test_values_are_those_of_the_same_models_measured_here(ran, toy_tofu):
    table = study.table(ran["out"]).set_index(["model_id", "metric"])["value"]
    world, data = ul.toy.load(), ul.metrics.load_tofu_data(toy_tofu)
    options = ul.metrics.MetricOptions.preset("paper_scores")
    options = ul.metrics.MetricOptions(**{**options.to_dict(), "protocol": "chat"})
    own = ul.metrics.evaluate(
        world.checkpoints["npo"], data, metrics=["es", "s_mia_loss"], retain=world.retain, options=options
    )
    assert table[KNOWN, "es"] == own["es"].value
    assert table[KNOWN, "s_mia_loss"] == own["s_mia_loss"].value
    config = replace(ul.AuditConfig.preset("paper"), dtype="float32")
    audit = ul.DepthAudit.run(world.full, world.retain, world.checkpoints["npo"], data.with_entities, config=config)
    assert table[KNOWN, "uds"] == pytest.approx(audit.uds, abs=1e-6)


def test_nothing_is_downloaded_where_nothing_is_left(ran, hub):
    hub.refused, before = {}, len(hub.asked)
    plan = study.StudyPlan(**{**vars(study._folder.StudyFolder(ran["out"]).plan), "model": ()})
    assert published.run(plan, ran["out"]).is_complete
    assert len(hub.asked) == before


def test_a_full_that_cannot_be_had_or_a_disk_that_is_too_small_ends_the_run_at_once(
    hub, toy_tofu, tmp_path, monkeypatch
):
    made = published.plan(published.models(group="tofu-3b"), metrics=["es"], data=toy_tofu)
    hub.refused = {made.full: 403}
    with pytest.raises(ModelError, match="is gated"):
        published.run(made, tmp_path / "x")
    monkeypatch.setattr("shutil.disk_usage", lambda place: SimpleNamespace(free=20 * 10**9))
    made = published.plan(published.models(group="tofu-8b"), metrics=["es"], data=toy_tofu)
    with pytest.raises(ConfigError, match=r"the models take up to 48.2 GB at a time in .*, but only 20.0 GB are free"):
        published.run(made, tmp_path / "x")
