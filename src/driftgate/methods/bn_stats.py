"""Batch-norm statistics: the source model normalised by each batch, no gradient. Part of every gain is this."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from driftgate.export import BY_RUNNING
from driftgate.methods.base import Method
from driftgate.methods.look import Look
from driftgate.methods.source_only import EntropyThresholdSettings
from driftgate.models.normalization import batch_statistics
from driftgate.novelty.rejection import entropy_prediction
from driftgate.types import Prediction


class BatchNormStatistics(
    Method,
    name="bn-stats",
    settings=EntropyThresholdSettings,
    look=Look("BN statistics", place=20, block="baseline", colors=("#3b7dd8", "#74a9f2")),
):
    """Normalise each batch by its own statistics; running statistics follow the stream."""

    summary: ClassVar[str] = "batch-norm statistics of the target batch, no gradient"
    settings: EntropyThresholdSettings

    def _approximation(self) -> str:
        return BY_RUNNING

    def _predict(self, images: Tensor) -> Prediction:
        with batch_statistics(self.model, len(images)):
            return entropy_prediction(self.model(images).logits, self.settings.threshold)

    def _step(self, images: Tensor) -> Prediction:
        with torch.no_grad():
            return self._predict(images)
