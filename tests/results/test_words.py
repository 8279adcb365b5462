"""Audits of an edit or a refusal: sentences name a knowing, an ignorant and a changed model, and no number moves."""

import dataclasses
import math
import re

import pytest
from synthetic_audits import synthetic_audit, with_control, with_retains

import uds_lens as ul
from uds_lens._cli.terminal import print_audits
from uds_lens.errors import ConfigError
from uds_lens.results._settings import Roles

# Roles as words of a sentence; not in options, paths, or the names of models ('ckpt/retain').
ROLES = re.compile(r"(?<![\w./='-])(full|retain|unlearned|retain models?)(?![\w/=]|\.\w)", re.IGNORECASE)


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


def sentences(audit):
    """Return what an audit says of itself, its card included; marks stand in tables, which keep the roles."""
    card = re.sub(r"<[^>]*>", " ", audit._repr_html_()).replace("&#x27;", "'")
    return " ".join((audit.reading, audit.verdict.why, *audit.warnings, card))


@pytest.mark.parametrize("words", ["edit", "refusal"])
def test_sentences_name_the_models_of_a_change(words, capsys):
    named = audits(words)
    for name, audit in named.items():
        assert not ROLES.findall(sentences(audit)), name
    said = " ".join(map(sentences, named.values()))
    for expected in (
        "Are the knowing model and the ignorant model swapped?",
        "the knowing model and the audited model were trained with the chat template",
        "There is no ignorant model, so 'ckpt/retain'",
        "but not with scores against an ignorant model",
        "the changed states cost 3",
    ):
        assert expected in said, expected
    print_audits(named)
    assert "(as in the knowing model), 1 = erased (as in the ignorant model)" in " ".join(
        capsys.readouterr().out.split()
    )


def test_sentences_of_unlearning_name_full_and_retain():
    """The test above can fail: it finds what an audit of unlearning says."""
    said = {name: set(ROLES.findall(sentences(audit))) for name, audit in audits("unlearning").items()}
    assert said["a"] == {"full", "retain", "unlearned"} and all(said.values())
    assert "Are full and retain swapped?" in sentences(audits("unlearning")["c"])


@pytest.mark.parametrize("words", ["unlearning", "edit"])
def test_a_page_says_what_its_figures_call_the_models(words, tmp_path):
    named = {name: audit for name, audit in audits(words).items() if name in "ab"}
    page = ul.report.write(named, tmp_path / "page.html").read_text(encoding="utf-8")
    other = "Figures and tables call these two and the changed model full, retain and unlearned."
    assert (other in page) == (words == "edit")
    assert ("as in full, the model before unlearning" in page) == (words == "unlearning")


def test_numbers_stay_and_comparisons_across_words_are_refused():
    audit = in_words(synthetic_audit(), "unlearning")
    edit = in_words(audit, "edit")
    texts = ("reading", "reason", "warnings", "warning_marks", "config")
    for name, value in audit.summary().items():
        if name not in texts:
            assert edit.summary()[name] == value or (isinstance(value, float) and math.isnan(value)), name
    assert edit.config.roles[:3] == ("the knowing model", "the ignorant model", "changed")
    assert audit.config.roles == Roles()
    with pytest.raises(ConfigError, match="they differ in words"):
        ul.results.compare(audit, edit)
    with pytest.raises(ConfigError, match="are for unlearning only"):
        ul.report.model_card(edit)
