"""What must hold for every stream; hypothesis looks for one where it does not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from driftgate.memory import CovarianceForm, StreamingGMM
from driftgate.memory.gmm import factorise
from driftgate.memory.packed import pack, packed_size, unpack_lower

QUICK = settings(max_examples=60, deadline=None)
FORMS = st.sampled_from(get_args(CovarianceForm))


@dataclass(frozen=True)
class Case:
    features: Tensor
    weights: Tensor
    cut: int
    seed: int

    def mixture(self, **options: object) -> StreamingGMM:
        return StreamingGMM(self.weights.shape[1], self.features.shape[1], **options)  # type: ignore[arg-type]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """2 to 40 samples of any spread and offset, some of them repeated; weights down to 1e-8, some of them 0."""
    seed = draw(st.integers(0, 2**31 - 1))
    samples, dim, classes = draw(st.integers(2, 40)), draw(st.integers(1, 9)), draw(st.integers(1, 5))
    spread, offset = 10.0 ** draw(st.integers(-3, 3)), draw(st.sampled_from([0.0, 1.0, -1e3]))
    generator = torch.Generator().manual_seed(seed)
    features = offset + spread * torch.randn(samples, dim, generator=generator, dtype=torch.float64)
    if draw(st.booleans()):
        features[samples // 2 :] = features[0]
    weights = torch.rand(samples, classes, generator=generator, dtype=torch.float64)
    weights *= 10.0 ** torch.randint(-8, 1, (classes,), generator=generator)
    if draw(st.booleans()):
        weights[torch.rand(weights.shape, generator=generator) < 0.3] = 0.0
    return Case(features, weights, draw(st.integers(1, samples - 1)), seed)


def assert_same(one: StreamingGMM, two: StreamingGMM, *, covariances: bool = True) -> None:
    """Equal up to the rounding of float32, measured by the size of what was rounded."""
    torch.testing.assert_close(one.weights, two.weights, rtol=1e-5, atol=0.0)
    reach = float(one.means.abs().max())
    torch.testing.assert_close(one.means, two.means, rtol=0.0, atol=1e-6 * reach)
    if covariances:
        size = float(one.covariances.abs().max())
        # A mean rounded by 1e-7 of its size moves a covariance by the square of that, times the spread.
        torch.testing.assert_close(
            one.covariances, two.covariances, rtol=0.0, atol=2e-6 * size + 1e-6 * reach * size**0.5 + 1e-12 * reach**2
        )


@given(cases(), FORMS)
@QUICK
def test_the_order_of_samples_does_not_matter(case: Case, form: CovarianceForm) -> None:
    order = torch.randperm(len(case.features), generator=torch.Generator().manual_seed(case.seed))
    one, two = case.mixture(covariance=form), case.mixture(covariance=form)
    one.update(case.features, case.weights)
    two.update(case.features[order], case.weights[order])
    assert_same(one, two)


@given(cases())
@QUICK
def test_without_forgetting_a_split_batch_has_the_weights_and_means_of_the_whole(case: Case) -> None:
    whole, split = case.mixture(decay=1.0), case.mixture(decay=1.0)
    whole.update(case.features, case.weights)
    split.update(case.features[: case.cut], case.weights[: case.cut])
    split.update(case.features[case.cut :], case.weights[case.cut :])
    assert_same(whole, split, covariances=False)


@given(cases(), FORMS)
@QUICK
def test_with_mean_shift_a_split_batch_has_the_covariances_of_the_whole_too(case: Case, form: CovarianceForm) -> None:
    whole = case.mixture(covariance=form, decay=1.0, mean_shift=True)
    split = whole.clone()
    whole.update(case.features, case.weights)
    split.update(case.features[: case.cut], case.weights[: case.cut])
    split.update(case.features[case.cut :], case.weights[case.cut :])
    assert_same(whole, split)


def test_without_mean_shift_the_covariances_of_a_split_batch_do_differ() -> None:
    """The paper's Eq. 3 leaves the shift of the mean out: the option above is not a no-op."""
    whole, split = StreamingGMM(1, 1, 1.0), StreamingGMM(1, 1, 1.0)
    whole.update(torch.tensor([[0.0], [2.0]]), torch.ones(2, 1))
    split.update(torch.tensor([[0.0]]), torch.ones(1, 1))
    split.update(torch.tensor([[2.0]]), torch.ones(1, 1))
    assert float(whole.covariances) == 1.0
    assert float(split.covariances) == 0.5


@given(cases(), st.floats(0.5, 1.0), FORMS)
@QUICK
def test_added_moments_applied_once_equal_the_whole_batch(case: Case, decay: float, form: CovarianceForm) -> None:
    start = case.mixture(covariance=form, decay=decay)
    start.update(case.features.flip(0) + 1.0, case.weights.flip(0))
    whole, summed = start.clone(), start.clone()
    whole.update(case.features, case.weights)
    first = summed.moments(case.features[: case.cut], case.weights[: case.cut])
    second = summed.moments(case.features[case.cut :], case.weights[case.cut :])
    summed.apply(first + second)
    assert_same(whole, summed)
    assert (first + second).count == len(case.features)


