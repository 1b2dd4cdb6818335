"""GLC++: GLC with a contrastive affinity between the features of a batch."""

from __future__ import annotations

import math
from typing import ClassVar

from pydantic import Field
from torch import Tensor

from driftgate.losses.affinity import affinity_loss
from driftgate.methods.base import MethodSettings, register
from driftgate.methods.batchwise import SoftTargets
from driftgate.methods.glc import GLC, GLCSettings
from driftgate.models.source_model import ModelOutput


class GLCPlusSettings(GLCSettings):
    """Settings of GLC++.

    Attributes:
        affinity_weight: of the contrastive affinity (lambda_reg).
    """

    affinity_weight: float = Field(default=1.0, ge=0.0)


@register
class GLCPlus(GLC):
    """GLC, and each sample near to its neighbours and away from those beyond its own class."""

    name: ClassVar[str] = "glc++"
    summary: ClassVar[str] = "GLC with contrastive affinity, applied batch-wise"
    Settings: ClassVar[type[MethodSettings]] = GLCPlusSettings
    settings: GLCPlusSettings

    def _loss(self, output: ModelOutput, lesson: SoftTargets) -> Tensor:
        """GLC's loss + lambda_reg mean (neg - pos); s = ceil(N / (C ratio)) samples count as of the same class."""
        same_class = math.ceil(len(lesson.labels) / (self.model.num_classes * lesson.target_classes.ratio))
        affinity = affinity_loss(output.features, lesson.neighbors, same_class)
        return super()._loss(output, lesson) + self.settings.affinity_weight * affinity
