"""How much a stream has to teach: little to a classifier that is at home in it.

A network that is sure of nearly everything needs no adapting, and whatever it learns from its own answers can only harm
it. Told by the share of samples that the classifier as it came is in doubt of; the largest it ever was counts, so that
a stream that drifts away later is learned from at the full rate from then on.
"""

from __future__ import annotations

import torch
from torch import Tensor

AT_HOME = 0.25
"""Share of samples in doubt from which on a stream teaches at the full rate; below it in proportion."""

LEAST = 0.2
"""Factor of the loss where nothing is in doubt: a network may be sure and wrong, so that it never stops learning."""

RATE = 0.1
"""How fast the share follows the stream."""


def follow_doubt(doubt: Tensor, entropies: Tensor, above: float) -> Tensor:
    """(2,), (N,) -> (2,): the running share of samples whose normalised entropy lies above, and the largest so far.

    ``doubt`` is zeros before the first batch, which then is the share itself.
    """
    share = (entropies > above).to(doubt).mean()
    running = torch.where(doubt[1] > 0, doubt[0] + RATE * (share - doubt[0]), share)
    return torch.stack([running, torch.maximum(running, doubt[1])])


def need(doubt: Tensor) -> Tensor:
    """(2,) -> () from ``LEAST`` to 1: the factor of the loss."""
    return (doubt[1] / AT_HOME).clamp(LEAST, 1.0)
