"""The registry: every model of the spec, every name of the shipped values, every prompt."""

import pytest

import uds_lens as ul
from uds_lens.data import CHAT_STYLES
from uds_lens.errors import ConfigError
from uds_lens.published import find, models, plan, pool_values, values
from uds_lens.published._plan import write_plan
from uds_lens.published._registry import registry_frame


def test_names_resolve_against_the_shipped_values():
    shipped = ul.meta.read_published().frame
    own = {model.name: model for model in models(group="tofu-1b", role="unlearned")}
    found = [row for row in shipped.itertuples() if (model := own.get(row.model)) and model.method == row.method]
    assert len(found) == len(shipped) == len(own) == 150
    assert all(own[row.model].config == row.config for row in found)
    assert [float(own[row.model].settings["lr"]) for row in found] == pytest.approx([row.lr for row in found])
    assert [float(own[row.model].settings["epoch"]) for row in found] == [row.epochs for row in found]


def test_pool_models_are_those_of_the_paper():
    start = "open-unlearning/{}_tofu_Llama-3.2-1B-Instruct_{}_lr{}e-05_wd0.01_epoch{}"
    variants = {
        "pos": ("full", "retain90_forget10_bio", "retain90_forget10_para"),
        "neg": ("retain90", "retain90_forget10_pert", "retain90_celeb10_bio"),
    }
    ids = {
        start.format(sign, variant, lr, epoch)
        for sign, kinds in variants.items()
        for variant in kinds
        for lr in range(1, 6)
        for epoch in (5, 10)
    }
    pools = models(role="pool")
    assert len(pools) == len({model.hub_id for model in pools} & ids) == 60
    assert sum(model.knows for model in pools) == 30
    assert len({model.run for model in pools}) == 30


def test_groups():
    sizes = registry_frame().groupby("group").size().to_dict()
    assert sizes == {"tofu-1b": 214, "tofu-3b": 4, "tofu-8b": 4, "muse-books": 2, "muse-news": 2, "wmdp": 4}
    for name in ("muse-news", "muse-books", "wmdp"):
        shipped = ul.data.BENCHMARKS[name].models
        group = models(group=name)[0].group
        assert {"full": group.full, "retain": group.retain} == dict(shipped)
    assert len({model.hub_id for model in models()}) == len(models())


@pytest.mark.parametrize("model", [models(method="simnpo")[3], models(role="pool")[40], models(group="tofu-8b")[1]])
def test_a_model_is_known_by_id_folder_run_and_cache(model):
    owner, name = model.hub_id.split("/")
    places = [model.hub_id, f"./ckpt/{name}", f"x/models--{owner}--{name}/snapshots/abc", f"saves/eval/{name}/evals"]
    assert [find(place) for place in places] == [model] * 4
    assert find("saves/eval/" + name.removeprefix("unlearn_")) == model
    others = [f"somebody/{name}", f"x/models--somebody--{name}/snapshots/abc", "nobody/nothing"]
    assert [find(place) for place in others] == [None] * 3
    assert find("x/" + "a" * 5000) is find("x/\0") is find("x/\ud800") is None


def test_what_matches_nothing_is_refused():
    with pytest.raises(ConfigError, match="no published model has method 'nop'"):
        models(method="nop")
    with pytest.raises(ConfigError, match="choose one group of models; got tofu-1b, tofu-3b"):
        plan([*models(group="tofu-1b", role="full"), *models(group="tofu-3b")])


def test_values_are_as_exact_as_they_were_published():
    table = values().set_index(["group", "model", "metric"])
    assert len(values()) == len(table.index.unique())
    kinds = values()["kind"].value_counts().to_dict()
    assert kinds["capped"] == 14 and kinds["by definition"] == 2 and kinds["rounded"] == 10
    scale = table.loc[("tofu-3b", "full", "uds")]
    assert (scale["published"], scale["low"], scale["high"]) == (0.008, 0.0075, 0.0085)
    capped = table[table["kind"] == "capped"]
    assert (capped["low"] == 1).all() and (capped["high"] == float("inf")).all()
    assert table.loc[("tofu-1b", "full", "uds"), "high"] == 0.0025
    exact = table[table["kind"] == "exact"]
    assert (exact["low"] == exact["published"]).all() and (exact["high"] == exact["published"]).all()
    prompts = values().groupby("metric")["prompts"].unique().map(list).to_dict()
    assert prompts.pop("uds") == prompts.pop("logit_lens") == ["raw"]
    assert all(style == ["paper_scores"] for style in prompts.values())
    assert set(pool_values()["quantity"]) == {"auc", "mean_p", "mean_n", "q", "r"}
    told = pool_values().set_index(["metric", "quantity"])["prompts"]
    assert [told["uds", "r"], told["es", "auc"], told["es", "r"]] == ["raw", "paper_pools", "paper_perturbed"]


def test_a_plan_asks_each_metric_as_its_published_number_was(tmp_path):
    chosen = [*models(method="npo"), *models(role="pool")]
    made = plan(chosen, metrics=None, perturb=True, data=tmp_path)
    of = ul.study._plan.style_of
    asked = {
        ("es", "unlearned", "before"): "paper_scores",
        ("retain_q_rouge", "unlearned", "before"): "paper_scores",
        ("rouge", "unlearned", "before"): "paper_pools",
        ("es", "pool", "before"): "paper_pools",
        ("es", "unlearned", "relearned"): "paper_perturbed",
        ("rouge", "retain", "quantised"): "paper_perturbed",
        ("rouge", "retain", "before"): "paper_perturbed",
    }
    assert {key: of(made.measure, *key) for key in asked} == asked
    assert set(asked.values()) <= set(CHAT_STYLES)
    audit = ul.study._plan.audit_settings(made.measure)
    assert audit == ul.AuditConfig.preset("paper")
    assert made.measure.options == {"dtype": "bfloat16", "protocol": "chat", "entity_space": "always"}
    assert {"es", "rouge", "cka", "s_mia_loss"} <= set(made.measure.metrics) and "fluency" in made.measure.utility
    assert made.data.entities == "tofu-annotated/forget10:"
    write_plan(made, tmp_path / "plan.toml")
    assert ul.study.plan(tmp_path / "plan.toml") == made
    (tmp_path / "mine.toml").write_text("mine")
    with pytest.raises(ul.errors.ResultFormatError):
        write_plan(made, tmp_path / "mine.toml")


@pytest.mark.parametrize("group", ["muse-news", "wmdp"])
def test_plans_of_other_groups_are_raw(group):
    made = plan(models(group=group))
    assert made.measure.options["protocol"] == "raw" and made.measure.prompts == ()
    assert made.data.forget == {"muse-news": "muse-news/forget:", "wmdp": "wmdp/bio:"}[group]
