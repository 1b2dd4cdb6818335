"""A batch through a network in pieces: the outputs and gradients of the whole, in the memory of one piece."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from driftgate.models.normalization import BatchNorm
from driftgate.types import DriftgateError

Run = Callable[[Tensor], tuple[Tensor, ...]]


def in_pieces(network: nn.Module, run: Run, inputs: Tensor, size: int | None) -> tuple[Tensor, ...]:
    """What ``run`` makes of ``inputs``, ``size`` samples at a time; all at once for None.

    No piece keeps its graph: in the backward pass each is computed again when its turn comes. ``network`` is what
    ``run`` runs; it must treat every sample by itself.
    """
    if size is None:
        return run(inputs)
    if any(isinstance(layer, BatchNorm) and layer.training for layer in network.modules()):
        raise DriftgateError(
            f"Expected a network that treats every sample by itself for piece_size={size}, but its batch norm "
            "normalises by the whole batch; set batch_norm='running', or leave out piece_size and take memory='low'."
        )
    if len(inputs) <= size:
        return run(inputs)
    learns = torch.is_grad_enabled() and any(parameter.requires_grad for parameter in network.parameters())

    def forget(piece: Tensor) -> tuple[Tensor, ...]:
        # Random layers are in eval mode, so that no random state has to be kept for the second time.
        made: tuple[Tensor, ...] = checkpoint(run, piece, use_reentrant=False, preserve_rng_state=False)
        return made

    parts = [(forget if learns else run)(piece) for piece in torch.split(inputs, size)]
    return tuple(torch.cat(column) for column in zip(*parts, strict=True))
