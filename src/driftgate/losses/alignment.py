"""Alignment of two Gaussians: the target's features are to be distributed as the source's were."""

from __future__ import annotations

import torch
from torch import Tensor

from driftgate.state import exact

SMALLEST_BIAS = 1e-12
"""What is added to the diagonal at least, for two covariances of zeros have no inverse."""

LARGEST_BIAS = 1e40
"""Beyond every covariance in float32: what it does not mend is not finite, and the step's guard leaves it out."""


def symmetric_kl(source: tuple[Tensor, Tensor], target: tuple[Tensor, Tensor], bias: float) -> Tensor:
    """KL(S || T) + KL(T || S) of S = N(mean (D,), covariance (D, D) + bias I) and T alike; a scalar, float64.

    The determinants cancel, what stays is 1/2 [tr(T^-1 S) + tr(S^-1 T) - 2 D + d' (S^-1 + T^-1) d] with d the
    difference of the means. Finite for singular covariances: the bias grows until both can be factorised.
    """
    (source_mean, source_covariance), (target_mean, target_covariance) = source, target
    offset = exact(source_mean) - exact(target_mean)
    one, two = _positive_definite(exact(source_covariance), exact(target_covariance), max(bias, SMALLEST_BIAS))
    # The backward pass of an inverse is two products, several times cheaper than that of a Cholesky factorisation;
    # apart from each other, for the source's needs none.
    one_inverse, two_inverse = (torch.linalg.inv_ex(part).inverse for part in (one, two))
    traces = (two_inverse * one).sum() + (one_inverse * two).sum()
    distance = torch.outer(offset, offset).mul(one_inverse + two_inverse).sum()
    divergence: Tensor = 0.5 * (traces + distance) - len(offset)
    return divergence


def _positive_definite(one: Tensor, two: Tensor, bias: float) -> tuple[Tensor, Tensor]:
    """Both (D, D) with the same bias on the diagonal: ten times more until Cholesky finds both positive definite."""
    identity = torch.eye(len(one), dtype=one.dtype, device=one.device)
    while True:
        biased = one + bias * identity, two + bias * identity
        failed = torch.linalg.cholesky_ex(torch.stack(biased).detach()).info
        if not bool(failed.any()) or bias > LARGEST_BIAS:
            return biased
        bias *= 10.0
