"""Relearning over a grid: the choice, its control, its bound, resuming; on a model that knows twelve answers."""

import math
from dataclasses import replace
from pathlib import Path
from warnings import catch_warnings, simplefilter

import numpy as np
import pandas as pd
import pytest
import torch
from results.conftest import made
from unlearning.conftest import QUICK, Tiny, tiny, train  # noqa: F401 - a fixture

from uds_lens.data._prompts import ChatStyle, chosen_protocol
from uds_lens.errors import ConfigError, DataError, UdsLensError, UdsLensWarning
from uds_lens.metrics import MetricData, MetricOptions, MetricResults
from uds_lens.models import HookedModel, open_model
from uds_lens.models._checkpoint import load_tokenizer
from uds_lens.results import TransplantEvidence, verdict
from uds_lens.study import RelearnGrid, RelearnGridResults, relearn_grid
from uds_lens.study._relearn_grid import GRID
from uds_lens.study._tampering import Questions, tamper
from uds_lens.unlearning import RelearnConfig, read_record, relearn

HERE = {"revision": None, "offline": True, "trust_remote_code": False}
CHAT = RelearnConfig(batch_size=2, protocol="chat")


def result(after: dict[str, list[float]], loss: dict[str, list[float]], examples: dict[str, np.ndarray]):
    """Results made by hand: settings lr2e-05 (the paper's), lr0.0001, lr0.0002."""
    grid = RelearnGrid(learning_rate=(1e-4, 2e-4), epochs=(1,))
    rows = [
        {
            "model": model,
            "setting": setting.name,
            "attack": "relearn",
            "paper": place == 0,
            "before": 0.1,
            "after": after[model][place],
        }
        | {"back": after[model][place] - 0.1, "allowed": loss[model][place] <= grid.max_loss}
        for model in ("unlearned", "retain")
        for place, setting in enumerate(grid.settings)
    ]
    subjects = [f"s{i // 2}" for i in range(examples["retain"].shape[1])]
    frame = pd.DataFrame(rows, columns=list(GRID))
    return RelearnGridResults(grid=grid, frame=frame, examples=examples, subjects=subjects)


def test_the_worst_is_the_most_within_the_bound_and_retain_chooses_its_own() -> None:
    after = {"unlearned": [0.3, 0.6, 0.9], "retain": [0.2, 0.1, 0.4]}
    loss = {"unlearned": [0.0, 0.1, 0.5], "retain": [0.0, 0.0, 0.1]}
    examples = {model: np.repeat(np.array(values)[:, None], 12, axis=1) for model, values in after.items()}
    found = result(after, loss, examples).summary()
    assert (found["unlearned_worst_setting"], found["unlearned_worst_after"]) == ("lr0.0001_epochs1", 0.6)
    assert (found["retain_worst_setting"], found["retain_worst_after"]) == ("lr0.0002_epochs1", 0.4)
    assert found["excess"] == pytest.approx(0.2) and found["paper_excess"] == pytest.approx(0.1)
    assert found["held_out_excess"] == pytest.approx(0.2) and found["unlearned_n_allowed"] == 2
    none = {"unlearned": [0.9] * 3, "retain": [0.0] * 3}
    found = result(after, none, examples).summary()
    assert found["unlearned_worst_setting"] is None and math.isnan(found["excess"])
    assert math.isnan(found["held_out_excess"]) and math.isnan(found["excess_low"])


@pytest.mark.parametrize(
    ("gained", "allowed", "word", "tested"),
    [(0.6, True, "undecided", True), (0.0, True, "erased as far as tested", True), (0.6, False, "undecided", False)],
)
def test_a_verdict_takes_what_relearning_brings_back_beyond_retain(gained, allowed, word, tested) -> None:
    """Twelve examples of six subjects; the unlearned model relearns `gained` more than retain, varied by subject."""
    wobble = np.repeat([-0.05, -0.03, -0.01, 0.01, 0.03, 0.05], 2)
    retain = np.repeat([[0.1], [0.2], [0.3]], 12, axis=1)
    examples = {"unlearned": retain + gained + wobble, "retain": retain}
    after = {model: values.mean(1).tolist() for model, values in examples.items()}
    evidence = result(after, {model: [0.0 if allowed else 0.9] * 3 for model in after}, examples).evidence()
    found = TransplantEvidence(host_depth=0.95, hidden_low=-0.1, localisation=1.0)
    audit = made([[1.0, 1.0]] * 40, [[0.95, 0.95]] * 40)
    said = verdict(audit, transplant=found, relearning=evidence)
    assert said.word == word and ("relearning" in said.tested) is tested
    assert ("Relearning brings back at least 0.5" in said.why) is (tested and gained > 0)
    assert verdict(audit, transplant=found).word == "undecided", "a local change that nobody relearned"


