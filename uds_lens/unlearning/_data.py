"""Training data in seeded order, in batches that pair each forget answer with a retain answer.

The second half of this module prepares the data: tokens, preferred answers and reference log-probabilities.
"""

from __future__ import annotations

import math
import os
import re
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.utils.data import Dataset

from uds_lens._progress import progress
from uds_lens._storage.results import Kind, Result
from uds_lens.data import ForgetExample, answer_sequences
from uds_lens.data._prompts import chosen_protocol
from uds_lens.data._tokens import AnswerSequence, answer_ends, answer_prompt, prompt_ids
from uds_lens.errors import DataError, ResultFormatError, UdsLensWarning
from uds_lens.generation._reading import growing_way
from uds_lens.models._compatibility import require_embedded
from uds_lens.patching import row_layout
from uds_lens.patching._hooks import as_hooked
from uds_lens.patching._side_by_side import is_tested_family
from uds_lens.unlearning._job import Job, Parent
from uds_lens.unlearning._passes import FILLER, answer_log_probs, pad_sequences
from uds_lens.unlearning._settings import MethodConfig

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class TrainingPair:
    """One forget example in one epoch, with the other answers in the same training pair."""

    forget: AnswerSequence  # question and answer to forget
    winner: AnswerSequence | None  # the same question with a preferred answer, if the method uses one
    retain: AnswerSequence | None  # question and answer to keep
    # log-probability of the forget answer under `full`, in nats; NaN if the method does not need it
    forget_reference: float
    winner_reference: float  # log-probability of the preferred answer under `full`
    is_filler: bool = False  # fills up the last batch of an epoch without contributing to the loss


@dataclass(frozen=True)
class TrainingData:
    """Tokenised training data."""

    forget: Sequence[AnswerSequence]  # answers to forget
    retain: Sequence[AnswerSequence] = ()  # answers to keep
    # for each forget example, the preferred answers, which epochs use in turn
    winners: Sequence[Sequence[AnswerSequence]] = ()
    forget_reference: Sequence[float] = ()  # log-probability of each forget answer under `full`, in nats
    winner_reference: Sequence[Sequence[float]] = ()  # log-probability of each preferred answer under `full`, in nats


class PairDataset(Dataset):
    """All pairs of a training run, in an order determined by the seed.

    Each epoch uses every forget example once, in a new order. Retain examples are cycled in the same way, so that each
    is used once before any is repeated. A pair's index determines its content, so an interrupted run resumes with
    exactly the remaining pairs.

    The last batch of an epoch is padded to full size with fillers, which do not contribute to the loss. All processes
    therefore get equal numbers of pairs. Without fillers, accelerate would repeat the first pairs and count them twice.
    """

    def __init__(self, data: TrainingData, *, epochs: int, seed: int, batch_size: int = 1) -> None:
        if not data.forget:
            raise DataError("there are no forget examples to train on.")
        self._data, self._seed, self._epochs = data, seed, epochs
        # number of pairs in an epoch, including fillers
        self._epoch = math.ceil(len(data.forget) / batch_size) * batch_size
        self._orders: dict[tuple[str, int], list[int]] = {}

    def __len__(self) -> int:
        return self._epochs * self._epoch

    def __getitem__(self, index: int) -> TrainingPair:
        if index >= len(self):
            raise IndexError(index)
        epoch, place = divmod(index, self._epoch)
        n = len(self._data.forget)
        if place >= n:  # a filler: repeat the last pair, whose loss is finite if the batch loss is
            return replace(self._pair(epoch * n + n - 1), is_filler=True)
        return self._pair(epoch * n + place)

    def _pair(self, index: int) -> TrainingPair:
        data = self._data
        epoch, row = self._at("forget", index, len(data.forget))
        retain = data.retain[self._at("retain", index, len(data.retain))[1]] if data.retain else None
        turn = epoch % len(data.winners[row]) if data.winners else 0
        return TrainingPair(
            forget=data.forget[row],
            winner=data.winners[row][turn] if data.winners else None,
            retain=retain,
            forget_reference=data.forget_reference[row] if data.forget_reference else math.nan,
            winner_reference=data.winner_reference[row][turn] if data.winner_reference else math.nan,
        )

    def _at(self, side: str, index: int, n: int) -> tuple[int, int]:
        """Return the epoch, and the row of one side, for an index."""
        epoch, position = divmod(index, n)
        if (side, epoch) not in self._orders:
            seed = (self._seed * 1_000_003 + epoch) * 2 + (side == "retain")
            order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
            self._orders[side, epoch] = order.tolist()
        return epoch, self._orders[side, epoch][position]


