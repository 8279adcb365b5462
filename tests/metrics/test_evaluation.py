"""Every metric of three models at once: identities, values by hand, reasons, options, refusals."""

import math
from dataclasses import replace
from statistics import harmonic_mean

import pytest
import torch
from tiny_models import EXAMPLES, load_plain

import uds_lens as ul
from uds_lens.data import encode
from uds_lens.errors import ConfigError, DataError, ModelError
from uds_lens.metrics import METRICS, MetricCache, auc, evaluate
from uds_lens.models import open_model
from uds_lens.results._records import open_to_measure

from .conftest import RAW, RUN, SHORT, WHITE_BOX, ask

S_MIA = ["s_mia_loss", "s_mia_zlib", "s_mia_min_k", "s_mia_min_kpp"]


@pytest.fixture(scope="module")
def results(trio, data):
    """Every metric of every version, over one cache."""
    models, cache = trio("llama"), MetricCache()
    found = {
        v: ask(getattr(models, v), data, retain=models.retain, full=models.full, cache=cache)
        for v in ("unlearned", "retain", "full")
    }
    assert found["unlearned"].total.reference_forwards > 0 and len(cache) > 0
    assert found["retain"].total.reference_forwards == found["full"].total.reference_forwards == 0
    return found


def test_every_metric_has_a_value_or_a_reason(results):
    for found in results.values():
        assert list(found.metrics) == list(METRICS)
        for metric in found:
            assert math.isnan(metric.value) == (metric.reason is not None), metric.name
            assert math.isnan(metric.value) or metric.low <= metric.value <= metric.high


def test_retain_against_itself_is_1_and_full_against_itself_0(results):
    for name in WHITE_BOX + S_MIA:
        assert results["retain"][name].value == pytest.approx(1, abs=1e-6), name
    for name in WHITE_BOX:
        assert results["full"][name].value == pytest.approx(0, abs=1e-6), name
        assert 0 <= results["unlearned"][name].value < 1, name


def test_uds_is_that_of_an_audit(trio, results):
    audit, uds = (ul.DepthAudit.run(*trio("llama"), EXAMPLES[:5], config=RAW, options=RUN), results["unlearned"]["uds"])
    assert uds.value == pytest.approx(audit.uds, abs=1e-6)
    assert uds.per_example == pytest.approx(audit.uds_per_example.tolist(), nan_ok=True)
    assert list(uds.ids) == [example.id for example in audit.examples]


def test_aggregates_by_hand(results):
    found = results["unlearned"].values
    parts = [1 - found[name] for name in ("es", "em", "paraprob", "truth_ratio")]
    assert found["memorization"] == pytest.approx(harmonic_mean(parts))
    assert found["mia_agg"] == pytest.approx(harmonic_mean([found[name] for name in S_MIA]))
    assert found["privacy"] == found["mia_agg"]
    assert found["privacy_uds"] == pytest.approx(harmonic_mean([found["mia_agg"], found["uds"]]))
    with_uds = [found[name] for name in ("memorization", "privacy_uds", "utility_rel")]
    assert found["overall_uds"] == pytest.approx(harmonic_mean(with_uds), nan_ok=True)
    parts = [found[f"{s}_{w}"] for s in ("retain", "ra", "wf") for w in ("q_prob", "q_rouge", "truth_ratio")]
    assert found["model_utility"] == pytest.approx(harmonic_mean(parts))
    assert found["utility"] == pytest.approx(harmonic_mean([found["model_utility"], found["fluency"]]))


def test_attacks_tell_members_from_others(data, results):
    """Scores of single examples are those of `test_open_unlearning.py`."""
    n, found = len(data.forget), [results["unlearned"][name.removeprefix("s_")] for name in S_MIA]
    for mia in found:
        assert list(mia.ids) == [*(e.id for e in data.forget), *(f"holdout/{e.id}" for e in data.holdout)]
        assert mia.value == pytest.approx(auc(mia.per_example[:n], mia.per_example[n:]))
    assert any(mia.value != 0.5 for mia in found), "else the sides could be swapped"


def test_a_metric_without_its_data_or_models_says_so_and_the_others_run(trio):
    found = ask(trio("llama").full, EXAMPLES, retain=trio("llama").retain)
    assert found["es"].reason is None
    assert found.reasons["mia_loss"].startswith("there is no holdout set")
    assert found.reasons["paraprob"] == "no example of the forget set has a paraphrased answer"
    assert found.reasons["uds"] == "no full model was given"
    assert found.reasons["retain_q_prob"].startswith("there is no retain set")
    assert found.reasons["memorization"].startswith("paraprob is NaN: no example of the forget set")
    assert math.isnan(found["overall"].value)
    models = trio("llama")
    for entity, said in (("Nobody", "no entity could be located"), (None, "no example has an")):
        rows = [replace(EXAMPLES[0], entity=entity, prefix=None)]
        found = ask(models.full, rows, ["cka"], retain=models.retain, full=models.full)
        assert said in found.reasons["cka"]


