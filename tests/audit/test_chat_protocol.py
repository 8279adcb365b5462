"""A chat from end to end: a template like Llama 3's, by the command line, against the independent implementation."""

import json

import pytest
import torch
from audit import independent
from chat_templates import chat_tokenizer
from tiny_models import EXAMPLES, ROWS, VERSIONS, build_model

from uds_lens._cli import main
from uds_lens.data import CHAT_STYLES
from uds_lens.results import DepthAudit

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
