"""Nearest neighbours by cosine similarity, in a bank of features or within a batch."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F


def cosine_similarity(one: Tensor, two: Tensor) -> Tensor:
    """(N, D), (M, D) -> (N, M); zero where a vector is zero."""
    return F.normalize(one, dim=1) @ F.normalize(two, dim=1).T


@torch.no_grad()
def nearest(query: Tensor, bank: Tensor, count: int) -> Tensor:
    """(N, D), (M, D) -> (N, K): indices of the K = min(count, M) rows of the bank that are most similar."""
    return cosine_similarity(query, bank).topk(min(count, len(bank)), dim=1).indices


@torch.no_grad()
def nearest_others(features: Tensor, count: int) -> Tensor:
    """(N, D) -> (N, K): the same within a batch, without the sample itself; K = min(count, N - 1), perhaps 0."""
    similarity = cosine_similarity(features, features)
    # Not just "drop the first": of two equal samples either may come first.
    similarity.fill_diagonal_(-math.inf)
    return similarity.topk(min(count, len(features) - 1), dim=1).indices


@torch.no_grad()
def nearest_but_first(query: Tensor, bank: Tensor, count: int) -> Tensor:
    """(N, D), (M, D) -> (N, K): the most similar rows of the bank after the very first; K = min(count, M - 1).

    Where the bank holds the queries themselves the first is the sample itself, and this is ``nearest_others``. Where it
    holds them as another pass saw them, the first may be another sample, and a sample may be its own neighbour.
    """
    return nearest(query, bank, count + 1)[:, 1:]


def mean_over(values: Tensor, indices: Tensor) -> Tensor:
    """(M, C), (N, K) -> (N, C): mean of the rows that each row of ``indices`` names; zeros where K = 0."""
    return values[indices].sum(dim=1) / max(indices.shape[1], 1)
