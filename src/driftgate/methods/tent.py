"""Tent: make the predictions sure by moving scale and shift of the norm layers (Wang et al., ICLR 2021)."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field
from torch import Tensor

from driftgate.losses import mean_entropy
from driftgate.methods.base import MethodSettings, register
from driftgate.methods.gradient import GradientMethod, GradientSettings
from driftgate.methods.source_only import EntropyThresholdSettings, entropy_prediction
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


@register
class Tent(GradientMethod):
    """Entropy minimisation on the affine parameters of batch norm, normalised by the current batch."""

    name: ClassVar[str] = "tent"
    summary: ClassVar[str] = "entropy minimisation on the norm layers (closed-set); entropy threshold"
    universal: ClassVar[bool] = False
    Settings: ClassVar[type[MethodSettings]] = TentSettings
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "imagenet": {"lr": 0.00025},
        "cifar": {"optimizer": "adam", "lr": 0.001},
    }
    settings: TentSettings

    def _predict(self, images: Tensor) -> Prediction:
        return entropy_prediction(self._forward(self._passes(), images).logits, self.settings.threshold)

    def _step(self, images: Tensor) -> Prediction:
        passes = self._passes()
        logits = self._forward(passes, images).logits
        # Predicted by the pass it learns from, before the weights move: one forward pass a step, as in the paper.
        prediction = entropy_prediction(logits.detach(), self.settings.threshold)
        self._tell(prediction)
        self._learn(passes, mean_entropy(logits))
        return prediction
