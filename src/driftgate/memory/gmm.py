"""The memory of the method: one Gaussian a class in the reduced feature space, updated batch by batch (Eqs. 1-3).

Shapes: N samples, C classes, R reduced dimensions, P = R(R+1)/2 different entries of a symmetric matrix;
K covariances: one a class (K = C), or one for all (K = 1) where they are tied.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from driftgate.memory.blocks import blocks, for_each_block, one_thread
from driftgate.memory.factors import factorise, finite, log_determinant, squared_distances, try_factorise
from driftgate.memory.packed import (
    class_seconds,
    pack,
    packed_size,
    plus_symmetric_outer,
    pooled_second,
    unpack_lower,
)
from driftgate.state import State, exact
from driftgate.types import DriftgateError

CovarianceForm = Literal["full", "tied"]
"""A covariance a class, as in the paper, or one for all."""

SMALLEST_WEIGHT = float(torch.finfo(torch.float32).tiny)
"""A class whose weight falls below this cannot be stored with full precision and counts as never seen."""

ABSOLUTE_FLOOR = 1e-12
"""Variance added to every direction, so that a batch of identical samples still has a density."""

RELATIVE_FLOOR = 1e-6
"""Variance added to every direction, as a share of the mean variance; grows tenfold where a factorisation fails."""

FloorRule = Literal["relative", "absolute"]

TOO_LARGE = "Expected weights and variances that fit float32 but got more; scale the features."


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
        second: (K, R // 2 + 1, R) weighted sum of the outer products of ``features - center``, by wrapped diagonals; of
            a class, or of all classes together where they share a covariance.
    """

    count: int
    center: Tensor
    weight: Tensor
    first: Tensor
    second: Tensor

    def __add__(self, other: Moments) -> Moments:
        other.check_size(self.size)
        count = self.count + other.count
        center = (self.count * self.center + other.count * other.center) / count
        one, two = self.about(center), other.about(center)
        return Moments(count, center, one.weight + two.weight, one.first + two.first, one.second + two.second)

    @property
    def size(self) -> tuple[int, int, int]:
        """C, R and K."""
        return (*self.first.shape, len(self.second))

    def check_size(self, expected: tuple[int, int, int]) -> None:
        if self.size != expected:
            raise DriftgateError(
                f"Expected moments of (classes, dimensions, covariances) {expected} but got {self.size}; take them "
                "from mixtures of the same settings."
            )

    def about(self, center: Tensor) -> Moments:
        """The same moments about another centre (the parallel axis theorem)."""
        offset = (self.center - center).expand_as(self.first)
        first = self.first + self.weight[:, None] * offset
        middle = torch.addcmul(self.first, self.weight[:, None], offset, value=0.5)
        second = plus_symmetric_outer(self.second, middle, offset)
        return Moments(self.count, center, self.weight, first, second)


class MixtureEvaluation(NamedTuple):
    """What the mixture says about N samples; both are (N, C) float64.

    ``log_likelihood`` is minus infinity, and ``squared_mahalanobis`` infinity, for a class never seen.
    """

    log_likelihood: Tensor
    squared_mahalanobis: Tensor


