"""Otsu's threshold: where a set of scores falls apart into two groups of least variance."""

from __future__ import annotations

import torch
from torch import Tensor

from driftgate.state import exact

GRID_STEPS = 100
"""The candidates are 0, 0.01, ..., 0.99, as in OWTTT."""


@torch.no_grad()
def otsu_threshold(values: Tensor, *, one_group: float) -> float:
    """(Q,) -> threshold t that minimises the within-group variance n0/Q var(v < t) + n1/Q var(v >= t) over the grid.

    Of equally good thresholds the smallest is taken. Where no candidate leaves values on both sides (one value,
    values that are all equal or all beyond the grid) there are no two groups, and ``one_group`` comes back.
    """
    ordered = exact(values.detach()).sort().values
    grid = torch.arange(GRID_STEPS, dtype=torch.float64, device=ordered.device) / GRID_STEPS
    below = torch.searchsorted(ordered, grid)  # how many values lie below each candidate
    split = (below > 0) & (below < len(ordered))
    if not bool(split.any()):
        return one_group
    # What two groups scatter within themselves and between each other is what all scatter: the most between is the
    # least within. Sums around the mean, or they would cancel.
    centred = ordered - ordered.mean()
    sums = torch.cat([centred.new_zeros(1), centred.cumsum(dim=0)])
    above = len(ordered) - below
    between = sums[below].square() / below.clamp_min(1) + (sums[-1] - sums[below]).square() / above.clamp_min(1)
    return float(grid[torch.where(split, between, -torch.inf).argmax()])
