"""The file as text: what it says, what it holds, and that nothing from data is markup."""

import base64
import dataclasses
import json
import math
import shlex
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import typer
from hypothesis import given, strategies as st
from meta.test_our_results import results
from numpy.testing import assert_allclose
from synthetic_audits import record, synthetic_audit, with_control, with_retains

from uds_lens._cli.app import app
from uds_lens.errors import ConfigError, DataError
from uds_lens.report import render, write
from uds_lens.report._audit_page import Note, difference_words, differences, next_steps, notes
from uds_lens.report._page import deltas, floats, safe_json
from uds_lens.results import AuditConfig, compare_all

from .conftest import compared
from .html_pages import Page


@pytest.fixture(scope="module")
def page(several: Path) -> Page:
    return Page(several.read_text(encoding="utf-8"))


def numbers(text: str) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), dtype="<f4")


def test_names_and_texts_are_shown_not_parsed(page, audits):
    assert page.tags["script"] == 3, "data, plotly, ours"
    assert page.tags["img"] == 0
    assert not [attribute for attribute in page.attributes if attribute[1].startswith("on")]
    assert "</script>&<b>rmu" in page.words
    embedded = [row[4] for row in page.data["sets"][0]["rows"]]
    assert embedded == [example.question for example in audits["npo"].examples]
    assert page.data["models"][1]["name"] == "</script>&<b>rmu"


def test_nothing_is_loaded_from_anywhere(page):
    loads = [(t, n, v) for t, n, v in page.attributes if n in ("src", "href", "action", "srcset", "data")]
    assert [load for load in loads if not load[2].startswith("#")] == [("link", "href", "data:,")]
    policy = next(v for t, n, v in page.attributes if t == "meta" and n == "content" and "default-src" in v)
    assert "default-src 'none'" in policy and "http" not in policy and "unsafe-inline'; img" in policy
    script_part = policy.split("script-src")[1].split(";")[0]
    assert script_part.count("sha256-") == 2 and "unsafe" not in script_part


def test_scores_stand_in_order_with_interval_and_counts(page, audits):
    scores = sorted((audit.uds for audit in audits.values()), reverse=True)
    places = [page.words.index(f"{score:.3f}") for score in scores]
    assert places == sorted(places)
    for audit in audits.values():
        low, high = audit.uds_interval
        assert f"{low:.3f} to {high:.3f}" in page.words


def test_warnings_skips_protocol_and_provenance_are_there(page):
    for words in (
        "Only 23 examples are measurable",
        "the entity is not in the answer",
        "resid_post",
        "Question: Who? Answer:",
        "ffffffffffffffffffffffffffffffff",
        "uds_lens 0.1.0, torch 2.6",
        "uds-lens audit --full ckpt/full",
    ):
        assert words in page.words, words


def test_one_audit_has_a_headline(one):
    text = Page(one.read_text(encoding="utf-8")).words
    audit = synthetic_audit(n=70)
    assert f"{audit.uds:.3f} 95% interval {audit.uds_interval.low:.3f} to {audit.uds_interval.high:.3f}" in text
    assert "prompts raw measured 69 not measurable 1 skipped 1" in text
    assert "Undecided" in text
    narrow = Page(render(replace(audit, config=replace(audit.config, confidence=0.995)))).words
    assert "99.5% interval" in narrow and "100% interval" not in narrow


def test_prompts_are_named_once_or_for_each_model(page, audits):
    assert "Prompts: raw." in page.words
    first, *_ = audits
    chat = replace(audits[first], config=replace(audits[first].config, protocol="chat"))
    other = Page(render({**dict(list(audits.items())[:2]), first: chat})).words
    assert "Prompts: raw." not in other and "chat template" in other


def test_numbers_come_back_from_the_page(page, audits):
    data = page.data
    assert len(data["sets"]) == 1 and len(data["stage1"]) == 1, "shared parts are there once"
    for model, audit in zip(data["models"], audits.values(), strict=True):
        s1 = numbers(data["stage1"][model["stage1"]]).reshape(audit.s1_delta.shape)
        assert_allclose(s1, audit.s1_delta, atol=1e-5)
        assert_allclose(numbers(model["s2"]).reshape(s1.shape), audit.s2_delta, atol=1e-5)
        assert_allclose(numbers(model["uds"]), audit.uds_per_example, atol=1e-6)
        assert ((s1 > np.float32(model["tau"])) == audit.ke_mask.numpy()).all()
        assert sorted(model["cluster"]) == list(range(len(audit.examples)))


