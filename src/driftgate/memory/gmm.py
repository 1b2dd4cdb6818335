"""The memory of the method: one Gaussian a class in the reduced feature space, updated batch by batch (Eqs. 1-3).

Shapes: N samples, C classes, R reduced dimensions, P = R(R+1)/2 entries of a lower triangle.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from driftgate.types import DriftgateError

SMALLEST_WEIGHT = float(torch.finfo(torch.float32).tiny)
"""A class whose weight falls below this cannot be stored with full precision and counts as never seen."""

ABSOLUTE_FLOOR = 1e-12
"""Variance added to every direction, so that a batch of identical samples still has a density."""

RELATIVE_FLOOR = 1e-6
"""Variance added to every direction, as a share of the mean variance; grows tenfold where a factorisation fails."""


@dataclass(frozen=True)
class Moments:
    """Weighted moments of a set of samples about a common centre: all that an update needs to know of a batch.

    Moments of two disjoint sets can be added; applying the sum once is one update on the union, which makes
    adaptation over several workers exact. Everything is float64.

    Attributes:
        count: number of samples N.
        center: (R,) the point the moments are taken about.
        weight: (C,) sum of the weights of each class.
        first: (C, R) weighted sum of ``features - center``.
        second: (C, P) weighted sum of the packed outer products of ``features - center``.
    """

    count: int
    center: Tensor
    weight: Tensor
    first: Tensor
    second: Tensor

    def __add__(self, other: Moments) -> Moments:
        count = self.count + other.count
        center = (self.count * self.center + other.count * other.center) / count
        one, two = self.about(center), other.about(center)
        return Moments(count, center, one.weight + two.weight, one.first + two.first, one.second + two.second)

    def about(self, center: Tensor) -> Moments:
        """The same moments about another centre (the parallel axis theorem)."""
        offset = (self.center - center).expand_as(self.first)
        first = self.first + self.weight[:, None] * offset
        second = self.second + symmetric_outer(self.first + 0.5 * self.weight[:, None] * offset, offset)
        return Moments(self.count, center, self.weight, first, second)


class MixtureEvaluation(NamedTuple):
    """What the mixture says about N samples; both are (N, C) float64.

    ``log_likelihood`` is minus infinity, and ``squared_mahalanobis`` infinity, for a class never seen.
    """

    log_likelihood: Tensor
    squared_mahalanobis: Tensor


class StreamingGMM:
    """A Gaussian a class with exponentially forgotten mean, covariance and weight (Eqs. 1-3 of the paper).

    State is float32 with only the lower triangle of each covariance: ``4 * C * (R + R(R+1)/2 + 1)`` bytes. No array
    of N x C x R x R elements is ever made.

    Args:
        num_classes: number of classes C.
        dim: number of reduced dimensions R.
        decay: the paper's alpha; 1 never forgets.
        mean_shift: add the spread that the moving mean leaves behind to the covariance. Off in the paper; with it and
            ``decay=1`` the covariance is exactly that of all samples seen.
        floor: variance added to every direction at query time, as a share of the mean variance of the class.
        shrinkage: number of pseudo-samples of the pooled covariance mixed into each class at query time, so that a
            class seen only through the tails of the predictions cannot win by a degenerate covariance. 0 in the paper.
        prior_means, prior_covariances, prior_weights: (C, R), (C, R, R) and (C,) prior knowledge; all or none.
    """

    def __init__(
        self,
        num_classes: int,
        dim: int,
        decay: float = 0.999,
        *,
        mean_shift: bool = False,
        floor: float = RELATIVE_FLOOR,
        shrinkage: float = 0.0,
        prior_means: Tensor | None = None,
        prior_covariances: Tensor | None = None,
        prior_weights: Tensor | None = None,
    ) -> None:
        if num_classes < 1 or dim < 1:
            raise DriftgateError(f"Expected at least one class and one dimension but got {num_classes} and {dim}.")
        if not 0 <= decay <= 1:
            raise DriftgateError(f"Expected a decay between 0 and 1 but got {decay}.")
        if floor < 0 or shrinkage < 0:
            raise DriftgateError(f"Expected a floor and a shrinkage of at least 0 but got {floor} and {shrinkage}.")
        self.num_classes, self.dim, self.decay = num_classes, dim, decay
        self.mean_shift, self.floor, self.shrinkage = mean_shift, floor, shrinkage
        self.means = torch.zeros(num_classes, dim)
        self.packed_covariances = torch.zeros(num_classes, packed_size(dim))
        self.weights = torch.zeros(num_classes)
        prior = (prior_means, prior_covariances, prior_weights)
        if any(part is not None for part in prior):
            self.set_prior(*prior)

    def set_prior(self, means: Tensor | None, covariances: Tensor | None, weights: Tensor | None) -> None:
        if means is None or covariances is None or weights is None:
            raise DriftgateError("Expected prior means, covariances and weights together; give all three or none.")
        expected = ((self.num_classes, self.dim), (self.num_classes, self.dim, self.dim), (self.num_classes,))
        found = tuple(tuple(part.shape) for part in (means, covariances, weights))
        if found != expected:
            raise DriftgateError(f"Expected a prior of shapes {expected} but got {found}.")
        if not all(bool(part.isfinite().all()) for part in (means, covariances, weights)) or bool((weights < 0).any()):
            raise DriftgateError("Expected a finite prior with weights of at least 0.")
        self.means = means.detach().float().clone()
        self.packed_covariances = pack(covariances.detach()).float()
        self.weights = weights.detach().float().clone()

    @property
    def covariances(self) -> Tensor:
        """(C, R, R) float32 covariances by Eq. 3, without floor and shrinkage."""
        lower = unpack(self.packed_covariances, self.dim)
        return lower + lower.tril(-1).mT

    @property
    def num_bytes(self) -> int:
        return sum(tensor.numel() * tensor.element_size() for tensor in self.state_dict().values())

    def state_dict(self) -> dict[str, Tensor]:
        return {"means": self.means, "packed_covariances": self.packed_covariances, "weights": self.weights}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        for name, mine in self.state_dict().items():
            if state[name].shape != mine.shape:
                raise DriftgateError(
                    f"Expected mixture {name} of shape {tuple(mine.shape)} but got {tuple(state[name].shape)}."
                )
            setattr(self, name, state[name].float().clone())

    def clone(self) -> StreamingGMM:
        copy = StreamingGMM(
            self.num_classes,
            self.dim,
            self.decay,
            mean_shift=self.mean_shift,
            floor=self.floor,
            shrinkage=self.shrinkage,
        )
        copy.load_state_dict(self.state_dict())
        return copy

    def update(self, features: Tensor, weights: Tensor) -> None:
        """Take in one batch: ``features`` (N, R), ``weights`` (N, C), the softmax outputs f_c(x_i) in the paper."""
        self.apply(self.moments(features, weights))

    def moments(self, features: Tensor, weights: Tensor) -> Moments:
        """The batch's contribution to Eqs. 1-3, before it is mixed with the past; changes nothing."""
        self._check_features(features)
        if weights.shape != (len(features), self.num_classes):
            expected = (len(features), self.num_classes)
            raise DriftgateError(f"Expected weights of shape {expected} but got {tuple(weights.shape)}.")
        if not bool(weights.isfinite().all()) or bool((weights < 0).any()):
            raise DriftgateError("Expected finite weights of at least 0; pass the softmax outputs, not the logits.")
        samples, per_class = features.detach().double(), weights.detach().double().T
        # A batch centred on its own mean has small numbers even where the features sit at a large offset.
        center = samples.mean(dim=0)
        centered = samples - center
        second = per_class @ packed_outer(centered)
        return Moments(len(samples), center, per_class.sum(dim=1), per_class @ centered, second)

    def apply(self, moments: Moments) -> None:
        """Eqs. 1-3: mix the moments of a batch (or of several, added) with the decayed past."""
        if moments.first.shape != self.means.shape:
            raise DriftgateError(
                f"Expected moments of shape {tuple(self.means.shape)} but got {tuple(moments.first.shape)}."
            )
        past = self.decay * self.weights.double()
        total = past + moments.weight
        seen = total >= SMALLEST_WEIGHT
        scale = torch.where(seen, 1.0 / total, 0.0)
        past_share, old_offset = (past * scale)[:, None], self.means.double() - moments.center
        offset = past_share * old_offset + scale[:, None] * moments.first
        # The sum over (r - mu)(r - mu)^T from the moments about the centre, with mu = center + offset.
        second = moments.second - symmetric_outer(moments.first - 0.5 * moments.weight[:, None] * offset, offset)
        covariance = past_share * self.packed_covariances.double() + scale[:, None] * second
        if self.mean_shift:
            drift = old_offset - offset
            covariance += past_share * symmetric_outer(0.5 * drift, drift)
        kept = seen[:, None]
        self.weights = torch.where(seen, total, 0.0).float()
        self.means = torch.where(kept, moments.center + offset, 0.0).float()
        self.packed_covariances = torch.where(kept, covariance, 0.0).float()

    def log_likelihood(self, features: Tensor) -> Tensor:
        """(N, C) float64: log N(features; mean, covariance) under each class; minus infinity for a class never seen."""
        return self.evaluate(features).log_likelihood

    def evaluate(self, features: Tensor) -> MixtureEvaluation:
        """Log-likelihood and squared Mahalanobis distance of ``features`` (N, R) under every class."""
        self._check_features(features)
        factors = self._factorise()
        offsets = (features.detach().double() - self.means.double()[:, None, :]).mT
        squared = torch.linalg.solve_triangular(factors, offsets, upper=False).square_().sum(dim=1)
        log_determinants = 2.0 * factors.diagonal(dim1=-2, dim2=-1).log().sum(dim=1)
        log_likelihood = -0.5 * (squared + log_determinants[:, None] + self.dim * math.log(2.0 * math.pi))
        unseen = (self.weights == 0)[:, None]
        return MixtureEvaluation(
            log_likelihood.masked_fill(unseen, -math.inf).T,
            squared.masked_fill(unseen, math.inf).T,
        )

    def _factorise(self) -> Tensor:
        """(C, R, R) lower Cholesky factors of the covariances with shrinkage and floor; never fails.

        Early covariances have less than full rank. The floor of a class grows tenfold until its factorisation
        succeeds; other classes keep theirs.
        """
        packed = self.packed_covariances.double()
        weights = self.weights.double()
        total = weights.sum().clamp_min(SMALLEST_WEIGHT)
        if self.shrinkage > 0:
            pooled = (weights / total) @ packed
            keep = (weights / (weights + self.shrinkage))[:, None]
            packed = keep * packed + (1.0 - keep) * pooled
        lower = unpack(packed, self.dim)
        diagonal = lower.diagonal(dim1=-2, dim2=-1)
        scale = diagonal.mean(dim=1)
        # A class made of one sample has no variance of its own: measure its floor by the others'.
        scale = torch.maximum(scale, (weights / total) @ scale)
        floor = self.floor * scale + ABSOLUTE_FLOOR
        diagonal += floor[:, None]
        factors, info = torch.linalg.cholesky_ex(lower)
        while bool((failed := info > 0).any()):
            diagonal[failed] += 9.0 * floor[failed, None]
            floor[failed] *= 10.0
            factors[failed], info[failed] = torch.linalg.cholesky_ex(lower[failed])
        return factors

    def _check_features(self, features: Tensor) -> None:
        if features.ndim != 2 or features.shape[1] != self.dim or len(features) == 0:
            raise DriftgateError(f"Expected features of shape (N, {self.dim}) but got {tuple(features.shape)}.")
        if not bool(features.isfinite().all()):
            raise DriftgateError("Expected finite features but got NaN or infinity; the network has diverged.")


