"""The tied form: one covariance, the pool of Eq. 3 over the classes, without a covariance a class ever being formed."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from memory.oracle import OracleMixture
from memory.streams import CLASSES, DIM, SAMPLES, assert_close, batches_of_the_papers_size, run, stream, tensors
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from driftgate.memory import StreamingGMM
from driftgate.memory.gmm import squared_distances
from driftgate.types import DriftgateError


def tied(num_classes: int, dim: int, decay: float = 0.999, **options: Any) -> StreamingGMM:
    return StreamingGMM(num_classes, dim, decay, covariance="tied", **options)


@pytest.mark.parametrize(("num_classes", "dim"), [(1, 1), (9, 64), (3, 7), (345, 64), (200, 2)])
def test_state_is_exactly_the_documented_number_of_bytes(num_classes: int, dim: int) -> None:
    mixture = tied(num_classes, dim)
    expected = 4 * (num_classes * (dim + 1) + dim * (dim + 1) // 2)
    assert mixture.num_bytes == expected
    mixture.update(torch.randn(3, dim), torch.rand(3, num_classes))
    mixture.evaluate(torch.randn(3, dim))
    held = [value for value in [*mixture.buffers(), *vars(mixture).values()] if isinstance(value, Tensor)]
    assert sum(value.numel() * value.element_size() for value in held) == mixture.num_bytes == expected


@pytest.mark.parametrize(("mean_shift", "decay"), [(False, 0.999), (True, 0.999), (True, 1.0)])
@pytest.mark.parametrize("offset", [0.0, 1e3])
@pytest.mark.parametrize("absent", [range(0), range(60, 160)])
def test_agrees_with_float64_oracle_after_200_batches(
    mean_shift: bool, decay: float, offset: float, absent: range
) -> None:
    mixture = tied(CLASSES, DIM, decay, mean_shift=mean_shift)
    batches = stream(200, offset=offset, absent=absent)
    oracle = run(mixture, batches)
    np.testing.assert_allclose(mixture.weights.numpy(), oracle.weights, rtol=1e-3)
    assert_close(mixture.means - offset, oracle.means - offset)
    assert_close(mixture.covariances[:1], oracle.pooled_covariance()[None], 1e-4)
    queries = np.concatenate([batches[-1][0], batches[0][0] + 20.0])
    found = mixture.log_likelihood(torch.from_numpy(queries)).numpy()
    np.testing.assert_allclose(found, oracle.tied_log_likelihood(queries), rtol=1e-3)


def test_agrees_with_oracle_at_the_papers_size_in_likelihood_and_distance() -> None:
    mixture, batches = tied(40, 64), batches_of_the_papers_size()
    oracle = run(mixture, batches)
    assert_close(mixture.covariances[:1], oracle.pooled_covariance()[None], 1e-6)
    queries, covariance = batches[-1][0], oracle.tied_covariance()
    found = mixture.evaluate(torch.from_numpy(queries))
    np.testing.assert_allclose(found.log_likelihood.numpy(), oracle.tied_log_likelihood(queries), rtol=1e-5)
    for c, mean in enumerate(oracle.means):
        expected = np.einsum("nr,rn->n", queries - mean, np.linalg.solve(covariance, (queries - mean).T))
        np.testing.assert_allclose(found.squared_mahalanobis[:, c].numpy(), expected, rtol=1e-4)


@pytest.mark.parametrize("mean_shift", [False, True])
@pytest.mark.parametrize("prior", [0.0, 1.0])
def test_is_the_full_form_with_shrinkage_without_bound(mean_shift: bool, prior: float) -> None:
    """Two ways to the same Gaussians; 1e9 pseudo-samples leave a share of 1e-6 of a class's own covariance."""
    one = tied(CLASSES, DIM, mean_shift=mean_shift)
    two = StreamingGMM(CLASSES, DIM, mean_shift=mean_shift, shrinkage=1e9)
    batches = stream(40)
    for mixture in (one, two):
        run(mixture, batches)
    queries = torch.from_numpy(batches[0][0])
    found, expected = one.evaluate(queries, prior=prior), two.evaluate(queries, prior=prior)
    torch.testing.assert_close(found.log_likelihood, expected.log_likelihood, rtol=1e-5, atol=0.0)
    torch.testing.assert_close(found.squared_mahalanobis, expected.squared_mahalanobis, rtol=1e-5, atol=0.0)
    own = StreamingGMM(CLASSES, DIM, mean_shift=mean_shift)
    run(own, batches)  # or the agreement would say nothing
    assert not torch.allclose(own.log_likelihood(queries), one.log_likelihood(queries), rtol=0.05)


def test_shrinkage_towards_the_pool_changes_nothing() -> None:
    one, two = tied(CLASSES, DIM), tied(CLASSES, DIM, shrinkage=300.0)
    batches = stream(2)
    for mixture in (one, two):
        run(mixture, batches)
    queries = torch.from_numpy(batches[0][0])
    assert torch.equal(one.log_likelihood(queries), two.log_likelihood(queries))