def test_nothing_measured_is_said_in_words():
    text = Page(render(synthetic_audit(n=1, skipped=0))).words
    assert "not measurable no interval" in text and "No example is measurable" in text
    assert "NaN to" not in text
    empty = Page(render(synthetic_audit(n=0, skipped=2))).words
    assert "No example could be scored" in empty and "Skipped rows 2 rows" in empty


def test_different_sets_of_examples_are_kept_apart():
    data = Page(render([synthetic_audit(n=5, name="a/x"), synthetic_audit(n=7, layers=3, name="b/x")])).data
    assert [(model["name"], model["set"]) for model in data["models"]] == [("a/x", 0), ("b/x", 1)]
    assert [len(part["rows"]) for part in data["sets"]] == [5, 7]


def test_sites_are_compared_when_audits_of_several_are_given(sites, figures):
    page = Page(render(sites))
    assert [model["name"] for model in page.data["models"]] == ["npo, resid_post", "npo, mlp_out"]
    assert "Knowledge by patch site S1, the log-probability lost" in page.words
    assert "Audits: " not in page.words, "one group needs no names"
    figure = page.data["figures"]["components0"]
    curves = {trace["name"]: trace["y"] for trace in figure["data"] if trace["type"] == "scatter" and "name" in trace}
    for audit in sites:
        assert_allclose(curves[audit.config.site], audit.layers_frame()["s1_mean"])
    assert "differ in site" in page.words


def lens_results(audit, **details):
    """Saved metrics of an audit's models with these details of `logit_lens`."""
    found = results("x", logit_lens=0.5)
    ids = tuple(example.id for example in audit.examples)
    value = replace(found["logit_lens"], ids=ids, per_example=(0.5,) * len(ids), details=details)
    roles = {"model": audit.models["unlearned"], "full": audit.models["full"], "retain": audit.models["retain"]}
    told = {"entity_ids_hash": audit.provenance["ids_hash"]}
    return replace(found, metrics={"logit_lens": value}, models=roles, provenance=told)


def test_logit_lens_values_that_a_file_may_hold():
    audit = synthetic_audit(n=2, layers=2)
    good = [[0.5, None], [0.5, 0.25]]
    drawn = Page(render(audit, lens=[lens_results(audit, s1_delta=good, s2_delta=good)])).data["models"][0]["lens"]
    assert_allclose(numbers(drawn[1]), [0.5, np.nan, 0.5, 0.25])
    for bad, words in (
        ([[0.5, "x"], [0.5, 0.25]], "must be one number per example and layer"),
        ([3, 4], "must be one number per example and layer"),
        ([[0.5, 0.5]], "must be one number per example and layer"),
        ({}, "must be one number per example and layer"),
        ([[0.5], [0.5]], "belong to none of the audits"),
        ([[], []], "belong to none of the audits"),
    ):
        with pytest.raises(ConfigError, match=words):
            render(audit, lens=[lens_results(audit, s1_delta=bad, s2_delta=bad)])


def test_logit_lens_finds_its_audit_and_its_example(sites):
    audit = sites[0]
    found = compared(audit, 2)
    models = Page(render(sites, lens=[found])).data["models"]
    assert [model["lens"] is not None for model in models] == [True, False], "the lens reads the residual stream"
    for part, own in zip(models[0]["lens"], (found.lens_s1, found.lens_s2), strict=True):
        drawn = numbers(part).reshape(audit.s1_delta.shape)
        assert_allclose(drawn[2], own, atol=1e-6)
        assert np.isnan(np.delete(drawn, 2, axis=0)).all()
    stranger = compared(synthetic_audit(seed=9, erased=0.9), 2)
    with pytest.raises(ConfigError, match="of example 'e2' belong to none of the audits"):
        render(sites, lens=[stranger])


