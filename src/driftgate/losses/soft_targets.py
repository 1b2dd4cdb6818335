"""Cross-entropy towards soft targets (GLC, LEAD): a class, nothing in particular, or what the neighbours say."""

from __future__ import annotations

import torch
from torch import Tensor

from driftgate.memory.prototypes import one_hot_weights
from driftgate.types import UNKNOWN

EPSILON = 1e-5
"""Added to every probability before the logarithm, as in the released codes of SHOT, GLC and LEAD: bounds the loss."""


def soft_cross_entropy(logits: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
    """Mean over the samples of w_i CE(q_i, p_i), CE(q, p) = - sum_c q_c log(p_c + 1e-5); a scalar comes back.

    Args:
        logits: (N, C) before the softmax.
        targets: (N, C) q, constants here; a row of zeros contributes nothing.
        weights: (N,) w, constants here; one each without.
    """
    logs = (logits.softmax(dim=1) + EPSILON).log()
    per_sample = -(targets.detach().to(logs.dtype) * logs).sum(dim=1)
    return per_sample.mean() if weights is None else (weights.detach().to(logs.dtype) * per_sample).mean()


def class_or_uniform(labels: Tensor, num_classes: int) -> Tensor:
    """(N,) -> (N, C): one at the label, 1/C everywhere for ``UNKNOWN``, zeros for a sample without a label."""
    unknown = (labels == UNKNOWN)[:, None]
    return torch.where(unknown, 1.0 / num_classes, one_hot_weights(labels, num_classes))
