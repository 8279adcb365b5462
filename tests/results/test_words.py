"""Audits of an edit or a refusal: no sentence speaks of unlearning, and no number moves."""

import dataclasses
import json
import math
import re

import pytest
from synthetic_audits import synthetic_audit, with_control, with_retains

import uds_lens as ul
from uds_lens._cli.terminal import print_audits
from uds_lens.errors import ConfigError
from uds_lens.results._words import worded

# Whole words; not in options, files, code, or in the names of models ('ckpt/retain').
WRONG = re.compile(r"(?<![\w./='\"-])(unlearn\w*|retain\w*|eras\w+|forg[eo]t\w*|full)(?![\w/=\"-]|\.\w)", re.I)


def in_words(audit, words, **config):
    return dataclasses.replace(audit, config=dataclasses.replace(audit.config, words=words, n_bootstrap=100, **config))


def audits(words):
    """Audits that between them have most warnings: damaged, other prompts, swapped, not measurable ..."""
    swapped, empty = (synthetic_audit(n=4, seed=seed, name=f"ckpt/{name}") for seed, name in ((2, "c"), (3, "d")))
    made = {
        "a": with_retains(synthetic_audit(n=8, erased=1.2, name="ckpt/a")),
        "b": with_control(synthetic_audit(n=8, erased=0.1, seed=1, name="ckpt/b"), n=4, lost=3.0),
        "c": dataclasses.replace(swapped, s1_delta=-1 - swapped.s1_delta),
        "d": dataclasses.replace(empty, s1_delta=0 * empty.s1_delta),
    }
    prompts = {"trained_with": {"full": "chat", "retain": "raw", "unlearned": "chat"}}
    made["a"] = dataclasses.replace(made["a"], provenance={**made["a"].provenance, **prompts})
    return {name: in_words(audit, words, stand_in="base" if name == "b" else None) for name, audit in made.items()}


def wrong(text):
    """Words of unlearning with what stands around them, in text or HTML."""
    bare = re.sub(r"(?s)<(style|script|pre|code)\b.*?</\1>", " ", text)
    bare = " ".join(re.sub(r"<[^>]*>", " ", bare).replace("&#39;", "'").split())
    return [bare[max(0, match.start() - 50) : match.end() + 20] for match in WRONG.finditer(bare)]


def texts_of(figure):
    layout, traces = figure.layout, figure.data
    texts = [layout.title.text, layout.title.subtitle.text, layout.xaxis.title.text, layout.yaxis.title.text]
    texts += [note.text for note in layout.annotations] + [trace.name for trace in traces]
    return " | ".join(filter(None, [*texts, *(trace.hovertemplate for trace in traces)]))


@pytest.mark.parametrize("words", ["edit", "refusal"])
def test_no_sentence_speaks_of_unlearning(words, capsys, tmp_path):
    named = audits(words)
    for audit in named.values():
        assert not wrong(" ".join((audit.reading, *audit.warnings, *(caution.mark for caution in audit.cautions))))
        assert not wrong(audit._repr_html_())
    for audit in (named["a"], named["b"]):
        for draw in (audit.plot_layers, audit.plot_heatmap, audit.plot_examples, audit.plot_length, audit.plot_clip):
            assert not wrong(texts_of(draw())), draw
    assert not wrong(texts_of(named["b"].plot_control()))
    print_audits(named)
    assert not wrong(capsys.readouterr().out)
    some = {name: named[name] for name in ("ab" if words == "edit" else "a")}
    page = ul.report.write(some, tmp_path / "page.html").read_text(encoding="utf-8")
    assert wrong(page) == []
    data = json.loads(re.search(r'<script type="application/json"[^>]*>(.*?)</script>', page, re.DOTALL)[1])
    drawn = {**data["figures"], **data["models"][0]["figures"]}
    names = json.dumps([part["name"] for key in ("example", "layers") for part in drawn[key]["data"] if "name" in part])
    assert "ignorant" in names and not wrong(names.replace('"', " "))


def test_words_of_unlearning_are_found_where_they_belong():
    """The test above can fail: it finds what an unlearning says."""
    audit = audits("unlearning")["a"]
    assert (
        wrong(audit.verdict.why + audits("unlearning")["b"].verdict.why)
        and wrong(" ".join(audit.warnings))
        and wrong(audit._repr_html_())
    )
    assert wrong(texts_of(audit.plot_layers()))


def test_numbers_stay_and_comparisons_across_words_are_refused():
    audit = in_words(synthetic_audit(), "unlearning")
    edit = in_words(audit, "edit")
    texts = ("reading", "reason", "warnings", "warning_marks", "config")
    for name, value in audit.summary().items():
        if name not in texts:
            assert edit.summary()[name] == value or (isinstance(value, float) and math.isnan(value)), name
    assert worded("erased as far as tested", "edit") == "lost as far as tested"
    with pytest.raises(ConfigError, match="they differ in words"):
        ul.results.compare(audit, edit)
    with pytest.raises(ConfigError, match="speak of unlearning only"):
        ul.report.model_card(edit)


def test_names_in_quotes_options_and_files_stay_and_the_longer_phrase_comes_first():
    text = "Measure 'runs/full' with --retain x and forget.json; `full` and retain_loss stay."
    assert worded(text, "edit") == text
    told = "Unlearning depth report: 1 model has lost most of the knowledge (as in retain, a model that never saw it)."
    expected = "Depth report: 1 model has lost most of the knowledge (as in the ignorant model)."
    assert worded(told, "edit") == expected
