"""What SHOT-O and SHOT-P share: pseudo-labels from class centroids, and information maximisation."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from driftgate.export import EntropyJudge, Frozen
from driftgate.losses.entropy import mean_entropy, negative_marginal_entropy
from driftgate.memory.neighbors import cosine_similarity
from driftgate.memory.prototypes import class_means, one_hot_weights
from driftgate.methods.batchwise import BatchwiseMethod, BatchwiseSettings
from driftgate.models.source_model import ModelOutput
from driftgate.novelty.gate import predict_label
from driftgate.novelty.scores import entropy
from driftgate.state import exact
from driftgate.types import UNKNOWN, Prediction, Thresholds


class ShotSettings(BatchwiseSettings):
    """Settings of SHOT.

    Attributes:
        pseudo_label_weight: of the cross-entropy towards the pseudo-labels (cls_par).
        entropy_weight: of the information loss (ent_par).
        diversity: whether the information loss keeps the predictions diverse (gent).
        candidate_count: a class is a candidate for pseudo-labels if more samples than this are predicted as it
            (SHOT's threshold).
        threshold: normalised entropy above which a sample is rejected, where rejection is by a fixed threshold.
    """

    lr: float = Field(default=1e-3, gt=0.0)
    pseudo_label_weight: float = Field(default=0.3, ge=0.0)
    entropy_weight: float = Field(default=1.0, ge=0.0)
    diversity: bool = True
    candidate_count: int = Field(default=0, ge=0)
    threshold: float = Field(default=0.5, ge=0.0, le=1.0)


SHOT_PRESETS: dict[str, dict[str, Any]] = {
    "visda": {"lr": 1e-3},
    "office-home": {"lr": 1e-2},
    "domainnet": {"lr": 1e-3},  # SHOT has no recipe for it
}


def centroid_labels(features: Tensor, probabilities: Tensor, candidate_count: int = 0) -> Tensor:
    """(N, D), (N, C) -> (N,): the class of the nearest centroid by cosine, after a soft and a hard round.

    Features get a constant 1 appended and unit length. The first centroids are means weighted by the probabilities, the
    second ones means of the samples labelled by the first.
    """
    points = F.normalize(F.pad(features, (0, 1), value=1.0), dim=1)
    num_classes = probabilities.shape[1]
    counts = torch.bincount(probabilities.argmax(dim=1), minlength=num_classes)
    # A small batch may have no class with so many samples; then whatever was predicted is a candidate.
    candidates = counts > (candidate_count if bool((counts > candidate_count).any()) else 0)
    labels = _nearest_centroid(points, probabilities, candidates)
    hard = one_hot_weights(labels, num_classes)
    # A class that got no sample in the first round has no centroid in the second.
    return _nearest_centroid(points, hard, hard.any(dim=0))


def _nearest_centroid(points: Tensor, weights: Tensor, candidates: Tensor) -> Tensor:
    similarity = cosine_similarity(points, class_means(points, weights))
    return similarity.masked_fill(~candidates, -torch.inf).argmax(dim=1)


class Shot(BatchwiseMethod[Prediction], settings=ShotSettings):
    """SHOT on each batch; a subclass says which samples are known. No state."""

    settings: ShotSettings
    presets: ClassVar[dict[str, dict[str, Any]]] = SHOT_PRESETS
    # Which of the two to take has to be known beforehand.
    universal: ClassVar[bool] = False

    def frozen(self) -> Frozen:
        return Frozen(self.model, EntropyJudge(), self._fixed_threshold())

    def _fixed_threshold(self) -> float | None:
        """Normalised entropy above which a sample is predicted as unknown; None if the batch tells."""
        return self.settings.threshold

    @abstractmethod
    def _thresholds(self, novelty: Tensor) -> Thresholds:
        """Thresholds on the normalised entropies (N,): up to ``known`` a sample gets the label of a centroid."""

    def assess(self, output: ModelOutput) -> Prediction:
        scores = output.logits.softmax(dim=1)
        novelty = entropy(exact(output.logits).log_softmax(dim=1))
        thresholds = self._thresholds(novelty)
        known = (novelty <= thresholds.known).to(scores.device)
        pseudo_labels = torch.full_like(known, UNKNOWN, dtype=torch.int64)
        pseudo_labels[known] = centroid_labels(output.features[known], scores[known], self.settings.candidate_count)
        labels = predict_label(scores.argmax(dim=1), novelty, thresholds)
        return Prediction(labels, scores, novelty, pseudo_labels, thresholds)

    def loss(self, output: ModelOutput, prediction: Prediction) -> dict[str, Tensor]:
        """0.3 CE(known, pseudo-label) + mean H(p) over known - H(mean p) over all; nothing without known samples."""
        chosen, labels = self.settings, prediction.pseudo_labels
        known = labels >= 0
        if not bool(known.any()):
            return {}
        pseudo = F.cross_entropy(output.logits[known], labels[known])
        information = mean_entropy(output.logits[known])
        if chosen.diversity:
            information = information + negative_marginal_entropy(output.logits)
        return {
            "pseudo_label": chosen.pseudo_label_weight * pseudo,
            "information": chosen.entropy_weight * information,
        }
