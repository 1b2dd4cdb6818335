"""A second opinion: what the network says of a batch by the other statistics of batch norm.

By the statistics of its training and by those of the batch a network errs on different pictures, and where it errs it
is seldom sure. The two are pooled by their logarithms (a logarithmic opinion pool): whoever is undecided has no say.
The pool is better than either even where one of them alone is far worse, so that nobody has to know which one suits a
stream. It costs a forward pass without a gradient.
"""

from __future__ import annotations

import torch
from torch import Tensor

from driftgate.models.normalization import BatchNorm, batch_statistics, preserved_buffers
from driftgate.models.source_model import ModelOutput, SourceModel
from driftgate.state import State

SHARE = 0.25
"""Of the second opinion in the pool; the first is that of the statistics the network was trained by."""


def opinion_share(asked: float | None, model: SourceModel) -> float:
    """What was asked for; by default ``SHARE`` for a pretrained backbone with batch norm that takes batches whole.

    A network trained from scratch learns as a whole and fast, and leaves the statistics of its training behind.
    """
    if asked is not None:
        return asked
    layers = (name for name, layer in model.named_modules() if isinstance(layer, BatchNorm))
    in_backbone = any(model.part_of(name) == "backbone" for name in layers)
    return SHARE if model.spec.pretrained and model.piece_size is None and in_backbone else 0.0


class SecondOpinion(State):
    """The share of the other statistics in every answer, and where the network follows the batch, the source's.

    ``statistics`` is (2F,), running mean and variance of all F channels that batch norm sees; empty where nobody asks
    for them or the network itself keeps them.
    """

    statistics: Tensor

    def __init__(self, model: SourceModel, share: float, *, keeps_source: bool) -> None:
        super().__init__()
        self.share = share
        kept = _running(model) if share > 0 and keeps_source else []
        self.keep(statistics=torch.cat(kept) if kept else torch.zeros(0))

    @torch.no_grad()
    def ask(self, model: SourceModel, images: Tensor, *, by_batch: bool) -> Tensor | None:
        """(N, C) logits by the source's statistics where the network goes ``by_batch``, else by the batch's; None
        where nobody asks. The network is left as it was."""
        if self.share == 0:
            return None
        with preserved_buffers(model), batch_statistics(model, len(images), enabled=not by_batch):
            if by_batch and len(self.statistics):
                first = 0
                for running in _running(model):
                    running.copy_(self.statistics[first : first + len(running)])
                    first += len(running)
            logits: Tensor = model(images).logits
        return logits

    def pool(self, output: ModelOutput, other: Tensor | None) -> ModelOutput:
        """The same features, and for logits the logarithms of the pooled probabilities, (N, C), without gradient."""
        if other is None:
            return output
        mine, theirs = (logits.detach().float().log_softmax(dim=1) for logits in (output.logits, other))
        # Statistics that do not suit a network at all may carry it beyond the numbers: then it has no say either.
        theirs = torch.where(theirs.isfinite().all(dim=1, keepdim=True), theirs, mine)
        return ModelOutput(output.features, torch.lerp(mine, theirs, self.share).log_softmax(dim=1))


def _running(model: SourceModel) -> list[Tensor]:
    """Running mean and variance of every batch norm layer that keeps any; the buffers themselves."""
    layers = (layer for layer in model.modules() if isinstance(layer, BatchNorm))
    pairs = ((layer.running_mean, layer.running_var) for layer in layers)
    return [buffer for pair in pairs for buffer in pair if buffer is not None]