def test_logit_lens_of_other_examples_with_the_same_ids_is_refused():
    """Rows of a file without ids are numbered, whatever they hold."""
    audit = synthetic_audit(n=3, layers=2)
    s1 = audit.s1_delta.tolist()
    fits = lens_results(audit, s1_delta=s1, s2_delta=s1)
    other = {"provenance": {"entity_ids_hash": "9" * 32}}
    more = replace(fits, **other)  # holds more rows than the audit: told by the last layer
    for source in (fits, more):
        assert Page(render(audit, lens=[source])).data["models"][0]["lens"] is not None
    wrong = [[x + 1 for x in row] for row in s1]
    with pytest.raises(ConfigError, match="belong to none of the audits"):
        render(audit, lens=[replace(lens_results(audit, s1_delta=wrong, s2_delta=wrong), **other)])


def test_references_are_known_by_their_weights_or_named(audits):
    full = replace(audits["npo"], models={**audits["npo"].models, "unlearned": audits["npo"].models["full"]})
    named = {**audits, "old": full}
    page = Page(render(named, references=["ga"]))
    assert [model["reference"] for model in page.data["models"]] == [False, False, True, True]
    rows = [name for tag, kind, name in page.attributes if tag == "tr" and kind == "class"]
    assert rows.count("reference") == 2 and "Grey: reference models (ga, old)." in page.words
    assert "note old: full and the audited model have identical weights." in page.words
    with pytest.raises(ConfigError, match=r"names of audits; expected .*npo.*; got 'gone'"):
        render(audits, references=["gone"])


def test_wrong_calls_name_the_fix(tmp_path):
    audit = synthetic_audit(n=3, layers=2)
    twice = replace(audit, examples=(audit.examples[0], *audit.examples[:2]))
    for audits, name, words in (
        ({}, "r.html", "at least one audit; got none"),
        (audit, "r.pdf", r"for example report\.html"),
        ({"npo": twice}, "r.html", "the audit 'npo': ids must be unique"),
    ):
        with pytest.raises((ConfigError, DataError), match=words):
            write(audits, tmp_path / name)
    assert not list(tmp_path.iterdir())


@pytest.mark.long
def test_twenty_large_models_would_stay_under_15_megabytes(large, one):
    alone = one.stat().st_size  # plotly and one small model
    assert alone + (large.stat().st_size - alone) * 20 / 6 < 15_000_000


def test_differences_are_a_table_and_from_four_models_on_a_matrix(page, audits, figures):
    pairs = compare_all(audits, n_resamples=200).set_index(["one", "other"])
    real = int((pairs["p_holm"] < 0.05).sum())
    assert f"{real} of 3 pairs differ significantly (adjusted p < 0.05)." in page.words and real > 0
    row = pairs.loc["npo", "ga"]
    assert (
        f"ga npo {-row['difference']:.3f} {-row['high']:.3f} to {-row['low']:.3f} {row['p_holm']:.2g} significant 23 "
        "23 left out: 1 not measurable in either"
    ) in page.words
    assert page.data["figures"]["differences"] is None, "three pairs are read in the table"
    four = Page(render({**audits, "more": audits["npo"]}))
    assert [("details", "id", "open") in each.elements for each in (page, four)] == [True, False], "not twice"
    figure = four.data["figures"]["differences"]
    assert len(figure["layout"]["xaxis"]["ticktext"]) == 4
    assert "&lt;b&gt;rmu" in str(figure["data"][0]["customdata"]), "nothing in a name is markup"


def test_what_could_be_significant_is_said(audits):
    words = difference_words(differences(audits), "95%")["sentence"]
    assert "The smallest possible p is 0.0025 (with 23 subjects, adjusted for 3 pairs)." in words
    few = {}
    for name, audit in audits.items():
        examples = [replace(e, subject=f"s{place % 6}") for place, e in enumerate(audit.examples)]
        few[name] = replace(audit, examples=tuple(examples))
    pairs = differences(few)
    needed = (
        "The smallest possible p is 0.094 (with 6 subjects, adjusted for 3 pairs), so no difference could be "
        "significant; at least 7 subjects, or fewer models, would be needed."
    )
    sentence = difference_words(pairs, "95%")["sentence"]
    assert sentence == f"0 of 3 pairs differ significantly (adjusted p < 0.05). {needed}"
    assert sentence in Page(render(few)).words
    full = replace(few["npo"], models={**few["npo"].models, "unlearned": few["npo"].models["full"]})
    found = difference_words(differences({"npo": few["npo"], "full": full}, ["full"]), "95%")
    assert found["sentence"] == "No pair could be tested; the table gives the reasons."
    (row,) = found["rows"]
    assert row["verdict"] == "withheld" or row["verdict"] == "not tested"
    assert row["p"] is None and "full is a reference" in row["why"]
    alike = replace(audits["npo"], s2_delta=audits["npo"].s2_delta + 0.001, models=audits["ga"].models)
    (row,) = difference_words(differences({"npo": audits["npo"], "alike": alike}), "95%")["rows"]
    assert "All but a few subjects have nearly the same difference" in row["why"]