class PairCollator:
    """Collate pairs into one padded batch per side. Fillers are dropped unless there are no other pairs."""

    def __init__(self, pad_token_id: int) -> None:
        self.pad_token_id = pad_token_id

    def __call__(self, pairs: Sequence[TrainingPair]) -> dict[str, dict[str, Tensor]]:
        """Return the sides `forget` and, if present, `winner` and `retain`, with reference log-probabilities.

        If a batch consists only of fillers, every side is marked with `FILLER`.
        """
        real = [pair for pair in pairs if not pair.is_filler]
        pairs = real or pairs[:1]
        batch = {}
        for side in ("forget", "winner", "retain"):
            rows = [getattr(pair, side) for pair in pairs]
            if rows[0] is not None:
                batch[side] = pad_sequences(rows, pad_token_id=self.pad_token_id)
                if side != "retain":
                    batch[side]["reference"] = torch.tensor([getattr(pair, f"{side}_reference") for pair in pairs])
                if not real:
                    batch[side][FILLER] = torch.ones(len(rows), dtype=torch.bool)
        return batch


def length_groups(batch: Mapping[str, Mapping[str, Tensor]], *, rows: int = 8) -> list[dict[str, dict[str, Tensor]]]:
    """Split a batch into groups of rows with similar lengths, to reduce padding.

    On a CPU, padding costs as much as text, and nearly half of a random batch is padding. A forget answer and its
    preferred answer stay together. Retain answers are grouped separately, so a retain answer need not be in the same
    group as its pair's forget answer. Means over the rows of a side, as used by all built-in objectives, change only by
    rounding.

    Example:
        >>> labels = torch.tensor([[-100, 5, 6, 2], [-100, 7, -100, -100]])
        >>> mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])
        >>> short, long = length_groups({"forget": {"attention_mask": mask, "labels": labels}}, rows=1)
        >>> short["forget"]["labels"].tolist(), long["forget"]["labels"].tolist()
        ([[-100, 7]], [[-100, 5, 6, 2]])
    """
    lengths = {side: values["attention_mask"].sum(1) for side, values in batch.items()}
    n = len(next(iter(lengths.values())))
    groups = math.ceil(n / rows)
    if groups == 1 or all(bool((length == length[0]).all()) for length in lengths.values()):
        return [{side: dict(values) for side, values in batch.items()}]
    paired = torch.stack([length for side, length in lengths.items() if side != "retain"]).sum(0)
    order = {side: (length if side == "retain" else paired).argsort(stable=True) for side, length in lengths.items()}
    cuts = [slice(*edges) for edges in pairwise(round(i * n / groups) for i in range(groups + 1))]
    return [{side: _selected(values, order[side][cut]) for side, values in batch.items()} for cut in cuts]


def _selected(values: Mapping[str, Tensor], rows: Tensor) -> dict[str, Tensor]:
    """Select rows, and trim padding beyond the longest selected row."""
    width = int(values["attention_mask"][rows].sum(1).max())
    return {name: value[rows, :width] if value.ndim == 2 else value[rows] for name, value in values.items()}


T = TypeVar("T")

ALTERNATES = "alternates.json"  # file name, next to a checkpoint's weights

_ROUNDS, _HOTTER, _BATCH = 5, 0.5, 32


def pairs_of(examples: Sequence[ForgetExample]) -> list[tuple[str, str]]:
    """Return each example's question and answer."""
    return [(example.question, example.answer) for example in examples]


