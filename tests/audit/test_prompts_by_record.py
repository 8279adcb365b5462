"""Which prompts an audit asks with, where nobody says: those of the checkpoints' records, else of the tokenizer."""

import json
import shutil
from dataclasses import replace

import pytest
from chat_templates import CHATML
from tiny_models import EXAMPLES, ROWS

import uds_lens as ul
from uds_lens._cli import main
from uds_lens.errors import UdsLensWarning

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
    with pytest.warns(UdsLensWarning, match=r"^unlearned .* was trained with the chat template and is asked with raw"):
        ul.DepthAudit.run(full, retain, unlearned, EXAMPLES[:2], options=RUN)


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
