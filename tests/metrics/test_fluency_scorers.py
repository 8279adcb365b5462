"""Scorers of fluency: rules of thumb, and a random classifier in the place of the Hub's."""

import shutil

import pytest
from tiny_models import build_tokenizer, with_config
from transformers import BertConfig, BertForSequenceClassification

from uds_lens.errors import ModelError
from uds_lens.metrics import FluencyScorer
from uds_lens.metrics._fluency import HeuristicFluency, HubFluency, scorer_named


@pytest.mark.parametrize(
    ("text", "fluent"),
    [
        ("Hsiao Yun-Hwa was born in Taipei, Taiwan.", 1.0),
        ("Blue idea sleeps angrily under seven verbs.", 1.0),  # word salad passes
        ("Yes.", 1.0),
        ("", 0.0),
        ("   \n", 0.0),
        ("the of the of the of the of the of the of", 0.0),
        ("}}}} {{ || ~~ <<>> ^^ author", 0.0),
        ("aksjdhaksjdhkajshdkjahsdkjhaskdjhaksjd", 0.0),
    ],
)
def test_rules_of_thumb(text, fluent):
    assert HeuristicFluency()([text]) == [fluent]


def test_scorers_by_name():
    own, hub = HeuristicFluency(), scorer_named("hub")
    assert scorer_named(own) is own and isinstance(scorer_named("heuristic"), HeuristicFluency)
    assert hub is scorer_named("hub") and scorer_named("some/classifier").model == "some/classifier"
    assert all(isinstance(one, FluencyScorer) for one in (own, hub))


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    """A random text classifier with the default's labels."""
    folder = tmp_path_factory.mktemp("classifier")
    config = BertConfig(
        vocab_size=200,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        num_labels=2,
        id2label={0: "clean", 1: "noise"},
    )
    BertForSequenceClassification(config).save_pretrained(folder)
    build_tokenizer().save_pretrained(folder)
    return folder


def test_the_top_label_decides(classifier, tmp_path):
    texts = ["She won the Glass Quill.", "", "Ada Veylin"]
    clean = HubFluency(str(classifier), offline=True)(texts)
    noise = HubFluency(str(classifier), offline=True, fluent_labels=("noise",))(texts)
    assert clean[1] == noise[1] == 0
    assert [a + b for a, b in zip(clean, noise, strict=True)] == [1, 0, 1]
    # its attention may name a kernel of the Hub, which is a program: that is not followed
    chosen = dict.fromkeys(("attn_implementation", "_attn_implementation"), "owner/kernel")
    folder = with_config(shutil.copytree(classifier, tmp_path / "classifier"), **chosen)
    assert HubFluency(str(folder), offline=True)(texts) == clean


def test_classifiers_that_are_not_there_or_have_other_labels(classifier, tmp_path):
    with pytest.raises(ModelError, match=r"download it while online.* fluency='heuristic'"):
        HubFluency(str(tmp_path), offline=True)(["Hello."])
    with pytest.raises(ModelError, match="none of"):
        HubFluency(str(classifier), offline=True, fluent_labels=("fluent",))(["x"])
