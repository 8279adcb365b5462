"""An audit on the Hub: the card's text and metadata, and the commit. Nothing goes over the network."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from test_publication import ADDRESS

import uds_lens as ul
from uds_lens.errors import ConfigError, ResultFormatError, StorageError
from uds_lens.report import model_card
from uds_lens.results import _hub as hub_upload
from uds_lens.results._hub import ADDRESS as NAMED, METRIC

from .conftest import NAN, made

AUDIT = made([[1.0, 2.0, 0.0]] * 4, [[0.5, 1.0, 0.0]] * 4, names={"unlearned": "/home/ada/private/npo"})
THERE = """---
license: mit
model-index:
- name: other
  results:
  - task: {type: text-generation}
    dataset: {type: cais/mmlu, name: MMLU}
    metrics:
    - {type: accuracy, value: 0.3, name: Accuracy}
---

# My model

Words of mine.
"""


def test_the_card_tells_score_interval_cautions_and_how_it_was_measured() -> None:
    card = model_card(AUDIT, dataset="locuslab/TOFU", config="forget10")
    text = card.text
    low, high = AUDIT.uds_interval
    assert (
        f"**UDS 0.500** (95% CI {low:.3f} to {high:.3f}, {AUDIT.interval_basis}): undecided. Patched states alone"
        in text
    )
    assert all(f"- {caution}" in text for caution in AUDIT.warnings) and AUDIT.warnings
    for told in ("locuslab/TOFU, forget10", "4 of 4 examples", "tau=0.05", AUDIT.models["full"].fingerprint):
        assert told in text
    assert "private" not in str(card)
    (result,) = card.data.eval_results
    assert (result.metric_type, result.metric_value, result.dataset_type) == (METRIC, 0.5, "locuslab/TOFU")
    assert result.metric_args["low"] == pytest.approx(low, abs=1e-6)
    assert result.metric_args["tau"] == AUDIT.config.tau
    assert result.source_url == NAMED == ADDRESS
    assert str(card).startswith("---\n") and "model-index:" in str(card)


def test_a_stand_in_is_named_and_no_place_is() -> None:
    base = replace(AUDIT.models["retain"], name="/home/private/base")
    audit = replace(AUDIT, config=replace(AUDIT.config, stand_in="base"), models={**AUDIT.models, "retain": base})
    card = model_card(audit)
    (result,) = card.data.eval_results
    assert result.metric_args["stand_in"] == "base"
    assert "There is no retain model, so 'base'" in card.text and "private" not in str(card)


def test_another_card_keeps_what_it_says_and_changes_only_ours() -> None:
    once = str(model_card(AUDIT, dataset="d", card=THERE))
    again = model_card(made([[1.0]] * 4, [[1.0]] * 4), dataset="d", card=once)
    assert again.text.count("## Unlearning depth") == 1
    assert "Words of mine." in again.text and "UDS 0.500" not in again.text and "UDS 1.000" in again.text
    assert again.data.license == "mit" and again.data.model_name == "other"
    values = {result.metric_type: result.metric_value for result in again.data.eval_results}
    assert values == {"accuracy": 0.3, METRIC: 1.0}
    beside = model_card(AUDIT, dataset="e", card=once).data.eval_results
    assert [result.dataset_type for result in beside] == ["cais/mmlu", "d", "e"]


def test_no_score_and_fatal_warnings_stay_out_of_the_metadata() -> None:
    none = model_card(made([[0.0]], [[NAN]]))
    assert none.data.eval_results is None and "UDS not measurable" in none.text
    swapped = replace(AUDIT, models={**AUDIT.models, "full": AUDIT.models["retain"]})
    assert swapped.fatal
    card = model_card(swapped)
    assert card.data.eval_results is None and "**Fatal.**" in card.text and "withheld" in card.text


@pytest.mark.parametrize("marks", ["{b}\n{w}", "{b}\n{w}\n{e}", "{b}\n{w}\n{b}\nMore.\n{e}\n{w}\n{e}", "{e}\n{w}\n{b}"])
def test_stray_marks_take_no_text_of_the_user_along(marks: str) -> None:
    mine = marks.format(b=hub_upload._BEGIN, e=hub_upload._END, w="Words of mine.")
    card = f"{THERE}\n{mine}\n"
    for _ in range(3):
        text = model_card(AUDIT, card=card).text
        assert mine in text and text.count("## Unlearning depth") == 1
        card = str(model_card(AUDIT, card=card))


def test_texts_from_outside_are_no_markup() -> None:
    hostile = made([[1.0]] * 2, [[1.0]] * 2, names={"unlearned": "x|<script>`[y](z)\n# h"})
    text = model_card(hostile, dataset="a|b\n# c").text
    assert "<script" not in text and "\n# c" not in text and "\n# h" not in text and "a&#124;b" in text


def test_what_cannot_be_a_card_is_refused() -> None:
    with pytest.raises(ResultFormatError, match="metadata cannot be read"):
        model_card(AUDIT, card="---\n: [\n---\nText\n")
    with pytest.raises(ConfigError, match="dataset must name the forget set"):
        model_card(AUDIT, dataset=" ")


class Hub:
    """Stands in for `HfApi`."""

    def __init__(self, token: str | None = None) -> None:
        Hub.last, self.token, self.asked = self, token, {}

    def create_repo(self, repo: str, **asked: object) -> None:
        if repo == "no/body":
            raise OSError("401 Unauthorized.\nmore")
        self.asked["create_repo"] = (repo, asked)

    def hf_hub_download(self, repo: str, name: str, *, revision: str | None) -> str:
        return str(Hub.card)

    def create_commit(self, repo: str, *, operations, commit_message: str, revision: str | None):
        self.files = {each.path_in_repo: each.path_or_fileobj for each in operations}
        return SimpleNamespace(commit_url=f"https://hub/{repo}/commit/1")


def test_pushing_commits_the_card_and_the_audit_together(tmp_path, monkeypatch) -> None:
    with pytest.raises(StorageError, match="HF_HUB_OFFLINE is set"):
        AUDIT.push_to_hub("ada/npo")
    monkeypatch.setattr(hub_upload, "is_offline", lambda: False)
    monkeypatch.setattr("huggingface_hub.HfApi", Hub)
    Hub.card = tmp_path / "README.md"
    Hub.card.write_text(THERE, encoding="utf-8")
    assert AUDIT.push_to_hub("ada/npo", dataset="d", private=True, token="t") == "https://hub/ada/npo/commit/1"
    assert Hub.last.token == "t" and Hub.last.asked["create_repo"] == ("ada/npo", {"private": True, "exist_ok": True})
    assert b"Words of mine." in Hub.last.files["README.md"] and b"UDS 0.500" in Hub.last.files["README.md"]
    for name, data in Hub.last.files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(data)
    assert ul.DepthAudit.load(tmp_path / "uds_lens").uds == AUDIT.uds
    with pytest.raises(StorageError, match=r"cannot push to 'no/body': 401 Unauthorized\. Log in"):
        AUDIT.push_to_hub("no/body")
    with pytest.raises(ConfigError, match="owner/name"):
        AUDIT.push_to_hub("npo")
