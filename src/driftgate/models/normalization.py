"""Which statistics batch norm layers use, and how to leave them as they were."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

BatchNorm = nn.modules.batchnorm._BatchNorm


def keep_statistics(model: nn.Module) -> None:
    """Let batch norm normalise by its running statistics and keep them, until the model's mode is set again."""
    for layer in model.modules():
        if isinstance(layer, BatchNorm):
            layer.eval()


@contextmanager
def batch_statistics(model: nn.Module, batch_size: int, *, enabled: bool = True) -> Iterator[None]:
    """Let batch norm normalise by the batch and update its running statistics; all other layers stay in eval mode.

    One sample has no spread of its own, so a batch of one keeps the running statistics. The modes of before come back,
    so that one may stand inside another.
    """
    follow = enabled and batch_size > 1
    layers = [layer for layer in model.modules() if isinstance(layer, BatchNorm)] if follow else []
    before = [layer.training for layer in layers]
    for layer in layers:
        layer.train()
    try:
        yield
    finally:
        for layer, training in zip(layers, before, strict=True):
            layer.train(training)


@contextmanager
def frozen_statistics(model: nn.Module) -> Iterator[None]:
    """Let no forward pass change a running statistic, whatever the mode of the layers; for passes done again."""
    before = [
        (layer, layer.momentum, None if layer.num_batches_tracked is None else layer.num_batches_tracked.clone())
        for layer in model.modules()
        if isinstance(layer, BatchNorm)
    ]
    for layer, _, _ in before:
        layer.momentum = 0.0
    try:
        yield
    finally:
        for layer, momentum, count in before:
            layer.momentum = momentum
            if count is not None and layer.num_batches_tracked is not None:
                layer.num_batches_tracked.copy_(count)


@contextmanager
def preserved_buffers(model: nn.Module, *, on_error_only: bool = False) -> Iterator[None]:
    """Put every buffer back to its value at entry, always or only where an error is on its way out."""
    before = [(buffer, buffer.clone()) for buffer in model.buffers()]
    failed = True
    try:
        yield
        failed = False
    finally:
        if failed or not on_error_only:
            with torch.no_grad():
                for buffer, value in before:
                    buffer.copy_(value)
