"""In which direction each class lies from the middle of the stream: what the mixture says where its densities say less.

The density of a Gaussian in many dimensions is far too sure of itself, and its covariance a class needs more samples
than a stream has brought. A direction needs few: whiten with the covariance of the *whole* stream, which every sample
tells, and take the cosine between a sample and a class mean, both from the mean of the stream. Nothing is remembered
for it: mean and covariance of a mixture are sums over its classes.

Shapes: N samples, C classes, R reduced dimensions.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from driftgate.memory.factors import try_factorise
from driftgate.memory.gmm import SMALLEST_WEIGHT, StreamingGMM
from driftgate.memory.packed import unpack_lower

RIDGE = 1.0
"""Times the mean variance, added to every direction: the early covariance knows fewer directions than there are."""

FEW = 5.0
"""Samples for which the cosine of a class counts half."""

ROUNDING = 1e-10
"""Times the mean square of the stream's mean, added too: what float32 rounds off must not be taken for a spread."""

SMALLEST_VARIANCE = 1e-30
"""Keeps a stream that is zero from dividing by zero."""


class ClassDirections(nn.Module):
    """The directions of a mixture as it stands; float64.

    ``center`` (R,) is the mean of the mixture, ``whiten`` (R, R) the inverse factor of its covariance, and
    ``directions`` (C, R) are the class means from the center, whitened, of length n / (n + ``FEW``) for a class of
    weight n.
    """

    center: Tensor
    whiten: Tensor
    directions: Tensor

    def __init__(self, mixture: StreamingGMM) -> None:
        super().__init__()
        weights, means = mixture.weights.double(), mixture.means.double()
        shares = weights / weights.sum().clamp_min(SMALLEST_WEIGHT)
        center = shares @ means
        offsets = means - center
        # The law of total covariance: the mean of the classes' own, and that of their means.
        packed = mixture.packed_covariances.double()
        within = unpack_lower(packed if mixture.tied else shares[None] @ packed, mixture.dim)[0]
        lower = within + (offsets.T * shares @ offsets).tril()
        ridge = RIDGE * lower.diagonal().mean() + ROUNDING * center.square().mean() + SMALLEST_VARIANCE
        # With the ridge no eigenvalue is below 1 / (R + 1) of the largest, so the factorisation cannot fail.
        factors, _ = try_factorise(lower[None], ridge[None])
        identity = torch.eye(mixture.dim, dtype=lower.dtype, device=lower.device)
        whiten = torch.linalg.solve_triangular(factors[0], identity, upper=False)
        trust = weights / (weights + FEW)
        self.register_buffer("center", center)
        self.register_buffer("whiten", whiten)
        self.register_buffer("directions", trust[:, None] * F.normalize(offsets @ whiten.T, dim=1))

    def forward(self, reduced: Tensor) -> Tensor:
        """(N, R) -> (N, C) float64 in (-1, 1): cosines; 0 for a class never seen and in the middle of the stream.

        Within one deviation of the middle in all a sample has hardly a direction, so its length counts as one more.
        """
        apart = (reduced.to(self.center.device, self.center.dtype) - self.center) @ self.whiten.T
        lengths = (apart.square().sum(dim=1, keepdim=True) + 1.0).sqrt()
        return apart / lengths @ self.directions.T
