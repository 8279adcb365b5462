"""A plan's models: names, pools, states, and an order whose every prefix is balanced."""

from collections import Counter

from uds_lens import metrics, study
from uds_lens.study._keys import WorkKeys
from uds_lens.study._models import StudyState, training_answers
from uds_lens.study._plan import TrainingRows


def test_every_model_of_the_plan(small):
    models = {model.model_id: model for model in study.study_models(study.plan(small))}
    assert len(models) == 2 + 1 + 4 + 2 + 2
    told = models["told_lr1e-03_epoch4"]
    assert (told.role, told.knows, told.variant, told.run) == ("pool", True, "told", "told_lr1e-03")
    assert models["told_lr1e-03_epoch2"].run == told.run != models["told_lr2e-03_epoch2"].run
    npo = models["npo_lr1e-03_beta0.1_alpha1_epoch2"]
    assert (npo.role, npo.method, npo.config.epochs) == ("unlearned", "npo", 2)
    assert [state.label for state in npo.states] == ["before", "quantised", "relearned-0"]
    assert [s.label for s in models["retain"].states][-3:] == ["relearned-0", "relearned-1", "relearned-2"]
    assert [state.label for state in told.states] == ["before"]
    assert told.items["before"] == ("es", "uds")
    assert npo.items["before"] == ("es", "uds", "retain_q_prob", "retain_truth_ratio")
    assert npo.items["relearned"] == ("es", "uds")


def test_prefixes_are_balanced_and_the_seed_changes_the_order(small):
    many = {**small, "unlearn": [{"method": m, "settings": {"seed": list(range(6))}} for m in ("npo", "ga")]}
    models = study.study_models(study.plan({**many, "model": [], "pool": []}))
    assert [model.model_id for model in models[:2]] == ["full", "retain"]
    for end in range(2, len(models) + 1):
        counts = Counter(model.method for model in models[2:end])
        assert abs(counts["npo"] - counts["ga"]) <= 1
    other = study.study_models(study.plan({**many, "model": [], "pool": [], "seed": 1}))
    assert [m.model_id for m in other] != [m.model_id for m in models]
    assert {m.model_id for m in other} == {m.model_id for m in models}


def test_a_key_is_made_of_weights_metric_options_and_data(small):
    def keys(**change):
        plan = study.plan({**small, **change})
        model = next(m for m in study.study_models(plan) if m.model_id.startswith("npo_lr1e-03"))
        found = WorkKeys(plan)
        return {state.label: found.items(model, state) for state in model.states}

    before = keys()
    assert len({key for each in before.values() for key in each.values()}) == 4 + 2 + 2
    assert keys() == before == keys(name="other", keep_models=False, seed=5)
    more = keys(measure={**small["measure"], "metrics": ["es", "uds", "em"]})
    assert {name: more["before"][name] for name in before["before"]} == before["before"]
    for change in (
        {"measure": {**small["measure"], "options": {"min_k": 0.1}}},
        {"data": {"forget": "toy:forget", "limit": 5}},
        {"retain": "toy:half"},
        {"train": {**small["train"], "forget": [{"source": "toy:forget", "sample": 4, "seed": 1}]}},
        {"training": {"dtype": "bfloat16"}},
    ):
        changed = keys(**change)
        assert not set(changed["before"].values()) & set(before["before"].values()), change
    relearned = keys(perturb={"quantise": True, "relearn": {"settings": {"learning_rate": 1e-4}}})
    assert relearned["before"] == before["before"] and relearned["quantised"] == before["quantised"]
    assert relearned["relearned-0"] != before["relearned-0"]


def test_settings_that_change_no_value_leave_work_finished(small):
    elicited = {
        **small["measure"],
        "metrics": ["es", "uds", "privacy", "privacy_uds"],
        "elicitation": {"probes": ["plain"]},
    }

    def keys(**measure):
        plan = study.plan({**small, "measure": {**elicited, **measure}})
        model = next(m for m in study.study_models(plan) if m.model_id.startswith("npo_lr1e-03"))
        return WorkKeys(plan).items(model, StudyState("before"))

    before = keys()
    assert keys(options={"generation_rows": 8, "fisher_memory_gb": 1.0}) == before
    assert keys(elicitation={"probes": ["plain"], "rows_at_once": 16}) == before
    changed = keys(options={"tau": 0.1})
    assert {item for item, key in changed.items() if key != before[item]} == {"uds", "privacy_uds"}
    assert keys(elicitation={"probes": ["plain"], "seed": 1})["elicitation"] != before["elicitation"]


def test_an_edited_metric_is_another_metric(small):
    """Measuring again into the same folder would return the values of the program before the edit."""

    def key(text):
        space = {"__name__": "mine"}
        exec(compile(text, "<nowhere>", "exec"), space)
        meaning = metrics.Meaning("knowledge", "no", "yes")
        metrics.metric(name="mine", label="Mine", meaning=meaning, passes=metrics.needs_answers("forget"))(
            space["mine"]
        )
        plan = study.plan({**small, "measure": {**small["measure"], "metrics": ["mine", "es"]}})
        model = next(m for m in study.study_models(plan) if m.model_id.startswith("npo_lr1e-03"))
        return WorkKeys(plan).items(model, StudyState("before"))

    try:
        first, again, edited = map(key, [text := "def mine(evidence): return 1.0", text, text.replace("1", "2")])
    finally:
        metrics.withdraw_metric("mine")
    assert first == again and first["es"] == edited["es"] and first["mine"] != edited["mine"]


def test_answers_to_train_on():
    def rows(**part):
        return training_answers([TrainingRows(source="toy:forget", **part)])

    own, wrong, other = rows(), rows(answers="wrong"), rows(answers="paraphrased")
    assert len({row.id for row in own}) == len(own) == 48
    assert all(a.answer == a.perturbed_answers[0] != b.answer for a, b in zip(wrong, own, strict=True))
    assert all(a.answer == a.paraphrased_answers[0] for a in other)
    lives = rows(answers="biography")
    assert len(lives) < 48 and lives[0].answer.startswith(own[0].answer) and own[1].answer in lives[0].answer
    parts = rows(answers="biography", answers_per_row=1)
    assert [row.answer for row in parts] == [row.answer for row in own] and parts[0].question.endswith(", part 1.")
    assert len({row.question for row in parts}) == len(parts)
    assert rows(sample=5) == rows(sample=5) != rows(sample=5, seed=1)
    both = TrainingRows(source="toy:forget", sample=3)
    assert len(training_answers([both, both])) == 6
