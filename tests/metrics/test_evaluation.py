import math
from dataclasses import replace
from statistics import harmonic_mean

import pytest
from tiny_models import EXAMPLES

import uds_lens as ul
from uds_lens.errors import ConfigError, DataError, ModelError, ResultFormatError
from uds_lens.metrics import METRICS, MetricCache, MetricData, MetricOptions, evaluate
from uds_lens.models import open_model

from .conftest import RUN, SHORT

WHITE_BOX = ["cka", "logit_lens", "uds", "fisher_masked_0.0001", "fisher_masked_0.001", "fisher_masked_0.01"]
S_MIA = ["s_mia_loss", "s_mia_zlib", "s_mia_min_k", "s_mia_min_kpp"]


def ask(model, data, **options):
    return evaluate(model, data, **{"options": SHORT, "run": RUN, "fluency": "heuristic", **options})


@pytest.fixture(scope="module")
def cache():
    return MetricCache()


@pytest.fixture(scope="module")
def results(trio, data, cache):
    """Every metric of every version, over one cache."""
    models = trio("llama")
    versions = ("unlearned", "retain", "full")
    return {
        v: ask(getattr(models, v), data, retain=models.retain, full=models.full, cache=cache)
        for v in versions
    }


def test_every_metric_has_a_value_or_a_reason(results):
    for found in results.values():
        assert list(found.metrics) == list(METRICS)
        for metric in found:
            assert math.isnan(metric.value) == (metric.reason is not None), metric.name
            assert math.isnan(metric.value) or metric.low <= metric.value <= metric.high


@pytest.mark.parametrize("name", WHITE_BOX + S_MIA)
def test_retain_against_itself_is_1_and_full_against_itself_0(results, name):
    assert results["retain"][name].value == pytest.approx(1, abs=1e-6)
    if name in WHITE_BOX:
        assert results["full"][name].value == pytest.approx(0, abs=1e-6)
        assert 0 <= results["unlearned"][name].value < 1


def test_utility_of_full_relative_to_itself(results):
    if math.isnan(results["full"]["utility_rel"].value):
        assert "Utility of full is 0" in results["full"]["utility_rel"].reason
    else:
        assert results["full"]["utility_rel"].value == 1


def test_uds_is_that_of_an_audit(trio, results):
    audit = ul.DepthAudit.run(*trio("llama"), EXAMPLES, options=RUN)
    assert results["unlearned"]["uds"].value == pytest.approx(audit.uds, abs=1e-6)
    assert results["unlearned"]["uds"].per_example == pytest.approx(
        audit.uds_per_example.tolist(), nan_ok=True
    )
    assert list(results["unlearned"]["uds"].ids) == [example.id for example in audit.examples]


def test_aggregates_by_hand(results):
    found = results["unlearned"].values
    parts = [1 - found[name] for name in ("es", "em", "paraprob", "truth_ratio")]
    assert found["memorization"] == pytest.approx(harmonic_mean(parts))
    assert found["mia_agg"] == pytest.approx(harmonic_mean([found[name] for name in S_MIA]))
    assert found["privacy"] == found["mia_agg"]


def test_prob_em_and_mia_against_the_passes_they_share(trio, data, results):
    from uds_lens.data import answer_sequences
    from uds_lens.metrics import auc, mean_nll, probability, score_answers

    with open_model(trio("llama").unlearned, device="cpu") as model:

        def scores(examples):
            pairs = [(example.question, example.answer) for example in examples]
            rows = [sequence.scored for sequence in answer_sequences(model.tokenizer, pairs)]
            return score_answers(model, rows, show=False)

        forget, holdout = scores(data.forget), scores(data.holdout)
    found = results["unlearned"]
    assert found["prob"].per_example == pytest.approx(
        [probability(logp.tolist()) for logp in forget.logprobs]
    )
    expected = auc(
        [mean_nll(x.tolist()) for x in forget.logprobs], [mean_nll(x.tolist()) for x in holdout.logprobs]
    )
    assert found["mia_loss"].value == pytest.approx(expected)
    assert len(found["mia_loss"].ids) == len(data.forget) + len(data.holdout)
    assert found["mia_loss"].ids[-1] == "holdout/h5"


def test_one_forward_serves_all_metrics_that_can_share_it(trio, data):
    model = trio("llama").full
    shared = ["es", "em", "prob"]
    together = ask(model, data, metrics=shared)
    alone = ask(model, data, metrics=["prob"])
    assert together.total.forwards == alone.total.forwards == together["es"].cost.forwards > 0
    more = ask(model, data, metrics=[*shared, "mia_loss", "mia_min_kpp", "mia_zlib"])
    assert more.total.forwards == more["mia_loss"].cost.forwards
    rouge = ask(model, data, metrics=["rouge"])
    both = ask(model, data, metrics=["rouge", "para_rouge", "fluency"])
    assert both.total.forwards == rouge.total.forwards


def test_references_are_measured_once(results, cache):
    assert results["unlearned"].total.reference_forwards > 0
    for version in ("retain", "full"):
        assert results[version].total.reference_forwards == 0
    assert len(cache) > 0


