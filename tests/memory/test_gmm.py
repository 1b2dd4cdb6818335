from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, get_args

import numpy as np
import pytest
import torch
from memory.oracle import Array, OracleMixture
from memory.streams import (
    CLASSES,
    DIM,
    HARD_BATCHES,
    SAMPLES,
    assert_close,
    batches_of_the_papers_size,
    run,
    stream,
    tensors,
)
from scipy.stats import multivariate_normal
from torch import Tensor

from driftgate.memory import CovarianceForm, StreamingGMM
from driftgate.memory.packed import wrap
from driftgate.types import DriftgateError

FORMS = get_args(CovarianceForm)


@pytest.mark.parametrize(("num_classes", "dim"), [(1, 1), (9, 64), (3, 7), (345, 64), (200, 2)])
def test_state_is_exactly_the_documented_number_of_bytes(num_classes: int, dim: int) -> None:
    mixture = StreamingGMM(num_classes, dim)
    expected = 4 * num_classes * (dim + dim * (dim + 1) // 2 + 1)
    assert mixture.num_bytes == expected
    mixture.update(torch.randn(3, dim), torch.rand(3, num_classes))
    mixture.evaluate(torch.randn(3, dim))
    held = [value for value in [*mixture.buffers(), *vars(mixture).values()] if isinstance(value, Tensor)]
    assert sum(value.numel() * value.element_size() for value in held) == mixture.num_bytes == expected


@pytest.mark.parametrize("shrinkage", [0.0, 1.0])
@pytest.mark.parametrize(("mean_shift", "decay"), [(False, 0.999), (True, 1.0)])
@pytest.mark.parametrize("offset", [0.0, 1e3])
@pytest.mark.parametrize("absent", [range(0), range(60, 160)])
def test_agrees_with_float64_oracle_after_200_batches(
    shrinkage: float, mean_shift: bool, decay: float, offset: float, absent: range
) -> None:
    mixture = StreamingGMM(CLASSES, DIM, decay, mean_shift=mean_shift, shrinkage=shrinkage)
    batches = stream(200, offset=offset, absent=absent)
    oracle = run(mixture, batches)
    assert oracle.weights[-1] < 1e-8  # the stream does hold classes of almost no weight
    np.testing.assert_allclose(mixture.weights.numpy(), oracle.weights, rtol=1e-3)
    assert_close(mixture.means - offset, oracle.means - offset)
    assert_close(mixture.covariances, oracle.covariances)
    queries = np.concatenate([batches[-1][0], batches[0][0] + 20.0])
    found = mixture.log_likelihood(torch.from_numpy(queries)).numpy()
    np.testing.assert_allclose(found, oracle.log_likelihood(queries, shrinkage=shrinkage), rtol=1e-3)


def test_agrees_with_oracle_at_the_papers_size() -> None:
    mixture, batches = StreamingGMM(40, 64), batches_of_the_papers_size()
    oracle = run(mixture, batches)
    assert_close(mixture.means, oracle.means, 1e-5)
    assert_close(mixture.covariances, oracle.covariances, 1e-5)
    found = mixture.log_likelihood(torch.from_numpy(batches[-1][0])).numpy()
    np.testing.assert_allclose(found, oracle.log_likelihood(batches[-1][0]), rtol=1e-3)


def test_squared_mahalanobis_agrees_with_oracle() -> None:
    mixture = StreamingGMM(CLASSES, DIM, shrinkage=0.5)
    batches = stream(20)
    oracle = run(mixture, batches)
    queries = batches[0][0]
    found = mixture.evaluate(torch.from_numpy(queries)).squared_mahalanobis.numpy()
    for c, covariance in enumerate(oracle.query_covariances(shrinkage=0.5)):
        offsets = queries - oracle.means[c]
        expected = np.einsum("nr,nr->n", offsets, np.linalg.solve(covariance, offsets.T).T)
        np.testing.assert_allclose(found[:, c], expected, rtol=1e-3)


def test_a_class_prior_adds_the_logarithm_of_the_share_of_the_weights() -> None:
    mixture = StreamingGMM(3, DIM)
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(40, DIM, generator=generator)
    mixture.update(features, torch.tensor([0.7, 0.3, 0.0]).expand(40, 3))
    plain, half, full = (mixture.evaluate(features, prior=prior) for prior in (0.0, 0.5, 1.0))
    shares = torch.tensor([0.7, 0.3], dtype=torch.float64)
    for prior, found in ((0.5, half), (1.0, full)):
        expected = plain.log_likelihood[:, :2] + prior * shares.log()
        torch.testing.assert_close(found.log_likelihood[:, :2], expected, rtol=1e-6, atol=0.0)
        assert bool((found.log_likelihood[:, 2] == -math.inf).all())
        assert torch.equal(found.squared_mahalanobis, plain.squared_mahalanobis)


def test_a_class_that_is_absent_keeps_mean_and_covariance_bit_for_bit() -> None:
    mixture = StreamingGMM(CLASSES, DIM)
    batches = stream(130, offset=1e3, absent=range(30, 130))
    run(mixture, batches[:30])
    mean, covariance, weight = mixture.means[0].clone(), mixture.covariances[0].clone(), float(mixture.weights[0])
    run(mixture, batches[30:])
    assert torch.equal(mixture.means[0], mean)
    assert torch.equal(mixture.covariances[0], covariance)
    assert float(mixture.weights[0]) == pytest.approx(weight * 0.999**100, rel=1e-5)


def test_prior_knowledge_is_where_the_stream_starts() -> None:
    rng = np.random.default_rng(1)
    oracle = OracleMixture(3, 4, 0.9)
    oracle.weights, oracle.means = np.array([5.0, 0.5, 0.0]), rng.normal(size=(3, 4))
    oracle.covariances = np.stack([root @ root.T + np.eye(4) for root in rng.normal(size=(3, 4, 4))])
    mixture = StreamingGMM(
        3,
        4,
        0.9,
        prior_means=torch.from_numpy(oracle.means),
        prior_covariances=torch.from_numpy(oracle.covariances),
        prior_weights=torch.from_numpy(oracle.weights),
    )
    assert_close(mixture.covariances, oracle.covariances, 1e-6)
    features, weights = rng.normal(size=(8, 4)), rng.uniform(size=(8, 3))
    mixture.update(torch.from_numpy(features), torch.from_numpy(weights))
    oracle.update(features, weights)
    assert_close(mixture.means, oracle.means, 1e-5)
    assert_close(mixture.covariances, oracle.covariances, 1e-5)
    np.testing.assert_allclose(
        mixture.log_likelihood(torch.from_numpy(features)).numpy(), oracle.log_likelihood(features), rtol=1e-4
    )


@pytest.mark.parametrize("floor", [0.0, 1e-6, 1e-2])
@pytest.mark.parametrize("shrinkage", [0.0, 0.5, 3.0])
def test_floor_and_shrinkage_are_the_documented_ones(floor: float, shrinkage: float) -> None:
    """Classes where they decide: a narrow one, one without variance, one of almost no weight."""
    rng = np.random.default_rng(2)
    oracle = OracleMixture(3, 4, 1.0)
    oracle.weights, oracle.means = np.array([0.5, 2.0, 2.0**-10]), rng.normal(size=(3, 4)).astype(np.float32)
    oracle.covariances = np.stack(
        [np.diag([1.0, 4.0, 0.25, 2.0**-20]), np.zeros((4, 4)), np.diag([1.0, 2.0, 3.0, 4.0])]
    )
    mixture = StreamingGMM(
        3,
        4,
        floor=floor,
        shrinkage=shrinkage,
        prior_means=torch.from_numpy(oracle.means),
        prior_covariances=torch.from_numpy(oracle.covariances),
        prior_weights=torch.from_numpy(oracle.weights),
    )
    queries = rng.normal(size=(5, 4))
    found = mixture.log_likelihood(torch.from_numpy(queries)).numpy()
    expected = np.empty_like(found)
    for c, covariance in enumerate(oracle.query_covariances(floor, shrinkage)):
        offsets = queries - oracle.means[c]
        squared = np.einsum("nr,nr->n", offsets, np.linalg.solve(covariance, offsets.T).T)
        expected[:, c] = -0.5 * (squared + np.linalg.slogdet(covariance)[1] + 4 * math.log(2 * math.pi))
    np.testing.assert_allclose(found, expected, rtol=1e-9)


@pytest.mark.parametrize("shrinkage", [0.0, 3.0])
@pytest.mark.parametrize("scale", [1e-3, 1.0])
def test_an_absolute_floor_is_the_same_for_every_class_and_scale(scale: float, shrinkage: float) -> None:
    rng = np.random.default_rng(3)
    oracle, queries = OracleMixture(2, 3, 1.0), torch.from_numpy(scale * rng.normal(size=(4, 3)))
    mixture = StreamingGMM(2, 3, 1.0, floor=1e-4, floor_rule="absolute", shrinkage=shrinkage)
    features, weights = scale * rng.normal(size=(40, 3)), rng.dirichlet(np.ones(2), size=40)
    mixture.update(torch.from_numpy(features), torch.from_numpy(weights))
    oracle.update(features, weights)
    covariances = oracle.query_covariances(0.0, shrinkage) + (1e-4 - 1e-12) * np.eye(3)
    expected = [
        multivariate_normal(mean, covariance).logpdf(queries)
        for mean, covariance in zip(oracle.means, covariances, strict=True)
    ]
    np.testing.assert_allclose(mixture.log_likelihood(queries).numpy().T, expected, rtol=1e-5)


def test_an_absolute_floor_of_zero_still_has_a_density() -> None:
    mixture = StreamingGMM(1, 2, floor=0.0, floor_rule="absolute")
    mixture.update(torch.ones(3, 2), torch.ones(3, 1))
    assert bool(mixture.log_likelihood(torch.zeros(1, 2)).isfinite().all())


def test_a_variance_of_zero_never_comes_out_negative() -> None:
    """The second sample is alone in its class, yet the moments are taken about the middle between the two."""
    rng = np.random.default_rng(0)
    for _ in range(100):
        mixture = StreamingGMM(1, 3)
        mixture.update(torch.from_numpy(1e3 * rng.normal(size=(2, 3))), torch.tensor([[0.0], [rng.uniform()]]))
        variances = mixture.covariances[0].diagonal()
        assert bool((variances >= 0).all())
        assert float(variances.max()) < 1e-6


@pytest.mark.parametrize("covariance", FORMS)
def test_one_sample_has_its_place_as_mean_and_no_variance(covariance: CovarianceForm) -> None:
    mixture = StreamingGMM(2, 3, covariance=covariance)
    sample = torch.tensor([[1.0, 2.0, 3.0]])
    mixture.update(sample, torch.tensor([[0.7, 0.3]]))
    assert torch.equal(mixture.means, sample.expand(2, 3))
    assert torch.equal(mixture.covariances, torch.zeros(2, 3, 3))
    evaluation = mixture.evaluate(torch.cat([sample, sample + 1.0]))
    # Only the absolute floor is left, 1e-12 in each of three directions.
    peak = -1.5 * math.log(2.0 * math.pi * 1e-12)
    torch.testing.assert_close(evaluation.log_likelihood[0], torch.full((2,), peak, dtype=torch.float64))
    torch.testing.assert_close(evaluation.squared_mahalanobis[1], torch.full((2,), 3e12, dtype=torch.float64))


@pytest.mark.parametrize("covariance", FORMS)
def test_a_class_never_seen_has_likelihood_zero_and_no_nan(covariance: CovarianceForm) -> None:
    mixture = StreamingGMM(3, 4, covariance=covariance, shrinkage=1.0)
    before = mixture.evaluate(torch.randn(5, 4))
    assert bool((before.log_likelihood == -math.inf).all())
    assert bool((before.squared_mahalanobis == math.inf).all())
    mixture.update(torch.randn(50, 4), torch.tensor([0.5, 0.5, 0.0]).expand(50, 3))
    evaluation = mixture.evaluate(torch.randn(5, 4))
    assert bool((evaluation.log_likelihood[:, 2] == -math.inf).all())
    assert bool((evaluation.squared_mahalanobis[:, 2] == math.inf).all())
    assert bool(evaluation.log_likelihood[:, :2].isfinite().all())
    assert torch.equal(mixture.means[2], torch.zeros(4))


@pytest.mark.parametrize("covariance", FORMS)
@pytest.mark.parametrize("make", HARD_BATCHES)
@pytest.mark.parametrize("weight", [1.0, 1e-12, 1e-30, 1e-300])
@pytest.mark.parametrize("shrinkage", [0.0, 1.0])
@pytest.mark.parametrize("floor", [0.0, 1e-6])
def test_hard_batches_never_give_nan(
    make: Callable[[np.random.Generator], Array],
    weight: float,
    shrinkage: float,
    floor: float,
    covariance: CovarianceForm,
) -> None:
    rng = np.random.default_rng(0)
    mixture = StreamingGMM(3, DIM, covariance=covariance, shrinkage=shrinkage, floor=floor)
    for _ in range(3):
        features = torch.from_numpy(make(rng))
        mixture.update(features, torch.tensor([0.9, 0.1, weight], dtype=torch.float64).expand(SAMPLES, 3))
    evaluation = mixture.evaluate(features)
    assert all(bool(part.isfinite().all()) for part in mixture.state_dict().values())
    assert bool(evaluation.log_likelihood[:, :2].isfinite().all())
    assert not bool(evaluation.log_likelihood.isnan().any() | evaluation.squared_mahalanobis.isnan().any())
    # 1e-300 is nothing in float32: that class was never seen.
    assert bool((evaluation.log_likelihood[:, 2] == -math.inf).all()) == (weight == 1e-300)


@pytest.mark.parametrize("covariance", FORMS)
def test_a_huge_offset_changes_likelihoods_only_by_the_rounding_of_the_features(covariance: CovarianceForm) -> None:
    rng = np.random.default_rng(0)
    near, far = (StreamingGMM(2, 4, covariance=covariance) for _ in range(2))
    whole = torch.from_numpy(np.round(rng.normal(size=(200, 4)) * 16.0))  # exact at any offset here
    weights = torch.from_numpy(rng.uniform(size=(200, 2)))
    near.update(whole, weights)
    far.update(whole + 2.0**20, weights)
    torch.testing.assert_close(far.covariances, near.covariances, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(far.log_likelihood(whole + 2.0**20), near.log_likelihood(whole), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("covariance", FORMS)
def test_weights_that_underflow_over_time_end_as_never_seen(covariance: CovarianceForm) -> None:
    mixture = StreamingGMM(2, 3, decay=1e-5, covariance=covariance)
    mixture.update(torch.randn(20, 3), torch.full((20, 2), 0.5))
    for _ in range(9):
        mixture.update(torch.randn(20, 3), torch.tensor([1.0, 0.0]).expand(20, 2))
    assert float(mixture.weights[1]) == 0.0
    assert bool((mixture.log_likelihood(torch.randn(4, 3))[:, 1] == -math.inf).all())
    assert bool(mixture.log_likelihood(torch.randn(4, 3))[:, 0].isfinite().all())
    for _ in range(9):
        mixture.update(torch.randn(20, 3), torch.zeros(20, 2))
    assert all(float(part.abs().sum()) == 0.0 for part in mixture.state_dict().values())


def test_with_shrinkage_a_class_of_almost_no_weight_neither_wins_nor_poisons() -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(2, size=(40, SAMPLES))
    centers = np.stack([np.zeros(DIM), np.full(DIM, 3.0)])
    with_tail, without = StreamingGMM(3, DIM, shrinkage=1.0), StreamingGMM(2, DIM, shrinkage=1.0)
    plain = StreamingGMM(3, DIM)
    for turn in labels:
        features = centers[turn] + rng.normal(size=(SAMPLES, DIM))
        weights = np.zeros((SAMPLES, 3))
        weights[np.arange(SAMPLES), turn] = 1.0
        weights[0, 2] = 1e-9  # class 2 is known through the tail of one prediction a batch
        inputs, soft = torch.from_numpy(features), torch.from_numpy(weights)
        with_tail.update(inputs, soft)
        plain.update(inputs, soft)
        without.update(inputs, soft[:, :2].clone())
    found, expected = with_tail.log_likelihood(inputs), without.log_likelihood(inputs)
    torch.testing.assert_close(found[:, :2], expected, rtol=1e-6, atol=1e-6)
    right = found.argmax(dim=1).numpy() == turn
    assert right.mean() > 0.95
    # The test means something only if such a class does change the outcome without shrinkage, on its own samples.
    first = StreamingGMM(3, DIM)
    first.update(inputs, soft)
    assert int(first.log_likelihood(inputs[:1]).argmax()) == 2


BAD_UPDATES: list[tuple[str, Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]]] = [
    ("shape", lambda x, w: (x[:, :-1], w)),
    ("shape", lambda x, w: (x[0], w)),
    ("shape", lambda x, w: (x[:0], w[:0])),
    ("shape", lambda x, w: (x, w[:-1])),
    ("shape", lambda x, w: (x, w[:, :-1])),
    ("finite features", lambda x, w: (x.index_fill(0, torch.tensor([1]), math.nan), w)),
    ("finite features", lambda x, w: (x.index_fill(0, torch.tensor([1]), -math.inf), w)),
    ("finite weights", lambda x, w: (x, w.index_fill(0, torch.tensor([1]), math.nan))),
    ("finite weights", lambda x, w: (x, w.index_fill(0, torch.tensor([1]), math.inf))),
    ("finite weights", lambda x, w: (x, -w)),
    ("fit float32", lambda x, w: (x * 1e25, w)),
    ("fit float32", lambda x, w: (x, w * 1e38)),
]


@pytest.mark.parametrize("covariance", FORMS)
@pytest.mark.parametrize(("message", "spoil"), BAD_UPDATES)
def test_a_bad_batch_is_refused_and_changes_nothing(
    message: str, spoil: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]], covariance: CovarianceForm
) -> None:
    mixture = StreamingGMM(3, 4, covariance=covariance)
    features, weights = torch.randn(8, 4), 0.1 + torch.rand(8, 3)
    mixture.update(features, weights)
    before = {name: tensor.clone() for name, tensor in mixture.state_dict().items()}
    with pytest.raises(DriftgateError, match=message):
        mixture.update(*spoil(features, weights))
    for name, tensor in mixture.state_dict().items():
        assert torch.equal(tensor, before[name])


