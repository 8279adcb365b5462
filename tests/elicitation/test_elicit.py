"""Whole runs on tiny models: identities, tables, resuming, depth beside them."""

import dataclasses
import math

import numpy as np
import pandas as pd
import pytest

import uds_lens as ul
from uds_lens.elicitation import ICL, ElicitData, depth_correlation, elicit
from uds_lens.elicitation._run import check_out
from uds_lens.errors import ConfigError, DataError, ModelError, StorageError

from .conftest import GREEDY, OPTIONS, PROBES, ROWS, RUN

pytestmark = pytest.mark.usefixtures("trusted")


def test_retain_is_not_beyond_itself_and_full_has_all_of_the_power(opened):
    models = {"retain": opened("llama", "retain"), "full": opened("llama", "full")}
    options = dataclasses.replace(OPTIONS, samples=1)
    settings = {**models, "probes": ["plain"], "options": options, "run": RUN}
    table = elicit(models["retain"], ROWS, **settings).summary()
    assert (table["beyond_retain"] == 0).all()
    assert ((table["beyond_low"] < 0) & (table["beyond_high"] > 0)).all(), "few subjects that agree"
    found = elicit(models["full"], ROWS, **settings)
    assert (found.summary()["beyond_retain"] == found.summary()["power"]).all()
    for key in found.scores:
        assert found.scores[("full", *key[1:])] == found.scores[("unlearned", *key[1:])]


def test_every_model_gets_the_same_prompts_and_budget(asked):
    for probe in PROBES:
        for decoding in OPTIONS.decodings:
            parts = [asked.part(role, probe, decoding) for role in ("full", "retain", "unlearned")]
            assert len({tuple(response.prompt for response in part.responses) for part in parts}) == 1
            count = 3 if decoding == "sampled" else 1
            assert {len(response.texts) for part in parts for response in part.responses} == {count}
    assert asked.part("full", "plain", "sampled").prefilled == asked.part("full", "plain").prefilled


def test_tables_hang_together(asked):
    table = asked.summary().set_index(["probe", "decoding", "statistic"])
    per_example = asked.to_frame()
    greedy = per_example[(per_example["probe"] == "cloze") & (per_example["decoding"] == "greedy")]
    means = greedy.groupby("model")["mean"].mean()
    row = table.loc["cloze", "greedy", "mean"]
    assert row["unlearned"] == pytest.approx(means["unlearned"])
    assert row["beyond_retain"] == pytest.approx(means["unlearned"] - means["retain"])
    plain = table.loc["plain", "greedy", "mean"]
    assert row["added"] == pytest.approx(row["beyond_retain"] - plain["beyond_retain"])
    assert plain["added"] == plain["added_low"] == plain["added_high"] == 0, "a probe adds nothing to itself"
    budget = asked.budget_frame().set_index(["model", "probe", "k"])["best_of_k"]
    for k, over in ((1, asked.mean), (3, asked.best)):
        assert budget["full", "plain", k] == pytest.approx(np.nanmean(over("full", "plain", "sampled")))
    best = np.max([asked.best("retain", probe, "sampled") for probe in PROBES], axis=0)
    assert table.loc["any probe", "sampled", "best"]["retain"] == pytest.approx(np.nanmean(best))
    assert len(asked.samples_frame()) == 3 * len(PROBES) * len(asked.part("full", "plain").responses) * 4
    assert set(asked.ledger()["injects"]) == {"nothing", "answer prefix", "format"}
    assert list(asked.share) == ["probe", "decoding", "statistic", "share", "share_low", "share_high", "share_reason"]
    weak = asked.share[asked.share["share"].isna()]
    assert len(weak) and weak["share_reason"].str.startswith("no power").all()
    assert any("no power here" in sentence for sentence in asked.warnings), "the models are random"
    assert "Only 3 subjects: treat the intervals as rough" in asked.warnings[-1]
    frame = asked.texts(ROWS[0].id)
    assert len(frame) == len(PROBES) * 4 and set(frame["example_id"]) == {ROWS[0].id}
    assert asked.winner(ROWS[0].id).recall == frame["recall"].max()
    with pytest.raises(DataError, match="no example"):
        asked.texts("nobody")


def test_rows_a_probe_cannot_ask_are_reported(opened):
    rows = [dataclasses.replace(ROWS[0], subject=None), *ROWS[1:]]
    found = elicit(opened("llama"), rows, probes=["plain", ICL(shots=1)], options=GREEDY, run=RUN)
    _, record = found.probes
    why = "the row has no subject: set the row's `subject`, or use ICL(source='retain')"
    assert record.skipped[0] == (rows[0].id, why)
    assert math.isnan(found.mean("unlearned", record.name)[0])
    assert not math.isnan(found.mean("unlearned", "plain")[0])
    row = found.summary().iloc[0]
    assert math.isnan(row["beyond_retain"]) and row["share_reason"] == "no retain and full model"


