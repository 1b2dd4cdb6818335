"""How much of the stream is unknown: what the user knows of it, and the gate that follows from it."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

import torch
from pydantic import BeforeValidator
from torch import Tensor

from driftgate.memory.queue import RingQueue
from driftgate.novelty.gate import Gate, ordered_quantiles
from driftgate.state import exact
from driftgate.types import DriftgateError

MIDDLE = 0.5
"""What is rejected where nothing is known: the cut that loses least for the H-score, whatever the share."""

BEYOND_MIDDLE = 0.3
"""How far the cut follows a share beyond the middle: where novelty separates poorly the H-score's best cut stays near
the middle, however large the share."""


def _check_share(value: Any) -> Any:
    bounds = tuple(value) if isinstance(value, list | tuple) else (value, value)
    numbers = all(isinstance(bound, int | float) and not isinstance(bound, bool) for bound in bounds)
    if value == "auto" or (numbers and len(bounds) == 2 and 0 <= bounds[0] <= bounds[1] <= 1):
        return value
    raise ValueError("expected 'auto', a share from 0 to 1, or two bounds of it, the lower first")


UnknownShare = Annotated[Literal["auto"] | float | tuple[float, float], BeforeValidator(_check_share)]
"""``auto``; a share of the stream that is unknown, where it is known; or bounds (low, high) of it."""


def share_bounds(unknown_share: UnknownShare) -> tuple[float, float]:
    """The bounds a setting stands for: all for ``auto``, one point for a number."""
    if isinstance(unknown_share, tuple):
        return unknown_share
    if unknown_share == "auto":
        return 0.0, 1.0
    return float(unknown_share), float(unknown_share)


def share_levels(share: float, p_reject: float) -> tuple[float, float, float]:
    """Levels of the score's quantiles for the three decisions, as (known, unknown, prediction); 1 is nobody.

    Who is taught a class and who is taught to be unknown follow the share itself: of either side ``p_reject`` is left
    out, those nearest to the cut, and no more than half of all are taught a class: beyond the surer half too many of
    the labels are wrong. Who is predicted as unknown follows it up to the middle.
    """
    keep = 1.0 - p_reject
    rejected = min(share, MIDDLE) + BEYOND_MIDDLE * max(share - MIDDLE, 0.0)
    return min((1.0 - share) * keep, MIDDLE), 1.0 - share * keep, 1.0 - rejected


class ShareGate(Gate):
    """Quantiles of the recent scores at a share of unknown samples that is known, or at the middle within bounds.

    With a share of 0 nothing is rejected and nobody is taught to be unknown. State: the last ``window`` scores and how
    many there were.
    """

    def __init__(self, bounds: tuple[float, float], p_reject: float = 0.5, *, window: int = 1024) -> None:
        super().__init__(p_reject)
        low, high = bounds
        if not 0 <= low <= high <= 1 or window < 1:
            raise DriftgateError(
                f"Expected bounds of the unknown share from 0 to 1, the lower first, and a window of at least one "
                f"score but got {bounds} and {window}."
            )
        self.share = min(max(MIDDLE, low), high)
        self.recent = RingQueue(window, score=None)

    def take_in(self, novelty: Tensor) -> None:
        recent = self.recent.clone()
        recent.push(score=novelty.detach())
        self.recent = recent

    @property
    def cuts(self) -> Tensor:
        wanted = share_levels(self.share, self.p_reject)
        levels = sorted(set(wanted))
        found = ordered_quantiles(exact(self.recent["score"]), levels)
        known, unknown, prediction = (found[levels.index(level)] for level in wanted)
        # At level 1 the largest score itself would still count: nobody is meant.
        nobody = torch.full_like(known, math.inf)
        return torch.stack([known, nobody if wanted[1] >= 1.0 else unknown, nobody if wanted[2] >= 1.0 else prediction])
