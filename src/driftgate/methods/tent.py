"""Tent: make the predictions sure by moving scale and shift of the norm layers (Wang et al., ICLR 2021)."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field
from torch import Tensor

from driftgate.losses import mean_entropy
from driftgate.methods.gradient import GradientSettings
from driftgate.methods.look import Look
from driftgate.methods.one_step import OneStep
from driftgate.methods.source_only import EntropyThresholdSettings
from driftgate.models.source_model import ModelOutput
from driftgate.novelty.rejection import entropy_prediction
from driftgate.types import Prediction


class TentSettings(GradientSettings, EntropyThresholdSettings):
    """Settings of Tent; the defaults are those published for ImageNet with batches of 64.

    Attributes:
        lr, backbone_lr_scale: one rate for all norm layers, wherever they stand.
        adapt_layers: batch norm over pictures alone, as in the public code; with ``norm`` the bottleneck's batch norm
            learns too, and the norm layers of a transformer, which has no other.
        threshold: reject where the normalised entropy exceeds it; Tent itself rejects nothing.
    """

    lr: float = Field(default=0.00025, gt=0.0)
    backbone_lr_scale: float = Field(default=1.0, ge=0.0)
    adapt_layers: str = "norm2d"


class Tent(
    OneStep,
    name="tent",
    settings=TentSettings,
    look=Look("Tent", place=30, block="baseline", colors=("#0e8fa5", "#4fc6d9")),
):
    """Entropy minimisation on the affine parameters of batch norm, normalised by the current batch."""

    summary: ClassVar[str] = "entropy minimisation on the norm layers (closed-set); entropy threshold"
    universal: ClassVar[bool] = False
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "imagenet": {"lr": 0.00025},
        "cifar": {"optimizer": "adam", "lr": 0.001},
    }
    settings: TentSettings

    def assess(self, output: ModelOutput) -> Prediction:
        return entropy_prediction(output.logits, self.settings.threshold)

    def loss(self, output: ModelOutput, prediction: Prediction) -> dict[str, Tensor]:
        """Mean entropy of the predictions."""
        return {"entropy": mean_entropy(output.logits)}
