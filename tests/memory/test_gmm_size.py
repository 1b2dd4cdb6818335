"""How much room an update and a query of the mixture take."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from driftgate.memory import StreamingGMM
from driftgate.memory.blocks import BLOCK_ELEMENTS


class LargestArray(TorchDispatchMode):
    """The number of elements of the largest array that torch makes."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if isinstance(found, Tensor) and not func.is_view:
            self.elements = max(self.elements, found.numel())
        return found


@pytest.mark.parametrize(("samples", "classes", "dim"), [(512, 3, 64), (16, 200, 64), (1000, 2, 20)])
def test_no_array_is_larger_than_a_block_or_the_state(samples: int, classes: int, dim: int) -> None:
    """Above all none of samples x classes x dim x dim, of which the update and the query are sums."""
    features, weights = torch.randn(samples, dim), torch.rand(samples, classes)
    mixture = StreamingGMM(classes, dim, shrinkage=1.0)
    usual = torch.get_num_threads()
    torch.set_num_threads(1)  # no other thread, which would not be watched
    try:
        with LargestArray() as largest:
            mixture.update(features, weights)
            mixture.evaluate(features, prior=1.0)
    finally:
        torch.set_num_threads(usual)
    state = classes * (dim // 2 + 1) * dim
    assert largest.elements <= max(BLOCK_ELEMENTS, state)
