"""What goes into the dashboard, without a browser."""

import re
from dataclasses import replace

import pandas as pd
import pytest

from uds_lens import meta
from uds_lens.errors import ConfigError, DataError
from uds_lens.report import DashboardOptions, dashboard
from uds_lens.report._dashboard import context, page_of, payload
from uds_lens.report._dashboard_tables import cautions, gather, method_name
from uds_lens.unlearning import METHODS

from . import model_tables as made

QUICK = DashboardOptions(n_resamples=20)


def tables(models, **given):
    return gather(models, **{"options": QUICK, **given})


@pytest.fixture(scope="module")
def published():
    return tables(meta.read_published())


@pytest.fixture(scope="module")
def own():
    study = made.study(40)
    return tables(study.models, **study.given())


def test_the_papers_page_says_what_its_files_say(published):
    warned = " ".join(cautions(published))
    assert "UDS 0.971 (0.875 to 0.994), Truth Ratio 0.947 (0.845 to 0.983)" in warned
    assert "IdkNLL: 18-way tie" in warned and "99 of 150 scores are exactly 0" in warned
    assert "CKA 9, UDS 12, Extraction Strength 14" in warned


def test_the_papers_page_has_its_rows(published):
    data = payload(published)
    assert len(data["models"]["rows"]) == 150 and len(data["references"]["rows"]) == 2
    assert list(data["settings"]) == ["utility+threshold own", "utility own"]
    assert data["robust"]["utility own"]["uds"]["n"] == 124
    assert data["robust"]["utility+threshold own"]["uds"]["overall"] == pytest.approx(0.951, abs=5e-4)
    families = {row["metric"]: row["family"] for row in data["metrics"]}
    apart = {name for name, family in families.items() if name != family}
    assert apart == {"fisher_masked_0.0001", "fisher_masked_0.01"}
    assert families["mia_min_k"] == "mia_min_k"
    told = context(published)
    rows = {row["method"]: row for row in told["sweep"]}
    assert rows["SimNPO"]["swept"] == "\u03b2 3.5, 4.5; \u03b3 0.125, 0.25" and rows["SimNPO"]["models"] == 24
    assert rows["UNDIAL"]["lr"] == "1e-05, 0.0001, 0.0003" and rows["NPO"]["fixed"] == "\u03b2 0.1"
    assert len(told["sources"]) == 22


def test_own_values_are_judged_and_ranked(own, figures):
    data = payload(own)
    faithful = meta.faithfulness(own.pools, n_resamples=20).set_index("metric")
    for row in data["metrics"]:
        assert row["auc"] == faithful["auc"][row["metric"]]
        assert row["cluster_low"] == faithful["cluster_low"][row["metric"]]
    assert [key.split()[1] for key in data["settings"]].count("common") == 4
    drawn = data["figures"]
    for name in ("forest", "pairs", "filters", "frontier", "pools uds", "quantised both uds", "relearned utility es"):
        assert drawn[name]["data"], name
    assert drawn["ranks with without configurations"] and "heatmap none common" in drawn
    kept = [len(drawn[f"quantised {key} uds"]["data"][1]["x"]) for key in ("both", "utility")]
    points = own.points[own.points["metric"] == "uds"]
    complete = points["before"].notna() & points["quantised"].notna()
    assert kept == [int((points["kept"] & complete).sum()), int((points["useful"] & complete).sum())]
    assert "(Holm-adjusted p < 0.05)" in " ".join(cautions(own))
    assert "cover only more models of the same variants (kinds of training)" in " ".join(cautions(own))
    assert all("new_variants_low" in row for row in data["metrics"])
    assert {"q_runs_low", "clusters"} <= set(data["robust"]["none own"]["uds"])


def test_host_depth_has_a_column_where_there_is_one():
    frame = made.models(40)
    assert "hidden" not in payload(tables(frame))["models"]["fields"]
    data = payload(tables(frame.assign(host_depth=0.125, hidden=0.5)))["models"]
    place = data["fields"].index("hidden")
    assert {row[place] for row in data["rows"]} == {0.5}
    assert "output_depth" not in data["fields"]


