"""Which statistics batch norm layers use, and how to leave them as they were."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn

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


@torch.no_grad()
def restate_statistics(model: nn.Module, images: Tensor, rate: float = 0.5) -> None:
    """Let the running statistics go ``rate`` of the way to those of ``images`` in the network as it is now.

    A network that learns leaves statistics that follow slowly behind, and a second view pulls them aside. Where the
    network has diverged they stay.
    """
    before, layers = buffer_values(model), [layer for layer in model.modules() if isinstance(layer, BatchNorm)]
    momenta = [layer.momentum for layer in layers]
    for layer in layers:
        layer.momentum = rate
    with batch_statistics(model, len(images)):
        output = model(images)
    for layer, momentum in zip(layers, momenta, strict=True):
        layer.momentum = momentum
    if not all(bool(part.isfinite().all()) for part in output):
        restore_buffers(model, before)


class NormStatistics(NamedTuple):
    """Running mean and variance of a network's last batch norm layer, (F,) each; copies."""

    mean: Tensor
    variance: Tensor


def last_statistics(model: nn.Module) -> NormStatistics | None:
    """The running statistics of the last batch norm layer; None where there is none that keeps any."""
    layer = _last_norm(model)
    if layer is None or layer.running_mean is None or layer.running_var is None:
        return None
    return NormStatistics(layer.running_mean.clone(), layer.running_var.clone())


def batch_mean_shift(model: nn.Module, before: NormStatistics) -> Tensor:
    """Squared distance of a batch's mean from the running one, in running variances, mean over the channels; a scalar.

    For the last batch norm layer, whose running statistics were ``before`` and have followed one batch since: what it
    followed is the batch's own mean.
    """
    layer = _last_norm(model)
    assert layer is not None and layer.running_mean is not None and layer.num_batches_tracked is not None
    rate = 1.0 / float(layer.num_batches_tracked) if layer.momentum is None else layer.momentum
    moved = (layer.running_mean - before.mean) / rate
    return (moved.square() / (before.variance + layer.eps)).mean()


def _last_norm(model: nn.Module) -> BatchNorm | None:
    layers = [layer for layer in model.modules() if isinstance(layer, BatchNorm)]
    return layers[-1] if layers else None


def buffer_values(model: nn.Module) -> list[Tensor]:
    """Copies of all buffers, to be put back by ``restore_buffers``."""
    return [buffer.clone() for buffer in model.buffers()]


@torch.no_grad()
def restore_buffers(model: nn.Module, values: list[Tensor]) -> None:
    """Put every buffer back to what ``buffer_values`` gave."""
    for buffer, value in zip(model.buffers(), values, strict=True):
        buffer.copy_(value)


@contextmanager
def preserved_buffers(model: nn.Module, *, on_error_only: bool = False) -> Iterator[None]:
    """Put every buffer back to its value at entry, always or only where an error is on its way out."""
    before = buffer_values(model)
    failed = True
    try:
        yield
        failed = False
    finally:
        if failed or not on_error_only:
            restore_buffers(model, before)


@torch.no_grad()
def batch_is_steadier(model: nn.Module, images: Tensor, view: Tensor) -> bool:
    """Whether more samples keep their class in another view by the batch's own statistics than by the source's.

    Whichever statistics suit a network, its answers hang less on how a picture is taken. Changes nothing.
    """
    kept = []
    for by_batch in (True, False):
        with preserved_buffers(model), batch_statistics(model, len(images), enabled=by_batch):
            kept.append(int((model(images).logits.argmax(dim=1) == model(view).logits.argmax(dim=1)).sum()))
    return kept[0] > kept[1]
