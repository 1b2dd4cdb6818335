"""A slow float64 mixture by the letter of Eqs. 1-3 in numpy and scipy; shares no code with the package."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.stats import multivariate_normal

Array = NDArray[np.float64]


class OracleMixture:
    def __init__(self, num_classes: int, dim: int, decay: float, mean_shift: bool = False) -> None:
        self.decay, self.mean_shift, self.dim = decay, mean_shift, dim
        self.weights: Array = np.zeros(num_classes)
        self.means: Array = np.zeros((num_classes, dim))
        self.covariances: Array = np.zeros((num_classes, dim, dim))

    def update(self, features: Array, weights: Array) -> None:
        for c in range(len(self.weights)):
            past, column = self.decay * self.weights[c], weights[:, c]
            total = past + column.sum()
            if total == 0:
                continue
            old = self.means[c]
            mean = (past * old + column @ features) / total
            centered = features - mean
            scatter = past * self.covariances[c] + (column[:, None] * centered).T @ centered
            if self.mean_shift:
                scatter = scatter + past * np.outer(old - mean, old - mean)
            self.weights[c], self.means[c], self.covariances[c] = total, mean, scatter / total

    def pooled_covariance(self) -> Array:
        """The mean of the classes' covariances, each counted by its weight."""
        return np.average(self.covariances, axis=0, weights=self.weights)

    def tied_covariance(self, floor: float = 1e-6) -> Array:
        """What a tied mixture says of every class: the pooled covariance and a floor relative to its own variance."""
        pooled = self.pooled_covariance()
        return pooled + (floor * np.trace(pooled) / self.dim + 1e-12) * np.eye(self.dim)

    def query_covariances(self, floor: float = 1e-6, shrinkage: float = 0.0) -> Array:
        """The documented regularisation: pseudo-samples of the pooled covariance, then a relative floor."""
        share = self.weights / self.weights.sum()
        mixed = self.covariances
        if shrinkage > 0:
            own = self.weights[:, None, None]
            mixed = (own * self.covariances + shrinkage * self.pooled_covariance()) / (own + shrinkage)
        variance = np.array([np.trace(covariance) / self.dim for covariance in mixed])
        variance = np.maximum(variance, share @ variance)
        return mixed + (floor * variance + 1e-12)[:, None, None] * np.eye(self.dim)

    def log_likelihood(self, features: Array, floor: float = 1e-6, shrinkage: float = 0.0) -> Array:
        return self._log_density(features, self.query_covariances(floor, shrinkage))

    def tied_log_likelihood(self, features: Array, floor: float = 1e-6) -> Array:
        return self._log_density(features, np.stack([self.tied_covariance(floor)] * len(self.weights)))

    def _log_density(self, features: Array, covariances: Array) -> Array:
        columns = [
            multivariate_normal(mean, covariance, allow_singular=False).logpdf(features)
            if weight > 0
            else np.full(len(features), -np.inf)
            for mean, covariance, weight in zip(self.means, covariances, self.weights, strict=True)
        ]
        return np.stack(columns, axis=1)
