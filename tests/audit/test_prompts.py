"""Which prompts an audit asks with where nobody says, and a chat from end to end against another implementation."""

import json
import shutil
from dataclasses import replace

import pytest
import torch
from audit import independent
from chat_templates import CHATML, chat_tokenizer
from tiny_models import EXAMPLES, ROWS, VERSIONS, build_model

import uds_lens as ul
from uds_lens._cli import main
from uds_lens.data import CHAT_STYLES
from uds_lens.errors import UdsLensWarning
from uds_lens.results import DepthAudit

pytestmark = pytest.mark.usefixtures("trusted")

RUN = ul.RunOptions(device="cpu")


@pytest.fixture
def chat_trio(trio, tmp_path):
    """Copies of three checkpoints whose tokenizers have a chat template."""

    def copied(role, record=None):
        place = tmp_path / role
        shutil.copytree(getattr(trio("llama"), role), place)
        config = json.loads((place / "tokenizer_config.json").read_text())
        (place / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": CHATML}))
        if record is not None:
            (place / "unlearning.json").write_text(json.dumps({"protocol": record}))
        return place

    return copied


@pytest.mark.parametrize(
    ("records", "asked", "prompts"),
    [({}, "auto", "chat"), ({"retain": "raw", "unlearned": "raw"}, "auto", "raw"), ({"full": "raw"}, "chat", "chat")],
)
@pytest.mark.filterwarnings("ignore:.*was trained with:uds_lens.errors.UdsLensWarning")
def test_prompts_are_those_of_the_record_then_of_the_tokenizer(chat_trio, caplog, records, asked, prompts):
    caplog.set_level("INFO", "uds_lens")
    full, retain, unlearned = (chat_trio(role, records.get(role)) for role in ("full", "retain", "unlearned"))
    config = ul.AuditConfig(protocol=asked)
    audit = ul.DepthAudit.run(full, retain, unlearned, EXAMPLES[:2], config=config, options=RUN)
    assert audit.config == replace(config, protocol=prompts)
    assert audit.provenance["first_prompt"].startswith("Question: ") is (prompts == "raw")
    said = [line for line in caplog.messages if line.startswith("prompts: ")]
    assert bool(said) is (asked == "auto")
    baseline = ul.Baseline.measure(full, retain, EXAMPLES[:2], config=config, options=RUN)
    assert baseline.config == audit.config and baseline.audit(unlearned, options=RUN).uds == audit.uds


def test_checkpoints_whose_records_disagree_are_named(chat_trio):
    full, retain = chat_trio("full", "raw"), chat_trio("retain", "raw")
    unlearned = chat_trio("unlearned", "chat")
    with pytest.warns(UdsLensWarning, match=r"^unlearned .* was trained with the chat template, but is run with raw"):
        ul.DepthAudit.run(full, retain, unlearned, EXAMPLES[:2], options=RUN)


@pytest.mark.filterwarnings("ignore:.*was trained with:uds_lens.errors.UdsLensWarning")
def test_disagreeing_records_are_warned_of_by_every_audit_of_a_baseline_and_stay_with_it(chat_trio, tmp_path):
    full, retain = chat_trio("full", "chat"), chat_trio("retain", "raw")
    unlearned = chat_trio("unlearned", "raw")
    baseline = ul.Baseline.measure(full, retain, EXAMPLES[:2], options=RUN)
    with baseline.recorded(options=RUN) as recorded:
        audits = [baseline.audit(unlearned, options=RUN), recorded.audit(unlearned), baseline.audit(full, options=RUN)]
    audits[0].save(tmp_path / "audit")
    for audit in (*audits[:2], ul.DepthAudit.load(tmp_path / "audit")):
        (caution,) = [each for each in audit.cautions if "training records" in each.text]
        assert caution.level == "caution"
        assert caution.text.startswith("According to the training records, retain and the audited model were trained")
        assert caution.mark == "retain, unlearned trained with raw prompts"
    (caution,) = [each for each in audits[2].cautions if "training records" in each.text]
    assert "retain was trained with raw prompts, but audited with the chat template, so it may" in caution.text


def test_prompts_that_were_chosen_against_all_records_are_a_note(chat_trio):
    models = [chat_trio(role, "chat") for role in ("full", "retain", "unlearned")]
    audit = ul.DepthAudit.run(*models, EXAMPLES[:2], config=ul.AuditConfig(protocol="raw"), options=RUN)
    (caution,) = [each for each in audit.cautions if "training records" in each.text]
    assert (caution.level, caution.mark) == ("note", "trained with chat prompts")
    audit = ul.DepthAudit.run(*models, EXAMPLES[:2], options=RUN)
    assert not any("training records" in each.text for each in audit.cautions)


@pytest.mark.filterwarnings("ignore:.*was trained with:uds_lens.errors.UdsLensWarning")
def test_all_commands_give_the_reason_for_their_prompts(chat_trio, caplog):
    """The record of an unlearned model is not one; a record is not a missing template."""
    caplog.set_level("INFO", "uds_lens")
    full, retain = chat_trio("full", "raw"), chat_trio("retain")
    ul.metrics.evaluate(full, EXAMPLES[:1], metrics=["prob"], run=RUN)
    ul.annotate([replace(EXAMPLES[0], entity=None)], by="contrast", full=full, retain=retain, run=RUN)
    said = [line for line in caplog.messages if line.startswith("prompts: ")]
    assert said == ["prompts: raw (as the checkpoint's record says)"] * 2
    caplog.clear()
    (full / "unlearning.json").unlink()
    ul.DepthAudit.run(full, retain, chat_trio("unlearned", "chat"), EXAMPLES[:1], options=RUN)
    (line,) = [line for line in caplog.messages if line.startswith("prompts: ")]
    assert line.startswith("prompts: chat template (each begins with")


def test_a_finished_audit_with_open_prompts_is_found_again(chat_trio, tmp_path, monkeypatch):
    (tmp_path / "e.json").write_text(json.dumps(ROWS[:2]))
    models = {"full": chat_trio("full"), "retain": chat_trio("retain"), "model": chat_trio("unlearned")}
    named = {**models, "examples": tmp_path / "e.json", "out": tmp_path / "out", "device": "cpu"}
    words = ["audit", *(f"--{option}={value}" for option, value in named.items())]
    with pytest.raises(SystemExit):
        main(words)
    assert ul.DepthAudit.load(tmp_path / "out").prompts == "chat template"
    monkeypatch.setattr(ul.DepthAudit, "run", lambda *_, **__: pytest.fail("it is there already"))
    with pytest.raises(SystemExit) as leaving:
        main(words)
    assert not leaving.value.code


STYLE = CHAT_STYLES["open_unlearning"]


@pytest.fixture(scope="module")
def chat_models(tmp_path_factory):
    """Three checkpoints whose tokenizer has a template with turns, a system text and a date."""
    folder, tokenizer = tmp_path_factory.mktemp("chat"), chat_tokenizer("llama-3")
    for version in VERSIONS:
        model = build_model("llama", version, vocab_size=len(tokenizer), max_position_embeddings=512)
        model.save_pretrained(folder / version)
        tokenizer.save_pretrained(folder / version)
    (folder / "forget.json").write_text(json.dumps(ROWS), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def saved(chat_models):
    options = zip(("full", "retain", "model"), VERSIONS, strict=True)
    words = [f"--{option}={chat_models / version}" for option, version in options]
    words += ["--examples", str(chat_models / "forget.json"), "--out", str(chat_models / "run")]
    words += ["--protocol", "chat", "--chat-style", "open_unlearning", "--device", "cpu"]
    with pytest.raises(SystemExit, match=r"^0$"):
        main(["audit", *words, "--engine", "wavefront"])
    return DepthAudit.load(chat_models / "run")


def test_a_chat_is_measured_as_its_template_writes_it(chat_models, saved):
    models = [chat_models / version for version in VERSIONS]
    expected = independent.audit(*models, EXAMPLES, chat=(STYLE.system_prompt, STYLE.chat_date))
    assert len(saved.examples) == len(EXAMPLES) and not saved.skipped
    for name in ("s_full", "s1_delta", "s2_delta"):
        found = torch.tensor(expected[name], dtype=torch.float64)
        torch.testing.assert_close(getattr(saved, name), found, atol=1e-5, rtol=0)
    assert saved.uds == pytest.approx(expected["uds"], abs=5e-4) and 0.02 < saved.uds < 0.98


def test_what_was_asked_is_in_the_record(saved):
    prompt = saved.provenance["first_prompt"]
    assert prompt.startswith("<bos><|start|>system<|stop|>")
    assert f"Today Date: {STYLE.chat_date}" in prompt and STYLE.system_prompt in prompt
    asked = f"<|start|>user<|stop|>\n\n{EXAMPLES[0].question}<|eot|><|start|>assistant<|stop|>\n\n"
    assert prompt.endswith(asked + EXAMPLES[0].prefix)
    assert prompt.count("<bos>") == 1
    config = saved.config
    assert (config.protocol, config.system_prompt, config.chat_date) == ("chat", STYLE.system_prompt, STYLE.chat_date)
