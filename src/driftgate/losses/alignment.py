"""Alignment of two Gaussians: the target's features are to be distributed as the source's were."""

from __future__ import annotations

import torch
from torch import Tensor

SMALLEST_BIAS = 1e-12
"""What is added to the diagonal at least, for two covariances of zeros have no inverse."""


def symmetric_kl(source: tuple[Tensor, Tensor], target: tuple[Tensor, Tensor], bias: float) -> Tensor:
    """KL(S || T) + KL(T || S) of S = N(mean (D,), covariance (D, D) + bias I) and T alike; a scalar, float64.

    The determinants cancel, what stays is 1/2 [tr(T^-1 S) + tr(S^-1 T) - 2 D + d' (S^-1 + T^-1) d] with d the
    difference of the means. Finite for singular covariances: the bias grows until both can be factorised.
    """
    (source_mean, source_covariance), (target_mean, target_covariance) = source, target
    offset = (source_mean.double() - target_mean.double())[:, None]
    both = torch.stack([source_covariance.double(), target_covariance.double()])
    both, factors = _factorise(both, max(bias, SMALLEST_BIAS))
    # One solve each way for the trace and for the means: X^-1 [Y + d d'].
    solved = torch.cholesky_solve(both.flip(0) + offset @ offset.T, factors)
    traces = solved.diagonal(dim1=1, dim2=2).sum()
    return 0.5 * traces - len(offset)


def _factorise(covariances: Tensor, bias: float) -> tuple[Tensor, Tensor]:
    """(2, D, D) -> the covariances with their bias, and their Cholesky factors; a larger bias where one fails."""
    identity = torch.eye(covariances.shape[1], dtype=covariances.dtype)
    biased = covariances + bias * identity
    factors, failed = torch.linalg.cholesky_ex(biased)
    while bool(failed.any()):
        bias *= 10.0
        biased = covariances + bias * identity
        factors, failed = torch.linalg.cholesky_ex(biased)
    return biased, factors
