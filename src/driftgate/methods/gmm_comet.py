"""GMM-COMET: the mixture of GMM under the mean teacher of COMET, for streams that pass through many domains.

One step: the teacher's features and predictions update the mixture, which labels the batch as in GMM; student and
teacher predict together; the student learns by GMM's contrastive loss, COMET's entropy loss and two consistency losses
that hold its features near the teacher's and near those of the source model.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from driftgate.export import Frozen
from driftgate.losses import KLForm, MeanTerm
from driftgate.memory import MeanTeacher, ModelCopy
from driftgate.methods.base import MethodSettings, taught_nothing
from driftgate.methods.effort import LabelledView
from driftgate.methods.gmm import GMM, Assessment
from driftgate.methods.gmm_settings import GMMSettings
from driftgate.methods.look import Look
from driftgate.models.source_model import ModelOutput, SourceModel
from driftgate.novelty.gate import GateKind, predict_label
from driftgate.types import DriftgateError, Prediction


class GMMCOMETSettings(GMMSettings):
    """Settings of GMM with other defaults, those published for DomainNet, and the few that are new.

    Attributes:
        teacher_momentum: how much of the teacher survives a batch (alpha_MT).
        consistency_weight: weight of the squared distance between the student's and the teacher's features.
        source_consistency_weight: weight of the squared distance between the student's features and those of the
            source model; 0 keeps no copy of the source model.
        source_batch_norm: statistics the source model's copy normalises by: its ``running`` ones, or those of each
            ``batch``, as the training library of the released code has it.

    What keeps ``gmm`` from harm is left to teacher and source model: ``second_opinion``,
    ``neighbor_opinion``, ``third_opinion``, ``agreement_weight``, ``skip_unusual`` and ``min_batch`` stay off.
    """

    adapt_layers: str = "all"
    backbone_lr_scale: float | None = Field(default=0.1, ge=0.0)
    batch_norm: Literal["batch", "running"] = "running"
    veto_below: float = Field(default=0.0, ge=0.0, lt=1.0)
    doubt_above: float = Field(default=0.0, ge=0.0, lt=1.0)
    second_opinion: Literal[0] = 0
    neighbor_opinion: Literal[0] = 0
    third_opinion: Literal[0] = 0
    agreement_weight: Literal[0] = 0
    skip_unusual: Literal[False] = False
    min_batch: Literal[1] = 1
    novelty: str = "likelihood_entropy"
    gate: Literal["auto"] | GateKind = "frozen"
    p_reject: float = Field(default=0.65, ge=0.0, lt=1.0)
    init_batches: int = Field(default=50, ge=1)
    mean_term: MeanTerm = "classes"
    kl_form: KLForm = "comet"
    teacher_momentum: float = Field(default=0.999, ge=0.0, le=1.0)
    consistency_weight: float = Field(default=1.0, ge=0.0)
    source_consistency_weight: float = Field(default=2.0, ge=0.0)
    source_batch_norm: Literal["batch", "running"] = "running"


DOMAINNET: dict[str, Any] = {
    "decay": 0.999,
    "p_reject": 0.65,
    "teacher_momentum": 0.999,
    "consistency_weight": 1.0,
    "source_consistency_weight": 2.0,
}
CIFAR_100: dict[str, Any] = {**DOMAINNET, "decay": 0.99, "p_reject": 0.5, "teacher_momentum": 0.99}
CIFAR_10: dict[str, Any] = {**CIFAR_100, "consistency_weight": 2.0, "source_consistency_weight": 5.0}

RELEASED: dict[str, Any] = {
    **DOMAINNET,
    "covariance_shrinkage": 0.0,
    "class_prior": 0.0,
    "gate": "frozen",
    "certain_below": 0.0,
    "floor_rule": "absolute",
    "quantile_rule": "released",
    "tie_rule": "gmm-comet",
    "contrastive_weight": 0.0,
    "source_batch_norm": "batch",
}
"""What the released code does in effect: a contrastive loss without gradient, a mixture without shrinkage and prior, a
source copy in train mode, and its own floor, quantiles and inequalities."""


class GMMCOMET(
    GMM, name="gmm-comet", settings=GMMCOMETSettings, look=Look("GMM-COMET", place=130, colors=("#e2748a", "#ffa3b4"))
):
    """The follow-up of the paper's method; see the module's text."""

    summary: ClassVar[str] = (
        "the mixture of gmm under a mean teacher, held near teacher and source (continual follow-up)"
    )
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "domainnet": DOMAINNET,
        "cifar-100": CIFAR_100,
        "cifar-10": CIFAR_10,
        "released": RELEASED,
    }
    settings: GMMCOMETSettings

    def __init__(self, model: SourceModel, settings: MethodSettings) -> None:
        super().__init__(model, settings)
        self.teacher = MeanTeacher(model, self.settings.teacher_momentum)
        self.source = ModelCopy(model) if self.settings.source_consistency_weight > 0 else None

    def frozen(self) -> Frozen:
        raise DriftgateError(
            "Expected a method whose answer comes from one network but 'gmm-comet' asks student and teacher together; "
            "export method.network(), the student without its gate."
        )

    def _predict(self, images: Tensor) -> Prediction:
        student = self._passes().forward(images, last=True)
        return self._assess_together(student, self.teacher.forward(images)).prediction

    def _step(self, images: Tensor) -> Prediction:
        passes, contrastive = self._passes(), self.settings.contrastive_weight > 0
        student, reduced = self._view(passes, images, last=not contrastive)
        teacher = self.teacher.forward(images)
        prediction, mixture, gate, *_ = self._assess_together(student, teacher)
        self._tell(prediction)
        # Without a contrastive loss nobody looks at a second view, unless batch norm follows it.
        again = contrastive or self.settings.batch_norm == "batch"
        same = LabelledView(reduced, student.logits, prediction.pseudo_labels, prediction.scores)
        view, unseen = self._second_view(passes, images, same.labels, same.answers) if again else (same, None)
        losses = self._losses(student.logits, reduced, view, prediction.pseudo_labels, mixture.means)
        losses["consistency"] = self._consistency(student.features, teacher.features, images)
        prediction = replace(prediction, losses=self._learn(passes, losses, unseen))
        self.teacher.update()
        self.mixture, self.gate = mixture, gate
        return prediction

    def _watch(self, images: Tensor) -> Prediction:
        """Mixture and gate follow what the teacher sees; neither network changes."""
        with torch.no_grad():
            student = self._passes().forward(images, last=True)
            prediction, self.mixture, self.gate, *_ = self._assess_together(student, self.teacher.forward(images))
        return taught_nothing(prediction)

    def _assess_together(self, student: ModelOutput, teacher: ModelOutput) -> Assessment:
        """The mixture sees the teacher alone; the class is that of the mean of both predictions."""
        assessed = self._assess(teacher, self.reducer(teacher.features), beside=student)
        prediction = assessed.prediction
        scores = (student.logits.detach().softmax(dim=1) + prediction.scores) / 2.0
        rule = self.settings.tie_rule
        labels = predict_label(scores.argmax(dim=1), prediction.novelty, prediction.thresholds, rule)
        return assessed._replace(prediction=replace(prediction, scores=scores, labels=labels))

    def _consistency(self, student: Tensor, teacher: Tensor, images: Tensor) -> Tensor:
        """Mean squared distances of the student's features (N, D) to the teacher's and to the source model's."""
        loss = self.settings.consistency_weight * F.mse_loss(student, teacher)
        if self.source is not None:
            source = self.source.forward(images, by_batch=self.settings.source_batch_norm == "batch").features
            loss = loss + self.settings.source_consistency_weight * F.mse_loss(student, source)
        return loss
