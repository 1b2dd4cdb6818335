"""Directions of the classes: against the samples themselves, the slow way, and where there is nothing to point at."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from driftgate.memory import StreamingGMM
from driftgate.memory.directions import FEW, ClassDirections

C, R = 4, 6


def drawn(count: int, seed: int, *, size: int = R) -> tuple[Tensor, Tensor]:
    """Samples (N, R) around a center a class, far from zero, and how they are answered for (N, C), rows of sum 1."""
    generator = torch.Generator().manual_seed(seed)
    centers = 3.0 * torch.randn(C, size, generator=torch.Generator().manual_seed(99))
    classes = torch.randint(0, C, (count,), generator=generator)
    samples = 7.0 + centers[classes] + torch.randn(count, size, generator=generator)
    logits = 4.0 * torch.eye(C)[classes] + torch.randn(count, C, generator=generator)
    return samples, logits.softmax(dim=1)


def filled(batches: list[tuple[Tensor, Tensor]], **settings: object) -> StreamingGMM:
    mixture = StreamingGMM(C, batches[0][0].shape[1], decay=1.0, mean_shift=True, **settings)  # type: ignore[arg-type]
    for samples, weights in batches:
        mixture.update(samples, weights)
    return mixture


def by_hand(batches: list[tuple[Tensor, Tensor]], queries: Tensor) -> np.ndarray:
    """From all samples of the stream: an inverse and a quadratic form where the code has factors and products."""
    samples = np.concatenate([part.double().numpy() for part, _ in batches])
    weights = np.concatenate([part.double().numpy() for _, part in batches])
    center = samples.mean(axis=0)
    spread = np.cov(samples.T, bias=True)
    inverse = np.linalg.inv(spread + np.trace(spread) / len(spread) * np.eye(len(spread)))
    cosines = np.zeros((len(queries), C))
    for index in range(C):
        counted = weights[:, index].sum()
        mean = (weights[:, index, None] * samples).sum(axis=0) / counted - center
        for row, query in enumerate(queries.double().numpy() - center):
            lengths = np.sqrt((mean @ inverse @ mean) * (query @ inverse @ query + 1.0))
            cosines[row, index] = query @ inverse @ mean / lengths * counted / (counted + FEW)
    return cosines


@pytest.mark.parametrize("covariance", ["full", "tied"])
def test_mixture_alone_knows_mean_and_covariance_of_all_samples(covariance: str) -> None:
    """The law of total covariance: with a moving mean accounted for and nothing forgotten it is exact."""
    batches = [drawn(count, seed) for seed, count in enumerate((40, 3, 25, 64))]
    queries = drawn(9, 50)[0]
    found = ClassDirections(filled(batches, covariance=covariance))(queries)
    assert found.dtype == torch.float64
    assert found.numpy() == pytest.approx(by_hand(batches, queries), abs=2e-5)
    assert float(found.abs().max()) > 0.5


def test_samples_point_to_their_own_class() -> None:
    batches = [drawn(64, seed) for seed in range(5)]
    samples, weights = drawn(100, 7)
    found = ClassDirections(filled(batches))(samples)
    assert float((found.argmax(dim=1) == weights.argmax(dim=1)).double().mean()) > 0.9  # some weights are wrong


def test_moved_and_stretched_features_point_the_same_way() -> None:
    batches = [drawn(50, seed) for seed in range(3)]
    moved = [(1e-3 * samples - 40.0, weights) for samples, weights in batches]
    queries = drawn(5, 9)[0]
    one, other = ClassDirections(filled(batches))(queries), ClassDirections(filled(moved))(1e-3 * queries - 40.0)
    assert torch.allclose(one, other, atol=0.02)  # float32 leaves three digits of what varies by 1e-3 about 40


def test_nobody_points_where_nothing_was_seen() -> None:
    empty = ClassDirections(StreamingGMM(C, R))(torch.randn(5, R))
    assert torch.equal(empty, torch.zeros(5, C, dtype=torch.float64))
    samples, weights = drawn(40, 0)
    weights = torch.cat([weights[:, :2].softmax(dim=1), torch.zeros(40, C - 2)], dim=1)
    found = ClassDirections(filled([(samples, weights)]))(samples)
    assert bool((found[:, 2:] == 0).all()) and bool((found[:, :2] != 0).any())


def test_few_samples_count_little() -> None:
    one, many = (ClassDirections(filled([drawn(count, 0)])) for count in (2, 200))
    assert float(one.directions.norm(dim=1).max()) < 2 / (2 + FEW) + 1e-9
    assert float(many.directions.norm(dim=1).min()) > 0.8


@pytest.mark.parametrize("value", [0.0, 1e-20, 3.7, -2.5e4, 1e18])
def test_rounding_of_a_stream_without_spread_is_no_direction(value: float) -> None:
    """Pictures all alike, as a covered camera sends them: their features differ in the last bit alone."""
    generator = torch.Generator().manual_seed(0)
    noise = 1.0 + 6e-8 * torch.randn(64, R, generator=generator)
    mixture = filled([(value * noise, torch.rand(64, C, generator=generator).softmax(dim=1))])
    found = ClassDirections(mixture)(value * noise)
    assert bool(found.isfinite().all()) and float(found.abs().max()) < 0.02


@pytest.mark.parametrize(("classes", "size"), [(1, 1), (1, 5), (3, 1)])
def test_smallest_sizes(classes: int, size: int) -> None:
    samples, weights = torch.randn(20, size), torch.randn(20, classes).softmax(dim=1)
    mixture = StreamingGMM(classes, size)
    mixture.update(samples, weights)
    found = ClassDirections(mixture)(samples)
    assert found.shape == (20, classes) and bool(found.isfinite().all()) and float(found.abs().max()) < 1.0


def test_largest_numbers_stay_finite() -> None:
    samples, weights = drawn(40, 0)
    found = ClassDirections(filled([(1e17 * samples, weights)]))(torch.full((2, R), torch.finfo(torch.float32).max))
    assert bool(found.isfinite().all()) and float(found.abs().max()) <= 1.0
