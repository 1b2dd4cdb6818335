"""The KL divergence loss (Eq. 6) and its stable forms: confident on known samples, undecided on unknown ones."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from driftgate.types import UNKNOWN

KLForm = Literal["paper", "bounded", "cross_entropy", "comet"]
Reduction = Literal["sum", "mean"]


def kl_from_uniform(logits: Tensor) -> Tensor:
    """(N, C) -> (N,): KL(u || softmax(logits)) of Eq. 7, u uniform over the classes."""
    return -logits.log_softmax(dim=1).mean(dim=1) - math.log(logits.shape[1])


def kl_loss(
    logits: Tensor,
    pseudo_labels: Tensor,
    *,
    form: KLForm = "paper",
    reduction: Reduction = "sum",
    temperature: float = 0.1,
) -> Tensor:
    """Loss of the classifier on the pseudo-labels; ``logits`` (N, C), ``pseudo_labels`` (N,), a scalar comes back.

    Forms:
        ``paper``: Eq. 6, minus KL(u || f) on known and plus on unknown samples. Unbounded below.
        ``bounded``: the same with softmax(f / temperature) in place of f, what the released code optimises up to a
            constant; its gradient vanishes once a sample is confident.
        ``cross_entropy``: the supplement's remedy, cross-entropy towards the pseudo-label on known and towards the
            uniform distribution on unknown samples.
        ``comet``: COMET's entropy loss, the normalised entropy on known minus that on unknown samples.

    ``mean`` averages over the known and over the unknown samples apart, so that neither drowns the other; ``sum`` adds
    all samples. An empty set contributes nothing.
    """
    known, unknown = pseudo_labels >= 0, pseudo_labels == UNKNOWN
    if form == "cross_entropy":
        per_sample = torch.where(
            known,
            F.cross_entropy(logits, pseudo_labels.clamp_min(0), reduction="none"),
            kl_from_uniform(logits),
        )
        return _reduce(per_sample, known, reduction) + _reduce(per_sample, unknown, reduction)
    if form == "comet":
        confidence = _normalised_entropy(logits).neg()
    elif form == "bounded":
        confidence = kl_from_uniform(logits.softmax(dim=1) / temperature)
    else:
        confidence = kl_from_uniform(logits)
    return _reduce(confidence, unknown, reduction) - _reduce(confidence, known, reduction)


def _normalised_entropy(logits: Tensor) -> Tensor:
    logs = logits.log_softmax(dim=1)
    return -(logs.exp() * logs).sum(dim=1) / max(math.log(logits.shape[1]), 1e-12)


def _reduce(values: Tensor, mask: Tensor, reduction: Reduction) -> Tensor:
    total = torch.where(mask, values, 0.0).sum()
    return total / mask.sum().clamp_min(1) if reduction == "mean" else total