def test_bad_settings_priors_queries_and_states_are_refused() -> None:
    mean, covariance, weight = torch.zeros(2, 3), torch.eye(3).expand(2, 3, 3), torch.ones(2)
    size: dict[str, Any] = {"num_classes": 2, "dim": 3}
    prior = {"prior_means": mean, "prior_covariances": covariance, "prior_weights": weight}
    for wrong in (
        {"num_classes": 0},
        {"dim": 0},
        {"decay": 1.1},
        {"covariance": "diagonal"},
        {"floor": -1.0},
        {"shrinkage": -1.0},
        {"prior_means": mean},
        prior | {"prior_means": mean.T},
        prior | {"prior_weights": -weight},
        prior | {"prior_covariances": covariance * math.nan},
        prior | {"prior_covariances": covariance.double() * 1e60},
    ):
        with pytest.raises(DriftgateError, match="Expected"):
            StreamingGMM(**(size | wrong))
    mixture = StreamingGMM(2, 3)
    with pytest.raises(DriftgateError, match=r"shape \(N, 3\)"):
        mixture.log_likelihood(torch.zeros(2, 4))
    with pytest.raises(DriftgateError, match="shape"):
        mixture.load_state_dict(StreamingGMM(2, 4).state_dict())
    with pytest.raises(DriftgateError, match="moments"):
        mixture.apply(StreamingGMM(2, 4).moments(torch.zeros(1, 4), torch.ones(1, 2)))


