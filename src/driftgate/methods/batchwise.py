"""Methods made for a whole target set at hand (SHOT, GLC, GLC++, LEAD), applied to each batch as if it were that set.

One step: a forward pass in eval mode labels the batch and predicts it, then one forward pass of the same images with
the batch's own normalisation takes one gradient step on these labels. The papers of these methods know no stream:
that the banks hold the batch, one step is taken for each, and the learning rate stays constant is inferred.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Literal

import torch
from pydantic import Field, PositiveFloat
from torch import Tensor
from torch.nn import functional as F

from driftgate.extras import require
from driftgate.losses.soft_targets import class_or_uniform, soft_cross_entropy
from driftgate.memory.blocks import one_thread
from driftgate.memory.neighbors import mean_over, nearest_but_first, nearest_others
from driftgate.methods.base import MethodSettings
from driftgate.methods.gradient import GradientSettings
from driftgate.methods.one_step import OneStep, P
from driftgate.methods.target_classes import EstimateWhen, TargetClasses, follow_target_classes
from driftgate.models.source_model import ModelOutput, SourceModel
from driftgate.novelty.rejection import entropy_prediction
from driftgate.types import Prediction


class BatchwiseSettings(GradientSettings):
    """Settings of SGD that SHOT, GLC, GLC++ and LEAD share: the classifier is frozen, everything before it learns."""

    weight_decay: float = Field(default=1e-3, ge=0.0)
    adapt_layers: str = "features"


class BatchwiseMethod(OneStep[P], settings=BatchwiseSettings):
    """Assess the batch by a pass in eval mode, then learn from that by a second pass, normalised by the batch."""

    settings: BatchwiseSettings

    def _approximation(self) -> str:
        return ""  # it answers by the running statistics

    def _predict(self, images: Tensor) -> Prediction:
        return self._assess_in_eval_mode(images)

    def _step(self, images: Tensor) -> Prediction:
        with torch.no_grad():
            prediction = self._assess_in_eval_mode(images)
        self._tell(prediction)
        passes = self._passes()
        return self._learn_from(prediction, passes, self._forward(passes, images))

    def _assess_in_eval_mode(self, images: Tensor) -> P:
        output = self._forward(self._passes(follow=False), images)
        # Many small operations: on a busy machine a second thread is waited for longer than it helps.
        with one_thread():
            return self.assess(output)


NeighborRule = Literal["others", "released"]
"""Who the neighbours of a sample are: the nearest ``others`` of the batch, all as the eval-mode pass sees them; or what
the ``released`` codes take: a sample as the pass with gradient sees it asks for the rows nearest to it in a bank of the
eval-mode features, and the first row is dropped without a look whether it is the sample itself."""


class SoftTargetSettings(BatchwiseSettings):
    """Settings that GLC, GLC++ and LEAD share.

    Attributes:
        threshold: reject where the normalised entropy of the prediction exceeds it (w_0).
        pseudo_label_weight: of the cross-entropy towards the pseudo-labels (lambda_psd).
        neighbor_weight: of the cross-entropy towards the neighbours' predictions (lambda_knn).
        neighbors: how many neighbours are asked (K).
        neighbor_rule: who they are; see ``NeighborRule``.
        class_ratios: target classes over source classes, the candidates (beta).
        estimate_classes: when the number of target classes is estimated; see ``methods.target_classes``.
    """

    lr: float = Field(default=1e-4, gt=0.0)
    threshold: float = Field(default=0.55, ge=0.0, le=1.0)
    pseudo_label_weight: float = Field(default=0.3, ge=0.0)
    neighbor_weight: float = Field(default=1.0, ge=0.0)
    neighbors: int = Field(default=4, ge=1)
    neighbor_rule: NeighborRule = "others"
    class_ratios: tuple[PositiveFloat, ...] = Field(default=(0.25, 0.5, 1.0, 2.0, 3.0), min_length=1)
    estimate_classes: EstimateWhen = "first"


@dataclass(frozen=True)
class SoftTargets:
    """What a batch of N samples learns from.

    Attributes:
        labels: (N,) class or ``UNKNOWN``, the one-hot or uniform target q.
        weights: (N,) of the samples' pseudo-label loss; None for one each.
        features: (N, D) of the eval-mode pass, of unit length.
        probabilities: (N, C) of the same pass.
        neighbors: (N, K) indices of the samples' neighbours in the batch, K perhaps 0.
        neighbor_targets: (N, C) mean prediction of these; zeros without any.
        target_classes: the number of target classes it was made with.
    """

    labels: Tensor
    weights: Tensor | None
    features: Tensor
    probabilities: Tensor
    neighbors: Tensor
    neighbor_targets: Tensor
    target_classes: TargetClasses


@dataclass(frozen=True)
class SoftPrediction(Prediction):
    """A prediction, and the ``lesson`` that the step learns from."""

    lesson: SoftTargets | None = None


class SoftTargetMethod(BatchwiseMethod[SoftPrediction], settings=SoftTargetSettings):
    """GLC's frame: entropy rejection, an estimate of the number of target classes, one-hot or uniform pseudo-labels and
    agreement with the neighbours. A subclass says how a batch is pseudo-labelled, and may add to the loss.

    State: the estimate, two scalars.
    """

    settings: SoftTargetSettings

    def __init__(self, model: SourceModel, settings: MethodSettings) -> None:
        require("sklearn", f"Method {self.name!r}")
        super().__init__(model, settings)
        self.target_classes = TargetClasses()

    @abstractmethod
    def _pseudo_label(
        self, features: Tensor, probabilities: Tensor, target_classes: TargetClasses
    ) -> tuple[Tensor, Tensor | None]:
        """Unit features (N, D), probabilities (N, C) -> labels (N,), class or ``UNKNOWN``, and weights (N,) or None."""

    def assess(self, output: ModelOutput) -> SoftPrediction:
        chosen = self.settings
        features, probabilities = F.normalize(output.features, dim=1), output.logits.softmax(dim=1)
        target_classes = follow_target_classes(
            self.target_classes, features, self.model.num_classes, chosen.class_ratios, chosen.estimate_classes
        )
        labels, weights = self._pseudo_label(features, probabilities, target_classes)
        near = nearest_others(features, chosen.neighbors)
        lesson = SoftTargets(
            labels, weights, features, probabilities, near, mean_over(probabilities, near), target_classes
        )
        said = entropy_prediction(output.logits, chosen.threshold)
        return SoftPrediction(said.labels, said.scores, said.novelty, labels, said.thresholds, lesson=lesson)

    def loss(self, output: ModelOutput, prediction: SoftPrediction) -> dict[str, Tensor]:
        assert prediction.lesson is not None  # ``assess`` made it
        return self.terms(output, self._complete(prediction.lesson, output))

    def _complete(self, lesson: SoftTargets, output: ModelOutput) -> SoftTargets:
        """The lesson with what only the outputs with gradient can tell."""
        if self.settings.neighbor_rule == "others":
            return lesson
        near = nearest_but_first(output.features, lesson.features, self.settings.neighbors)
        return replace(lesson, neighbors=near, neighbor_targets=mean_over(lesson.probabilities, near))

    def terms(self, output: ModelOutput, lesson: SoftTargets) -> dict[str, Tensor]:
        """lambda_psd mean w CE(q, p) and lambda_knn mean CE(q_neighbours, p)."""
        targets = class_or_uniform(lesson.labels, self.model.num_classes)
        pseudo = soft_cross_entropy(output.logits, targets, lesson.weights)
        agreement = soft_cross_entropy(output.logits, lesson.neighbor_targets)
        return {
            "pseudo_label": self.settings.pseudo_label_weight * pseudo,
            "neighbors": self.settings.neighbor_weight * agreement,
        }

    def remember(self, prediction: SoftPrediction) -> None:
        assert prediction.lesson is not None
        self.target_classes = prediction.lesson.target_classes

    def _numbers(self) -> dict[str, Tensor]:
        return super()._numbers() | {"target_classes": self.target_classes.to_tensor()}

    def _load_numbers(self, numbers: dict[str, Tensor]) -> None:
        super()._load_numbers(numbers)
        self.target_classes = TargetClasses.from_tensor(numbers["target_classes"])
