"""Neighbours by cosine similarity against plain loops; duplicates, zeros and batches of one."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from driftgate.memory.neighbors import cosine_similarity, mean_over, nearest, nearest_but_first, nearest_others


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def cosine(one: Tensor, two: Tensor) -> float:
    length = float(one.double().norm() * two.double().norm())
    return float(one.double() @ two.double()) / length if length else 0.0


def test_cosine_similarity_by_hand_and_zero_vectors() -> None:
    one, two = random(5, 7), random(3, 7, seed=1)
    one[2] = 0.0
    found = cosine_similarity(one, two)
    expected = torch.tensor([[cosine(row, other) for other in two] for row in one])
    assert torch.allclose(found, expected, atol=1e-6)
    assert torch.equal(found[2], torch.zeros(3))


@pytest.mark.parametrize("count", [1, 4, 9, 20])
def test_nearest_in_a_bank(count: int) -> None:
    query, bank = random(6, 8), random(9, 8, seed=1)
    found = nearest(query, bank, count)
    for row in range(6):
        order = sorted(range(9), key=lambda place: -cosine(query[row], bank[place]))
        assert found[row].tolist() == order[:count]


@pytest.mark.parametrize("count", [1, 4, 5, 20])
def test_nearest_others_in_a_batch(count: int) -> None:
    features = random(6, 8)
    found = nearest_others(features, count)
    for row in range(6):
        order = sorted((place for place in range(6) if place != row), key=lambda p: -cosine(features[row], features[p]))
        assert found[row].tolist() == order[:count]


def test_nobody_is_its_own_neighbour_even_among_duplicates() -> None:
    features = torch.ones(5, 3)
    found = nearest_others(features, 4)
    assert all(sorted([row, *found[row].tolist()]) == [0, 1, 2, 3, 4] for row in range(5))


def test_one_sample_has_no_neighbours_and_their_mean_is_zero() -> None:
    found = nearest_others(random(1, 3), 4)
    assert found.shape == (1, 0)
    assert torch.equal(mean_over(random(1, 5), found), torch.zeros(1, 5))


@pytest.mark.parametrize("count", [1, 4, 8, 20])
def test_nearest_but_first_drops_the_first_whoever_it_is(count: int) -> None:
    query, bank = random(6, 8), random(9, 8, seed=1)
    found = nearest_but_first(query, bank, count)
    for row in range(6):
        order = sorted(range(9), key=lambda place: -cosine(query[row], bank[place]))
        assert found[row].tolist() == order[1 : count + 1]
    assert torch.equal(nearest_but_first(bank, bank, 4), nearest_others(bank, 4))
    assert nearest_but_first(random(1, 3), random(1, 3), 4).shape == (1, 0)


def test_mean_over_is_the_mean_of_the_named_rows() -> None:
    values, indices = random(6, 3), torch.tensor([[0, 5], [2, 2], [3, 1]])
    expected = torch.stack([(values[one] + values[two]) / 2 for one, two in indices.tolist()])
    assert torch.allclose(mean_over(values, indices), expected)


def test_search_needs_no_graph() -> None:
    features = random(4, 3).requires_grad_()
    assert not nearest_others(features, 2).requires_grad
    assert cosine_similarity(features, features).requires_grad


def test_the_search_keeps_nothing_for_a_backward_pass() -> None:
    kept: list[Tensor] = []
    query = random(5, 3).requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(kept.append, lambda _: None):
        nearest(query, query, 2)
        nearest_but_first(query, query, 2)
        nearest_others(query, 2)
    assert kept == []
