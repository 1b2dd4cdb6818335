"""The ring queue against a deque."""

from __future__ import annotations

from collections import deque

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from driftgate import DriftgateError
from driftgate.memory import RingQueue


def rows_of(queue: RingQueue) -> list[tuple[float, ...]]:
    """All rows, number before vector, sorted: the queue promises no order of age."""
    columns = torch.cat([queue["label"][:, None], queue["feature"]], dim=1)
    return sorted(tuple(row) for row in columns.tolist())


def batch(first: int, count: int) -> dict[str, Tensor]:
    numbers = torch.arange(first, first + count).float()
    return {"label": numbers, "feature": torch.stack([numbers / 2, -numbers, numbers + 0.25], dim=1)}


@given(st.integers(1, 12), st.lists(st.integers(0, 30), max_size=8))
@settings(max_examples=100, deadline=None)
def test_holds_what_a_deque_holds(capacity: int, sizes: list[int]) -> None:
    queue, expected = RingQueue(capacity, label=None, feature=3), deque[tuple[float, ...]](maxlen=capacity)
    pushed = 0
    for size in sizes:
        rows = batch(pushed, size)
        queue.push(**rows)
        expected.extend(tuple(row) for row in torch.cat([rows["label"][:, None], rows["feature"]], dim=1).tolist())
        pushed += size
        assert len(queue) == len(expected)
        assert rows_of(queue) == sorted(expected)
    assert int(queue.pushed) == pushed


def test_the_place_of_the_oldest_row_is_known() -> None:
    """Readers that need the order of age roll by ``pushed``, also after more rows than fit at once."""
    queue = RingQueue(4, label=None)
    for size in (3, 2, 9, 1):
        first = int(queue.pushed)
        queue.push(label=torch.arange(first, first + size).float())
    oldest = int(queue.pushed) % queue.capacity
    assert queue["label"].roll(-oldest).tolist() == [11.0, 12.0, 13.0, 14.0]


def test_more_rows_than_fit_leave_the_last() -> None:
    queue = RingQueue(4, label=None, feature=3)
    queue.push(**batch(0, 11))
    assert sorted(queue["label"].tolist()) == [7.0, 8.0, 9.0, 10.0]
    assert len(queue) == 4


def test_no_rows_change_nothing() -> None:
    queue = RingQueue(3, label=None, feature=3)
    queue.push(**batch(0, 0))
    assert len(queue) == 0 and queue["feature"].shape == (0, 3) and queue["label"].shape == (0,)
    queue.push(**batch(5, 2))
    before = rows_of(queue)
    queue.push(**batch(9, 0))
    assert rows_of(queue) == before


def test_clone_is_independent() -> None:
    queue = RingQueue(5, label=None, feature=3)
    queue.push(**batch(0, 3))
    copy = queue.clone()
    copy.push(**batch(3, 4))
    assert len(queue) == 3 and len(copy) == 5
    assert sorted(queue["label"].tolist()) == [0.0, 1.0, 2.0]
    queue.push(**batch(50, 5))
    assert sorted(copy["label"].tolist()) == [2.0, 3.0, 4.0, 5.0, 6.0]


def test_saved_and_loaded_goes_on_as_the_original() -> None:
    queue, loaded = RingQueue(5, label=None, feature=3), RingQueue(5, label=None, feature=3)
    queue.push(**batch(0, 7))
    state = queue.state_dict()
    loaded.load_state_dict(state)
    for one in (queue, loaded):
        one.push(**batch(7, 2))
    assert rows_of(loaded) == rows_of(queue)
    assert torch.equal(loaded["feature"], queue["feature"]) and int(loaded.pushed) == 9
    loaded.push(**batch(20, 5))
    assert sorted(queue["label"].tolist()) == [4.0, 5.0, 6.0, 7.0, 8.0]


def test_rows_are_copied_without_their_graph() -> None:
    queue = RingQueue(2, feature=3)
    features = torch.ones(2, 3, requires_grad=True)
    queue.push(feature=features)
    assert not queue["feature"].requires_grad
    with torch.no_grad():
        features.zero_()
    assert torch.equal(queue["feature"], torch.ones(2, 3))


def test_bytes_do_not_depend_on_the_filling() -> None:
    queue = RingQueue(10, label=None, feature=3)
    assert queue.num_bytes == 10 * 4 * (1 + 3) + 8
    queue.push(**batch(0, 25))
    assert queue.num_bytes == 10 * 4 * (1 + 3) + 8


def test_mistakes_are_refused() -> None:
    with pytest.raises(DriftgateError, match="at least one row and column"):
        RingQueue(0, label=None)
    with pytest.raises(DriftgateError, match="at least one row and column"):
        RingQueue(4)
    queue = RingQueue(4, label=None, feature=3)
    with pytest.raises(DriftgateError, match="equally many rows for label, feature but got label 2"):
        queue.push(label=torch.zeros(2))
    with pytest.raises(DriftgateError, match="label 2, feature 3"):
        queue.push(label=torch.zeros(2), feature=torch.zeros(3, 3))
    assert len(queue) == 0
