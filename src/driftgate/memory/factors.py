"""Linear algebra of the mixture: Cholesky factors that never fail, log-determinants, squared distances."""

from __future__ import annotations

import math

import torch
from torch import Tensor

LARGEST_EXPANDED = 1e8
"""Squared length up to which |a - b|^2 = |a|^2 - 2ab + |b|^2 is exact to 1e-7 in float64."""


def factorise(lower: Tensor, floor: Tensor) -> Tensor:
    """(C, R, R) lower Cholesky factors of ``lower + floor * identity``; never fails, ``lower`` is overwritten.

    Early covariances have less than full rank. The floor (C,) of a class grows tenfold until its factorisation
    succeeds; other classes keep theirs.
    """
    factors, failed = try_factorise(lower, floor)
    diagonal = lower.diagonal(dim1=-2, dim2=-1)
    while bool(failed.any()):
        diagonal[failed] += 9.0 * floor[failed, None]
        floor = 10.0 * floor
        factors[failed], info = torch.linalg.cholesky_ex(lower[failed])
        failed[failed.clone()] = info > 0
    return factors


def try_factorise(lower: Tensor, floor: Tensor) -> tuple[Tensor, Tensor]:
    """The same at the floor as it is, and (C,) whether it failed, for whoever wants to look at that later."""
    diagonal = lower.diagonal(dim1=-2, dim2=-1)
    diagonal += floor[:, None]
    factors, info = torch.linalg.cholesky_ex(lower)
    return factors, info > 0


def log_determinant(factors: Tensor) -> Tensor:
    """(K, R, R) lower Cholesky factors -> (K,) log-determinants of the matrices."""
    return 2.0 * factors.diagonal(dim1=-2, dim2=-1).log().sum(dim=1)


def squared_distances(one: Tensor, other: Tensor) -> Tensor:
    """(C, R), (N, R) -> (C, N): by a matrix product where that is exact enough, else difference by difference."""
    if one.device.type == "cpu":  # another device need not be asked: there the differences cost nothing
        lengths, others = one.square().sum(dim=1), other.square().sum(dim=1)
        if bool(torch.maximum(lengths.max(), others.max()) <= LARGEST_EXPANDED):
            return torch.addmm(others, one, other.T, alpha=-2.0).add_(lengths[:, None]).clamp_(min=0.0)
    return torch.cdist(one, other, compute_mode="donot_use_mm_for_euclid_dist").square_()


def finite(*values: Tensor) -> Tensor:
    """() bool: whether none holds NaN or infinity; one pass each, and no temporary array."""
    ends = torch.stack([end for part in values for end in part.aminmax()])
    return ends.abs().amax() < math.inf  # NaN is not below
