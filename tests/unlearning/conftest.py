"""A tiny model that knows twelve answers by heart, and the data around it. Built once, in seconds."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
import torch
from tiny_models import made_once
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from uds_lens.data import ForgetExample, answer_sequences
from uds_lens.unlearning import LoraSettings, MethodConfig, TrainOptions, make_config, unlearn
from uds_lens.unlearning._passes import pad_sequences

NAMES = ("Ada Vey", "Bo Lund", "Cyr Moss", "Dee Park", "Eli Roth", "Fay Senn")
CHAT = (
    "{{ bos_token }}{% for message in messages %}"
    "<|{{ message['role'] }}|>\n{{ message['content'] }}<|turn|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
QUICK = TrainOptions(device="cpu", progress=False, log_every=1, checkpoint_every=0)
EXTRA = {
    "rmu": {"layer": 3, "scale": 5.0},
    "altpo": {"n_alternates": 2, "max_new_tokens": 12},
    "rr": {"layer": 1, "top_layer": 3},
    "rmulat": {"layer": 3, "scale": 5.0, "epsilon": 0.5, "steps": 3},
    "pdu": {"dual_warmup_epochs": 0.0},
}


@dataclass(frozen=True)
class Tiny:
    """What the tests train on."""

    full: Path
    forget: list[ForgetExample]
    retain: list[ForgetExample]


def people(names: tuple[str, ...]) -> list[ForgetExample]:
    rows = []
    for index, name in enumerate(names):
        town = f"{name.split()[1]}ville"
        rows.append(ForgetExample(f"{name} 1", f"Where was {name} born?", f"{name} was born in {town}.", row=2 * index))
        rows.append(ForgetExample(f"{name} 2", f"Who wrote book {index}?", f"It was {name}.", row=2 * index + 1))
    return rows


def tiny_tokenizer(texts: list[str]) -> PreTrainedTokenizerFast:
    special = ["<bos>", "<eos>", "<pad>", "<|user|>", "<|assistant|>", "<|turn|>"]
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    core.train_from_iterator(texts, trainer)
    core.decoder = decoders.ByteLevel()
    core.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 0)])
    return PreTrainedTokenizerFast(
        tokenizer_object=core, bos_token="<bos>", eos_token="<eos>", pad_token="<pad>", chat_template=CHAT
    )


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    rows = people(NAMES)
    made = made_once(tmp_path_factory, "tiny", partial(learned, rows))
    return Tiny(full=made / "full", forget=rows[:4], retain=rows[4:])


def learned(rows: list[ForgetExample], folder: Path) -> None:
    """Train the model and save it."""
    tokenizer = tiny_tokenizer([f"Question: {row.question}\nAnswer: {row.answer}" for row in rows])
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=64,
            intermediate_size=64,
            num_hidden_layers=5,
            num_attention_heads=2,
            num_key_value_heads=1,
            max_position_embeddings=96,
            tie_word_embeddings=True,
            bos_token_id=0,
            eos_token_id=1,
            pad_token_id=2,
            initializer_range=0.1,
        )
    )
    pairs = [(row.question, row.answer) for row in rows]
    batch = pad_sequences(answer_sequences(tokenizer, pairs), pad_token_id=2)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(60):
        loss = model(**batch).loss
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
    model.save_pretrained(folder / "full")
    tokenizer.save_pretrained(folder / "full")


def settings(method: str, **changes) -> MethodConfig:
    quick = {"learning_rate": 2e-3, "epochs": 2, "batch_size": 2, "warmup_epochs": 0.0, "protocol": "raw"}
    return make_config(method, {**quick, **EXTRA.get(method, {}), **changes})


def train(tiny: Tiny, method: str, out: Path, *, options=QUICK, lora: LoraSettings | None = None, **changes) -> Path:
    config = settings(method, **changes)
    return unlearn(tiny.full, tiny.forget, tiny.retain, method=config, out=out, options=options, lora=lora)


def weights(path: Path) -> dict[str, torch.Tensor]:
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).state_dict()
