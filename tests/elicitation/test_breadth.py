"""Real questions, chat templates, and models that say nothing, too much or rubbish: all is scored and counted."""

import dataclasses
import json
import math

import pytest
from tiny_models import EXAMPLES

import uds_lens as ul
from uds_lens.elicitation import GCG, ActPert, ElicitationResults, ElicitOptions, Skip, SoftGCG, _asking, _gcg, elicit
from uds_lens.errors import ModelError
from uds_lens.generation import Continuations
from uds_lens.models import HookedModel

from .conftest import RUN

OPTIONS = ElicitOptions(samples=1, temperature=1.0, max_new_tokens=5)
KING = {"subject": "Stephen King", "type": "simple question"}
QUESTIONS = [
    {"query": "What pseudonym has Stephen King published under?", "answer": "Richard Bachman", **KING},
    {"query": "What is the title of Stephen King's 1974 debut novel?", "answer": "Carrie", **KING},
    {**KING, "query": "Stephen King was born in ___, Maine.", "answer": "Portland", "type": "cloze"},
]


@pytest.fixture
def rwku(tmp_path):
    """RWKU's published layout."""
    (tmp_path / "forget_level2.jsonl").write_text("\n".join(map(json.dumps, QUESTIONS)), encoding="utf-8")
    return ul.data.load_benchmark("rwku", tmp_path, part="level2")


def test_questions_about_real_people_run_through_every_prompt_probe(opened, rwku):
    options = dataclasses.replace(OPTIONS, protocol="raw", samples=0)
    found = elicit(opened("llama"), rwku, probes="black_box", options=options, run=RUN)
    assert found.summary().set_index("probe").loc[["plain", "cloze", "icl"], "n"].min() >= 1
    assert found.part("unlearned", "cloze").responses[0].prompt.endswith("Answer: ")
    assert found.part("unlearned", "mask+icl").responses[0].prompt.count("[MASK]") == 1
    assert len(found.part("unlearned", "plain").responses) == 3
    assert found.control_frame()["others"].isna().all()  # one subject: no reference of another


def test_a_chat_model_is_asked_in_its_template_by_every_kind_of_probe(opened, chat_tokenizer, rwku):
    probes = ["plain", "cloze", "start", "mask+icl+aoa(variant=identity)"]
    probes += [GCG(tokens=2, steps=1, candidates=4), SoftGCG(tokens=2, steps=1), ActPert(layer=1)]
    model = HookedModel(opened("llama").hf, chat_tokenizer, name="chat", owned=False)
    options = dataclasses.replace(OPTIONS, system_prompt="Be kind.", samples=0)
    found = elicit(model, rwku[:2], retain=model, probes=probes, options=options, run=RUN)
    assert found.protocol == "chat"
    prompts = {part.probe: part.responses[0].prompt for part in found.parts if part.responses}
    for name in ("plain", "cloze", "start"):
        assert prompts[name].startswith("<system>Be kind.</s><user>What pseudonym")
        assert "<assistant>" in prompts[name]
    assert prompts["start"].endswith("<assistant>Sure, here is the answer:")
    assert prompts["gcg(tokens=2, steps=1, candidates=4)"].endswith("</s><assistant>")
    assert (found.summary()["beyond_retain"].dropna() == 0).all()


@pytest.mark.parametrize(
    ("tokens", "empty", "endless"),
    [([], 3, 0), ([2, 3, 1, 2], 3, 0), ([2] * 5, 3, 3), ([7] * 5, 0, 3), ([0, 4], 0, 0)],
    ids=["nothing", "special tokens", "special tokens without end", "one token without end", "unknown token"],
)
def test_broken_texts_are_scored_and_counted(opened, monkeypatch, tmp_path, tokens, empty, endless):
    """Every prompt gets these tokens, whatever the model would have said."""

    def said(model, prompts, *, settings, **more):
        return Continuations([[list(tokens)] * settings.samples for _ in prompts], sum(map(len, prompts)), 1)

    monkeypatch.setattr(_asking, "sample_continuations", said)
    models = {role: opened("llama", role) for role in ("retain", "full")}
    found = elicit(opened("llama"), EXAMPLES[:3], probes=["plain"], options=OPTIONS, run=RUN, **models)
    (line,) = found.ledger().to_dict("records")
    assert (line["empty"], line["endless"], line["asked"]) == (empty, endless, 3)
    table = found.summary()
    assert (table["n"] == 3).all() and (table["beyond_retain"] == 0).all()
    texts = found.samples_frame()
    assert texts["recall"].between(0, 1).all() and len(texts) == 3 * 3 * 2
    if empty:
        assert (texts["recall"] == 0).all() and (texts["words"] == 0).all()
    found.save(tmp_path / "saved")
    assert ElicitationResults.load(tmp_path / "saved").ledger()["empty"][0] == empty


def test_a_model_without_numbers_is_refused_in_words(broken):
    with pytest.raises(ModelError, match="NaN or infinite"):
        elicit(broken, EXAMPLES[:2], probes=["plain"], options=OPTIONS, run=RUN)


def test_rows_an_optimiser_gave_up_are_in_the_ledger(opened, monkeypatch):
    def never(*_):
        raise Skip("no suffix can be written")

    monkeypatch.setattr(_gcg, "first_suffix", never)
    probe = GCG(tokens=2, steps=1)
    found = elicit(opened("llama"), EXAMPLES[:2], probes=[probe], options=OPTIONS, run=RUN)
    (line,) = found.ledger().to_dict("records")
    assert (line["asked"], line["skipped"], line["first_reason"]) == (0, 2, "no suffix can be written")
    assert math.isnan(found.summary()["unlearned"][0])
    assert "was not run: it applies to no row (first reason: no suffix can be written)" in found.warnings[1]
