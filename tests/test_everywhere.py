"""What holds in every function that takes examples or renders a prompt."""

from dataclasses import asdict

import pytest
from tiny_models import EXAMPLES, Trio, load_plain
from transformers import PreTrainedTokenizerBase

import uds_lens as ul
from uds_lens.annotation import AnnotateOptions
from uds_lens.data import encode, sample_examples
from uds_lens.elicitation import ElicitData, ElicitOptions, elicit
from uds_lens.errors import ModelError
from uds_lens.metrics import MetricOptions, evaluate
from uds_lens.results import AuditConfig, RunOptions
from uds_lens.unlearning import AltPOConfig, make_config
from uds_lens.unlearning._data import encoded, pairs_of, sample_alternates
from uds_lens.unlearning._job import Parent

RUN = RunOptions(device="cpu", engine="wavefront", progress=False)
FEW = EXAMPLES[:2]
ROWS = [{name: value for name, value in asdict(example).items() if name != "row"} for example in FEW]
CHAT = {"protocol": "chat", "system_prompt": "Be brief.", "chat_date": "1 May 2020"}
SHORT = {"max_new_tokens": 2}


def training_job(monkeypatch, train):
    """The job that a training run would do."""
    jobs = []
    monkeypatch.setattr("uds_lens.unlearning._running.run", jobs.append)
    train()
    return jobs[0]


def ask(models, examples, **more):
    options = ElicitOptions(samples=0, **SHORT, **more)
    probes = ["plain", ul.elicitation.ICL(shots=1, source="retain")]
    return elicit(
        models.unlearned, ElicitData(forget=examples, retain=examples), probes=probes, options=options, run=RUN
    )


def test_rows_stand_for_examples(trio, opened, tmp_path, monkeypatch, unchecked):
    models, tokenizer = trio("llama"), opened("llama").tokenizer
    assert encode(ROWS, tokenizer) == encode(FEW, tokenizer)
    assert sample_examples(ROWS, 1) == sample_examples(FEW, 1)
    found, expected = (ask(models, each) for each in (ROWS, FEW))
    assert found.to_frame().equals(expected.to_frame())
    metrics = [evaluate(models.full, each, metrics=["em"], run=RUN)["em"].value for each in (ROWS, FEW)]
    assert metrics[0] == metrics[1]
    assert ul.annotate(ROWS, by="answer", redo=True) == ul.annotate(FEW, by="answer", redo=True)
    for train in (
        lambda: ul.unlearning.unlearn("full", ROWS, ROWS, method="npo", out=tmp_path / "o"),
        lambda: ul.unlearning.relearn("full", ROWS, out=tmp_path / "o"),
    ):
        job = training_job(monkeypatch, train)
        assert list(job.forget) == FEW
        assert list(job.retain) in (FEW, [])


def parent_of(models):
    model, tokenizer = load_plain(models.full)
    return Parent(model.eval(), tokenizer, "tiny", "")


RENDERED = {
    "audit": lambda m: ul.DepthAudit.run(*m, FEW, config=AuditConfig(**CHAT), options=RUN),
    "metrics": lambda m: evaluate(
        m.full, FEW, metrics=["prob", "rouge"], options=MetricOptions(**CHAT, **SHORT), run=RUN
    ),
    "elicitation": lambda m: ask(m, FEW, **CHAT),
    "annotate": lambda m: ul.annotate(
        FEW, by="contrast", full=m.full, retain=m.retain, options=AnnotateOptions(**CHAT), run=RUN, redo=True
    ),
    "training": lambda m: encoded(parent_of(m), make_config("npo", CHAT), pairs_of(FEW)),
    "alternates": lambda m: sample_alternates(
        (parent := parent_of(m)).model,
        parent.tokenizer,
        FEW[:1],
        config=AltPOConfig(n_alternates=1, max_new_tokens=4, **CHAT),
        show_progress=False,
    ),
}


@pytest.mark.parametrize("room", RENDERED)
def test_a_style_reaches_every_prompt(room, trio, monkeypatch):
    rendered, true = [], PreTrainedTokenizerBase.apply_chat_template

    def spy(self, turns, **more):
        rendered.append((turns[0]["role"], turns[0]["content"], more["date_string"]))
        return true(self, turns, **more)

    monkeypatch.setattr(PreTrainedTokenizerBase, "apply_chat_template", spy)
    RENDERED[room](trio("llama"))
    assert set(rendered) == {("system", "Be brief.", "1 May 2020")}


@pytest.fixture(scope="module")
def small(trio, tmp_path_factory):
    """Full, retain and unlearned with 30 rows of their embedding left, and the tokenizer of 200 tokens."""
    folders = []
    for path in trio("llama"):
        model, tokenizer = load_plain(path)
        model.resize_token_embeddings(30)
        model.config.pad_token_id = 0
        folders.append(tmp_path_factory.mktemp("small"))
        model.save_pretrained(folders[-1])
        tokenizer.save_pretrained(folders[-1])
    return Trio("llama", *folders)


@pytest.mark.parametrize("room", [*(room for room in RENDERED if room != "alternates"), "streamed"])
def test_a_token_beyond_the_embedding_is_named_with_its_question(room, small):
    streamed = RunOptions(device="cpu", progress=False, stream=True)
    with pytest.raises(ModelError, match=r"token \d+ of '.*\?' is beyond the model's embedding of 30 rows"):
        if room == "streamed":
            ul.DepthAudit.run(*small, FEW, options=streamed)
        else:
            RENDERED[room](small)