def test_shots_come_from_rows_that_a_limit_leaves_out(opened):
    data = ElicitData(forget=ROWS, holdout=ROWS, limit=3)
    asked = elicit(opened("llama"), data, probes=["icl"], options=GREEDY, run=RUN)
    assert len(asked.examples) == len(asked.holdout) == 3
    assert len({example.subject for example in asked.examples}) == 3  # none has another row among those asked
    (record,) = asked.probes
    assert record.skipped == ()
    assert asked.provenance["sample"] == {"limit": 3, "of": len(ROWS), "sample": "random", "seed": 0}
    for role in ("unlearned", "holdout"):
        for response in asked.part(role, "icl").responses:
            own = asked.examples[response.row]
            others = [row for row in ROWS if row.subject == own.subject and row is not own]
            assert any(row.question in response.prompt for row in others)


def test_finished_parts_are_not_asked_again(opened, tmp_path, monkeypatch):
    from uds_lens.elicitation import _asking

    calls = []
    real = _asking.sample_continuations
    monkeypatch.setattr(_asking, "sample_continuations", lambda *a, **k: calls.append(1) or real(*a, **k))

    def ask(rows=ROWS[:2], **more):
        calls.clear()
        options = dataclasses.replace(OPTIONS, **more)
        models = {"retain": opened("llama", "retain"), "model": opened("llama", "unlearned")}
        return elicit(examples=rows, probes=["plain"], options=options, run=RUN, out=tmp_path, **models)

    first = ask()
    assert len(calls) == 4
    again = ask()
    assert not calls and again.summary().equals(first.summary())
    ask(temperature=1.5)
    assert len(calls) == 2  # greedy texts do not depend on it
    ask([dataclasses.replace(ROWS[0], answer="Another answer."), ROWS[1]])
    assert len(calls) == 4  # references are part of what is kept
    broken = sorted((tmp_path / "parts").iterdir())[0]
    broken.write_bytes(broken.read_bytes()[:100])
    assert ask().summary().equals(first.summary()) and len(calls) <= 1


PROBE = """
from dataclasses import dataclass

@dataclass(frozen=True)
class Mine:
    name: str = "mine"
    access: str = "text"
    injects: str = "nothing"
    opening: str = ""
    samples_too: bool = False

    def prompt(self, prompt, context):
        return prompt

    def answer(self, model, asks, asking):
        return [ask.rendered.text for ask in asks], [(WORD,)] * len(asks), [{}] * len(asks), 0

WORD = "Velloum"
"""


def test_finished_parts_of_ones_own_probe_are_those_of_its_program(opened, tmp_path):
    def texts(program: str) -> set[str]:
        names = {"__name__": "mine_probe"}
        (tmp_path / "mine_probe.py").write_text(program)
        exec(compile(program, tmp_path / "mine_probe.py", "exec"), names)
        model = opened("llama", "unlearned")
        found = elicit(model, ROWS[:2], probes=[names["Mine"]()], options=GREEDY, run=RUN, out=tmp_path / "out")
        return {text for response in found.part("unlearned", "mine").responses for text in response.texts}

    assert texts(PROBE) == texts(f"# a comment\n{PROBE}") == {"Velloum"}
    assert len([*(tmp_path / "out" / "parts").iterdir()]) == 1
    assert texts(PROBE.replace('= "Velloum"', '= "Ossic"')) == {"Ossic"}
    assert texts(PROBE.replace("(WORD,)", "(WORD[:3],)")) == {"Vel"}


def test_the_result_of_another_run_is_not_replaced_unless_asked(asked, trio, tmp_path):
    asked.save(tmp_path / "out")
    models = {role: str(getattr(trio("llama"), role)) for role in asked.models}
    data, full = ElicitData(forget=ROWS), models["full"]

    def checked(data=data, probes=PROBES, options=OPTIONS, redo=False, **other):
        out, models_now = tmp_path / "out", {**models, **other}
        return check_out(out, data, models=models_now, probes=probes, options=options, run=RUN, redo=redo)

    assert checked() == tmp_path / "out"
    for different, what in (
        ({"unlearned": full}, "models"),
        ({"retain": None}, "models"),
        ({"data": ElicitData(forget=ROWS, limit=2)}, "examples"),
        ({"probes": "quick", "options": dataclasses.replace(OPTIONS, samples=1)}, "options"),
        ({"probes": ["plain"], "unlearned": full}, "models and probes"),
    ):
        with pytest.raises(
            ConfigError, match=f"with different {what}: choose another out, or replace it with redo=True"
        ):
            checked(**different)
        assert checked(**different, redo=True)
    (tmp_path / "out" / "manifest.json").write_text('{"format": "uds_lens.ElicitationResults"}')
    assert checked(unlearned=full), "a broken result is made again"


