"""Class-aware InfoNCE: a view finds its own other view among the keys of past samples of other classes (AdaContrast).

Keys of the same pseudo-label are no negatives: pushing a class apart would undo what the classifier learns.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F


def class_aware_info_nce(
    queries: Tensor,
    keys: Tensor,
    labels: Tensor,
    past_keys: Tensor,
    past_labels: Tensor,
    *,
    temperature: float = 0.07,
) -> Tensor:
    """-mean_i log( e(q_i, k_i) / (e(q_i, k_i) + sum_j [y_j != y_i] e(q_i, m_j)) ) with e(a, b) = exp(cos(a, b) / T).

    Args:
        queries: (N, D) features of one view; the gradient runs through them.
        keys: (N, D) features of the other view, of unit length; constants.
        labels: (N,) pseudo-labels y_i of the batch.
        past_keys: (M, D) keys m_j of past batches, of unit length as a queue keeps them; constants; M may be 0.
        past_labels: (M,) their pseudo-labels.
        temperature: T.

    A sample without any negative key contributes 0.
    """
    anchors = F.normalize(queries, dim=1)
    positive = (anchors * keys.detach()).sum(dim=1, keepdim=True) / temperature
    negative = anchors @ past_keys.detach().T / temperature
    negative = negative.masked_fill(labels[:, None] == past_labels[None, :], -math.inf)
    return (torch.cat([positive, negative], dim=1).logsumexp(dim=1) - positive.squeeze(1)).mean()