@given(cases(), FORMS)
@QUICK
def test_moments_about_another_centre_are_those_of_moved_features(case: Case, form: CovarianceForm) -> None:
    mixture = case.mixture(covariance=form)
    moments = mixture.moments(case.features, case.weights)
    center = torch.linspace(-1.0, 1.0, case.features.shape[1], dtype=torch.float64)
    moved = moments.about(center)
    away = case.features - center
    expected = torch.einsum("nc,nr,ns->crs", case.weights, away, away)
    if form == "tied":
        expected = expected.sum(dim=0, keepdim=True)
    size = float(expected.abs().max()) + 1e-300
    found = unpack_lower(moved.second.flatten(1)[:, : packed_size(mixture.dim)], mixture.dim)
    torch.testing.assert_close(found, expected.tril(), rtol=0.0, atol=1e-12 * size)
    torch.testing.assert_close(moved.first, case.weights.T @ away, rtol=0.0, atol=1e-9 * float(away.abs().sum()))


@given(cases(), st.sampled_from([0.0, 1.0]), st.booleans(), FORMS)
@QUICK
def test_covariances_with_their_floor_stay_positive_definite(
    case: Case, shrinkage: float, mean_shift: bool, form: CovarianceForm
) -> None:
    mixture = case.mixture(covariance=form, decay=0.9, shrinkage=shrinkage, mean_shift=mean_shift)
    for part in (slice(0, case.cut), slice(case.cut, None), slice(None)):
        mixture.update(case.features[part], case.weights[part])
        covariances = mixture.covariances.double()
        assert torch.equal(covariances, covariances.mT)
        variances = covariances.diagonal(dim1=-2, dim2=-1)
        assert bool((variances >= 0).all())
        # Moments are taken about the centre of the batch: a class away from it carries the rounding of that distance.
        rounding = 1e-14 * float((case.features - case.features.mean(dim=0)).square().sum(dim=1).max())
        lowest = torch.linalg.eigvalsh(covariances)[:, 0]
        assert bool((lowest + 1e-6 * variances.mean(dim=1) + 1e-12 + rounding > 0).all())
        evaluation = mixture.evaluate(case.features)
        seen = mixture.weights > 0
        assert bool(evaluation.log_likelihood[:, seen].isfinite().all())
        assert bool((evaluation.squared_mahalanobis >= 0).all())


@given(cases(), st.floats(0.0, 1.0), st.booleans())
@QUICK
def test_tied_is_the_pool_of_the_classes_covariances(case: Case, decay: float, mean_shift: bool) -> None:
    full, tied = (case.mixture(covariance=form, decay=decay, mean_shift=mean_shift) for form in ("full", "tied"))
    for part in (slice(0, case.cut), slice(case.cut, None), slice(None)):
        for mixture in (full, tied):
            mixture.update(case.features[part], case.weights[part])
    assert torch.equal(tied.weights, full.weights)
    assert torch.equal(tied.means, full.means)
    shares = full.weights.double() / full.weights.double().sum().clamp_min(1e-300)
    expected = torch.einsum("c,crs->rs", shares, full.covariances.double())
    # Float32 rounds each covariance of the full form by the size of its own largest variance.
    size = float(shares @ full.covariances.double().diagonal(dim1=-2, dim2=-1).amax(dim=1))
    distance = float((case.features - case.features.mean(dim=0)).square().sum(dim=1).max())
    found = tied.covariances[0].double()
    torch.testing.assert_close(found, expected, rtol=0.0, atol=5e-7 * size + 1e-14 * distance)


@given(st.integers(1, 12), st.integers(0, 2**31 - 1))
@QUICK
def test_packing_keeps_every_entry_once(dim: int, seed: int) -> None:
    root = torch.randn(3, dim, dim, generator=torch.Generator().manual_seed(seed))
    matrices = root + root.mT
    packed = pack(matrices)
    assert packed.shape == (3, dim * (dim + 1) // 2)
    assert torch.equal(packed[:, :dim], matrices.diagonal(dim1=-2, dim2=-1))
    assert torch.equal(unpack_lower(packed, dim), matrices.tril())


@given(st.integers(1, 8), st.integers(0, 2**31 - 1))
@QUICK
def test_factorise_raises_the_floor_only_of_the_class_that_needs_it(dim: int, seed: int) -> None:
    root = torch.randn(dim, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    good = root @ root.mT + torch.eye(dim)
    bad = -0.5 * torch.eye(dim, dtype=torch.float64)  # not a covariance at all: takes a floor of 1, after 0.1
    floor = torch.tensor([1e-6, 1e-6], dtype=torch.float64)
    factors = factorise(torch.stack([good, bad]).tril(), floor)
    torch.testing.assert_close(factors[0] @ factors[0].mT, good + 1e-6 * torch.eye(dim, dtype=torch.float64))
    torch.testing.assert_close(factors[1] @ factors[1].mT, 0.5 * torch.eye(dim, dtype=torch.float64))
    assert torch.equal(floor, torch.tensor([1e-6, 1e-6], dtype=torch.float64))
