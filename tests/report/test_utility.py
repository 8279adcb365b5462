"""Other metrics on the page: found by the weights, as a table and beside depth."""

from dataclasses import replace

import pandas as pd
import pytest
from meta.test_our_results import results as made
from synthetic_audits import record, with_retains

from uds_lens import plots
from uds_lens.errors import ConfigError
from uds_lens.metrics import MetricResults
from uds_lens.report import render
from uds_lens.report._payload import measured, utility_metric

from .html_pages import Page


def results(fingerprint: str, name: str = "x", /, **values: float) -> MetricResults:
    """Metrics of a model with these weights."""
    found = made(name, **values)
    words = {"zero": "nothing", "one": "all <b>"}
    metrics = {
        key: replace(value, label=key.upper(), reason=value.reason and "no <such> set", **words)
        for key, value in found.metrics.items()
    }
    told = {"protocol": "chat" if name == "by chat" else "raw"}
    return replace(found, metrics=metrics, models={"model": record(name, fingerprint, 6)}, provenance=told)


def weights(audit) -> str:
    return audit.models["unlearned"].fingerprint


def test_results_find_their_audits_by_the_weights_and_join(unchecked, audits):
    npo, ga = weights(audits["npo"]), weights(audits["ga"])
    found = measured(audits, [results(ga, es=0.1), results(npo, es=0.2), results(ga, em=0.3), results("f" * 32, es=1)])
    assert list(found.values) == ["npo", "ga", "full"] and found.roles == ("full",)
    assert {name: value.value for name, value in found.values["ga"].items()} == {"es": 0.1, "em": 0.3}
    assert measured(audits, []) is None
    with pytest.raises(ConfigError, match=r"'stranger' belong to none of the audits.* leave its results out"):
        measured(audits, results("9" * 32, "stranger", es=0.1))
    with pytest.raises(ConfigError, match="are MetricResults"):
        measured(audits, ["metrics.json"])


def test_utility_is_what_all_models_have(audits):
    nan = float("nan")
    npo = results(weights(audits["npo"]), model_utility=nan, retain_q_prob=0.5)
    ga = results(weights(audits["ga"]), model_utility=0.7, retain_q_prob=0.5)
    assert utility_metric(measured(audits, [npo, ga])) == "retain_q_prob"
    assert utility_metric(measured(audits, ga)) == "model_utility"
    assert utility_metric(measured(audits, results(weights(audits["ga"]), es=0.5))) is None


def test_the_page_shows_depth_against_utility_and_every_metric(audits, several, figures):
    given = {
        name: results(weights(audit), "by chat" if name == "ga" else "x", model_utility=0.5 + place / 10, es=0.25)
        for place, (name, audit) in enumerate(audits.items())
    }
    page = Page(render(audits, metrics={**given, "full": results("f" * 32, es=float("nan"), model_utility=0.9)}))
    marks = [trace for trace in page.data["figures"]["utility"]["data"] if "meta" in trace]
    assert [(t["meta"]["place"], t["x"][0], t["y"][0]) for t in marks] == [
        *((place, 0.5 + place / 10, audit.uds) for place, audit in enumerate(audits.values())),
        (-1, 0.9, 0.0),
    ]
    order = sorted(audits, key=lambda name: -audits[name].uds)
    assert (
        "Prompts of the output metrics; white-box metrics use raw prompts "
        + " ".join("chat template" if name == "ga" else "raw" for name in order)
        + " raw Utility MODEL_UTILITY 0 nothing, 1 all <b>; higher: better "
        + " ".join(f"{given[name]['model_utility'].value:.3f}" for name in order)
        + " 0.900"
        in page.words
    )
    assert ("td", "title", "no <such> set") in page.attributes
    assert ("a", "href", "#utility") in page.attributes
    bare = Page(several.read_text(encoding="utf-8"))
    assert "No utility metric was given" in bare.words and bare.data["figures"]["utility"] is None
    assert "Utility" in page.words and "No utility metric was given" not in page.words
    other = Page(render(audits, metrics=results(weights(audits["ga"]), es=0.5)))
    assert "No utility metric was given" in other.words
    assert "Other metrics" in other.words and "Depth against utility" in page.words
    assert "Depth against utility" not in other.words + bare.words


def test_depth_and_utility_draws_the_frontier_of_what_is_no_reference():
    rows = {"full": (1.0, 0.0), "a": (0.9, 0.4), "b": (0.5, 0.8), "c": (0.4, 0.3), "d": (float("nan"), 0.9)}
    frame = pd.DataFrame([{"model": name, "utility": u, "uds": d} for name, (u, d) in rows.items()])
    figure = plots.depth_utility(frame, references=["full"], chosen="b")
    assert list(zip(figure.data[0].x, figure.data[0].y, strict=True)) == [(0.5, 0.8), (0.9, 0.4)]
    drawn = {trace.name: trace.marker for trace in figure.data[1:]}
    assert list(drawn) == ["full", "a", "b", "c"] and drawn["full"].symbol == "star"
    assert drawn["b"].size > drawn["a"].size and "Without both values: 1" in figure.layout.title.subtitle.text


@pytest.mark.long
def test_short_paths_leave_no_place_of_this_machine(audits, figures):
    place = "/home/somebody/secret/ckpt/npo"
    npo = audits["npo"]
    told = {**npo.provenance, "command": f"/usr/local/bin/uds-lens audit --model {place}", "machine": {"x": place}}
    npo = replace(npo, models={**npo.models, "unlearned": record(place, "1" * 32, 6)}, provenance=told)
    one, other = with_retains(npo).retains
    npo = replace(npo, retains=(one, replace(other, model=record("/home/somebody/seed/two", "7" * 32, 6))))

    assert place in render({place: npo, "ga": audits["ga"]})
    page = render({place: npo, "ga": audits["ga"]}, references=[place], short_paths=True)
    assert "somebody" not in page and "secret" not in page and ".../ckpt/npo" in page
    assert Page(page).data["models"][0]["reference"] is True
