"""The order of data: complete epochs, a fixed place for everything, references beside their tokens."""

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uds_lens.data import AnswerSequence
from uds_lens.errors import DataError
from uds_lens.unlearning._data import TrainingData, VisitCollator, VisitDataset


def rows(n: int, first: int = 10) -> list[AnswerSequence]:
    return [AnswerSequence((1, first + i, 2), 1) for i in range(n)]


@given(n=st.integers(1, 7), m=st.integers(1, 9), epochs=st.integers(1, 4), seed=st.integers(0, 99))
def test_every_epoch_visits_everything_once(n: int, m: int, epochs: int, seed: int) -> None:
    visits = VisitDataset(TrainingData(forget=rows(n), retain=rows(m, 100)), epochs=epochs, seed=seed)
    assert len(visits) == n * epochs
    seen = [visits[place] for place in range(len(visits))]
    for epoch in range(epochs):
        assert len({visit.forget.ids for visit in seen[epoch * n : (epoch + 1) * n]}) == n
    counts = Counter(visit.retain.ids for visit in seen)
    assert max(counts.values()) - min([*counts.values(), 0 if len(counts) < m else 99]) <= 1


def test_a_place_is_the_same_visit_whatever_came_before() -> None:
    data = TrainingData(forget=rows(5), retain=rows(4, 100))
    forwards = VisitDataset(data, epochs=3, seed=1)
    backwards = VisitDataset(data, epochs=3, seed=1)
    later = [backwards[place] for place in reversed(range(15))][::-1]
    assert [v.forget.ids for v in map(forwards.__getitem__, range(15))] == [v.forget.ids for v in later]
    other = VisitDataset(data, epochs=3, seed=2)
    assert [v.forget.ids for v in map(other.__getitem__, range(15))] != [v.forget.ids for v in later]


def test_epochs_take_winners_in_turn_with_their_references() -> None:
    data = TrainingData(
        forget=rows(2),
        winners=[rows(2, 20), rows(2, 30)],
        forget_reference=[-1.0, -2.0],
        winner_reference=[[-3.0, -4.0], [-5.0, -6.0]],
    )
    visits = VisitDataset(data, epochs=3, seed=0)
    references = {(20, -3.0), (21, -4.0), (30, -5.0), (31, -6.0)}
    for place in range(len(visits)):
        visit = visits[place]
        assert visit.winner.ids[1] % 10 == (place // 2) % 2
        assert (visit.winner.ids[1], visit.winner_reference) in references
        assert visit.forget_reference == {10: -1.0, 11: -2.0}[visit.forget.ids[1]]
    assert visits[0].retain is None


def test_batches_have_the_sides_that_are_there() -> None:
    collate = VisitCollator(pad_token_id=0)
    alone = VisitDataset(TrainingData(forget=rows(3)), epochs=1, seed=0)
    batch = collate([alone[0], alone[1]])
    assert set(batch) == {"forget"}
    assert math.isnan(batch["forget"]["reference"][0])
    both = VisitDataset(TrainingData(forget=rows(3), retain=rows(2, 50)), epochs=1, seed=0)
    assert set(collate([both[0]])) == {"forget", "retain"}


def test_nothing_to_forget_is_an_error() -> None:
    with pytest.raises(DataError, match="no forget example"):
        VisitDataset(TrainingData(forget=[]), epochs=1, seed=0)
