"""Source-only: the source model as it is, rejecting by the entropy of its prediction. The baseline of every table."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field
from torch import Tensor

from driftgate.methods.base import Method, MethodSettings
from driftgate.methods.look import Look
from driftgate.novelty.rejection import entropy_prediction
from driftgate.types import Prediction


class EntropyThresholdSettings(MethodSettings):
    """Rejection by a fixed threshold.

    Attributes:
        threshold: reject where the normalised entropy of the prediction exceeds it (0.5 in the paper's code).
    """

    threshold: float = Field(default=0.5, ge=0.0, le=1.0)


class SourceOnly(
    Method,
    name="source-only",
    settings=EntropyThresholdSettings,
    look=Look("Source-only", place=10, block="baseline", colors=("#7d848e", "#a3aab4")),
):
    """The source model, never changed."""

    summary: ClassVar[str] = "the source model as it is, with a fixed entropy threshold"
    settings: EntropyThresholdSettings

    def _predict(self, images: Tensor) -> Prediction:
        return entropy_prediction(self.model(images).logits, self.settings.threshold)