class StreamingGMM(State):
    """A Gaussian a class with exponentially forgotten mean, covariance and weight (Eqs. 1-3 of the paper).

    State is float32 with only the lower triangle of each covariance: ``4 * C * (R + R(R+1)/2 + 1)`` bytes. No array
    of N x C x R x R elements is ever made.

    Tied, all classes share the pool of their covariances, Sigma = sum_c s(c) Sigma(c) / S with S = sum_c s(c), in
    ``4 * (C(R + 1) + R(R+1)/2)`` bytes. It follows from both sides of Eq. 3, times s_k(c), summed over the classes:

        S_k Sigma_k = alpha S_{k-1} Sigma_{k-1} + sum_c sum_i f_c(x_i) (r_i - mu_k(c)) (r_i - mu_k(c))^T

    so that neither a covariance nor a second moment a class is needed.

    Args:
        num_classes: number of classes C.
        dim: number of reduced dimensions R.
        decay: the paper's alpha; 1 never forgets.
        covariance: ``full``, one a class (the paper), or ``tied``, one for all.
        mean_shift: add the spread that the moving mean leaves behind to the covariance. Off in the paper; with it and
            ``decay=1`` the covariance is exactly that of all samples seen.
        floor: variance added to every direction at query time.
        floor_rule: whether ``floor`` is a share of the mean variance of the class (``relative``), or the variance
            itself (``absolute``, the released code), which weighs more the smaller the features are.
        shrinkage: number of pseudo-samples of the pooled covariance mixed into each class at query time, so that a
            class seen only through the tails of the predictions cannot win by a degenerate covariance. 0 in the paper;
            changes nothing where tied, for the pooled covariance is all there is.
        prior_means, prior_covariances, prior_weights: (C, R), (C, R, R) and (C,) prior knowledge; all or none. Tied,
            the covariances are pooled by the weights.
    """

    at_least_zero: ClassVar[frozenset[str]] = frozenset({"weights"})
    in_float64: ClassVar[bool] = True
    means: Tensor
    packed_covariances: Tensor
    weights: Tensor

    def __init__(
        self,
        num_classes: int,
        dim: int,
        decay: float = 0.999,
        *,
        covariance: CovarianceForm = "full",
        mean_shift: bool = False,
        floor: float = RELATIVE_FLOOR,
        floor_rule: FloorRule = "relative",
        shrinkage: float = 0.0,
        prior_means: Tensor | None = None,
        prior_covariances: Tensor | None = None,
        prior_weights: Tensor | None = None,
    ) -> None:
        super().__init__()
        if num_classes < 1 or dim < 1:
            raise DriftgateError(f"Expected at least one class and one dimension but got {num_classes} and {dim}.")
        if not 0 <= decay <= 1:
            raise DriftgateError(f"Expected a decay between 0 and 1 but got {decay}.")
        if floor < 0 or shrinkage < 0:
            raise DriftgateError(f"Expected a floor and a shrinkage of at least 0 but got {floor} and {shrinkage}.")
        if covariance not in get_args(CovarianceForm):
            raise DriftgateError(f"Expected a covariance out of full, tied but got {covariance!r}.")
        self.num_classes, self.dim, self.decay, self.tied = num_classes, dim, decay, covariance == "tied"
        self.mean_shift, self.floor, self.shrinkage = mean_shift, floor, shrinkage
        self.floor_rule: FloorRule = floor_rule
        self.keep(
            means=torch.zeros(num_classes, dim),
            packed_covariances=torch.zeros(1 if self.tied else num_classes, packed_size(dim)),
            weights=torch.zeros(num_classes),
        )
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
        means, covariances, weights = (
            exact(part.detach()).to(self.weights.device) for part in (means, covariances, weights)
        )
        packed = pack(covariances)
        if self.tied:
            packed = (weights @ packed / weights.sum().clamp_min(SMALLEST_WEIGHT))[None]
        prior = (means.float(), packed.float(), weights.float())
        if not bool(finite(*prior)) or bool((weights < 0).any()):
            raise DriftgateError("Expected a finite prior with weights of at least 0.")
        self.means, self.packed_covariances, self.weights = prior

    @property
    def covariances(self) -> Tensor:
        """(C, R, R) float32 covariances by Eq. 3, without floor and shrinkage; tied, C views of one."""
        lower = unpack_lower(self.packed_covariances, self.dim)
        return (lower + lower.tril(-1).mT).expand(self.num_classes, -1, -1)

    @property
    def variances(self) -> Tensor:
        """(C, R) float32 diagonals of the covariances, without the covariances being formed."""
        return self.packed_covariances[:, : self.dim].expand(self.num_classes, -1)

    def update(self, features: Tensor, weights: Tensor) -> None:
        """Take in one batch: ``features`` (N, R), ``weights`` (N, C), the softmax outputs f_c(x_i) in the paper."""
        self.apply(self.moments(features, weights))

    def moments(self, features: Tensor, weights: Tensor) -> Moments:
        """The batch's contribution to Eqs. 1-3, before it is mixed with the past; changes nothing."""
        self._check_features(features)
        if weights.shape != (len(features), self.num_classes):
            expected = (len(features), self.num_classes)
            raise DriftgateError(f"Expected weights of shape {expected} but got {tuple(weights.shape)}.")
        smallest, largest = weights.detach().aminmax()
        if not bool((smallest >= 0) & (largest < math.inf)):  # NaN is neither
            raise DriftgateError("Expected finite weights of at least 0; pass the softmax outputs, not the logits.")
        return self._moments(features, weights)

    def _moments(self, features: Tensor, weights: Tensor) -> Moments:
        samples, per_class = exact(features.detach()), exact(weights.detach()).T
        # A batch centred on its own mean has small numbers even where the features sit at a large offset.
        center = samples.mean(dim=0)
        centered = samples - center
        few = len(blocks(len(self.packed_covariances), self.dim**2, samples.device)) == 1
        with one_thread() if few else nullcontext():
            first = per_class @ centered
            second = pooled_second(centered, per_class) if self.tied else class_seconds(centered, per_class)
        return Moments(len(samples), center, per_class.sum(dim=1), first, second)

    def apply(self, moments: Moments) -> None:  # type: ignore[override]
        """Eqs. 1-3: mix the moments of a batch (or of several, added) with the decayed past."""
        moments.check_size((self.num_classes, self.dim, len(self.packed_covariances)))
        before = self.weights, self.means, self.packed_covariances
        if not bool(self._mix(moments)):
            self.weights, self.means, self.packed_covariances = before
            raise DriftgateError(TOO_LARGE)

    def update_unseen(self, features: Tensor, weights: Tensor) -> Tensor:
        """The same as ``update`` without a look at the values, for which a device would have to be waited for.

        () bool: whether the state is sound; where it is not, the mixture must be thrown away.
        """
        return self._mix(self._moments(features, weights))

    def _mix(self, moments: Moments) -> Tensor:
        past = self.decay * self.weights.double()
        total = past + moments.weight
        seen = total >= SMALLEST_WEIGHT
        # 0 where a class was never seen leaves it at mean and covariance 0.
        scale = (seen / total.clamp_min(SMALLEST_WEIGHT))[:, None]
        past_share, old_offset = past[:, None] * scale, self.means - moments.center
        offset = (past_share * old_offset).addcmul_(scale, moments.first)
        spread_scale, spread_past = scale, past_share
        if self.tied:  # both sides of Eq. 3 summed over the classes
            spread_scale = (seen.any() / total.sum().clamp_min(SMALLEST_WEIGHT)).view(1, 1)
            spread_past = past.sum() * spread_scale
        # The sum over (r - mu)(r - mu)^T from the moments about the centre, with mu = center + offset.
        excess = torch.addcmul(moments.first, moments.weight[:, None], offset, value=-0.5)
        packed_covariances = torch.empty_like(self.packed_covariances)

        def mix(part: slice) -> None:
            members = slice(None) if self.tied else part
            spread = plus_symmetric_outer(moments.second[part], excess[members], offset[members], -1.0)
            if self.mean_shift:
                drift = old_offset[members] - offset[members]
                spread = plus_symmetric_outer(spread, past[members, None] * drift, drift, 0.5)
            packed = spread.flatten(1)[:, : packed_covariances.shape[1]].mul_(spread_scale[part])
            packed.addcmul_(self.packed_covariances[part].double(), spread_past[part])
            packed[:, : self.dim].clamp_(min=0.0)  # a variance of 0 may come out as -1e-16 of the moments it is made of
            packed_covariances[part] = packed

        for_each_block(mix, blocks(len(packed_covariances), self.dim**2, packed_covariances.device))
        means = offset.add_(moments.center).mul_(seen[:, None]).float()
        weights = (seen * total).float()
        self.weights, self.means, self.packed_covariances = weights, means, packed_covariances
        # No entry of a covariance is larger than the largest variance, and those stand first.
        return finite(weights, means, packed_covariances[:, : self.dim])

    def log_likelihood(self, features: Tensor) -> Tensor:
        """(N, C) float64: log N(features; mean, covariance) under each class; minus infinity for a class never seen."""
        return self.evaluate(features).log_likelihood

    def evaluate(self, features: Tensor, *, prior: float = 0.0) -> MixtureEvaluation:
        """Log-likelihood and squared Mahalanobis distance of ``features`` (N, R) under every class.

        ``prior`` adds that many times the logarithm of each class's share of the weights to its log-likelihood: 0 is
        the density itself (the paper), 1 the joint density of Bayes' rule.
        """
        self._check_features(features)
        evaluation, failed = self.evaluate_unseen(features, prior=prior)
        return self.evaluate_unseen(features, prior=prior, retry=True)[0] if bool(failed) else evaluation

    def evaluate_unseen(
        self, features: Tensor, *, prior: float = 0.0, retry: bool = False
    ) -> tuple[MixtureEvaluation, Tensor]:
        """The same as ``evaluate`` without a look at the values; and () bool, whether a factorisation failed.

        Then all must be done again with ``retry``, which looks, and raises the floors where they are too low.
        """
        samples = exact(features.detach())
        distances = self._distances_tied if self.tied else self._distances_full
        squared, log_determinants, failed = distances(samples, retry)
        unseen = (self.weights == 0)[:, None]
        offsets = -0.5 * (log_determinants + self.dim * math.log(2.0 * math.pi))
        if prior > 0:
            weights = self.weights.double()
            offsets = offsets + prior * (weights / weights.sum()).log()[:, None]
        squared += torch.where(unseen, math.inf, 0.0)
        log_likelihood = torch.add(offsets.masked_fill(unseen, 0.0), squared, alpha=-0.5)
        return MixtureEvaluation(log_likelihood.T, squared.T), failed.any()

    def _distances_full(self, samples: Tensor, retry: bool) -> tuple[Tensor, Tensor, Tensor]:
        """(C, N) squared Mahalanobis distances and (C, 1) log-determinants, one factorisation a class, which failed
        (C,)."""
        means = self.means.double()
        keep, pooled, floor = self._regularisation()
        squared = samples.new_empty(self.num_classes, len(samples))
        log_determinants = samples.new_empty(self.num_classes, 1)
        failed = torch.zeros(self.num_classes, dtype=torch.bool, device=samples.device)

        def whiten(part: slice) -> None:
            packed = self.packed_covariances[part].double()
            if pooled is not None:
                packed.mul_(keep[part]).addcmul_(1.0 - keep[part], pooled)
            lower = unpack_lower(packed, self.dim)
            if retry:
                factors = factorise(lower, floor[part])
            else:
                factors, failed[part] = try_factorise(lower, floor[part])
            whitened = (samples - means[part, None]).mT
            torch.linalg.solve_triangular(factors, whitened, upper=False, out=whitened)
            torch.linalg.vector_norm(whitened, dim=1, out=squared[part])
            log_determinants[part, 0] = log_determinant(factors)

        for_each_block(whiten, blocks(self.num_classes, self.dim * max(self.dim, len(samples)), samples.device))
        return squared.square_(), log_determinants, failed

    def _distances_tied(self, samples: Tensor, retry: bool) -> tuple[Tensor, Tensor, Tensor]:
        """(C, N) squared Mahalanobis distances and (1, 1) log-determinant: one factorisation whitens everything, which
        failed (1,)."""
        with one_thread():
            packed = self.packed_covariances.double()
            lower, floors = unpack_lower(packed, self.dim), self._floors(packed[:, : self.dim].mean(dim=1))
            factor, failed = try_factorise(lower, floors)
            if retry and bool(failed):
                factor, failed = factorise(unpack_lower(packed, self.dim), floors), ~failed
            identity = torch.eye(self.dim, dtype=samples.dtype, device=samples.device)
            whiten = torch.linalg.solve_triangular(factor[0], identity, upper=False).T
            # About the middle of the queries, or an offset common to all would make every vector long.
            center = samples.mean(dim=0)
            squared = squared_distances((self.means - center) @ whiten, (samples - center) @ whiten)
            return squared, log_determinant(factor)[:, None], failed

    def _regularisation(self) -> tuple[Tensor, Tensor | None, Tensor]:
        """What a query adds to the covariances: ``keep * covariance + (1 - keep) * pooled + floor * identity``.

        (C, 1) share of its own covariance a class keeps, (P,) pooled covariance or None without shrinkage, (C,) floor.
        """
        weights = self.weights.double()
        shares = weights / weights.sum().clamp_min(SMALLEST_WEIGHT)
        keep, pooled = torch.ones_like(weights)[:, None], None
        variance = self.packed_covariances[:, : self.dim].double().mean(dim=1)
        if self.shrinkage > 0:
            keep = (weights / (weights + self.shrinkage))[:, None]
            parts = blocks(self.num_classes, self.dim**2, weights.device)
            pooled = torch.stack([shares[part] @ self.packed_covariances[part].double() for part in parts]).sum(dim=0)
            variance = torch.lerp(shares @ variance, variance, keep[:, 0])
        # A class made of one sample has no variance of its own: measure its floor by the others'.
        variance = torch.maximum(variance, shares @ variance)
        return keep, pooled, self._floors(variance)

    def _floors(self, variance: Tensor) -> Tensor:
        """(K,) mean variances -> (K,): what is added to every direction."""
        if self.floor_rule == "absolute":
            return torch.full_like(variance, max(self.floor, ABSOLUTE_FLOOR))
        return self.floor * variance + ABSOLUTE_FLOOR

    def _check_features(self, features: Tensor) -> None:
        if features.ndim != 2 or features.shape[1] != self.dim or len(features) == 0:
            raise DriftgateError(f"Expected features of shape (N, {self.dim}) but got {tuple(features.shape)}.")
        if not bool(finite(features.detach())):
            raise DriftgateError("Expected finite features but got NaN or infinity; the network has diverged.")
