"""Batch-norm statistics: the source model normalised by each batch, no gradient. Part of every gain is this."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from driftgate.export import BY_RUNNING
from driftgate.methods.base import Method, MethodSettings, register
from driftgate.methods.source_only import EntropyThresholdSettings, entropy_prediction
from driftgate.models.normalization import batch_statistics
from driftgate.types import Prediction


@register
class BatchNormStatistics(Method):
    """Normalise each batch by its own statistics; running statistics follow the stream."""

    name: ClassVar[str] = "bn-stats"
    summary: ClassVar[str] = "batch-norm statistics of the target batch, no gradient"
    Settings: ClassVar[type[MethodSettings]] = EntropyThresholdSettings
    settings: EntropyThresholdSettings

    def _approximation(self) -> str:
        return BY_RUNNING

    def _predict(self, images: Tensor) -> Prediction:
        with batch_statistics(self.model, len(images)):
            return entropy_prediction(self.model(images).logits, self.settings.threshold)

    def _step(self, images: Tensor) -> Prediction:
        with torch.no_grad():
            return self._predict(images)
