"""Entropies with a gradient: of each prediction, to make it sure, and of their mean, to keep all classes in use."""

from __future__ import annotations

import math

from torch import Tensor


def mean_entropy(logits: Tensor) -> Tensor:
    """(N, C) -> scalar: mean of H(p) = -sum p log p over the samples, in nats (Tent, SHOT)."""
    logs = logits.log_softmax(dim=1)
    return -(logs.exp() * logs).sum(dim=1).mean()


def negative_marginal_entropy(logits: Tensor) -> Tensor:
    """(N, C) -> scalar: -H(mean of p over the samples), in nats; smallest where all classes are used alike.

    Taken on logarithms, so that a class nobody predicts neither needs an epsilon nor gives NaN.
    """
    logs = logits.log_softmax(dim=1).logsumexp(dim=0) - math.log(len(logits))
    return (logs.exp() * logs).sum()