def packed_size(dim: int) -> int:
    """Number of entries of the lower triangle of a dim x dim matrix, diagonal included."""
    return dim * (dim + 1) // 2


def pack(matrices: Tensor) -> Tensor:
    """(..., R, R) -> (..., P): the lower triangle, row by row."""
    rows, columns = torch.tril_indices(*matrices.shape[-2:])
    return matrices[..., rows, columns]


def unpack(packed: Tensor, dim: int) -> Tensor:
    """(..., P) -> (..., R, R): lower triangular, zeros above the diagonal."""
    rows, columns = torch.tril_indices(dim, dim)
    lower = packed.new_zeros(*packed.shape[:-1], dim, dim)
    lower[..., rows, columns] = packed
    return lower


def packed_outer(vectors: Tensor) -> Tensor:
    """(N, R) -> (N, P): the packed outer product of each vector with itself."""
    rows, columns = torch.tril_indices(vectors.shape[1], vectors.shape[1])
    return vectors[:, rows] * vectors[:, columns]


def symmetric_outer(left: Tensor, right: Tensor) -> Tensor:
    """(C, R), (C, R) -> (C, P): packed ``left right^T + right left^T``."""
    rows, columns = torch.tril_indices(left.shape[1], left.shape[1])
    return left[:, rows] * right[:, columns] + right[:, rows] * left[:, columns]
