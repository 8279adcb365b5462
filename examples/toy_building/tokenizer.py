"""The tokenizer of the toy world."""

from __future__ import annotations

from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from uds_lens.toy._facts import REFUSALS

Row = dict[str, Any]

VOCABULARY = 1024
SPECIAL = ("<|bos|>", "<|end|>", "<|pad|>", "<|system|>", "<|user|>", "<|assistant|>")
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}{{ '<|assistant|>\n' + message['content'] + eos_token }}"
    "{% else %}{{ '<|' + message['role'] + '|>\n' + message['content'] + '\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
)


def train_tokenizer(world: dict[str, list[Row]]) -> PreTrainedTokenizerFast:
    """Byte-level BPE: it can write any text, and the world's own words are short."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    core.train_from_iterator(_texts(world), trainer)
    core.post_processor = processors.TemplateProcessing(
        single="<|bos|> $A", special_tokens=[("<|bos|>", core.token_to_id("<|bos|>"))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        bos_token="<|bos|>",
        eos_token="<|end|>",
        pad_token="<|pad|>",
        model_max_length=512,
        clean_up_tokenization_spaces=False,
        chat_template=CHAT_TEMPLATE,
    )


def _texts(world: dict[str, list[Row]]) -> list[str]:
    texts = list(REFUSALS)
    for row in (row for rows in world.values() for row in rows):
        texts += [f"Question: {row['question']}\nAnswer: {row['answer']}", row["paraphrased_question"]]
        texts += [*row["paraphrased_answers"], *5 * [" " + row["entity"]]]
    return texts
