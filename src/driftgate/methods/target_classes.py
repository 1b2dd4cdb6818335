"""How many classes the target has, as GLC and LEAD guess it: the number of clusters with the best silhouette.

The features are laid out in two dimensions by t-SNE, K-means cuts them into K = max(floor(C ratio), 2) clusters for
each of a few ratios, and the ratio with the largest silhouette is taken. On a batch without plain clusters the guess
hangs on the last bits of the features; docs/methods/glc.md says how much. scikit-learn does all three; it is imported
where it is used, because the other methods do without it.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

EstimateWhen = Literal["first", "best", "latest"]
"""When to estimate: on the ``first`` batch that allows it; on every batch and keep the ``best`` silhouette so far (GLC,
an epoch being a batch); or on every batch and take the ``latest`` (LEAD, which starts afresh each time)."""

Array = np.ndarray[Any, np.dtype[np.float64]]

SEED = 0
"""Of t-SNE and K-means, as in the released codes: the same batch always gives the same estimate."""

PERPLEXITY = 30.0
"""t-SNE's default; a batch of fewer than 91 samples gets (N - 1) / 3."""

LEARNING_RATE = 200.0
STARTS = 10
"""Of t-SNE, and of K-means: what scikit-learn 1.0.2 did by default, the version the released codes ran with. Later ones
adapt the rate to the batch, start t-SNE from principal components shrunk to 1e-4, and K-means once."""

ROUNDING = 1e-5
"""Unit vectors nearer to each other than this are the same sample up to the network's rounding."""


FEWEST_CLUSTERS = 2


class TargetClasses(NamedTuple):
    """The guess: C_t = C x ``ratio``, found with this ``silhouette``. Two scalars, all that survives a batch."""

    ratio: float = 1.0
    silhouette: float = -2.0  # below every silhouette: nothing was estimated yet, and the target has C classes

    def number(self, num_classes: int) -> int:
        """K* = floor(C ratio), and at least the two clusters that any estimate starts from."""
        return max(int(num_classes * self.ratio), FEWEST_CLUSTERS)

    def share(self, num_samples: int, num_classes: int) -> int:
        """M = floor(N / (C ratio)): how many of N samples a class may expect; at least one, at most half of them."""
        return max(int(num_samples / max(num_classes * self.ratio, FEWEST_CLUSTERS)), 1)

    def to_tensor(self) -> Tensor:
        """(2,) float64, to be saved."""
        return torch.tensor([self.ratio, self.silhouette], dtype=torch.float64)

    @classmethod
    def from_tensor(cls, values: Tensor) -> TargetClasses:
        """The inverse of ``to_tensor``."""
        ratio, silhouette = values.tolist()
        return cls(ratio, silhouette)


def follow_target_classes(
    previous: TargetClasses, features: Tensor, num_classes: int, ratios: Sequence[float], when: EstimateWhen
) -> TargetClasses:
    """The guess that holds for a batch of unit features (N, D); ``previous`` where the batch allows none."""
    from threadpoolctl import threadpool_limits

    if when == "first" and previous.silhouette > TargetClasses().silhouette:
        return previous
    # A batch has too little work for two threads, which on a busy machine wait for each other many times as long.
    with threadpool_limits(limits=1):
        found = estimate_target_classes(features, num_classes, ratios)
    if found is None or (when == "best" and found.silhouette <= previous.silhouette):
        return previous
    return found


def estimate_target_classes(features: Tensor, num_classes: int, ratios: Sequence[float]) -> TargetClasses | None:
    """The ratio with the best silhouette on unit features (N, D); None for fewer than three different samples.

    More clusters than a batch has room for become as many as it has; of equal silhouettes the first ratio wins.
    """
    points = features.detach().cpu().double().numpy()
    different = len(np.unique(np.round(points / ROUNDING), axis=0))
    if different < 3:
        return None
    plane = embed(points)
    best: TargetClasses | None = None
    scores: dict[int, float | None] = {}
    for ratio in ratios:
        clusters = min(TargetClasses(ratio).number(num_classes), different - 1)
        if clusters not in scores:
            scores[clusters] = cluster_silhouette(plane, clusters)
        score = scores[clusters]
        if score is not None and (best is None or score > best.silhouette):
            best = TargetClasses(float(ratio), score)
    return best


def embed(points: Array) -> Array:
    """(N, D) -> (N, 2): t-SNE from the principal components as they are, with a perplexity that N samples can have."""
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE

    if points.shape[1] <= 2:
        return points
    perplexity = max(min(PERPLEXITY, (len(points) - 1) / 3), 1.0)
    start = PCA(2, svd_solver="randomized", random_state=SEED).fit_transform(points).astype(np.float32)
    layout = TSNE(2, perplexity=perplexity, init=start, learning_rate=LEARNING_RATE, random_state=SEED)
    plane: Array = layout.fit_transform(points)
    return plane


def cluster_silhouette(plane: Array, clusters: int) -> float | None:
    """Silhouette of K-means with so many clusters; None where the points fall into fewer than two."""
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.metrics import silhouette_score

    with warnings.catch_warnings():
        # Raised where points coincide; the silhouette of the clusters there are is the right answer then.
        warnings.simplefilter("ignore", ConvergenceWarning)
        labels = KMeans(clusters, n_init=STARTS, random_state=SEED).fit_predict(plane)
    found = len(np.unique(labels))
    return float(silhouette_score(plane, labels)) if 2 <= found < len(plane) else None
