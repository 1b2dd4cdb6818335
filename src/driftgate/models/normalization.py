"""Which statistics batch norm layers use, and how to leave them as they were."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

BatchNorm = nn.modules.batchnorm._BatchNorm


@contextmanager
def batch_statistics(model: nn.Module, batch_size: int) -> Iterator[None]:
    """Let batch norm normalise by the batch and update its running statistics; all other layers stay in eval mode.

    One sample has no spread of its own, so a batch of one keeps the running statistics.
    """
    layers = [layer for layer in model.modules() if isinstance(layer, BatchNorm)] if batch_size > 1 else []
    for layer in layers:
        layer.train()
    try:
        yield
    finally:
        for layer in layers:
            layer.eval()


@contextmanager
def preserved_buffers(model: nn.Module) -> Iterator[None]:
    """Put every buffer back to its value at entry, whatever happens inside."""
    before = [(buffer, buffer.clone()) for buffer in model.buffers()]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, value in before:
                buffer.copy_(value)