def test_one_class_is_the_same_in_both_forms() -> None:
    one, two = tied(1, DIM, 0.9, mean_shift=True), StreamingGMM(1, DIM, 0.9, mean_shift=True)
    rng = np.random.default_rng(0)
    for _ in range(5):
        batch = 3.0 + rng.normal(size=(SAMPLES, DIM)), rng.uniform(size=(SAMPLES, 1))
        for mixture in (one, two):
            mixture.update(*tensors(batch))
    torch.testing.assert_close(one.covariances, two.covariances, rtol=1e-6, atol=1e-7)
    queries = torch.from_numpy(batch[0])
    torch.testing.assert_close(one.log_likelihood(queries), two.log_likelihood(queries), rtol=1e-5, atol=0.0)


def test_a_batch_without_weight_leaves_all_but_the_weights_bit_for_bit() -> None:
    mixture = tied(CLASSES, DIM)
    run(mixture, stream(10, offset=1e3))
    before = mixture.clone()
    mixture.update(torch.randn(8, DIM), torch.zeros(8, CLASSES))
    assert torch.equal(mixture.means, before.means)
    assert torch.equal(mixture.packed_covariances, before.packed_covariances)
    torch.testing.assert_close(mixture.weights, 0.999 * before.weights)


def test_prior_covariances_are_pooled_by_the_prior_weights() -> None:
    rng = np.random.default_rng(1)
    oracle = OracleMixture(3, 4, 0.9)
    oracle.weights, oracle.means = np.array([5.0, 0.5, 0.0]), rng.normal(size=(3, 4))
    oracle.covariances = np.stack([root @ root.T + np.eye(4) for root in rng.normal(size=(3, 4, 4))])
    prior = {
        "prior_means": torch.from_numpy(oracle.means),
        "prior_covariances": torch.from_numpy(oracle.covariances),
        "prior_weights": torch.from_numpy(oracle.weights),
    }
    mixture = tied(3, 4, 0.9, **prior)
    assert_close(mixture.covariances[:1], oracle.pooled_covariance()[None], 1e-6)
    features, weights = rng.normal(size=(8, 4)), rng.uniform(size=(8, 3))
    mixture.update(*tensors((features, weights)))
    oracle.update(features, weights)
    assert_close(mixture.covariances[:1], oracle.pooled_covariance()[None], 1e-5)
    found = mixture.log_likelihood(torch.from_numpy(features)).numpy()
    np.testing.assert_allclose(found, oracle.tied_log_likelihood(features), rtol=1e-4)
    nobody = tied(3, 4, **(prior | {"prior_weights": torch.zeros(3)}))
    assert torch.equal(nobody.covariances, torch.zeros(3, 4, 4))


def test_an_absolute_floor_is_added_as_it_is() -> None:
    mixture = tied(2, 3, floor=1e-4, floor_rule="absolute")
    mixture.update(torch.full((4, 3), 2.0), torch.rand(4, 2))
    found = mixture.evaluate(torch.full((1, 3), 2.0))
    torch.testing.assert_close(found.log_likelihood, torch.full((1, 2), -1.5 * math.log(2e-4 * math.pi)).double())


@pytest.mark.parametrize("floor", [0.0, 1e-6, 1e-2])
def test_the_floor_is_relative_to_the_pooled_variance(floor: float) -> None:
    """A narrow class and one without variance: only the pool of both says how wide the floor is."""
    rng = np.random.default_rng(2)
    oracle = OracleMixture(2, 4, 1.0)
    oracle.weights, oracle.means = np.array([0.5, 1.5]), rng.normal(size=(2, 4)).astype(np.float32)
    oracle.covariances = np.stack([np.diag([1.0, 4.0, 0.25, 2.0**-20]), np.zeros((4, 4))])
    mixture = tied(
        2,
        4,
        floor=floor,
        prior_means=torch.from_numpy(oracle.means),
        prior_covariances=torch.from_numpy(oracle.covariances),
        prior_weights=torch.from_numpy(oracle.weights),
    )
    queries, covariance = rng.normal(size=(5, 4)), oracle.tied_covariance(floor)
    offsets = queries[:, None] - oracle.means
    squared = np.einsum("ncr,rs,ncs->nc", offsets, np.linalg.inv(covariance), offsets)
    expected = -0.5 * (squared + np.linalg.slogdet(covariance)[1] + 4 * math.log(2 * math.pi))
    np.testing.assert_allclose(mixture.log_likelihood(torch.from_numpy(queries)).numpy(), expected, rtol=1e-9)


def test_a_class_never_seen_has_no_part_in_the_pool() -> None:
    mixture, without = tied(3, 4), tied(2, 4)
    features, weights = 100.0 + torch.randn(50, 4), torch.rand(50, 2)
    mixture.update(features, torch.cat([weights, torch.zeros(50, 1)], dim=1))
    without.update(features, weights)
    assert torch.equal(mixture.packed_covariances, without.packed_covariances)
    found, expected = mixture.log_likelihood(features)[:, :2], without.log_likelihood(features)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


