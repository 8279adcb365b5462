"""Plans: read, found, and refused with what to do instead."""

import pytest

from uds_lens import study
from uds_lens.errors import ConfigError
from uds_lens.study._plan import as_mapping

MANY = {"seed": list(range(200)), "epochs": list(range(1, 200))}


def test_toml_mapping_and_record_are_the_same(small, tmp_path):
    (tmp_path / "forget.json").write_text('[{"question": "Who?", "answer": "Ada."}]', encoding="utf-8")
    (tmp_path / "plan.toml").write_text(
        'name = "t"\nfull = "toy:full"\nretain = "locuslab/retain"\n[data]\nforget = "forget.json"\n'
        '[measure]\nmetrics = ["es"]\n[[model]]\nname = "x"\npath = "toy:npo"\n',
        encoding="utf-8",
    )
    found = study.plan(tmp_path / "plan.toml")
    assert found.data.forget == str(tmp_path / "forget.json")
    assert found.retain == "locuslab/retain"
    assert study.plan(found) == found == study.plan(as_mapping(found))
    assert study.plan(small).pool[1].knows is False


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"colour": "red"}, "the plan has no setting 'colour'; it has data"),
        ({"measure": {"metric": ["es"]}}, r"\[measure\] has no setting 'metric'; did you mean 'metrics'"),
        ({"measure": {"metrics": ["usd"]}}, "no metric 'usd'; did you mean 'uds'"),
        ({"measure": {"metrics": ["es"], "utility": ["es"]}}, "'es' is named twice"),
        ({"measure": {"metrics": "es"}}, "metrics must be a list, each a string; got 'es'"),
        ({"measure": {}}, "the plan measures nothing"),
        ({"train": {"forget": [{"source": "toy:forget", "answers_per_row": 2}]}}, "answers_per_row splits biographies"),
        ({"measure": {"metrics": ["es"], "options": {"tua": 1}}}, "did you mean 'tau'"),
        ({"train": {"forget": [{"sorce": "x"}]}}, "did you mean 'source'"),
        ({"measure": {"metrics": ["uds"], "audit": {}}}, "measured twice"),
        ({"measure": {"metrics": ["es"], "elicitation": {"probes": "fast"}}}, "no preset 'fast'"),
        ({"model": [{"name": "a/../b", "path": "toy:npo"}]}, "cannot be a name"),
        ({"model": [{"name": "full", "path": "toy:npo"}]}, "two models are called 'full'"),
        ({"model": [{"name": "Given", "path": "toy:npo"}, {"name": "given", "path": "toy:npo"}]}, "ignoring case"),
        ({"model": [{"name": "a", "path": "toy:npo", "role": "pool"}]}, "set knows = true"),
        ({"model": [{"name": "a", "path": "toy:npo", "role": "judge"}]}, "must be one of 'full'"),
        ({"model": {"name": "a"}}, r"list of tables, \[\[model\]\]"),
        ({"unlearn": [{"method": "npo", "settings": {"bta": 1}}]}, "npo has no setting 'bta'"),
        ({"unlearn": [{"method": "nope"}]}, "no unlearning method 'nope'"),
        ({"unlearn": [{}]}, "needs either a method"),
        ({"unlearn": [{"method": "npo", "settings": {"seed": []}}]}, "one value or a list of different values"),
        ({"unlearn": [{"method": "npo", "settings": MANY}]}, "39800 combinations"),
        ({"train": {}}, "needs data|needs the forget set"),
        ({"perturb": {"relearn": {"seeds": [0, 0]}}}, "different whole numbers"),
        ({"perturb": {"relearn": {"settings": {"lr": 1}}}}, "no setting 'lr'"),
        ({"data": {"tofu": "x", "forget": "y"}}, "leave out one of the two"),
        ({"data": {}}, "names no forget set"),
        ({"data": {"forget": "toy:forget", "limit": 0}}, "limit must be a whole number >= 1"),
        ({"pool": [{"variant": "v", "knows": True, "start": "toy:full", "data": []}]}, "has no training data"),
        ({"seed": -1}, "seed must be a whole number >= 0"),
        ({"full": 3}, "full must be a string; got 3"),
    ],
)
def test_a_hostile_plan_is_refused(small, change, told):
    with pytest.raises(ConfigError, match=told) as error:
        study.plan({**small, **change})
    assert len(str(error.value)) < 500


def test_what_is_no_plan_is_said(tmp_path, unchecked):
    with pytest.raises(ConfigError, match="no plan to read"):
        study.plan(tmp_path / "none.toml")
    for text in ("a = ", "\x00", "[a]\n[a]"):
        (tmp_path / "plan.toml").write_text(text, encoding="utf-8")
        with pytest.raises(ConfigError, match="is not valid TOML"):
            study.plan(tmp_path / "plan.toml")
    for source in (3, None, ["a"], True):
        with pytest.raises(ConfigError, match="a plan must be a TOML file or a dict of its settings; got"):
            study.plan(source)
