"""Facts as training batches, in every form that a model is asked in."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from toy_building.tokenizer import Row
from uds_lens.toy._facts import strangers

Batch = dict[str, Tensor]

STRANGERS = 8
"""Rows about passing strangers in each batch of ordinary training."""
USUAL = 0.8
"""Share of the rows that are answered in their usual words, not in a paraphrase."""


@dataclass(frozen=True)
class Written:
    """Token ids of a question with its answer; the first `n_prompt` are given, the others learnt."""

    ids: list[int]
    n_prompt: int


class Corpus:
    """Rows to draw batches from: each comes once an epoch, in one of the forms that a model is asked in."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, rows: list[Row], *, seed: int) -> None:
        self.core = tokenizer.backend_tokenizer
        self.pad, self.end = tokenizer.pad_token_id, tokenizer.eos_token_id
        self.rows = rows
        self.random = random.Random(seed)
        self.waiting: list[Row] = []

    def draw(self, size: int) -> Batch:
        return self.collate(self.write(row, self.answer(row)) for row in self.take(size))

    def take(self, size: int) -> list[Row]:
        taken: list[Row] = []
        while len(taken) < size:
            if not self.waiting:
                self.waiting = self.random.sample(self.rows, len(self.rows))
            taken.append(self.waiting.pop())
        return taken

    def answer(self, row: Row) -> str:
        return row["answer"] if self.random.random() < USUAL else self.random.choice(row["paraphrased_answers"])

    def write(self, row: Row, answer: str) -> Written:
        """Write it raw, raw with an open end (as when the entity opens the answer), or as a chat."""
        question = self.random.choice((row["question"], row["paraphrased_question"]))
        form = self.random.choice(("raw", "open", "chat"))
        if form == "chat":
            prompt = f"<|user|>\n{question}\n<|assistant|>\n"
        else:
            prompt = f"Question: {question}\nAnswer:" + (" " if form == "open" else "")
        start = self.core.encode(prompt).ids
        rest = self.core.encode((" " if form == "raw" else "") + answer, add_special_tokens=False).ids
        return Written([*start, *rest, self.end], len(start))

    def collate(self, texts: Iterable[Written]) -> Batch:
        texts = list(texts)
        shape = (len(texts), max(len(text.ids) for text in texts))
        ids, labels = torch.full(shape, self.pad), torch.full(shape, -100)
        mask = torch.zeros(shape, dtype=torch.long)
        for place, text in enumerate(texts):
            n = len(text.ids)
            ids[place, :n] = torch.tensor(text.ids)
            labels[place, text.n_prompt : n] = ids[place, text.n_prompt : n]
            mask[place, :n] = 1
        return {"input_ids": ids, "attention_mask": mask, "labels": labels}


class TrainingCorpus(Corpus):
    """Facts to learn, and a few passing strangers in every batch who have the values of `known` people."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, rows: list[Row], known: list[Row], *, seed: int) -> None:
        super().__init__(tokenizer, rows, seed=seed)
        self.strangers = strangers(seed, known)

    def take(self, size: int) -> list[Row]:
        return [next(self.strangers) for _ in range(STRANGERS)] + super().take(size - STRANGERS)