def verdict_of(page):
    return page.words.split("Verdict ")[1].split(" Scores ")[0]


def test_the_first_page_has_verdicts_with_their_reasons_and_what_next(page, audits):
    npo, ga = audits["npo"], audits["ga"]
    why = "Patched states alone cannot tell knowledge that is gone from knowledge that is hidden: a transplant can."
    assert verdict_of(page) == f"Undecided (ga, </script>&<b>rmu, npo): {why}"
    for words in ("uds-lens audit --", "uds-lens metrics --", "uds-lens elicit --", "--control retained.json"):
        assert words in page.words
    assert "'ckpt/</script>&<b>rmu'" in page.words
    lost = with_control(ga, lost=9.0)
    found = verdict_of(Page(render({"ga": lost, "npo": npo})))
    assert "Damaged (ga): Retained facts are lost: the unlearned states cost" in found
    found = verdict_of(Page(render({"npo": npo, "swapped": replace(npo, s1_delta=-npo.s1_delta - 1)})))
    assert "Withheld (swapped): Are full and retain swapped?" in found


def test_commands_of_the_first_page_have_options_that_exist(audits):
    commands = typer.main.get_command(app).commands
    steps = next_steps(audits, [], utility=False, elicited=())
    lines = [line for step in steps for line in step.command.splitlines()]
    assert len(lines) >= 5
    for line in lines:
        program, name, *words = shlex.split(line)
        options = {option for parameter in commands[name].params for option in parameter.opts}
        assert program == "uds-lens" and {word for word in words if word.startswith("--")} <= options, line


def test_commands_of_the_first_page_name_the_files_of_the_audits(audits):
    command = shlex.join(
        ["/bin/uds-lens", "audit", "--examples", "my data/forget.csv", "--out=runs/npo", "--tau", "0.1"]
    )
    npo = replace(audits["npo"], provenance=audits["npo"].provenance | {"command": command})

    def commands(audit):
        steps = next_steps({"npo": audit}, [], utility=False, elicited=())
        return "\n".join(step.command for step in steps)

    told = commands(npo)
    assert told.count("--examples 'my data/forget.csv'") == 3 and told.count("uds-lens report runs/npo --") == 2
    assert "forget.json" not in told and " audits " not in told and "..." not in told
    assert commands(replace(npo, provenance={"command": "mine.py it's"})).count("--examples forget.json") == 3
    again = (
        "uds-lens audit --examples 'my data/forget.csv' --tau 0.1 --control retained.json --transplant "
        "--out audits-again"
    )
    assert told.splitlines()[0] == again, "with the settings of the audit"
    facts = replace(npo, config=replace(npo.config, stand_in="counterfactual"), provenance={})
    assert "--retain " not in commands(facts) and "--stand-in counterfactual" in commands(facts)


def test_rows_carry_marks_for_their_cautions_and_hide_zeros(audits):
    over = with_control(replace(audits["npo"], s2_delta=audits["npo"].s1_delta * 2), lost=9.0)
    swapped = replace(audits["npo"], s1_delta=-audits["npo"].s1_delta - 1)
    page = Page(render({"over": over, **audits, "swapped": swapped}))
    marks = [v for t, n, v in page.attributes if (t, n) == ("a", "class")]
    assert (marks.count("mark caution"), marks.count("mark")) == (4, 1)
    chips = [v for t, n, v in page.attributes if (t, n) == ("span", "class") and v.startswith("chip")]
    assert chips[0] == "chip doubtful"
    assert "not measurable" in page.words.split("Choose a model")[0]
    complete = {n: synthetic_audit(seed=i, skipped=0) for i, n in enumerate("ab")}
    complete = {n: replace(a, s1_delta=a.s1_delta + 0.1) for n, a in complete.items()}
    assert "not measurable" not in Page(render(complete)).words.split("Choose a model")[0]


