"""torch.compile for all but the head, kept only where a trial on this machine shows that it pays."""

from __future__ import annotations

import logging
import statistics
import time
from typing import NamedTuple

import torch
from torch import Tensor, nn

from driftgate.models.normalization import batch_statistics, preserved_buffers
from driftgate.models.source_model import SourceModel
from driftgate.rng import seeded

logger = logging.getLogger(__name__)


class CompileTrial(NamedTuple):
    """Seconds of a forward and backward pass without and with compilation; ``reason`` says why it is off, if it is."""

    plain_seconds: float
    compiled_seconds: float | None
    used: bool
    reason: str


def compile_if_faster(model: SourceModel, batch_size: int, *, rounds: int = 3) -> CompileTrial:
    """Compile the trunk, time it against the plain one, and leave the faster of the two in place.

    The rounds alternate, because the machine may be busy. Weights and statistics stay as they are.
    """
    images = torch.rand(batch_size, *model.spec.shape, generator=seeded(0)).to(model.mean.device)
    parts = parts_without(model.trunk, model.head)
    with torch.enable_grad(), preserved_buffers(model):
        _seconds(model, images)  # allocates and warms up
        plain = [_seconds(model, images)]
        for part in parts:
            part.compile()
        try:
            _seconds(model, images)  # compiles
        except Exception as error:  # a missing compiler, an operation it does not know: anything may go wrong
            switch_off(model)
            reason = " ".join(str(error).split())[:200] or type(error).__name__
            logger.warning("torch.compile failed and is off: %s", reason)
            return CompileTrial(plain[0], None, False, f"it failed: {reason}")
        compiled_calls = [part._compiled_call_impl for part in parts]
        compiled = []
        for _ in range(rounds):
            compiled.append(_seconds(model, images))
            switch_off(model)
            plain.append(_seconds(model, images))
            for part, call in zip(parts, compiled_calls, strict=True):
                part._compiled_call_impl = call
    before, after = statistics.median(plain), statistics.median(compiled)
    if after < before:
        return CompileTrial(before, after, True, "")
    switch_off(model)
    return CompileTrial(before, after, False, "it was slower here")


def switch_off(model: SourceModel) -> None:
    """Run the network as it is written again."""
    for part in parts_without(model.trunk, model.head):
        part._compiled_call_impl = None


def parts_without(network: nn.Module, head: nn.Module) -> list[nn.Module]:
    """The network in the largest parts that can be called and do not hold the head, at which a hook listens: a hook
    inside of what is compiled would be compiled too, for good."""
    if isinstance(network, nn.ModuleList) or any(module is head for module in network.modules()):
        return [part for child in network.children() if child is not head for part in parts_without(child, head)]
    return [network]


def _seconds(model: SourceModel, images: Tensor) -> float:
    started = time.perf_counter()
    with batch_statistics(model, len(images)):
        torch.autograd.backward(model(images).logits.square().mean())
    model.zero_grad(set_to_none=True)
    return time.perf_counter() - started
