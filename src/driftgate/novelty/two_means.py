"""The best cut of scores into two groups: K-means with two centres in one dimension, solved exactly."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from driftgate.state import exact

SAME = 1e-6
"""Scores that differ by no more are equal up to the network's rounding, and show no two groups."""


def two_means_threshold(scores: Tensor) -> float:
    """(N,) -> half-way between the two centres of the optimal 2-means; infinity where all scores are the same.

    In one dimension the groups are a lower and an upper part of the sorted scores, so that all N - 1 cuts can be tried:
    the best has the largest sum of squares between its groups.
    """
    ordered = exact(scores.detach()).sort().values
    if len(ordered) < 2 or float(ordered[-1] - ordered[0]) <= SAME:
        return math.inf
    # Around the mean the upper part sums to minus the lower one.
    lower_sums = (ordered - ordered.mean()).cumsum(dim=0)[:-1]
    lower = torch.arange(1, len(ordered), dtype=torch.float64, device=ordered.device)
    between = lower_sums.square() * (1 / lower + 1 / (len(ordered) - lower))
    cut = int(between.argmax()) + 1
    return float(ordered[:cut].mean() + ordered[cut:].mean()) / 2
