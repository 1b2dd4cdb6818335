"""The contrastive loss (Eq. 5): known samples gather around their class and its mean, away from all others."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from driftgate.losses.kl import Reduction

MeanTerm = Literal["samples", "classes"]


def contrastive_loss(
    reduced: Tensor,
    pseudo_labels: Tensor,
    means: Tensor,
    *,
    temperature: float = 0.1,
    reduction: Reduction = "sum",
    self_pairs: bool = True,
    mean_term: MeanTerm = "samples",
) -> Tensor:
    """Eq. 5 over M = 2N views; a scalar comes back, 0 where no sample is known.

    Args:
        reduced: (M, R) reduced features of the images and their augmentations.
        pseudo_labels: (M,) class, ``UNKNOWN`` or ``UNLABELED``. Anchors and positives are the known samples only;
            all M samples stand in the denominators.
        means: (C, R) means of the mixture, constants here.
        temperature: the paper's tau.
        reduction: ``sum`` as in Eq. 5; ``mean`` averages over the positives of an anchor, then over the anchors.
        self_pairs: whether a sample is a positive of itself, as the indices of Eq. 5 say. Without, it also leaves its
            own denominator.
        mean_term: what the mean's denominator runs over: all ``samples`` for a fixed mean (Eq. 5), or the means of all
            ``classes`` for a fixed sample (the prose, and GMM-COMET).
    """
    known = pseudo_labels >= 0
    if not bool(known.any()):
        return reduced.sum() * 0.0
    views = F.normalize(reduced, dim=1, eps=1e-6)
    centers = F.normalize(means.detach().to(views.dtype), dim=1, eps=1e-6)
    anchor_labels = pseudo_labels[known]

    # Pair term: row i is the anchor, column j its partner, the denominator runs over all partners of i.
    similarity = views[known] @ views.T / temperature
    positive = anchor_labels[:, None] == pseudo_labels[None, :]
    if not self_pairs:
        itself = torch.zeros_like(positive)
        itself[torch.arange(len(anchor_labels)), known.nonzero().squeeze(1)] = True
        positive &= ~itself
        similarity = similarity.masked_fill(itself, -1e9)  # finite: a lone sample must not make NaN
    log_share = torch.where(positive, similarity - similarity.logsumexp(dim=1, keepdim=True), 0.0)
    per_anchor = -log_share.sum(dim=1)

    # Mean term: how well each known sample and the mean of its class find each other.
    to_means = views @ centers.T / temperature
    logs = to_means.log_softmax(dim=0 if mean_term == "samples" else 1)
    per_mean = -logs[known].gather(1, anchor_labels[:, None]).squeeze(1)

    if reduction == "sum":
        return per_anchor.sum() + per_mean.sum()
    positives = positive.sum(dim=1)
    paired = (positives > 0).sum().clamp_min(1)
    return (per_anchor / positives.clamp_min(1)).sum() / paired + per_mean.mean()