def test_depth_beside_elicitation(asked, trio):
    paths = trio("llama")
    audit = ul.DepthAudit.run(paths.full, paths.retain, paths.unlearned, ROWS, options=RUN)
    frame = asked.with_depth(audit)
    (score,) = audit.examples_frame().loc[lambda rows: rows["example_id"] == ROWS[1].id, "uds"]
    rows = frame[(frame["example_id"] == ROWS[1].id) & (frame["probe"] == "cloze")]
    (row,) = rows.query("decoding == 'sampled'").itertuples()
    assert row.uds == score or math.isnan(score)
    means = [asked.mean(role, "cloze", "sampled")[1] for role in ("unlearned", "retain")]
    assert row.beyond_retain == pytest.approx(means[0] - means[1])
    other = dataclasses.replace(audit, models={**audit.models, "unlearned": audit.models["retain"]})
    with pytest.raises(DataError, match="different weights"):
        asked.with_depth(other)


def test_correlation_with_depth_is_spearmans():
    from scipy.stats import kurtosis, spearmanr, t

    random = np.random.default_rng(0)
    frame = pd.DataFrame({"uds": random.random(40).round(1), "beyond_retain": random.random(40).round(1)})
    frame["probe"], frame["decoding"], frame["subject"] = "cloze", "greedy", np.arange(40) // 4
    found = depth_correlation(frame, probe="cloze")
    assert found.rho == pytest.approx(spearmanr(frame["uds"], frame["beyond_retain"]).statistic)
    assert found.interval.low < found.rho < found.interval.high and found.n == 40
    assert math.isnan(depth_correlation(frame.assign(uds=0.5), probe="cloze").rho)
    columns = [frame.loc[frame["subject"] != j, ["uds", "beyond_retain"]].to_numpy().T for j in range(10)]
    without = [np.arctanh(spearmanr(*both).statistic) for both in columns]
    reach = t.ppf(0.975, min(9, 20 / (kurtosis(without, fisher=False) - 1))) * np.std(without) * 3
    ends = np.tanh([np.arctanh(found.rho) - reach, np.arctanh(found.rho) + reach])
    assert found.interval == pytest.approx(ends)


def test_a_correlation_that_rests_on_one_subject_has_no_interval():
    frame = pd.DataFrame({"uds": np.arange(12) / 12, "beyond_retain": [0.0] * 9 + [1.0, 0.0, 1.0]})
    frame["probe"], frame["decoding"], frame["subject"] = "cloze", "greedy", [f"s{i // 3}" for i in range(12)]
    found = depth_correlation(frame, probe="cloze")
    assert found.rho > 0 and all(map(math.isnan, found.interval))
    perfect = depth_correlation(frame.assign(beyond_retain=1 - frame["uds"]), probe="cloze")
    assert perfect.rho == pytest.approx(-1) and all(map(math.isnan, perfect.interval))


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"probes": "every"}, ConfigError, "no preset 'every'"),
        ({"probes": []}, ConfigError, "no probes"),
        ({"probes": ["plain", "plain"]}, ConfigError, "two probes"),
        ({"probes": ["hypnosis"]}, ConfigError, "no probe"),
        ({"probes": None}, ConfigError, "a list of names"),
        ({"probes": [3]}, ConfigError, "probe objects"),
        ({"options": {}}, ConfigError, "options must be ElicitOptions; got dict"),
        ({"run": {"device": "cpu"}}, ConfigError, "run must be RunOptions; got dict"),
        ({"model": None}, ModelError, "cannot open NoneType"),
        ({"examples": []}, DataError, "no examples"),
    ],
)
def test_wrong_arguments(trio, given, error, message, unchecked):
    right = {"model": trio("llama").full, "examples": ROWS, "probes": ["plain"], "options": GREEDY, "run": RUN}
    with pytest.raises(error, match=message):
        elicit(**right | given)


def test_a_place_that_cannot_be_written_is_reported_before_anything_is_asked(trio, tmp_path, monkeypatch):
    monkeypatch.setattr("uds_lens.elicitation._run.read_checkpoint_info", lambda *_, **__: pytest.fail("late"))
    (tmp_path / "file").write_text("mine")
    with pytest.raises(StorageError, match="is a file"):
        elicit(trio("llama").full, ROWS, probes=["plain"], options=OPTIONS, run=RUN, out=tmp_path / "file")
