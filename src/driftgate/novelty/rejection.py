"""Rejection by a fixed threshold on the entropy of the prediction: what every method without a gate of its own does."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from driftgate.novelty.gate import predict_label
from driftgate.novelty.scores import entropy
from driftgate.state import exact
from driftgate.types import UNLABELED, Prediction, Thresholds


def entropy_prediction(logits: Tensor, threshold: float) -> Prediction:
    """Logits (N, C) -> argmax of the classifier, or unknown where its normalised entropy is above ``threshold``."""
    logits = logits.detach()
    novelty = entropy(exact(logits).log_softmax(dim=1))
    thresholds = Thresholds(known=-math.inf, unknown=math.inf, prediction=threshold)
    labels = predict_label(logits.argmax(dim=1), novelty, thresholds)
    return Prediction(labels, logits.softmax(dim=1), novelty, torch.full_like(labels, UNLABELED), thresholds)