def test_damage_and_several_retain_models_are_told_and_drawn(page, audits, figures):
    assert "Damage, with its interval" not in page.words and "Against each retain" not in page.words
    audit = with_retains(with_control(next(iter(audits.values()))))
    low, high = audit.damage_estimate.interval
    for told in (Page(render(audit)), Page(render({"one": audit, "other": synthetic_audit(seed=9)}))):
        assert f"{audit.damage:.3f}" in told.words and f"{low:.3f} to {high:.3f}" in told.words
        assert "Against each retain model" in told.words and "ckpt/retain-2" in told.words
        assert told.data["models"][0]["figures"]["control"]["data"]


@given(st.text())
def test_json_survives_and_holds_no_letter_of_markup(text):
    embedded = safe_json({"question": text})
    assert json.loads(embedded) == {"question": text}
    assert not set(embedded) & set("<>&\u2028\u2029") and embedded.isascii()


def test_undefined_numbers_must_be_made_null_first():
    with pytest.raises(ValueError, match="Out of range"):
        safe_json(math.nan)


def test_floats_are_little_endian_and_keep_nan():
    back = np.frombuffer(base64.b64decode(floats(torch.tensor([[0.5, math.nan]]))), dtype="<f4")
    assert back[0] == 0.5 and np.isnan(back[1])


@pytest.mark.parametrize("tau", [0.05, 0.1, 0.3])
def test_rounding_moves_no_delta_across_tau(tau):
    exact = np.array([[tau, np.nextafter(tau, 1), np.nextafter(tau, 0), tau * (1 + 1e-9), tau * (1 - 1e-9), 2.0]])
    back = np.frombuffer(base64.b64decode(deltas(torch.from_numpy(exact), tau)), dtype="<f4")
    assert ((back > np.float32(tau)) == (exact[0] > tau)).all()
    assert np.allclose(back, exact[0], rtol=1e-6)


def texts(audits):
    return [note.text for note in notes(audits)]


def test_each_warning_once_with_the_names_it_is_about(audits):
    found = notes(audits)
    few = [note for note in found if note.text.startswith("Only 23 examples are measurable")]
    assert few == [Note(tuple(audits), few[0].text)]


def test_warnings_that_differ_in_percentages_become_one():
    audits = {f"m{i}": synthetic_audit(seed=i, erased=-0.1 * i) for i in (1, 2)}
    shares = [audit.negative_share for audit in audits.values()]
    (found,) = (note for note in notes(audits) if "raw LER below 0" in note.text)
    assert found.names == ("m1", "m2") and min(shares) < max(shares)
    assert f"On {min(shares):.0%} to {max(shares):.0%} of" in found.text


def test_two_audits_of_the_same_weights_are_noticed():
    same = {"npo": synthetic_audit(seed=3), "rmu": synthetic_audit(seed=3), "ga": synthetic_audit(seed=4)}
    assert Note(("npo", "rmu"), "The audited models have identical weights.") in notes(same)


def test_audits_that_cannot_be_compared_say_why():
    first = synthetic_audit(seed=1)
    other_tau = synthetic_audit(seed=2, config=AuditConfig(tau=0.1, n_bootstrap=200))
    assert any("differ in tau" in text for text in texts({"a": first, "b": other_tau}))
    retrained = dataclasses.replace(first, models={**first.models, "retain": record("x", "b" * 32, 6)})
    assert any("different retain models" in text for text in texts({"a": first, "b": retrained}))
    elsewhere = dataclasses.replace(first, provenance={**first.provenance, "ids_hash": "1" * 32})
    assert any("different examples" in text for text in texts({"a": first, "b": elsewhere}))
    assert not any("differ" in text for text in texts({"a": first, "b": synthetic_audit(seed=2)}))


def test_fatal_warnings_come_first():
    swapped = synthetic_audit(seed=5)
    swapped = dataclasses.replace(swapped, s1_delta=-swapped.s1_delta - 1)
    found = notes({"a": synthetic_audit(seed=1), "swapped": swapped})
    assert found[0].level == "fatal" and found[0].names == ("swapped",)
    assert {note.level for note in found[1:]} <= {"fatal", "caution", "note"}
