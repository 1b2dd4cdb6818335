"""SHOT-P: SHOT for targets without some source classes. Nobody is unknown, and nothing keeps predictions diverse."""

from __future__ import annotations

import math
from typing import ClassVar

from torch import Tensor

from driftgate.methods.look import Look
from driftgate.methods.shot import Shot, ShotSettings
from driftgate.types import Thresholds


class ShotPSettings(ShotSettings):
    """Settings of SHOT-P.

    Attributes:
        reject: whether to predict samples above ``threshold`` as unknown; SHOT-P itself never does.
    """

    diversity: bool = False
    reject: bool = False


class ShotP(Shot, name="shot-p", settings=ShotPSettings, look=Look("SHOT-P", place=70, colors=("#5b9a3b", "#98d377"))):
    """SHOT with every sample known and without the diversity term."""

    summary: ClassVar[str] = "SHOT for PDA: centroid labels and entropy minimisation, no rejection"
    settings: ShotPSettings

    def _fixed_threshold(self) -> float:
        return self.settings.threshold if self.settings.reject else math.inf

    def _thresholds(self, novelty: Tensor) -> Thresholds:
        return Thresholds(math.inf, math.inf, self._fixed_threshold())
