"""GLC's one-vs-all clustering: for each class, K-means over the samples that are not among its own surest."""

from __future__ import annotations

import torch
from torch import Tensor

from driftgate.state import exact

MOST_ROUNDS = 100
LARGEST_BLOCK = 2**21
"""Numbers of one array of (classes, clusters, samples); beyond it the classes are taken in blocks."""


def negative_similarity(features: Tensor, negatives: Tensor, num_clusters: int) -> Tensor:
    """(N, D), (G, N) -> (G, N): cosine of each sample with the nearest cluster centre of each group's negatives.

    ``negatives`` tells the samples of each of G groups, as many in each; ``num_clusters`` becomes their number where
    it is larger. Minus infinity where there are none. Not scikit-learn's K-means, which takes one group a call: 25
    times as long for 9 groups of 64 samples, 45 times for 64.
    """
    size = int(negatives.sum(dim=1).min()) if len(negatives) else 0
    if size == 0:
        return features.new_full(negatives.shape, -torch.inf)
    clusters = min(num_clusters, size)
    groups = max(LARGEST_BLOCK // (clusters * len(features)), 1)
    points = exact(features)
    gram = points @ points.T
    parts = [_nearest_center(gram, part, clusters) for part in torch.split(negatives, groups)]
    return torch.cat(parts).to(features)


def _nearest_center(gram: Tensor, members: Tensor, clusters: int) -> Tensor:
    """(N, N), (G, N) -> (G, N): see above. A centre is a mean of samples, so all products with it follow from ``gram``,
    and the size of the features does not matter."""
    shares = group_means(gram, members, clusters)
    products = shares @ gram
    lengths = (products * shares).sum(dim=2, keepdim=True).clamp_min(0).sqrt()
    cosine = products / lengths.clamp_min(1e-12)
    # A cluster that all its samples have left is none.
    return cosine.masked_fill(shares.sum(dim=2, keepdim=True) == 0, -torch.inf).amax(dim=1)


def group_means(gram: Tensor, members: Tensor, clusters: int) -> Tensor:
    """(N, N), (G, N) -> (G, K, N): Lloyd's algorithm in all groups at once; what share each sample has in each centre.

    It starts with the samples farthest from each other, so that no random number is needed. A row of zeros is a
    cluster without samples.
    """
    inside = members.to(gram)
    seeds = _spread_out(gram, inside, clusters)
    centers = torch.nn.functional.one_hot(seeds, gram.shape[0]).to(gram.dtype)
    before: Tensor | None = None
    for _ in range(MOST_ROUNDS):
        products = centers @ gram
        # Squared distance without the sample's own length, which is the same for all centres.
        distances = (products * centers).sum(dim=2, keepdim=True) - 2 * products
        nearest = distances.argmin(dim=1, keepdim=True)
        if before is not None and torch.equal(nearest, before):
            break
        before = nearest
        assigned = torch.zeros_like(centers).scatter_(1, nearest, inside[:, None])
        counts = assigned.sum(dim=2, keepdim=True)
        centers = torch.where(counts > 0, assigned / counts.clamp_min(1), centers)
    return torch.where(counts > 0, centers, 0.0)


def _spread_out(gram: Tensor, inside: Tensor, clusters: int) -> Tensor:
    """(G, K): the member farthest from the group's mean, then again and again the one farthest from those chosen."""
    lengths = gram.diagonal()
    apart = (lengths[:, None] + lengths - 2 * gram).clamp_min(0)
    mean = inside / inside.sum(dim=1, keepdim=True)
    # Up to a constant of the group; only the order counts.
    distance = lengths - 2 * mean @ gram
    outside = inside == 0
    chosen = [distance.masked_fill(outside, -torch.inf).argmax(dim=1)]
    distance = apart[chosen[0]]
    while len(chosen) < clusters:
        chosen.append(distance.masked_fill(outside, -torch.inf).argmax(dim=1))
        distance = torch.minimum(distance, apart[chosen[-1]])
    return torch.stack(chosen, dim=1)
