"""GLC: global one-vs-all clustering decides class or unknown, local agreement with the neighbours smooths it."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from driftgate.memory.prototypes import surest_samples
from driftgate.methods.batchwise import SoftTargetMethod, SoftTargetSettings
from driftgate.methods.look import Look
from driftgate.methods.one_vs_all import negative_similarity
from driftgate.methods.target_classes import TargetClasses
from driftgate.types import UNKNOWN

GLC_PRESETS: dict[str, dict[str, Any]] = {
    "visda": {"lr": 1e-4, "pseudo_label_weight": 0.3},
    "office-home": {"lr": 1e-3, "pseudo_label_weight": 1.5},
    "domainnet": {"lr": 1e-4, "pseudo_label_weight": 1.5},
    "released": {"lr": 1e-4, "pseudo_label_weight": 0.3, "neighbor_rule": "released"},  # VisDA-C's numbers
}


class GLCSettings(SoftTargetSettings):
    """Settings of GLC.

    Attributes:
        prior_floor: weight of a class whose surest samples have probability zero (rho).
    """

    prior_floor: float = Field(default=0.75, ge=0.0, le=1.0)


def one_vs_all_labels(
    features: Tensor, probabilities: Tensor, target_classes: TargetClasses, prior_floor: float
) -> Tensor:
    """Unit features (N, D), (N, C) -> (N,): the class of the nearest positive prototype, or ``UNKNOWN``.

    The M surest samples of a class are its positives, all others its negatives, which K-means cuts into K* clusters. A
    sample is unknown if w_c <z, positive prototype> lies below its product with any negative one, where
    w_c = rho + (1 - rho) mean of the positives' probabilities.
    """
    samples, num_classes = probabilities.shape
    positives = surest_samples(probabilities, target_classes.share(samples, num_classes))
    prior = prior_floor + (1.0 - prior_floor) * probabilities.gather(0, positives).mean(dim=0)
    similarity = features @ F.normalize(features[positives].mean(dim=0), dim=1).T
    nearest, classes = similarity.max(dim=1)
    # Only classes that are somebody's nearest are asked, never more than there are samples.
    asked, place = torch.unique(classes, return_inverse=True)
    negatives = torch.ones(len(asked), samples, dtype=torch.bool, device=features.device)
    negatives.scatter_(1, positives[:, asked].T, False)
    against = negative_similarity(features, negatives, target_classes.number(num_classes))
    known = prior[classes] * nearest >= against[place, torch.arange(samples, device=place.device)]
    return torch.where(known, classes, UNKNOWN)


class GLC(
    SoftTargetMethod, name="glc", settings=GLCSettings, look=Look("GLC", place=80, colors=("#b4641e", "#e59d5d"))
):
    """Global and local clustering on each batch. State: the estimated number of target classes, two scalars."""

    summary: ClassVar[str] = "one-vs-all clustering and neighbour agreement, applied batch-wise"
    settings: GLCSettings
    presets: ClassVar[dict[str, dict[str, Any]]] = GLC_PRESETS

    def _pseudo_label(
        self, features: Tensor, probabilities: Tensor, target_classes: TargetClasses
    ) -> tuple[Tensor, Tensor | None]:
        return one_vs_all_labels(features, probabilities, target_classes, self.settings.prior_floor), None
