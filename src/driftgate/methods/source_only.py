"""Source-only: the source model as it is, rejecting by the entropy of its prediction. The baseline of every table."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from driftgate.methods.base import Method, MethodSettings, register
from driftgate.novelty.gate import predict_label
from driftgate.novelty.scores import entropy
from driftgate.state import exact
from driftgate.types import UNLABELED, Prediction, Thresholds


class EntropyThresholdSettings(MethodSettings):
    """Reject where the normalised entropy of the prediction exceeds ``threshold`` (0.5 in the paper's code)."""

    threshold: float = Field(default=0.5, ge=0.0, le=1.0)


def entropy_prediction(logits: Tensor, threshold: float) -> Prediction:
    """Argmax of the classifier, or unknown where its normalised entropy is above a fixed threshold."""
    novelty = entropy(exact(logits).log_softmax(dim=1))
    thresholds = Thresholds(known=-math.inf, unknown=math.inf, prediction=threshold)
    labels = predict_label(logits.argmax(dim=1), novelty, thresholds)
    return Prediction(labels, logits.softmax(dim=1), novelty, torch.full_like(labels, UNLABELED), thresholds)


@register
class SourceOnly(Method):
    """The source model, never changed."""

    name: ClassVar[str] = "source-only"
    summary: ClassVar[str] = "the source model as it is, with a fixed entropy threshold"
    Settings: ClassVar[type[MethodSettings]] = EntropyThresholdSettings
    settings: EntropyThresholdSettings

    def _predict(self, images: Tensor) -> Prediction:
        return entropy_prediction(self.model(images).logits, self.settings.threshold)
