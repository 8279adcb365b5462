"""Names of audits and of their directories, groups of patch sites, references, and the table of a folder."""

import json
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from results.conftest import made
from synthetic_audits import record, synthetic_audit, with_retains

from uds_lens.audit._resume import write_folder_table
from uds_lens.errors import ConfigError
from uds_lens.results import DepthAudit, models_frame
from uds_lens.results._comparing import audit_names, site_groups
from uds_lens.results._records import reference_role, references_among
from uds_lens.results._saving import directory_names


def named(*names: str) -> list[DepthAudit]:
    return [synthetic_audit(n=2, seed=seed, name=name) for seed, name in enumerate(names)]


def with_settings(audit: DepthAudit, **settings) -> DepthAudit:
    return replace(audit, config=replace(audit.config, **settings))


@pytest.mark.parametrize(
    ("models", "names"),
    [
        (["/data/ckpt/npo", "user/rmu-5", "ga/"], ["npo", "rmu-5", "ga"]),
        (["runs/npo/checkpoint-500", "runs/rmu/final"], ["npo/checkpoint-500", "rmu/final"]),
        (["final"], ["final"]),
        (["a/npo", "b/npo", "c/rmu"], ["a/npo", "b/npo", "rmu"]),
        (["npo", "b/npo"], ["npo", "b/npo"]),
        ([""], ["unlearned"]),
    ],
)
def test_audits_are_named_after_their_models(models: list[str], names: list[str]) -> None:
    assert audit_names(named(*models)) == names


def test_one_model_measured_twice_is_named_by_settings_place_or_number() -> None:
    (audit,) = named("ckpt/npo")
    assert audit_names([audit, with_settings(audit, site="mlp_out")]) == ["npo, resid_post", "npo, mlp_out"]
    other = with_settings(audit, tau=0.1, dtype="bfloat16")
    assert audit_names([audit, other]) == ["npo, float32, tau 0.05", "npo, bfloat16, tau 0.1"]
    assert audit_names([audit, audit], places=["runs/monday", "runs/friday"]) == ["monday", "friday"]
    assert audit_names([audit, audit], places=["mon/npo", "fri/npo"]) == ["mon/npo", "fri/npo"]
    assert audit_names([audit, audit, audit]) == ["npo", "npo (2)", "npo (3)"]
    taken = replace(audit, models={**audit.models, "unlearned": replace(audit.models["unlearned"], name="npo (2)")})
    assert len(set(audit_names([audit, audit, taken]))) == 3


def test_sites_group_where_stage_1_is_otherwise_the_same() -> None:
    npo, rmu = named("ckpt/npo", "ckpt/rmu")
    mlp = with_settings(npo, site="mlp_out")
    assert site_groups([npo, rmu]) == []
    assert [list(group.values()) for group in site_groups([npo, rmu, mlp])] == [[npo, mlp]]
    assert site_groups([npo, with_settings(mlp, scope="all")]) == []
    assert site_groups([npo, replace(mlp, provenance={"ids_hash": "1"})]) == []


def test_a_model_with_the_weights_of_a_reference_is_one() -> None:
    def of_weights(fingerprint: str) -> DepthAudit:
        audit = synthetic_audit(n=2)
        return replace(audit, models={**audit.models, "unlearned": record("ckpt/x", fingerprint, 6)})

    audits = {"old": of_weights("f" * 32), "npo": of_weights("9" * 32), "never": of_weights("a" * 32)}
    assert [reference_role(audit) for audit in audits.values()] == ["full", None, "retain"]
    assert references_among(audits) == ["old", "never"]
    seeds = with_retains(audits["npo"])
    second = replace(seeds, models={**seeds.models, "unlearned": seeds.retains[1].model})
    assert reference_role(second) == "retain 2" and reference_role(seeds) is None


@pytest.mark.parametrize(
    ("models", "names"),
    [
        (["ckpt/npo"], ["npo"]),
        (["user/npo", "/a/rmu/"], ["npo", "rmu"]),
        (["final", "/x/final"], ["final", "x-final"]),
        (["npo/final", "rmu/final", "ckpt/ga"], ["npo-final", "rmu-final", "ga"]),
        (["x/baseline", "npo"], ["x-baseline", "npo"]),
    ],
)
def test_directory_names_tell_models_apart(models: list[str], names: list[str]) -> None:
    assert directory_names(models, reserved=["baseline"]) == names


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([], "must have different names.*got x, x"),
        (["one"], "name must be given once per model, in the same order: 2 models, 1 names"),
        (["one", "one"], "'one' is given twice"),
        (["one", "a/b"], "'a/b' cannot be used as a directory name"),
        (["one", ".."], "'..' cannot be used"),
        (["one", "baseline"], "'baseline' cannot be used"),
    ],
)
def test_names_that_collide_or_are_none_are_refused(given: list[str], words: str) -> None:
    assert directory_names(["a/x", "b/x"], given=["one", "two"]) == ["one", "two"]
    with pytest.raises(ConfigError, match=words):
        directory_names(["x", "x"], given=given, reserved=["baseline"])


def test_the_table_of_a_folder_has_a_row_per_audit_and_empty_cells_for_nan(tmp_path: Path) -> None:
    npo = made([[1.0, 2.0]] * 3 + [[0.0, 0.0]], [[0.25, 0.5]] * 3 + [[0.0, 0.0]])
    made([[1.0, 1.0]], [[1.0, 1.0]]).save(tmp_path / "earlier")
    (tmp_path / "notes").mkdir()
    file = write_folder_table(tmp_path, {"npo": npo, "high tau": npo.with_tau(10.0)})
    table = pd.read_csv(file).set_index("model")
    assert (file.name, table.index.tolist()) == ("table.csv", ["npo", "high tau", "earlier"])
    assert table["uds"].tolist()[::2] == pytest.approx([0.25, 1.0])
    assert table["n_measured"].tolist() == [3, 0, 1] and table["n_not_measurable"].tolist() == [1, 4, 0]
    assert pd.isna(table.loc["high tau", "uds"])
    assert [json.loads(cell)["tau"] for cell in table["conditions"]] == [0.05, 10.0, 0.05], (
        "they were not measured alike"
    )
    assert "conditions" not in pd.read_csv(write_folder_table(tmp_path / "alone", {"npo": npo}))
    assert list(models_frame({"a": npo, "b": npo.with_tau(1.0)}).columns)[-1] == "conditions"