def test_weights_too_small_to_be_stored_leave_nothing_behind() -> None:
    mixture = tied(2, 3)
    mixture.update(torch.randn(8, 3), torch.full((8, 2), 1e-300, dtype=torch.float64))
    assert all(float(part.abs().sum()) == 0.0 for part in mixture.state_dict().values())


def test_tight_classes_far_apart_keep_their_own_spread() -> None:
    """The spread between the classes is 1e12 times that within, and none of it may leak into the pool."""
    rng = np.random.default_rng(0)
    centers, labels = np.array([[0.0, 0.0], [1e3, -1e3], [-1e3, 500.0]]), rng.integers(3, size=300)
    features = centers[labels] + 1e-3 * rng.normal(size=(300, 2))
    oracle, mixture = OracleMixture(3, 2, 1.0), tied(3, 2)
    batch = features, np.eye(3)[labels]
    mixture.update(*tensors(batch))
    oracle.update(*batch)
    assert_close(mixture.covariances[:1], oracle.pooled_covariance()[None], 1e-3)
    squared = mixture.evaluate(torch.from_numpy(centers)).squared_mahalanobis
    assert bool((squared.argmin(dim=1) == torch.arange(3)).all())
    # The means, and with them the distances, are as fine as float32 at 1e3 is: 6e-5, beside a deviation of 1e-3.
    assert float(squared.diagonal().max()) < 0.1


@pytest.mark.parametrize("reach", [1.0, 1e3, 1e4, 1e5, 1e9])
def test_distances_of_near_points_do_not_drown_in_the_length_of_the_vectors(reach: float) -> None:
    """On both sides of the switch between the matrix product and the plain differences."""
    generator = torch.Generator().manual_seed(0)
    one = torch.randn(30, 64, dtype=torch.float64, generator=generator)
    one *= reach / one.square().sum(dim=1, keepdim=True).sqrt()
    other = one[:20] + 1e-2 * torch.randn(20, 64, dtype=torch.float64, generator=generator)
    expected = (one[:, None] - other).square().sum(dim=2)
    torch.testing.assert_close(squared_distances(one, other), expected, rtol=1e-4, atol=1e-6)


def test_it_is_the_length_of_a_vector_that_decides_how_distances_are_taken() -> None:
    """One long vector of many short coordinates: the matrix product would be wrong by as much as the distance."""
    one = torch.full((1, 40_000), 1e6 / 200.0, dtype=torch.float64)
    other = one + 1e-4 * torch.randn(1, 40_000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(squared_distances(one, other), (one - other).square().sum().view(1, 1))


class Watch(TorchDispatchMode):
    """Counts torch's operations and remembers the largest array that one of them made."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()
        self.largest = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = function(*args, **(kwargs or {}))
        self.calls[function.name()] += 1
        for part in made if isinstance(made, tuple) else (made,):
            if isinstance(part, Tensor):
                self.largest = max(self.largest, part.untyped_storage().nbytes() // part.element_size())
        return made


def test_no_covariance_a_class_is_ever_formed_and_one_factorisation_answers() -> None:
    features, weights = torch.randn(64, 64), torch.rand(64, 345)
    mixture = tied(345, 64, mean_shift=True)
    with Watch() as watch:
        mixture.update(features, weights)
        mixture.evaluate(features)
    assert watch.calls["aten::linalg_cholesky_ex"] == 1
    assert 345 * 64 <= watch.largest <= 2 * 345 * 64  # means and distances, and nothing with R^2 numbers a class


def test_state_and_moments_of_the_other_form_are_refused() -> None:
    full, mixture = StreamingGMM(3, 4), tied(3, 4)
    batch = torch.randn(8, 4), torch.rand(8, 3)
    with pytest.raises(DriftgateError, match=r"shape \(1, 10\) but got \(3, 10\); load it with the .* settings"):
        mixture.load_state_dict(full.state_dict())
    with pytest.raises(DriftgateError, match=r"\(3, 4, 1\) but got \(3, 4, 3\)"):
        mixture.apply(full.moments(*batch))
    with pytest.raises(DriftgateError, match=r"\(3, 4, 3\) but got \(3, 4, 1\)"):
        full.moments(*batch) + mixture.moments(*batch)


def test_a_saved_state_goes_on_where_it_stood() -> None:
    mixture, again = tied(CLASSES, DIM), tied(CLASSES, DIM)
    batches = stream(3)
    run(mixture, batches[:2])
    again.load_state_dict(mixture.state_dict())
    for one in (mixture, again):
        one.update(*tensors(batches[2]))
    assert all(torch.equal(part, again.state_dict()[name]) for name, part in mixture.state_dict().items())
