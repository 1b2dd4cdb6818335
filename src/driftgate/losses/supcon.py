"""COMET's supervised contrastive loss: two views and a class prototype come together, unknown samples push away."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from driftgate.types import UNKNOWN

UnknownPairs = Literal["own", "all"]


def supcon_loss(
    projected: Tensor,
    augmented: Tensor,
    prototypes: Tensor,
    pseudo_labels: Tensor,
    *,
    temperature: float = 0.1,
    unknown_pairs: UnknownPairs = "own",
) -> Tensor:
    """Supervised contrastive loss over three views a known sample; a scalar, 0 without a graph if nobody is known.

    The views of a known sample are the prototype of its label, the sample and its augmentation, so that n known
    samples make 3n anchors. Positives of an anchor are all other views of its label. Its denominator runs over all
    other views of known samples and over both views of every unknown sample; those are never anchors. The logarithms
    are averaged over the positives of an anchor, then over the anchors.

    Args:
        projected: (N, P) projections of the images.
        augmented: (N, P) projections of their augmented views.
        prototypes: (C, P) projections of the class prototypes.
        pseudo_labels: (N,) class, ``UNKNOWN`` or ``UNLABELED``; samples without a label take no part at all.
        temperature: divides the cosine similarities.
        unknown_pairs: which similarities to unknown samples stand in an anchor's denominator: its ``own``, or those of
            ``all`` anchors (the released code).
    """
    known, unknown = pseudo_labels >= 0, pseudo_labels == UNKNOWN
    if not bool(known.any()):
        return projected.new_zeros(())
    labels = pseudo_labels[known]
    anchors = F.normalize(torch.cat([prototypes[labels], projected[known], augmented[known]]), dim=1, eps=1e-6)
    others = F.normalize(torch.cat([projected[unknown], augmented[unknown]]), dim=1, eps=1e-6)

    similarity, to_unknown = anchors @ anchors.T / temperature, anchors @ others.T / temperature
    if unknown_pairs == "all":
        to_unknown = to_unknown.reshape(1, -1).logsumexp(dim=1, keepdim=True).expand(len(anchors), 1)
    itself = torch.eye(len(anchors), dtype=torch.bool, device=similarity.device)
    # Two more views of the same sample are always left, so that no denominator is empty.
    rivals = torch.cat([similarity.masked_fill(itself, -math.inf), to_unknown], dim=1)
    log_shares = similarity - rivals.logsumexp(dim=1, keepdim=True)

    anchor_labels = labels.repeat(3)
    positive = (anchor_labels[:, None] == anchor_labels) & ~itself
    per_anchor = torch.where(positive, log_shares, 0.0).sum(dim=1) / positive.sum(dim=1)
    return -per_anchor.mean()
