"""The neighbours' opinion: what was answered for the samples of a batch most like this one has a say in its answer.

A network that meets a new domain errs sample by sample, and less often on all that lie together; the neighbours of a
sample of a new class are answered for in different ways, which leaves it in doubt. Like the second opinion
(``driftgate.methods.second_opinion``) it is pooled by logarithms. It costs one matrix product and remembers nothing.
"""

from __future__ import annotations

import torch

from driftgate.memory import mean_over, nearest_others
from driftgate.models.source_model import ModelOutput

SHARE = 0.3
"""Of the neighbours in the pool by default."""

COUNT = 5
"""Neighbours that are asked."""


@torch.no_grad()
def pool_neighbors(output: ModelOutput, share: float) -> ModelOutput:
    """The same features (N, D), and for logits the logarithms (N, C) of the pool of each sample's own answer and those
    for its neighbours: p^(1 - share) times the product of their q^(share / K), K = min(``COUNT``, N - 1); without
    gradient. Directions are taken from the batch's mean: features that are never negative point all one way."""
    if share == 0 or len(output.logits) == 1:
        return output
    mine, features = output.logits.detach().float().log_softmax(dim=1), output.features.detach().float()
    theirs = mean_over(mine, nearest_others(features - features.mean(dim=0), COUNT))
    return ModelOutput(output.features, torch.lerp(mine, theirs, share).log_softmax(dim=1))