def test_the_cache_looks_at_weights_not_at_names(trio, data, tmp_path):
    import shutil

    cache = MetricCache()
    models = trio("llama")
    first = ask(models.full, data, metrics=["s_mia_loss"], retain=models.retain, cache=cache)
    place = tmp_path / "retain"
    shutil.copytree(models.retain, place)
    again = ask(models.full, data, metrics=["s_mia_loss"], retain=place, cache=cache)
    assert again.total.reference_forwards == 0
    assert again.values == first.values
    shutil.copy(models.unlearned / "model.safetensors", place)
    other = ask(models.full, data, metrics=["s_mia_loss"], retain=place, cache=cache)
    assert other.total.reference_forwards > 0
    assert other["s_mia_loss"].details["auc_retain"] != first["s_mia_loss"].details["auc_retain"] or (
        other.models["retain"].fingerprint != first.models["retain"].fingerprint
    )
    cache.clear()
    assert len(cache) == 0


def test_other_data_is_measured_again(trio, data):
    cache = MetricCache()
    model = trio("llama").full
    first = ask(model, data, metrics=["prob"], cache=cache)
    fewer = ask(model, data.limited(3), metrics=["prob"], cache=cache)
    assert fewer.total.forwards > 0
    known = dict(zip(first["prob"].ids, first["prob"].per_example, strict=True))
    assert fewer["prob"].per_example == pytest.approx([known[name] for name in fewer["prob"].ids])


def test_what_is_missing_is_said_and_the_others_run(trio):
    found = ask(trio("llama").full, EXAMPLES, retain=trio("llama").retain)
    assert found["es"].reason is None
    assert found.reasons["mia_loss"].startswith("there is no holdout set")
    assert found.reasons["paraprob"] == "no example of the forget set has a paraphrased answer"
    assert found.reasons["uds"] == "no full model was given"
    assert found.reasons["retain_q_prob"].startswith("there is no retain set")
    assert found.reasons["memorization"].startswith("paraprob is NaN: no example of the forget set")
    assert math.isnan(found["overall"].value)


def test_a_few_missing_paraphrases_leave_the_rest(trio, data):
    forget = [replace(data.forget[0], paraphrased_answers=()), *data.forget[1:]]
    found = ask(trio("llama").full, MetricData(forget=forget), metrics=["paraprob", "para_rouge"])
    assert (found["paraprob"].n, found["paraprob"].n_missing) == (7, 1)
    assert math.isnan(found["paraprob"].per_example[0])
    assert not math.isnan(found["para_rouge"].value)


def test_entities_that_cannot_be_located(trio):
    nowhere = [replace(EXAMPLES[0], entity="Nobody", prefix=None)]
    models = trio("llama")
    found = ask(models.full, nowhere, metrics=["cka"], retain=models.retain, full=models.full)
    assert "no entity could be located" in found.reasons["cka"]
    plain = [replace(EXAMPLES[0], entity=None, prefix=None)]
    found = ask(models.full, plain, metrics=["uds"], retain=models.retain, full=models.full)
    assert found.reasons["uds"] == "no example has an entity span"


def test_full_and_retain_alike_leave_nothing_to_measure(trio, data):
    models = trio("llama")
    found = ask(models.unlearned, data, metrics=WHITE_BOX, retain=models.full, full=models.full)
    assert all(math.isnan(found[name].value) for name in WHITE_BOX)
    assert "no layer tells full from retain" in found.reasons["cka"]
    assert "more Fisher information" in found.reasons["fisher_masked_0.01"]
    assert "no example has a layer" in found.reasons["uds"]


@pytest.mark.parametrize("metric", ["es", "jailbreak_rouge"])
def test_a_broken_model_is_named(broken, data, metric):
    with pytest.raises(ModelError, match=r"broken.*NaN or infinite"):
        ask(broken, data, metrics=[metric])


def test_a_broken_model_inside(broken, trio, data):
    models = trio("llama")
    with pytest.raises(ModelError, match="broken"):
        ask(broken, data, metrics=["fisher_masked_0.01"], retain=models.retain, full=models.full)


def test_options_change_their_metrics(trio, data):
    model = trio("llama").full
    plain = ask(model, data, metrics=["es", "mia_min_k", "rouge"])
    strict = ask(model, data, metrics=["es"], options=replace(SHORT, strict_es=True))
    assert strict["es"].value < plain["es"].value
    other_k = ask(model, data, metrics=["mia_min_k"], options=replace(SHORT, min_k=1.0))
    assert other_k["mia_min_k"].per_example != plain["mia_min_k"].per_example
    chat = ask(model, data, metrics=["es", "rouge"], options=replace(SHORT, protocol="auto"))
    assert chat.provenance["protocol"] == "chat"
    assert "<user>" in chat.provenance["first_prompt"]
    assert chat.generations["forget"] != plain.generations["forget"]