@pytest.mark.long  # a simulation
def test_settings_chosen_on_other_subjects_are_not_high_by_chance() -> None:
    """Without any difference the maximum over noise has one; over 40 draws the held-out estimate has none."""
    draw = np.random.default_rng(0)
    chosen, held_out = [], []
    for _ in range(40):
        noise = {model: draw.normal(0.5, 0.2, (3, 24)) for model in ("unlearned", "retain")}
        noise["retain"][:] = 0.5  # only one side is a maximum over noise
        after = {model: values.mean(1).tolist() for model, values in noise.items()}
        found = result(after, {model: [0.0] * 3 for model in noise}, noise)
        chosen.append(found.worst("unlearned")["after"] - found.worst("retain")["after"])
        held_out.append(found.held_out_excess())
    assert np.mean(chosen) > 0.02 and abs(np.mean(held_out)) < 0.012


def test_a_grid_has_the_papers_setting_first_and_checks_itself() -> None:
    grid = RelearnGrid(learning_rate=(2e-5, 1e-4), epochs=1, share=[1.0, 0.5])
    names = ["lr2e-05_epochs1", "lr2e-05_epochs1_rows0.5", "lr0.0001_epochs1", "lr0.0001_epochs1_rows0.5"]
    assert [setting.name for setting in grid.settings] == names
    attacks = RelearnGrid(learning_rate=1e-4, epochs=1, share=0.25, attack=("prune:0.3", "others", "benign")).settings
    assert [setting.name for setting in attacks[1:]] == [
        "prune0.3",
        "others_lr0.0001_epochs1",
        "benign_lr0.0001_epochs1_rows0.25",
    ]
    wrongs = ({"metric": "model_utility"}, {"utility": "es"}, {"share": (1.5,)}, {"learning_rate": ("x",)})
    for wrong in (*wrongs, {"attack": "others:0.5"}, {"attack": "noise:1.5"}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            RelearnGrid(**wrong)
    with pytest.raises(ConfigError, match=r"attack must be a list, each a string like .*prune.*; got 'prune'"):
        RelearnGrid(attack="prune")


@pytest.fixture(scope="module")
def gone(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Path:  # noqa: F811
    """A model whose answers are gone from its mouth, and little more."""
    return train(tiny, "npo", tmp_path_factory.mktemp("gone") / "npo", learning_rate=5e-3, epochs=4, alpha=2.0)


@pytest.mark.long
def test_the_grid_on_a_tiny_model(tiny: Tiny, gone: Path, tmp_path: Path, monkeypatch) -> None:  # noqa: F811
    out = tmp_path / "grid"
    data = MetricData(forget=tiny.forget, retain=tiny.retain)
    grid = RelearnGrid(learning_rate=(3e-3,), epochs=(8,), share=(1.0, 0.5), metric="prob", max_loss=0.99)
    given = {"out": out, "config": RelearnConfig(batch_size=2, protocol="raw"), "options": QUICK, "grid": grid}
    given["metrics"] = MetricOptions(protocol="raw")
    found = relearn_grid(gone, tiny.full, data, **given)
    rows = found.frame.set_index(["model", "setting"])
    strong, half = rows.loc["unlearned", "lr0.003_epochs8"], rows.loc["unlearned", "lr0.003_epochs8_rows0.5"]
    assert strong["back"] > rows.loc["unlearned", "lr2e-05_epochs1"]["back"] + 0.1
    assert math.isnan(strong["back_untrained"]) and not math.isnan(half["back_untrained"])
    assert half["back_untrained"] < half["back"]
    assert found.worst()["after"] == rows.loc["unlearned"][rows.loc["unlearned"]["allowed"]]["after"].max()
    assert found.examples["unlearned"].mean(1) == pytest.approx(rows.loc["unlearned"]["after"])
    assert pd.read_csv(out / "settings.csv")["after"].tolist() == pytest.approx(found.frame["after"].tolist())
    assert not any((out / "models").iterdir())  # weights go, measurements stay

    calls = []
    place = "uds_lens.study._relearn_grid.relearn"
    monkeypatch.setattr(place, lambda *a, **k: calls.append(k["out"].name) or relearn(*a, **k))
    lost = next(iter((out / "measured").glob("retain-lr2e-05_epochs1-*.json")))
    lost.unlink()
    again = relearn_grid(gone, tiny.full, data, **given)
    assert calls == [lost.stem] and again.summary() == pytest.approx(found.summary(), nan_ok=True)
    lost.unlink()
    monkeypatch.setattr(place, lambda *a, **k: 1 / 0)
    with pytest.raises(UdsLensError, match=f"1 of 6 settings failed; {lost.stem}: ZeroDivisionError: division by zero"):
        relearn_grid(gone, tiny.full, data, **given)
    with pytest.raises(ConfigError, match=r"retain_q_prob of .* cannot be measured: there is no retain set"):
        relearn_grid(gone, tiny.full, replace(data, retain=()), **given)


@pytest.fixture
def opened(tiny: Tiny) -> HookedModel:  # noqa: F811
    with open_model(tiny.full, device="cpu") as model:
        yield model


def asked(tiny: Tiny) -> Questions:  # noqa: F811
    return Questions(forget=tiny.forget, retain=tiny.retain, protocol="raw", chat=ChatStyle(), seed=0)


def test_pruning_and_noise_change_every_matrix_of_the_blocks_by_what_they_say(tiny: Tiny, opened) -> None:  # noqa: F811
    names = [name for name, weight in opened.hf.named_parameters() if "layers." in name and weight.ndim == 2]
    before = {name: weight.detach().clone() for name, weight in opened.hf.named_parameters()}
    tamper(opened, "noise:0.5", asked(tiny))
    noisy = {name: weight.detach().clone() for name, weight in opened.hf.named_parameters()}
    for name, weight in noisy.items():
        moved = (weight - before[name]).square().mean().sqrt() / before[name].square().mean().sqrt()
        assert moved == pytest.approx(0.5 if name in names else 0.0, rel=0.1), name
    tamper(opened, "prune:0.25", asked(tiny))
    for name, weight in opened.hf.named_parameters():
        kept = noisy[name].clone()
        if name in names:
            kept[kept.abs() <= kept.abs().flatten().sort().values[kept.numel() // 4 - 1]] = 0
        assert torch.equal(weight, kept), name


def test_the_refusal_direction_is_gone_from_every_state_and_nothing_else_is(tiny: Tiny, opened) -> None:  # noqa: F811
    def states(question: str, block: int = 2) -> torch.Tensor:
        """What a block reads: hidden states that transformers gives out are taken before hooks."""
        ids, read = opened.tokenizer(f"Question: {question}\nAnswer:", return_tensors="pt").input_ids, []
        with opened.anatomy.layers[block].register_forward_pre_hook(lambda module, args: read.append(args[0][0])):
            opened.hf(ids)
        return read[0]

    with torch.no_grad():
        first = [torch.stack([states(row.question)[-1] for row in rows]).mean(0) for rows in (tiny.forget, tiny.retain)]
        direction = torch.nn.functional.normalize(first[0] - first[1], dim=0)
        fingerprint, question = opened.fingerprint, tiny.forget[0].question
        ids = opened.tokenizer(f"Question: {question}\nAnswer:", return_tensors="pt").input_ids
        expected = opened.hf.get_input_embeddings()(ids)[0]
        tamper(opened, "refusal:0.2", asked(tiny))
        found = states(question, 0)
        torch.testing.assert_close(found, expected - torch.outer(expected @ direction, direction), atol=1e-5, rtol=1e-4)
        assert (states(question) @ direction).abs().max() < 1e-4
    assert opened.fingerprint != fingerprint  # a hook changes what it computes: caches must not mix them up


def test_without_a_difference_there_is_no_direction(tiny: Tiny, opened) -> None:  # noqa: F811
    with pytest.raises(DataError, match="have the same mean state: use other retained rows"):
        tamper(opened, "refusal:0.5", replace(asked(tiny), retain=tiny.forget))


def test_what_tampering_brings_back_stands_next_to_retain_under_the_same(
    tiny: Tiny,  # noqa: F811
    gone: Path,
    tmp_path: Path,
    monkeypatch,
):
    rows = [replace(row, subject=row.id[:-2]) for row in tiny.forget]
    data = MetricData(forget=rows, retain=tiny.retain)
    grid = RelearnGrid(
        learning_rate=3e-3,
        epochs=2,
        attack=("others", "benign", "prune:0", "noise:0.5", "refusal:0.5"),
        metric="prob",
        max_loss=1.0,
    )
    given = {"out": tmp_path / "grid", "config": RelearnConfig(batch_size=2, protocol="raw"), "options": QUICK}
    found = relearn_grid(gone, tiny.full, data, grid=grid, **given)
    table = found.frame[found.frame["model"] == "unlearned"].set_index("attack")
    assert table.loc["prune:0", "back"] == pytest.approx(0, abs=1e-6)
    assert (table["after"].drop(["prune:0", "relearn"]) != table.loc["prune:0", "after"]).all()
    values = found.examples["unlearned"][1]  # others: half of the subjects are taught, and not asked
    halves = {row.subject for row, value in zip(rows, values, strict=True) if math.isnan(value)}
    asked_of = [row.subject not in halves for row in rows]
    assert len(halves) == len({row.subject for row in rows}) // 2 and not np.isnan(values[asked_of]).any()
    assert table.loc["others", "after"] == pytest.approx(values[asked_of].mean())
    assert table.loc["others", "back"] == pytest.approx(table.loc["others", "back_untrained"])
    attacks = found.attacks_frame().set_index("attack")
    assert list(attacks.index) == ["relearn", "others", "benign", "prune", "noise", "refusal"]
    retained = found.frame[(found.frame["model"] == "retain")].set_index("attack")
    for attack, setting in (("benign", "benign"), ("prune", "prune:0"), ("others", "others")):
        excess = table.loc[setting, "after"] - retained.loc[setting, "after"]
        assert attacks.loc[attack, "excess"] == pytest.approx(excess), attack
    for role in ("unlearned", "retain"):
        before, after, back = (attacks[f"{role}_{name}"] for name in ("before", "worst_after", "worst_back"))
        pd.testing.assert_series_equal(after - before, back, check_names=False)
    calls = []
    monkeypatch.setattr("uds_lens.study._relearn_grid.tamper", lambda model, attack, asked: calls.append(attack))
    monkeypatch.setattr("uds_lens.study._relearn_grid.relearn", lambda *a, **k: 1 / 0)
    untrained = replace(grid, attack=("prune:0", "noise:0.5"), seed=1)
    relearn_grid(gone, tiny.full, data, grid=untrained, **given)
    assert calls == ["noise:0.5"] * 2, "the only attack of these that the seed changes"
    with pytest.raises(
        ConfigError, match=r"no retained rows were given \(--retain-data\): the attack benign needs them"
    ):
        relearn_grid(gone, tiny.full, replace(data, retain=()), grid=grid, **given)
    with pytest.raises(ConfigError, match="others needs at least two subjects"):
        one = MetricData(forget=[replace(row, subject="Ada") for row in rows], retain=tiny.retain)
        relearn_grid(gone, tiny.full, one, grid=grid, **given)


def test_both_models_are_trained_and_asked_in_one_prompt(tiny: Tiny, gone: Path, tmp_path: Path) -> None:  # noqa: F811
    """The record of one names raw prompts; the other has none, and a chat template: alone, each would take its own."""
    assert read_record(gone)["protocol"] == "raw"
    assert chosen_protocol("auto", load_tokenizer(tiny.full, **HERE)) == "chat"
    data, grid = MetricData(forget=tiny.forget, retain=tiny.retain), RelearnGrid(learning_rate=(2e-5,), epochs=(1,))
    for name, config, prompts in (("auto", RelearnConfig(batch_size=2), "raw"), ("chat", CHAT, "chat")):
        with catch_warnings():
            simplefilter("ignore", UdsLensWarning)
            relearn_grid(gone, tiny.full, data, out=tmp_path / name, grid=grid, config=config, options=QUICK)
        found = [MetricResults.load(file) for file in (tmp_path / name / "measured").glob("*.json")]
        assert [results.options.protocol for results in found] == [prompts] * 2
