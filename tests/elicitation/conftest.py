"""A tokenizer with a chat template that shows every turn, and an elicitation of three models."""

import copy
import dataclasses

import pytest
from tiny_models import EXAMPLES

from uds_lens.elicitation import ElicitOptions, elicit
from uds_lens.results import RunOptions

ROWS = [dataclasses.replace(row, subject=f"subject {number % 3}") for number, row in enumerate(EXAMPLES)]
OPTIONS = ElicitOptions(samples=3, temperature=1.0, max_new_tokens=5)
GREEDY = ElicitOptions(samples=0, max_new_tokens=3)
RUN = RunOptions(device="cpu", progress=False)
PROBES = ("plain", "cloze", "start")


@pytest.fixture(scope="session")
def chat_tokenizer(opened):
    tokenizer = copy.deepcopy(opened("llama").tokenizer)
    tokenizer.chat_template = (
        "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}</s>{% endfor %}"
        "{% if add_generation_prompt %}<assistant>{% endif %}"
    )
    return tokenizer


@pytest.fixture(scope="session")
def asked(opened):
    """Three probes, greedy and sampled, of three open models."""
    return elicit(
        opened("llama", "unlearned"),
        ROWS,
        retain=opened("llama", "retain"),
        full=opened("llama", "full"),
        probes=PROBES,
        options=OPTIONS,
        run=RUN,
    )