@pytest.mark.parametrize("covariance", FORMS)
def test_variances_are_the_diagonals_of_the_covariances(covariance: CovarianceForm) -> None:
    mixture = StreamingGMM(CLASSES, DIM, covariance=covariance)
    run(mixture, stream(2))
    assert torch.equal(mixture.variances, mixture.covariances.diagonal(dim1=1, dim2=2))


@pytest.mark.parametrize("covariance", FORMS)
def test_queries_change_nothing_and_a_clone_lives_its_own_life(covariance: CovarianceForm) -> None:
    mixture = StreamingGMM(CLASSES, DIM, 0.9, covariance=covariance, mean_shift=True, shrinkage=2.0)
    batches = stream(3)
    run(mixture, batches[:2])
    before = {name: tensor.clone() for name, tensor in mixture.state_dict().items()}
    copy = mixture.clone()
    mixture.evaluate(torch.from_numpy(batches[2][0]))
    mixture.moments(*tensors(batches[2]))
    copy.update(*tensors(batches[2]))
    for name, tensor in mixture.state_dict().items():
        assert torch.equal(tensor, before[name])
        assert not torch.equal(tensor, copy.state_dict()[name])
    mixture.update(*tensors(batches[2]))
    queries = torch.from_numpy(batches[0][0])
    assert torch.equal(mixture.log_likelihood(queries), copy.log_likelihood(queries))


def test_a_prior_that_could_learn_is_taken_as_numbers() -> None:
    means, covariances = torch.zeros(2, 3, requires_grad=True), torch.eye(3).repeat(2, 1, 1).requires_grad_()
    mixture = StreamingGMM(2, 3)
    mixture.set_prior(means, covariances, torch.ones(2, requires_grad=True))
    assert not any(part.requires_grad for part in mixture.buffers())


@pytest.mark.parametrize("dim", [1, 2, 5, 6])
def test_wrapped_diagonals_hold_every_entry_and_no_row_more(dim: int) -> None:
    vectors = torch.randn(3, dim, generator=torch.Generator().manual_seed(0))
    wrapped = wrap(vectors)
    assert wrapped.shape == (3, dim // 2 + 1, dim)
    for diagonal in range(dim // 2 + 1):
        assert torch.equal(wrapped[:, diagonal], vectors.roll(-diagonal, dims=1))
