"""GLC++'s contrastive affinity: near to the neighbours, away from those near but hardly of the same class."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F


def affinity_loss(features: Tensor, neighbors: Tensor, skip: int) -> Tensor:
    """Mean over i of neg_i - pos_i; a scalar.

    pos_i is the sum of the cosines of sample i with its K neighbours; neg_i the sum over the K samples that follow
    after the ``skip`` most similar ones, which may be of the same class. Only sample i itself has a gradient.

    Args:
        features: (N, D), any length.
        neighbors: (N, K) indices into the batch; K perhaps 0. A sample that is its own neighbour has cosine 1 with
            itself, and no gradient from it.
        skip: s; less where the batch would end before s + K.
    """
    units = F.normalize(features, dim=1)
    similarity = units @ units.detach().T
    others, count = len(features) - 1, neighbors.shape[1]
    start = max(min(skip, others - count), 0)
    with torch.no_grad():
        order = similarity.clone().fill_diagonal_(-math.inf).argsort(dim=1, descending=True, stable=True)
    negatives = order[:, start : min(start + count, others)]
    return (similarity.gather(1, negatives).sum(dim=1) - similarity.gather(1, neighbors).sum(dim=1)).mean()
