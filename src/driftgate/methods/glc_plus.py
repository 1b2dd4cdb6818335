"""GLC++: GLC with a contrastive affinity between the features of a batch."""

from __future__ import annotations

import math
from typing import ClassVar

from pydantic import Field
from torch import Tensor

from driftgate.losses.affinity import affinity_loss
from driftgate.methods.batchwise import SoftTargets
from driftgate.methods.glc import GLC, GLCSettings
from driftgate.methods.look import Look
from driftgate.models.source_model import ModelOutput


class GLCPlusSettings(GLCSettings):
    """Settings of GLC++.

    Attributes:
        affinity_weight: of the contrastive affinity (lambda_reg).
    """

    affinity_weight: float = Field(default=1.0, ge=0.0)


class GLCPlus(GLC, name="glc++", settings=GLCPlusSettings, look=Look("GLC++", place=90, colors=("#d07c17", "#f7b468"))):
    """GLC, and each sample near to its neighbours and away from those beyond its own class."""

    summary: ClassVar[str] = "GLC with contrastive affinity, applied batch-wise"
    settings: GLCPlusSettings

    def terms(self, output: ModelOutput, lesson: SoftTargets) -> dict[str, Tensor]:
        """GLC's terms and lambda_reg mean (neg - pos); s = ceil(N / (C ratio)) samples count as of the same class."""
        same_class = math.ceil(len(lesson.labels) / (self.model.num_classes * lesson.target_classes.ratio))
        affinity = affinity_loss(output.features, lesson.neighbors, same_class)
        return {**super().terms(output, lesson), "affinity": self.settings.affinity_weight * affinity}