def encoded(parent: Parent, config: MethodConfig, pairs: Sequence[tuple[str, str]]) -> list[AnswerSequence]:
    """Tokenise questions and answers in the prompt format of a run."""
    sequences = answer_sequences(
        parent.tokenizer,
        pairs,
        protocol=chosen_protocol(config.protocol, parent.tokenizer),
        chat=config.chat,
        max_tokens=parent.max_tokens,
    )
    inputs = ((question, row.ids) for (question, _), row in zip(pairs, sequences, strict=True))
    require_embedded(parent.model, inputs, name=parent.name)
    return sequences


def preferred_answers(job: Job, parent: Parent, folder: Path) -> list[list[str]]:
    """Return the preferred answers for each forget answer; `folder` keeps alternates for a resumed run."""
    if "refusals" in job.objective.needs:
        generator = torch.Generator().manual_seed(job.config.seed)
        drawn = torch.randint(len(job.refusals), (len(job.forget), job.config.epochs), generator=generator)
        return [[job.refusals[index] for index in row] for row in drawn.tolist()]
    if "alternates" not in job.objective.needs:
        return [[] for _ in job.forget]
    file = folder / ALTERNATES
    if file.is_file():
        try:
            return read_alternates(file)
        except ResultFormatError as error:
            warnings.warn(UdsLensWarning(f"{error} Sampling alternates again."), stacklevel=2)
            file.unlink()
    alternates = sample_alternates(
        parent.model, parent.tokenizer, job.forget, config=job.config, show_progress=job.options.progress
    )
    write_alternates(file, job.forget, alternates)
    return alternates


def completed(data: TrainingData, job: Job, parent: Parent, winners: Sequence[Sequence[str]]) -> TrainingData:
    """Add the preferred answers, and reference log-probabilities if the objective needs them."""
    pairs = [(x.question, text) for x, row in zip(job.forget, winners, strict=True) for text in row]
    flat, lengths = encoded(parent, job.config, pairs), [len(row) for row in winners]
    data = replace(data, winners=_split(flat, lengths) if flat else ())
    if "reference" not in job.objective.needs:
        return data

    def reference(rows: Sequence[AnswerSequence]) -> list[float]:
        size = job.options.device_batch_size or 16
        return answer_log_probs(parent.model, rows, pad_token_id=parent.pad_token_id, batch_size=size)

    return replace(
        data, forget_reference=reference(data.forget), winner_reference=_split(reference(flat), lengths) if flat else ()
    )


def _split(values: Sequence[T], lengths: Sequence[int]) -> list[Sequence[T]]:
    return [values[start:stop] for start, stop in pairwise(accumulate(lengths, initial=0))]


def load_refusals(path: str | os.PathLike[str] | None = None) -> tuple[str, ...]:
    """Read refusals, one per line, ignoring empty lines.

    Args:
        path: A text file; None reads the hundred refusals that come with this package.

    Raises:
        DataError: The file cannot be read, or contains no refusals.

    Example:
        >>> len(load_refusals())
        100
    """
    if path is None:
        text = files("uds_lens.unlearning").joinpath("refusals.txt").read_text(encoding="utf-8")
    else:
        try:
            text = Path(path).expanduser().read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(
                f"cannot read refusals from {os.fspath(path)!r}: {error}. Expected one refusal per line."
            ) from error
    refusals = tuple(line.strip() for line in text.splitlines() if line.strip())
    if not refusals:
        raise DataError(f"{os.fspath(path or 'refusals.txt')!r} contains no refusals: expected one per line.")
    return refusals


# Alternate answers for AltPO, sampled from the model before training.


