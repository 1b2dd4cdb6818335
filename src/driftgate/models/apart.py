"""The backward pass of samples apart from each other: only those that the loss moves, a few at a time.

A batch is predicted without a graph. The loss gives the gradient at its outputs; samples where that is not zero go
forward again, in pieces, and backward from there. Where batch norm uses running statistics, or there is none, that is
the gradient of the whole batch. Where it uses the batch's, each piece is normalised by its own: another gradient, near
that of the batch where a piece is large enough. (With the batch's statistics as constants the outputs would be the
same, but the gradient would lose what keeps mean and spread in place, and the network with it.)
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from driftgate.models.normalization import frozen_statistics
from driftgate.models.passes import MemoryMode, Passes
from driftgate.models.source_model import ModelOutput, SourceModel

PIECE, PIECE_WITH_STATISTICS = 8, 16
"""Samples whose activations are kept at a time; more where they are normalised by each other."""


class ApartPasses(Passes):
    """The passes of one step with a graph of a piece at most.

    ``share`` bounds the samples that go backward: at most this share of a view, those that the loss moves most.
    """

    def __init__(
        self, model: SourceModel, *, memory: MemoryMode = "fast", follow: bool = True, share: float = 1.0
    ) -> None:
        super().__init__(model, memory=memory, follow=follow)
        self.share = share
        self.chosen: Tensor | None = None

    def choose(self, samples: Tensor) -> None:
        """Let only these samples of the batch, a mask (N,), go backward."""
        self.chosen = samples

    def forward(self, images: Tensor, *, last: bool) -> ModelOutput:
        """Features and logits of a view, without a graph."""
        with torch.no_grad():
            features, logits = self._run(images)
        if not torch.is_grad_enabled():
            return ModelOutput(features, logits)
        leaves = ModelOutput(features.requires_grad_(), logits.requires_grad_())
        self.deferred.append((images, leaves))
        return leaves

    def backward(self, loss: Tensor) -> None:
        """Add the gradient of ``loss`` to every parameter that learns."""
        torch.autograd.backward(loss)
        size = PIECE_WITH_STATISTICS if self.follow else PIECE
        with frozen_statistics(self.model):  # they have seen every sample already
            for images, leaves in self.deferred:
                rows = self._moved(leaves)
                for piece in rows.tensor_split(max(1, math.ceil(len(rows) / size))):
                    if len(piece):
                        self._backward_again(images, leaves, piece)
        self.deferred.clear()

    def _moved(self, leaves: ModelOutput) -> Tensor:
        """(K,) places of the samples to go backward, in their order."""
        gradients = [leaf.grad for leaf in leaves if leaf.grad is not None]
        if not gradients:
            return torch.zeros(0, dtype=torch.int64, device=leaves.logits.device)
        # Of each output the size relative to the batch's, or features and logits could not be added up.
        sizes = [gradient.norm(dim=1) for gradient in gradients]
        pull = torch.stack([size / size.max().clamp_min(1e-30) for size in sizes]).sum(dim=0)
        if self.chosen is not None and len(self.chosen) == len(pull):
            pull = pull * self.chosen
        moved = pull.nonzero()[:, 0]
        most = max(1, round(self.share * len(pull)))
        return moved if len(moved) <= most else pull.topk(most).indices.sort().values
