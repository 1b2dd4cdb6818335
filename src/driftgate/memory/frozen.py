"""The mixture as it stands, as plain matrices: for a network that is taken away from driftgate."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from driftgate.memory.factors import factorise, log_determinant
from driftgate.memory.gmm import MixtureEvaluation, StreamingGMM
from driftgate.memory.packed import unpack_lower


class FrozenMixture(nn.Module):
    """What ``StreamingGMM.evaluate`` says, from constants: the inverse factors (K, R, R), K being C, or 1 if tied."""

    means: Tensor
    inverse_factors: Tensor
    offsets: Tensor
    unseen: Tensor

    def __init__(self, mixture: StreamingGMM, prior: float, temperature: float) -> None:
        super().__init__()
        self.temperature = temperature
        packed = mixture.packed_covariances.double()
        if mixture.tied:
            floor = mixture._floors(packed[:, : mixture.dim].mean(dim=1))
        else:
            keep, pooled, floor = mixture._regularisation()
            packed = packed if pooled is None else keep * packed + (1.0 - keep) * pooled
        factors = factorise(unpack_lower(packed, mixture.dim), floor)
        identity = torch.eye(mixture.dim, dtype=factors.dtype, device=factors.device)
        weights = mixture.weights.double()
        seen = weights > 0
        log_shares = torch.where(seen, weights / weights.sum(), 1.0).log()
        offsets = prior * log_shares - 0.5 * (log_determinant(factors) + mixture.dim * math.log(2.0 * math.pi))
        self.register_buffer("means", mixture.means.double())
        self.register_buffer("inverse_factors", torch.linalg.solve_triangular(factors, identity, upper=False))
        self.register_buffer("offsets", offsets)
        self.register_buffer("unseen", ~seen)

    def forward(self, features: Tensor) -> MixtureEvaluation:
        """(N, R) -> log-likelihoods, tempered, and squared Mahalanobis distances, (N, C) each."""
        apart = features[:, None] - self.means  # float64, as the means are
        whitened = (self.inverse_factors @ apart[..., None])[..., 0]
        squared = whitened.square().sum(dim=2)
        log_likelihood = (self.offsets - 0.5 * squared) / self.temperature
        return MixtureEvaluation(
            log_likelihood.masked_fill(self.unseen, -math.inf), squared.masked_fill(self.unseen, math.inf)
        )
