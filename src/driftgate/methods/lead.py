"""LEAD, applied batch-wise: a feature is split into a part the classifier sees and a part it does not.

One step: the features' lengths in the subspace of the classifier's weights ("known") and in the rest ("unknown") tell
how new a sample is; each sample has a boundary of its own, from the distribution of the lengths in the batch and from
how near it lies to the class; pseudo-labels, agreement with the neighbours and the two lengths teach the network.
"""

from __future__ import annotations

import logging
import warnings
from typing import Any, ClassVar, NamedTuple

import torch
from pydantic import Field, PositiveFloat
from torch import Tensor, nn
from torch.nn import functional as F

from driftgate.losses.soft_targets import soft_cross_entropy
from driftgate.memory.prototypes import one_hot_weights, surest_samples
from driftgate.methods.base import MethodSettings
from driftgate.methods.batchwise import SoftTargetMethod, SoftTargets, SoftTargetSettings
from driftgate.methods.look import Look
from driftgate.methods.target_classes import TargetClasses
from driftgate.models.source_model import ModelOutput, SourceModel
from driftgate.state import exact
from driftgate.types import UNKNOWN, DriftgateError

logger = logging.getLogger(__name__)

SEED = 0
"""Of the mixture's fit: the same batch always gives the same one."""


class LEADSettings(SoftTargetSettings):
    """Settings of LEAD; the defaults are those published for VisDA-C.

    Attributes:
        subspace_weight: of the cross-entropy between known and unknown over the lengths in the two subspaces.
        weight_sharpness: how near a sample must come to its boundary to lose its weight (a).
    """

    pseudo_label_weight: float = Field(default=1.0, ge=0.0)
    class_ratios: tuple[PositiveFloat, ...] = Field(default=(0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0), min_length=1)
    subspace_weight: float = Field(default=1.0, ge=0.0)
    weight_sharpness: float = Field(default=1e-4, gt=0.0)


class Subspaces(NamedTuple):
    """Orthonormal columns that span what the classifier sees, (D, r), and the rest, (D, D - r)."""

    known: Tensor
    unknown: Tensor

    def lengths(self, features: Tensor) -> Tensor:
        """(N, D) -> (N, 2): lengths a and b of the unit features in the two subspaces; a^2 + b^2 = 1."""
        unit = F.normalize(features, dim=1)
        return torch.stack([(unit @ part).norm(dim=1) for part in self], dim=1)