def sample_alternates(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    examples: Sequence[ForgetExample],
    *,
    config: Any,
    show_progress: bool | None = None,
) -> list[list[str]]:
    """Sample answers in the model's own style that differ from the answers to forget.

    A sample that gives away the true answer (it contains the entity, or nine tenths of the answer's words) is redrawn,
    with the temperature raised by 0.5 each time.
    """
    drawn: list[list[str]] = [[] for _ in examples]
    size = _BATCH if _may_be_padded(model) else 1
    devices = [model.device] if model.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices), torch.no_grad():
        torch.manual_seed(config.seed)
        for round_ in range(_ROUNDS):
            short = [i for i, texts in enumerate(drawn) if len(texts) < config.n_alternates]
            temperature = config.temperature + _HOTTER * round_
            batches = [short[start : start + size] for start in range(0, len(short), size)]
            for chosen in progress(batches, desc=f"alternates, T={temperature:g}", unit="batch", enabled=show_progress):
                questions = [examples[index].question for index in chosen]
                answers = _draw(model, tokenizer, questions, config=config, temperature=temperature)
                for index, texts in zip(chosen, answers, strict=True):
                    valid = [text for text in texts if text and not states_truth(text, examples[index])]
                    drawn[index] = (drawn[index] + valid)[: config.n_alternates]
    without = [example.question for example, texts in zip(examples, drawn, strict=True) if not texts]
    if without:
        raise DataError(
            f"no alternate answer was found for {len(without)} questions, such as {without[0]!r}: raise the "
            "temperature, or leave these rows out."
        )
    return [[texts[i % len(texts)] for i in range(config.n_alternates)] for texts in drawn]


def states_truth(text: str, example: ForgetExample) -> bool:
    """Return whether a text gives away the true answer.

    Example:
        >>> example = ForgetExample("0", "Who?", "The author is Ada Vey.")
        >>> states_truth("the author is Ada Vey", example), states_truth("The author is Bo Lund.", example)
        (True, False)
    """
    if example.entity:
        return example.entity.casefold() in text.casefold()
    truth, words = (Counter(re.findall(r"\w+", x.casefold())) for x in (example.answer, text))
    return (truth & words).total() >= 0.9 * truth.total()


class _Row(NamedTuple):
    id: str
    question: str
    alternates: tuple[str, ...]


class _Alternates(NamedTuple):
    rows: tuple[_Row, ...]


_SAVED = Kind("Alternates", values=_Alternates)


def write_alternates(file: Path, examples: Sequence[ForgetExample], alternates: Sequence[Sequence[str]]) -> None:
    """Write questions and their alternates, atomically."""
    rows = [
        _Row(example.id, example.question, tuple(texts)) for example, texts in zip(examples, alternates, strict=True)
    ]
    Result(_SAVED, {}, values=_Alternates(tuple(rows))).save(file)


def read_alternates(file: Path) -> list[list[str]]:
    """Read the alternates written by `write_alternates`, in order."""
    return [list(row.alternates) for row in Result.load(file, _SAVED).values.rows]


def _may_be_padded(model: Any) -> bool:
    """Return whether transformers' `generate` gives the same texts in a batch as for each prompt alone."""
    if is_tested_family(model):
        return True
    with as_hooked(model) as view:
        return row_layout(view).side == "left" and growing_way(view) == "side by side"


def _draw(
    model: Any, tokenizer: PreTrainedTokenizerBase, questions: Sequence[str], *, config: Any, temperature: float
) -> list[list[str]]:
    protocol = chosen_protocol(config.protocol, tokenizer)
    prompts = [
        answer_prompt(question, tokenizer=tokenizer, protocol=protocol, chat=config.chat) for question in questions
    ]
    rows = prompt_ids(tokenizer, prompts, protocol=protocol)
    ends = answer_ends(tokenizer, protocol=protocol, chat=config.chat)
    embedded = len(model.get_input_embeddings().weight)  # a tokenizer's padding token may be outside the embedding
    pad = next((i for i in (tokenizer.pad_token_id, *ends[-1:]) if i is not None and i < embedded), 0)
    width = max(map(len, rows))
    sampled = model.generate(
        input_ids=torch.tensor([[pad] * (width - len(row)) + row for row in rows], device=model.device),
        attention_mask=torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows], device=model.device),
        do_sample=True,
        temperature=temperature,
        top_k=0,
        top_p=1.0,
        num_return_sequences=config.n_alternates,
        max_new_tokens=config.max_new_tokens,
        pad_token_id=pad,
        eos_token_id=list(ends) or None,
    )
    texts = [tokenizer.decode(row, skip_special_tokens=True).strip() for row in sampled[:, width:].tolist()]
    n = config.n_alternates
    return [texts[i * n : (i + 1) * n] for i in range(len(questions))]