def test_uds_in_privacy(trio, data):
    models = trio("llama")
    options = replace(SHORT, uds_in_privacy=True)
    results = ask(
        models.unlearned, data, metrics=["privacy"], retain=models.retain, full=models.full, options=options
    )
    assert results["privacy"].cost.forwards > results["mia_agg"].cost.forwards, "that of UDS counts"
    found = results.values
    assert found["privacy"] == pytest.approx(harmonic_mean([found["mia_agg"], found["uds"]]))
    assert found["privacy"] != found["mia_agg"] or found["mia_agg"] == 0


def test_open_models_stay_open_and_give_the_same(trio, data, results):
    models = trio("llama")
    with open_model(models.full, device="cpu") as full, open_model(models.retain, device="cpu") as retain:
        found = ask(models.unlearned, data, metrics=["uds", "cka"], retain=retain, full=full)
        assert full.n_layers == retain.n_layers == 4
    for name in ("uds", "cka"):
        assert found[name].value == pytest.approx(results["unlearned"][name].value, abs=1e-6)


class Half:
    name = "half"

    def __call__(self, texts):
        return [0.5] * len(texts)


def test_a_fluency_scorer_of_ones_own(trio, data):
    found = ask(trio("llama").full, data, metrics=["fluency"], fluency=Half())
    assert found["fluency"].value == 0.5
    assert found.provenance["fluency"] == "half"


def test_a_classifier_that_is_not_there_is_a_reason(trio, data, tmp_path):
    found = ask(trio("llama").full, data, metrics=["es", "fluency"], fluency=str(tmp_path))
    assert "cannot be loaded" in found.reasons["fluency"]
    assert found["es"].reason is None


def test_unknown_metric(trio, data):
    with pytest.raises(ConfigError, match="no metric 'bleu'"):
        ask(trio("llama").full, data, metrics=["bleu"])
    assert MetricOptions() == MetricOptions(min_k=0.4)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"metrics": 1}, ConfigError, "a list of names"),
        ({"metrics": []}, ConfigError, "no metric is asked for: name some, or None for all"),
        ({"data": None}, DataError, "expected a path, .* got NoneType"),
        ({"options": {"tau": 1}}, ConfigError, r"options must be MetricOptions; got dict: MetricOptions"),
        ({"metrics": [1]}, ConfigError, "no metric '1'"),
        ({"cache": {}}, ConfigError, "cache must be MetricCache"),
        ({"fluency": 3}, ConfigError, "fluency must be a name or a scorer"),
        ({"model": None}, ModelError, "cannot open NoneType"),
    ],
)
def test_arguments_of_another_kind(trio, data, given, error, message, unchecked):
    with pytest.raises(error, match=message) as refused:
        evaluate(**{"model": trio("llama").full, "data": data, "metrics": ["em"]} | given)
    assert len(str(refused.value)) < 500


def test_a_table_replaces_tables_of_metrics_only(tmp_path):
    from uds_lens.metrics._results import write_metrics_table

    place = tmp_path / "table.csv"
    for columns in ("model,uds,uds_low,uds_high,n", "model,method,es"):
        place.write_text(columns)
        with pytest.raises(ResultFormatError, match="was not written by uds_lens"):
            write_metrics_table({}, place)
    place.write_text("model,es,uds")
    assert write_metrics_table({}, place) == place


def test_utility_by_hand(results):
    found = results["unlearned"].values
    parts = [found[f"{s}_{w}"] for s in ("retain", "ra", "wf") for w in ("q_prob", "q_rouge", "truth_ratio")]
    assert found["model_utility"] == pytest.approx(harmonic_mean(parts))
    assert found["utility"] == pytest.approx(harmonic_mean([found["model_utility"], found["fluency"]]))


def test_relative_utility_by_hand(trio, data, monkeypatch):
    """Random models recall nothing: let ROUGE, Truth Ratio and Fluency be 0.5, so that the quotient exists."""
    from uds_lens import generation
    from uds_lens.metrics._definitions import model_utility

    monkeypatch.setattr(generation, "rouge_l_recall", lambda references, answers: [0.5] * len(references))
    monkeypatch.setattr(model_utility, "kept_truth", lambda correct, wrong: 0.5)
    models = trio("llama")
    names = ["utility_rel", "utility"]
    own = ask(models.unlearned, data, metrics=names, full=models.full, fluency=Half())
    full = ask(models.full, data, metrics=names, full=models.full, fluency=Half())
    assert full["utility_rel"].value == pytest.approx(1)
    assert own["utility_rel"].value == pytest.approx(own["utility"].value / full["utility"].value)


def test_one_model_in_memory_at_a_time(trio, data, monkeypatch):
    from uds_lens.metrics import _passes as session

    opened, order = [], []

    def watched(source, **options):
        assert all(model._hf is None for model in opened), "the model before is still open"
        opened.append(open_model(source, **options))
        order.append(source.name)
        return opened[-1]

    monkeypatch.setattr(session, "open_model", watched)
    models = trio("llama")
    ask(models.unlearned, data, metrics=[*WHITE_BOX, "es"], retain=models.retain, full=models.full)
    assert order == ["retain", "full", "unlearned", "full"]
    opened.clear()
    order.clear()
    ask(models.unlearned, data, metrics=["uds", "s_mia_loss"], retain=models.retain, full=models.full)
    assert order == ["retain", "unlearned", "full"]