class LEAD(
    SoftTargetMethod, name="lead", settings=LEADSettings, look=Look("LEAD", place=100, colors=("#8c564b", "#cc978a"))
):
    """Qu et al., "LEAD: Learning Decomposition for Source-free Universal Domain Adaptation" (CVPR 2024).

    See the module's text.
    """

    summary: ClassVar[str] = "features split by the classifier's subspace, a boundary for each sample; batch-wise"
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "visda": {"lr": 1e-4, "pseudo_label_weight": 1.0},
        "domainnet": {"lr": 1e-4, "pseudo_label_weight": 2.0},
        "office-home": {"lr": 1e-3, "pseudo_label_weight": 2.0},
        "released": {"lr": 1e-4, "pseudo_label_weight": 1.0, "neighbor_rule": "released"},  # VisDA-C's numbers
    }
    settings: LEADSettings

    def __init__(self, model: SourceModel, settings: MethodSettings) -> None:
        super().__init__(model, settings)
        self._split: tuple[Tensor, Subspaces] | None = None
        num_classes, dim = self._classifier_weight().shape
        if dim <= num_classes:
            logger.warning(
                "lead needs more feature dimensions than classes, but there are %d and %d: the classifier sees every "
                "direction; its %d strongest are taken as known",
                dim,
                num_classes,
                known_rank(num_classes, dim),
            )

    def _classifier_weight(self) -> Tensor:
        """(C, D), as the classifier applies it: with a weight norm, the product."""
        layer = self.model.head
        if not isinstance(layer, nn.Linear):
            raise DriftgateError(
                f"Expected a linear classifier, whose weight 'lead' splits the features by, but got "
                f"{type(layer).__name__}; pass an nn.Linear as classifier and all before it as bottleneck, or name "
                "the last linear layer: driftgate.wrap(..., head='path.to.layer')."
            )
        return layer.weight.detach()

    def _subspaces(self) -> Subspaces:
        """The split by the classifier as it is now; made again only if it changed, for it is frozen by default."""
        weight = self._classifier_weight()
        same_place = self._split is not None and self._split[0].device == weight.device
        if self._split is None or not same_place or not torch.equal(self._split[0], weight):
            self._split = (weight.clone(), split_space(weight))
        return self._split[1]

    def _pseudo_label(
        self, features: Tensor, probabilities: Tensor, target_classes: TargetClasses
    ) -> tuple[Tensor, Tensor | None]:
        weight = self._classifier_weight()
        residuals = self._subspaces().lengths(features)[:, 1]
        count = max(len(features) // target_classes.number(len(weight)), 1)
        surest = surest_samples(probabilities, count)
        scores = affinity(features, F.normalize(features[surest].mean(dim=0), dim=1), F.normalize(weight, dim=1))
        boundaries = class_boundaries(scores, residuals[surest].mean(dim=0), upper_mean(residuals))
        classes = scores.argmax(dim=1, keepdim=True)
        boundary = boundaries.gather(1, classes)[:, 0]
        labels = torch.where(residuals >= boundary, UNKNOWN, classes[:, 0])
        return labels, boundary_weights(residuals - boundary, self.settings.weight_sharpness)

    def terms(self, output: ModelOutput, lesson: SoftTargets) -> dict[str, Tensor]:
        """GLC's two terms and mean w CE(1[unknown], softmax([a, b]))."""
        lengths = self._subspaces().lengths(output.features)
        sides = one_hot_weights((lesson.labels == UNKNOWN).long(), 2)
        apart = soft_cross_entropy(lengths, sides, lesson.weights)
        return {**super().terms(output, lesson), "subspace": self.settings.subspace_weight * apart}


def known_rank(num_classes: int, dim: int) -> int:
    """How many directions count as known: one a class; half of them where there are no more directions than classes."""
    return num_classes if num_classes < dim else max(dim // 2, 1)


def split_space(weight: Tensor) -> Subspaces:
    """(C, D) -> the leading left singular vectors of its transpose, and the rest of the space."""
    num_classes, dim = weight.shape
    rank = known_rank(num_classes, dim)
    # In float64, so that the columns are orthonormal to the last bit of float32.
    vectors = torch.linalg.svd(exact(weight.T), full_matrices=True).U.to(weight)
    return Subspaces(vectors[:, :rank].contiguous(), vectors[:, rank:].contiguous())


def affinity(features: Tensor, prototypes: Tensor, anchors: Tensor) -> Tensor:
    """score_ic = sqrt((1 - exp(-<z_i, t_c>)) exp(<z_i, s_c> - 1)), cosines below zero taken as zero; (N, C).

    Unit vectors all: features z (N, D), target prototypes t (C, D), source anchors s (C, D), the classifier's weights.
    """
    to_target, to_source = ((features @ other.T).clamp_min(0.0) for other in (prototypes, anchors))
    return (-torch.expm1(-to_target) * (to_source - 1.0).exp()).sqrt()


def class_boundaries(scores: Tensor, class_residuals: Tensor, upper: float) -> Tensor:
    """theta_ic = n_c + score_ic max(m_2 - n_c, 0): (N, C) from scores (N, C), n (C,) and m_2."""
    return class_residuals + scores * (upper - class_residuals).clamp_min(0.0)


def boundary_weights(margins: Tensor, sharpness: float) -> Tensor:
    """w = 1 - (1 + margin^2 / a)^(-(a + 1) / 2): 0 on the boundary, near 1 away from it; (N,) -> (N,)."""
    return 1.0 - (1.0 + margins.square() / sharpness) ** (-(sharpness + 1.0) / 2.0)


def upper_mean(values: Tensor) -> float:
    """m_2: the larger mean of a mixture of two Gaussians over values (N,); their mean where none can be fitted."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.mixture import GaussianMixture

    points = values.detach().cpu().double().numpy()[:, None]
    if len(points) < 2:
        return float(points.mean())
    with warnings.catch_warnings():
        # Equal values: one component is as good as two.
        warnings.simplefilter("ignore", ConvergenceWarning)
        try:
            means = GaussianMixture(2, random_state=SEED).fit(points).means_
        except ValueError:
            return float(points.mean())
    return float(means.max())
