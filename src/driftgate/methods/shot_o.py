"""SHOT-O: SHOT for targets with unknown classes. The half of higher entropy is unknown and left out of the labels."""

from __future__ import annotations

from typing import ClassVar, Literal

from torch import Tensor

from driftgate.methods.look import Look
from driftgate.methods.shot import Shot, ShotSettings
from driftgate.novelty.two_means import two_means_threshold
from driftgate.types import Thresholds


class ShotOSettings(ShotSettings):
    """Settings of SHOT-O.

    Attributes:
        rejection: ``two-means`` predicts as unknown what the batch's 2-means split says (SHOT's own rule); ``fixed``
            what lies above ``threshold``. What is learned from follows the split in both.
    """

    rejection: Literal["two-means", "fixed"] = "two-means"


class ShotO(Shot, name="shot-o", settings=ShotOSettings, look=Look("SHOT-O", place=60, colors=("#1f8a70", "#4cc8a8"))):
    """SHOT with a 2-means split of the entropies into known and unknown."""

    summary: ClassVar[str] = "SHOT for ODA and OPDA: centroid labels, information maximisation, 2-means rejection"
    settings: ShotOSettings

    def _fixed_threshold(self) -> float | None:
        return None if self.settings.rejection == "two-means" else self.settings.threshold

    def _thresholds(self, novelty: Tensor) -> Thresholds:
        split = two_means_threshold(novelty)
        return Thresholds(split, split, split if self.settings.rejection == "two-means" else self.settings.threshold)
