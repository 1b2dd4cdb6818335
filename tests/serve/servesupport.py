"""What the tests of the service share."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import driftgate
from driftgate import Method


def small_model() -> driftgate.SourceModel:
    """A network that a file can rebuild, as a service needs it; it knows three classes of 28 x 28."""
    return driftgate.SourceModel.build("cnn", ["cat", "dog", "owl"], seed=0)


def small_method(**settings: Any) -> Method:
    return driftgate.create("gmm", small_model(), **settings)


def samples(count: int, seed: int) -> Tensor:
    """Random pictures as the small model takes them."""
    return torch.rand(count, 3, 28, 28, generator=torch.Generator().manual_seed(seed))