def test_what_is_missing_is_told_on_the_page_and_the_rest_is_there():
    frame, pools = made.models(16), made.study(16).pools
    for models, given, gap in (
        (frame.drop(columns="es"), {}, "lacks the column 'es'"),
        (frame.drop(columns="method"), {}, "column 'method'"),
        (frame, {"pools": pools[pools["knows"]]}, "both pools need models"),
    ):
        assert any(gap in told for told in tables(models, **given).gaps)
    page = page_of(gather(frame.drop(columns="es"), options=QUICK))
    assert "lacks the column" in page and 'id="model-table"' in page and 'id="rank-table"' not in page


def test_pools_and_references_among_the_models_are_found_and_robustness_needs_none():
    study = made.study(16)
    both = pd.concat([made.models(16), study.pools, made.models(1).assign(model="retain", method=None)])
    found = tables(both.reset_index(drop=True))
    assert (len(found.models), len(found.pools), list(found.references["model"])) == (16, 60, ["retain"])
    assert found.references["score_with"].notna().sum() == 0, "its uds is missing"
    data = payload(tables(study.models, robust=study.robust))
    assert {row["metric"] for row in data["metrics"]} == set(study.robust["metric"])
    assert all(row["auc"] is None for row in data["metrics"]) and data["robust"]["none own"]["es"]["q"] is not None


def test_readers_reasons_are_listed():
    frame = made.models(16)
    reasons = pd.DataFrame({"model": [frame["model"][0]], "metric": ["uds"], "reason": ["nobody measured it"]})
    page = page_of(gather(meta.ModelTable(frame=frame, reasons=reasons, source="here"), options=QUICK))
    assert "nobody measured it" in page and "1 value is missing" in page


def test_the_title_asks_what_the_tables_answer():
    study = made.study(16)
    both = page_of(gather(study.models, robust=study.robust, options=QUICK))
    assert "<h1>Which metrics can be trusted, and which methods forget?</h1>" in both
    assert "F: faithfulness, the probability that" in both.split("<h2>Metrics</h2>")[1]
    methods = page_of(gather(study.models, options=QUICK))
    assert "<h1>Which methods forget?</h1>" in methods and "trusted" not in methods.split("<main>")[0][-2000:]
    assert "<h1>Mine</h1>" in page_of(gather(study.models, options=replace(QUICK, title="Mine")))


def test_methods_of_open_unlearning_have_their_names():
    trainers = ("GradAscent", "GradDiff", "NPO", "SimNPO", "DPO", "RMU", "UNDIAL", "CEU", "SatImp", "WGA", "PDU")
    for name in trainers:
        assert method_name(name.lower()) == method_name(name) == name
    ours = {"AltPO", "IdkDPO", "IdkNLL", "KL", "RMU-LAT", "RR", "UNDO"}
    assert {method_name(name) for name in METHODS} <= {*trainers, *ours}


def test_refusals():
    with pytest.raises(ConfigError, match="HTML file"):
        dashboard(made.models(8), "dashboard.pdf")
    with pytest.raises(DataError, match="occurs twice"):
        tables(pd.concat([made.models(8), made.models(1)]))
    with pytest.raises(DataError, match="lacks model"):
        tables(pd.DataFrame({"uds": [0.1]}))


def test_the_page_is_one_file_that_asks_nobody(tmp_path):
    page = dashboard(made.models(24), tmp_path / "d.html", options=QUICK).read_text(encoding="utf-8")
    body = re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)
    assert not re.search(r"(?:src|href)=[\"']https?://(?!arxiv\.org/abs/)", body)
    assert "default-src &#39;none&#39;" in body and made.HOSTILE not in page and len(page) < 15e6
    assert "NaN" not in re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1]
