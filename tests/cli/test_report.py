"""`uds-lens report`: saved audits, or folders of them, as one page."""

import base64
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from meta.test_our_results import results

import uds_lens as ul


@pytest.fixture
def saved(tmp_path: Path, make_audit) -> Path:
    for name, uds in (("npo", 0.25), ("rmu", 0.75)):
        make_audit(uds).save(tmp_path / "runs" / name)
    (tmp_path / "runs" / "notes").mkdir()
    return tmp_path / "runs"


def test_named_audits_go_on_one_page(saved: Path, uds_lens) -> None:
    out = saved / "page.html"
    code, printed, err = uds_lens("report", saved / "npo", saved / "rmu", "--out", out, "--title", "Two & more")
    assert (code, err) == (0, "")
    assert printed == f"2 audits in {out}: open it in a browser.\n"
    page = out.read_text(encoding="utf-8")
    assert "0.250" in page and "0.750" in page and "<h1>Two &amp; more</h1>" in page


def test_a_folder_stands_for_the_audits_in_it_each_named_after_its_model(saved: Path, make_audit, uds_lens) -> None:
    audit = make_audit(0.5)
    models = {**audit.models, "unlearned": replace(audit.models["unlearned"], name="ckpt/rmu-strong")}
    replace(audit, models=models).save(saved / "tuesday")
    make_audit(0.5).save(saved / "forget05" / "ga")
    code, printed, _ = uds_lens("report", saved, saved / "npo", "--out", saved / "page.html", "--json")
    assert code == 0 and sorted(json.loads(printed)["audits"]) == ["ga", "npo", "rmu", "rmu-strong"]
    assert ">rmu-strong<" in (saved / "page.html").read_text(encoding="utf-8")


def test_audits_inside_an_audit_are_in_the_report(saved: Path, make_audit, uds_lens) -> None:
    make_audit(0.5).save(saved / "npo" / "later")
    code, out, _ = uds_lens("report", saved / "npo", "--out", saved / "page.html")
    assert code == 0 and "2 audits in" in out


def test_an_audit_of_another_release_in_a_folder_stops_with_its_name(saved: Path, uds_lens) -> None:
    manifest = saved / "npo" / "manifest.json"
    manifest.write_text(re.sub(r'"version": \d+', '"version": 99', manifest.read_text()))
    code, _, err = uds_lens("report", saved, "--out", saved / "page.html")
    assert code == 1 and f"{str(saved / 'npo')!r} has format version 99" in err


def test_logit_lens_results_are_drawn_beside_uds(tmp_path: Path, uds_lens) -> None:
    world = ul.toy.load()
    run = ul.RunOptions(device="cpu", progress=False)
    npo = world.unlearned["npo"]
    raw = ul.AuditConfig(protocol="raw")  # as metrics ask Logit Lens
    audit = ul.DepthAudit.run(world.full, world.retain, npo, world.examples[:3], config=raw, options=run)
    audit.save(tmp_path / "npo")
    data = ul.metrics.MetricData(forget=world.examples[:3])
    found = ul.metrics.evaluate(npo, data, metrics=["logit_lens"], retain=world.retain, full=world.full, run=run)
    found.save(tmp_path / "npo.json")
    out = tmp_path / "page.html"
    code, _, err = uds_lens("report", tmp_path / "npo", "--logit-lens", tmp_path / "npo.json", "--out", out)
    assert (code, err) == (0, "")
    page = out.read_text(encoding="utf-8")
    data = json.loads(page.split('<script type="application/json" id="data">')[1].split("</script>")[0])
    s2 = np.frombuffer(base64.b64decode(data["models"][0]["lens"][1]), dtype="<f4")
    expected = np.asarray(found["logit_lens"].details["s2_delta"])
    np.testing.assert_allclose(s2.reshape(expected.shape), expected, atol=2e-6)


def test_metrics_references_and_short_paths(saved: Path, uds_lens) -> None:
    (saved / "metrics").mkdir()
    options = ("--metrics", saved / "metrics", "--reference", "rmu", "--short-paths", "--out", saved / "page.html")
    code, _, err = uds_lens("report", saved / "npo", saved / "rmu", *options)
    assert code == 1 and "no metrics in" in err
    found = results("ckpt/npo", retain_q_prob=0.875)
    models = {"model": ul.DepthAudit.load(saved / "npo").models["unlearned"]}
    replace(found, models=models).save(saved / "metrics" / "npo.json")
    code, _, err = uds_lens("report", saved / "npo", saved / "rmu", *options)
    page = (saved / "page.html").read_text(encoding="utf-8")
    assert (code, err) == (0, "") and "0.875" in page and "Grey: reference models (rmu)." in page
    assert str(saved) not in page
