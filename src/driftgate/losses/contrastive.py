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
    views = F.normalize(reduced, dim=1, eps=1e-6)
    centers = F.normalize(means.detach().to(views), dim=1, eps=1e-6)

    # Pair term: row i is the anchor, column j its partner, the denominator runs over all partners of i. All rows are
    # computed and those of no known sample left out by a mask: to pick them a device would have to be waited for.
    similarity = views @ views.T / temperature
    positive = (pseudo_labels[:, None] == pseudo_labels) & known
    if not self_pairs:
        itself = torch.eye(len(views), dtype=torch.bool, device=views.device)
        positive = positive & ~itself
        similarity = similarity.masked_fill(itself, -1e9)  # finite: a lone sample must not make NaN
    log_share = torch.where(positive, similarity - similarity.logsumexp(dim=1, keepdim=True), 0.0)
    per_anchor = -log_share.sum(dim=1)

    # Mean term: how well each known sample and the mean of its class find each other.
    to_means = views @ centers.T / temperature
    logs = to_means.log_softmax(dim=0 if mean_term == "samples" else 1)
    per_mean = torch.where(known, -logs.gather(1, pseudo_labels.clamp_min(0)[:, None]).squeeze(1), 0.0)

    if reduction == "sum":
        return per_anchor.sum() + per_mean.sum()
    positives = positive.sum(dim=1)
    paired = (positives > 0).sum().clamp_min(1)
    return (per_anchor / positives.clamp_min(1)).sum() / paired + per_mean.sum() / known.sum().clamp_min(1)
