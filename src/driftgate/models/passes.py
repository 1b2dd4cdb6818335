"""The network's passes of one step: forward over one or more views, one backward pass, in more or less memory.

Batch norm by the batch ties its samples together, so that it cannot be cut into pieces; but views can be taken one
after another, and the activations inside a block can be computed again instead of kept. Other networks can be cut
(``driftgate.models.pieces``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from driftgate.models.normalization import batch_statistics, frozen_statistics
from driftgate.models.source_model import ModelOutput, SourceModel

MemoryMode = Literal["fast", "balanced", "low"]


class Passes:
    """Forward passes over the views of a batch and the backward pass of a loss on all of them.

    ``fast`` keeps the graphs of all views. ``balanced`` keeps the last view's only: of the others it keeps the outputs,
    takes the gradient of the loss with respect to them, and computes the view again to go on from there. ``low`` does
    the same and computes every block of the backbone again in the backward pass. All give the same gradients.

    A model that takes its batches in pieces keeps no graph of any view, so that none is left to be deferred.
    """

    def __init__(self, model: SourceModel, *, memory: MemoryMode = "fast", follow: bool = True) -> None:
        self.model, self.memory, self.follow = model, memory, follow
        self.deferred: list[tuple[Tensor, ModelOutput]] = []
        self.batch_size = 0

    def forward(self, images: Tensor, *, last: bool) -> ModelOutput:
        """Features and logits of a view; the graph of the ``last`` one is kept in every mode."""
        self.batch_size = max(self.batch_size, len(images))
        if not torch.is_grad_enabled():
            return self._run(images)
        if self.memory == "fast" or last or self.model.piece_size is not None:
            return self._run_with_graph(images)
        with torch.no_grad():
            features, logits = self._run(images)
        leaves = ModelOutput(features.requires_grad_(), logits.requires_grad_())
        self.deferred.append((images, leaves))
        return leaves

    def backward(self, loss: Tensor) -> None:
        """Add the gradient of ``loss`` to every parameter that learns."""
        # What is computed again must be normalised as before, but the running statistics have seen it already.
        with batch_statistics(self.model, self.batch_size, enabled=self.follow), frozen_statistics(self.model):
            with nullcontext() if self.model.piece_size is None else self._blocks():  # a piece is computed as before
                torch.autograd.backward(loss)
            for images, leaves in self.deferred:
                if all(leaf.grad is None for leaf in leaves):
                    continue
                self._backward_again(images, leaves)
        self.deferred.clear()

    def _backward_again(self, images: Tensor, leaves: ModelOutput, rows: Tensor | slice = slice(None)) -> None:
        """Compute these rows of a view once more, and go on from the gradients at its outputs."""
        # Around both: what the blocks have forgotten is computed again on the way back.
        with batch_statistics(self.model, len(images[rows]), enabled=self.follow):
            again = self._run_with_graph(images[rows])
            # An output without a graph stands on frozen layers alone: nothing of it can learn.
            pairs = [
                (output, leaf.grad[rows])
                for output, leaf in zip(again, leaves, strict=True)
                if leaf.grad is not None and output.requires_grad
            ]
            if pairs:
                torch.autograd.backward([output for output, _ in pairs], [gradient for _, gradient in pairs])

    def _run(self, images: Tensor) -> ModelOutput:
        with batch_statistics(self.model, len(images), enabled=self.follow):
            output: ModelOutput = self.model(images)
        return output

    def _run_with_graph(self, images: Tensor) -> ModelOutput:
        with self._blocks():
            return self._run(images)

    def _blocks(self) -> AbstractContextManager[None]:
        """What the blocks of the backbone keep: all, or in mode ``low`` only their inputs."""
        return checkpointed(self.model.trunk, apart=self.model.head) if self.memory == "low" else nullcontext()


@contextmanager
def checkpointed(network: nn.Module, *, apart: nn.Module | None = None) -> Iterator[None]:
    """Let every block of ``network`` keep only its input, and compute its inside again in the backward pass."""
    blocks = repeated_blocks(network, apart=apart)
    for block in blocks:
        # On the instance, in front of the class's own method; deleted again below.
        block.forward = _forgetful(block, block.forward)
    try:
        yield
    finally:
        for block in blocks:
            del block.forward


def _forgetful(block: nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
    def run(*inputs: Any, **named: Any) -> Any:
        graph_before = any(isinstance(value, Tensor) and value.requires_grad for value in (*inputs, *named.values()))
        if not graph_before and not any(parameter.requires_grad for parameter in block.parameters()):
            return forward(*inputs, **named)  # no gradient comes by here, so not even the input has to be kept
        # Random layers are in eval mode, so that no random state has to be kept for the second time.
        return checkpoint(forward, *inputs, use_reentrant=False, preserve_rng_state=False, **named)

    return run


def repeated_blocks(network: nn.Module, *, apart: nn.Module | None = None) -> list[nn.Module]:
    """The blocks a network is a chain of: composite members of its lists and sequences, the outermost ones that do not
    hold the layer ``apart``, whose input is looked at and must not be computed twice."""
    blocks: list[nn.Module] = []
    chain = isinstance(network, nn.Sequential | nn.ModuleList)
    for child in network.children():
        holds = any(module is apart for module in child.modules())
        if chain and not holds and not isinstance(child, nn.Sequential | nn.ModuleList):
            if any(True for _ in child.children()):
                blocks.append(child)
        else:
            blocks += repeated_blocks(child, apart=apart)
    return blocks
