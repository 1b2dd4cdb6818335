"""The agreement loss: another view of a picture is taught what was answered for the picture itself."""

from __future__ import annotations

import torch
from torch import Tensor

from driftgate.losses.entropy import mean_entropy

SHARPEST, HALVINGS = 0.2, 20
"""The lowest temperature of ``as_sure_as``, and how often the rest is halved: to a millionth."""


def agreement_loss(logits: Tensor, answers: Tensor) -> Tensor:
    """(N, C), (N, C) -> scalar: mean of KL(q || p) over the samples, p = softmax(``logits``) of another view.

    ``answers`` are the class probabilities q, constants here. Who was undecided is taught to be undecided: a new class
    has no right answer and is taught none. 0 where both agree and for an empty batch.
    """
    targets = answers.detach().to(logits.dtype)
    surprise = targets.xlogy(targets) - targets * logits.log_softmax(dim=1)
    return surprise.sum() / max(len(logits), 1)


@torch.no_grad()
def as_sure_as(answers: Tensor, logits: Tensor) -> Tensor:
    """(N, C), (N, C) -> (N, C): answers ** (1 / T), normalised, at the T that makes them as sure as the ``logits``.

    In the mean entropy of the batch, T from ``SHARPEST`` to 1. A pool of opinions is less sure than each of them, and
    who learns from it becomes the more undecided the longer it learns. The host reads nothing.
    """
    level, logs = mean_entropy(logits), answers.to(logits.dtype).clamp_min(torch.finfo(logits.dtype).tiny).log()
    low, high = logs.new_tensor(SHARPEST), logs.new_tensor(1.0)
    for _ in range(HALVINGS):
        middle = (low + high) / 2.0
        too_sure = mean_entropy(logs / middle) < level
        low, high = torch.where(too_sure, middle, low), torch.where(too_sure, high, middle)
    return (logs / high).softmax(dim=1)
