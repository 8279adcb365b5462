"""`uds-lens published` end to end without a network, on a cache of toy weights under the real ids."""

import json

import pytest
from cli.conftest import uds_lens  # noqa: F401 - a fixture

from uds_lens import study
from uds_lens.published import find

from .conftest import put_in_cache

NAME = "npo_lr1e5_b01_a1_ep5"


def test_list(uds_lens):  # noqa: F811
    code, out, _ = uds_lens("published", "list", "--method", "npo")
    assert code == 0 and "18 models." in out and "Llama 3.2 Community License" in out
    code, out, _ = uds_lens("published", "list", "--json")
    assert len(json.loads(out)) == 230
    for words, models in (
        (("--data", "tofu", "--role", "retain"), ["retain", "retain", "retain"]),
        (("--data", "muse", "--name", "full,retain"), ["full", "retain", "full", "retain"]),
        (("--method", "npo,rmu", "--data", "tofu-1b", "--name", NAME), [NAME]),
    ):
        code, out, err = uds_lens("published", "list", *words, "--json")
        assert [row["model"] for row in json.loads(out)] == models, err
    code, _, err = uds_lens("published", "list", "--name", "nobody")
    assert code == 1 and "error: no published model 'nobody'" in err


def test_list_plan_run_compare_offline(uds_lens, cache, toy_tofu, tmp_path):  # noqa: F811
    for name in ("full", "retain", NAME):
        put_in_cache(cache, find(name).hub_id)
    plan, run, page = tmp_path / "plan.toml", tmp_path / "run", tmp_path / "c.html"
    absent = "npo_lr1e5_b01_a2_ep5"
    chosen = ("--name", NAME, "--name", absent, "--examples", toy_tofu, "--metric", "es")
    code, out, err = uds_lens("published", "plan", *chosen, "--out", plan)
    assert (code, "4 models, 9.89 GB to download" in out) == (0, True), err
    plan.write_text(plan.read_text().replace('dtype = "bfloat16"', 'dtype = "float32"'))  # a CPU is slow in the other
    code, out, err = uds_lens("published", "run", plan, "--out", run)
    assert code == 1 and "3 of 4 done, 1 failed" in out
    told = "\n".join(uds_lens.doing)
    assert "3 models are already on this machine" in told
    assert "1 models to download, 2.47 GB in all, at most 2.5 GB on the disk at a time" in told
    assert "0 of 4 done, 4 left; 0 models to make, disk" in told
    (failed,) = study.status(run).failed
    assert failed.reason.startswith(
        f"ModelError: '{find(absent).hub_id}' is not in the Hub cache, and nothing is downloaded offline"
    )
    assert failed.reason.count(". ") == 0, "one sentence"
    assert len(list(cache.glob("models--*"))) == 3, "what was there before stays"
    code, out, err = uds_lens("published", "compare", run, "--out", page)
    assert code == 1, "toy weights are not the published ones, and float32 does not explain that"
    assert "es" in out and "differ" in out and f"! {NAME}, es: " in out and page.is_file()
    code, out, _ = uds_lens("published", "compare", run, "--json", "--out", tmp_path / "c.csv")
    told = json.loads(out)
    assert {row["model"] for row in told["values"]} == {"full", "retain", NAME}
    assert (tmp_path / "c.csv").read_text().startswith("group,model,metric,measured")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["published", "lst"], "expected list, plan, run PLAN, or compare RUN"),
        (["published", "run"], "expected list, plan"),
        (["published", "run", "plan.toml"], "--out missing"),
        (["published", "plan"], "--out missing"),
        (["published", "compare", "nowhere"], "no run at 'nowhere'"),
    ],
)
def test_wrong_usage_is_one_line(uds_lens, words, told):  # noqa: F811
    code, _, err = uds_lens(*words)
    assert code == 1 and told in err and "Traceback" not in err