def test_full_and_retain_alike_leave_nothing_to_measure(trio, data):
    models = trio("llama")
    found = ask(models.unlearned, data.limited(3), WHITE_BOX, retain=models.full, full=models.full)
    assert all(math.isnan(found[name].value) for name in WHITE_BOX)
    assert "no layer separates full from retain" in found.reasons["cka"]
    assert "more Fisher information" in found.reasons["fisher_masked_0.01"]
    assert "no example has a layer" in found.reasons["uds"]


@pytest.mark.parametrize(
    ("metric", "said"),
    [
        ("es", "broken.*Who wrote the Ash"),
        ("jailbreak_rouge", "broken.*NaN or infinite.*Is she a poet"),
        ("fisher_masked_0.01", "broken.*first for 'Who wrote the Ash"),
        ("cka", "holds NaN or infinite weights"),
    ],
)
def test_a_broken_model_is_named(broken, trio, data, metric, said):
    models = trio("llama")
    with pytest.raises(ModelError, match=said):
        ask(broken, data.limited(2, sample="first"), [metric], retain=models.retain, full=models.full)


def test_options_change_their_metrics(trio, data):
    model = trio("llama").full
    plain = ask(model, data, ["es", "mia_min_k", "rouge"])
    strict = ask(model, data, ["es"], options=replace(SHORT, strict_es=True))
    assert strict["es"].value < plain["es"].value
    other_k = ask(model, data, ["mia_min_k"], options=replace(SHORT, min_k=1.0))
    assert other_k["mia_min_k"].per_example != plain["mia_min_k"].per_example
    chat = ask(model, data, ["es", "rouge"], options=replace(SHORT, protocol="auto"))
    assert chat.provenance["protocol"] == "chat"
    assert "<user>" in chat.provenance["first_prompt"]
    assert chat.generations["forget"] != plain.generations["forget"]


def test_open_models_stay_open_and_give_the_same(trio, data, results):
    models = trio("llama")
    with open_model(models.full, device="cpu") as full, open_model(models.retain, device="cpu") as retain:
        found = ask(models.unlearned, data, ["uds", "cka"], retain=retain, full=full)
        assert full.n_layers == retain.n_layers == 4
    for name in ("uds", "cka"):
        assert found[name].value == pytest.approx(results["unlearned"][name].value, abs=1e-6)


@pytest.mark.long
@pytest.mark.parametrize("protocol", ["raw", "chat"])
def test_cka_of_whole_answers_against_hidden_states_of_transformers(trio, data, protocol):
    models = trio("llama")
    options = replace(SHORT, protocol=protocol, cka_scope="answers")
    found = ask(models.unlearned, data, ["cka", "uds"], retain=models.retain, full=models.full, options=options)
    whole = [replace(example, entity=example.answer, prefix="") for example in data.forget]

    def states(path):
        """States that leave each block, at the positions that predict a token of an answer."""
        model, tokenizer = load_plain(path)
        kept = [[] for _ in model.model.layers]
        for layer, block in zip(kept, model.model.layers, strict=True):
            block.register_forward_hook(
                lambda m, args, out, layer=layer: layer.append(out[0] if out[0].dim() > 2 else out)
            )
        rows = encode(whole, tokenizer, protocol=protocol).rows
        for row in rows:
            model(torch.tensor([row.ids]))
        at = [list(row.scored) for row in rows]
        return [torch.cat([s.reshape(-1, s.shape[-1])[p] for s, p in zip(layer, at, strict=True)]) for layer in kept]

    def cka(x, y):
        x, y = (z.double() - z.double().mean(0) for z in (x, y))
        return (x.T @ y).norm() ** 2 / ((x.T @ x).norm() * (y.T @ y).norm())

    with torch.no_grad():
        full, retain, model = map(states, (models.full, models.retain, models.unlearned))
    fr, ur = (torch.stack([cka(a, b) for a, b in zip(s, retain, strict=True)]) for s in (full, model))
    erasure = ((ur - fr) / (1 - fr)).clamp(0, 1)
    assert found["cka"].value == pytest.approx(float((erasure * (1 - fr)).sum() / (1 - fr).sum()), abs=1e-5)
    assert found["cka"].details["full_retain"] == pytest.approx(fr.tolist(), abs=1e-5)
    plain = ask(models.unlearned, data, ["cka", "uds"], retain=models.retain, full=models.full)
    assert found["uds"].value == plain["uds"].value and found["cka"].value != plain["cka"].value
    for model, value in ((models.full, 0.0), (models.retain, 1.0)):
        ends = ask(model, data, ["cka"], retain=models.retain, full=models.full, options=options)
        assert ends["cka"].value == pytest.approx(value, abs=1e-6)


