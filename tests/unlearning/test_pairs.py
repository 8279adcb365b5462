"""The order of training pairs, how they are collated, and groups by length."""

import math
from collections import Counter

import pytest
import torch
from accelerate.data_loader import BatchSamplerShard
from hypothesis import given, strategies as st
from torch.utils.data import BatchSampler

from uds_lens.data._tokens import AnswerSequence
from uds_lens.errors import DataError
from uds_lens.unlearning._data import PairCollator, PairDataset, TrainingData, length_groups
from uds_lens.unlearning._passes import SideTotals, batch_totals, pad_sequences


def rows(n: int, first: int = 10) -> list[AnswerSequence]:
    return [AnswerSequence((1, first + i, 2), 1) for i in range(n)]


@given(n=st.integers(1, 7), m=st.integers(1, 9), epochs=st.integers(1, 4), seed=st.integers(0, 99))
def test_every_epoch_takes_everything_once(n: int, m: int, epochs: int, seed: int) -> None:
    pairs = PairDataset(TrainingData(forget=rows(n), retain=rows(m, 100)), epochs=epochs, seed=seed)
    assert len(pairs) == n * epochs
    taken = [pairs[index] for index in range(len(pairs))]
    for epoch in range(epochs):
        assert len({pair.forget.ids for pair in taken[epoch * n : (epoch + 1) * n]}) == n
    counts = Counter(pair.retain.ids for pair in taken)
    assert max(counts.values()) - min([*counts.values(), 0 if len(counts) < m else 99]) <= 1


def test_an_index_is_the_same_pair_whatever_came_before() -> None:
    data = TrainingData(forget=rows(5), retain=rows(4, 100))
    forwards, backwards, other = (PairDataset(data, epochs=3, seed=seed) for seed in (1, 1, 2))
    later = [backwards[index] for index in reversed(range(15))][::-1]
    assert [forwards[index] for index in range(15)] != [other[index] for index in range(15)]
    for index, pair in enumerate(later):
        assert (forwards[index].forget, forwards[index].retain) == (pair.forget, pair.retain)


def test_epochs_take_winners_in_turn_with_their_references() -> None:
    data = TrainingData(
        forget=rows(2),
        winners=[rows(2, 20), rows(2, 30)],
        forget_reference=[-1.0, -2.0],
        winner_reference=[[-3.0, -4.0], [-5.0, -6.0]],
    )
    pairs = PairDataset(data, epochs=3, seed=0)
    references = {(20, -3.0), (21, -4.0), (30, -5.0), (31, -6.0)}
    for index in range(len(pairs)):
        pair = pairs[index]
        assert pair.winner.ids[1] % 10 == (index // 2) % 2
        assert (pair.winner.ids[1], pair.winner_reference) in references
        assert pair.forget_reference == {10: -1.0, 11: -2.0}[pair.forget.ids[1]]
        assert pair.retain is None


def test_nothing_to_train_on_is_said() -> None:
    with pytest.raises(DataError, match="no forget example"):
        PairDataset(TrainingData(forget=[]), epochs=1, seed=0)


@given(
    n=st.integers(1, 30),
    epochs=st.integers(1, 3),
    world=st.integers(1, 4),
    share=st.integers(1, 5),
    more=st.integers(1, 3),
)
def test_processes_take_each_pair_once_and_epochs_end_with_a_short_batch(n, epochs, world, share, more) -> None:
    """As accelerate cuts the data; fillers are run and not counted."""
    size = world * share * more
    data = TrainingData(forget=rows(n), retain=rows(3, 100))
    pairs = PairDataset(data, epochs=epochs, seed=0, batch_size=size)
    collate, batches = PairCollator(pad_token_id=0), BatchSampler(range(len(pairs)), share, drop_last=False)
    shards = [BatchSamplerShard(batches, world, rank) for rank in range(world)]
    passes = [[collate([pairs[index] for index in taken]) for taken in shard] for shard in shards]
    steps = math.ceil(n / size)
    assert {len(taken) for taken in passes} == {epochs * steps * more}, "no process waits for another"
    for step in range(epochs * steps):
        at = slice(step * more, (step + 1) * more)
        total = sum(batch_totals([batch])["forget"] for taken in passes for batch in taken[at])
        expected = min(size, n - step % steps * size)
        assert SideTotals(*total.tolist()) == SideTotals(expected, 2 * expected, expected / 2)
    real = [batch["forget"] for taken in passes for batch in taken if "filler" not in batch["forget"]]
    asked = sorted(id for batch in real for id in batch["input_ids"][:, 1].tolist())
    assert asked == sorted([*range(10, 10 + n)] * epochs)
    # the order of pairs is the same whatever the size of a batch
    plain = PairDataset(data, epochs=epochs, seed=0)
    kept = [pair for pair in map(pairs.__getitem__, range(len(pairs))) if not pair.is_filler]
    assert [(p.forget, p.retain) for p in kept] == [
        (p.forget, p.retain) for p in map(plain.__getitem__, range(len(plain)))
    ]


@given(st.lists(st.tuples(*[st.integers(2, 9)] * 3), min_size=1, max_size=9), st.integers(1, 4))
def test_groups_hold_each_row_once_and_keep_winners_beside(lengths, most) -> None:
    sides = ("forget", "winner", "retain")
    batch = {
        side: pad_sequences(
            [AnswerSequence((1, *[100 + i] * (n[k] - 1)), n[k] - 1) for i, n in enumerate(lengths)], pad_token_id=0
        )
        for k, side in enumerate(sides)
    }
    batch["forget"]["reference"] = torch.arange(len(lengths)).float()
    groups = length_groups(batch, rows=most)
    assert len(groups) == 1 or all(len(group["retain"]["labels"]) <= most for group in groups)
    for k, side in enumerate(sides):
        seen = []
        for group in groups:
            real = group[side]["attention_mask"].sum(1)
            assert len(groups) == 1 or int(real.max()) == group[side]["labels"].shape[1]
            ids = (group[side]["input_ids"][:, 1] - 100).tolist()
            assert real.tolist() == [lengths[i][k] for i in ids]
            assert side != "forget" or group[side]["reference"].tolist() == ids
            assert side != "winner" or ids == (group["forget"]["input_ids"][:, 1] - 100).tolist()
            seen += ids
        assert sorted(seen) == list(range(len(lengths)))
        padding = sum(int((1 - group[side]["attention_mask"]).sum()) for group in groups)
        assert padding <= int((1 - batch[side]["attention_mask"]).sum())