def test_para_rouge_of_paraphrased_questions(trio, data):
    """Half of the rows have one; each is asked by it, and scored against the true answer."""
    model, options = trio("llama").full, replace(SHORT, para_rouge="questions")
    asked = [replace(e, paraphrased_question=f"Say: {e.question}") if i % 2 else e for i, e in enumerate(data.forget)]
    found = ask(model, replace(data, forget=asked), ["para_rouge", "rouge"], options=options)
    alone = [replace(e, question=e.paraphrased_question) for e in asked if e.paraphrased_question]
    expected = ask(model, replace(data, forget=alone), ["rouge"])
    assert found["para_rouge"].ids == tuple(e.id for e in alone)
    assert found["para_rouge"].per_example == expected["rouge"].per_example
    assert found.generations["forget/rephrased"] == expected.generations["forget"] != ()
    assert found["rouge"].value == ask(model, data, ["rouge"])["rouge"].value
    without = ask(model, data, ["para_rouge"], options=options)
    assert without.reasons["para_rouge"] == "no example of the forget set has a paraphrased question"


class Half:
    name = "half"

    def __call__(self, texts):
        return [0.5] * len(texts)


HALF = replace(SHORT, fluency=Half())


def test_a_custom_fluency_scorer_is_recorded_by_name_and_one_that_is_not_there_is_a_reason(trio, data, tmp_path):
    found = ask(trio("llama").full, data.limited(2), ["fluency"], options=HALF)
    assert (found["fluency"].value, found.provenance["fluency"]) == (0.5, "half")
    found.save(tmp_path / "m.json")
    assert type(found).load(tmp_path / "m.json").options.fluency == "half"
    options = replace(SHORT, fluency=str(tmp_path))
    found = ask(trio("llama").full, data.limited(2), ["es", "fluency"], options=options)
    assert "cannot be loaded" in found.reasons["fluency"]
    assert found["es"].reason is None


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"metrics": 1}, ConfigError, "a list of names"),
        ({"metrics": "em"}, ConfigError, r"write \['em'\]"),
        ({"metrics": []}, ConfigError, "no metric was requested: pass names, or None for all"),
        ({"metrics": ["memorisation"]}, ConfigError, "no metric 'memorisation'. Did you mean 'memorization'?"),
        ({"metrics": [1]}, ConfigError, "no metric '1'"),
        ({"data": None}, DataError, "expected a path, .* got NoneType"),
        ({"options": {"tau": 1}}, ConfigError, r"options must be MetricOptions; got dict: MetricOptions"),
        ({"cache": {}}, ConfigError, "cache must be MetricCache"),
        ({"model": None}, ModelError, "cannot open NoneType"),
    ],
)
def test_wrong_arguments(trio, data, given, error, message, unchecked):
    with pytest.raises(error, match=message) as refused:
        evaluate(**{"model": trio("llama").full, "data": data, "metrics": ["em"]} | given)
    assert len(str(refused.value)) < 500


def test_relative_utility_by_hand(trio, data, monkeypatch):
    """Random models recall nothing: let ROUGE, Truth Ratio and Fluency be 0.5, so that the quotient exists."""
    from uds_lens import generation
    from uds_lens.metrics._definitions import aggregates

    monkeypatch.setattr(generation, "rouge_l_recall", lambda references, answers, words: [0.5] * len(references))
    monkeypatch.setattr(aggregates, "kept_truth", lambda correct, wrong: 0.5)
    models, few = trio("llama"), data.limited(3)
    unlearned, full = (
        ask(model, few, ["utility_rel", "utility"], full=models.full, options=HALF)
        for model in (models.unlearned, models.full)
    )
    assert full["utility_rel"].value == pytest.approx(1)
    assert unlearned["utility_rel"].value == pytest.approx(unlearned["utility"].value / full["utility"].value)


def test_one_model_in_memory_at_a_time(trio, data, monkeypatch):
    opened, order = [], []

    def watched(source, **options):
        assert all(model._hf is None for model in opened), "the model before is still open"
        opened.append(open_to_measure(source, **options))
        order.append(source.name)
        return opened[-1]

    monkeypatch.setattr("uds_lens.metrics._passes.open_to_measure", watched)
    models, few = trio("llama"), data.limited(2)
    ask(models.unlearned, few, [*WHITE_BOX, "es"], retain=models.retain, full=models.full)
    assert order == ["retain", "full", "unlearned", "full"]
    opened.clear()
    order.clear()
    ask(models.unlearned, few, ["uds", "s_mia_loss"], retain=models.retain, full=models.full)
    assert order == ["retain", "unlearned", "full"]
