"""COMET: a mean teacher labels the sure samples, a contrastive and an entropy loss teach the student.

One step: the teacher labels by the entropy of its prediction; the student's features of known samples come together
with those of their augmentation and with the prototype of their class, away from unknown ones; its predictions become
sure on known and unsure on unknown samples; the teacher follows. COMET-P takes the prototypes of the source, COMET-F
forms them from the stream.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator
from torch import Tensor, nn

from driftgate.export import BY_RUNNING
from driftgate.losses import UnknownPairs, kl_loss, supcon_loss
from driftgate.memory import MeanTeacher, RunningPrototypes
from driftgate.methods.base import MethodSettings
from driftgate.methods.gradient import GradientMethod, GradientSettings
from driftgate.methods.look import Look
from driftgate.models.source_model import ModelOutput, SourceModel
from driftgate.novelty.gate import pseudo_label
from driftgate.novelty.rejection import entropy_prediction
from driftgate.novelty.scores import entropy
from driftgate.state import State, exact
from driftgate.types import Prediction


class COMETSettings(GradientSettings):
    """Settings of COMET; the defaults are those published for VisDA-C.

    Attributes:
        batch_norm: ``running``, for the released code keeps every layer in eval mode.
        tau_known: the teacher's label is learned where its normalised entropy is at most this.
        tau_unknown: a sample is learned as unknown where the teacher's normalised entropy is at least this.
        threshold: a sample is predicted as unknown where the student's normalised entropy is above this.
        teacher_momentum: how much of the teacher survives a batch.
        temperature: of the contrastive loss.
        entropy_weight: weight of the entropy loss (lambda).
        projection_dim: hidden and output size of the projector in front of the contrastive loss.
        unknown_pairs: which similarities to unknown samples stand in a denominator; see ``supcon_loss``.
    """

    batch_norm: Literal["batch", "running"] = "running"
    tau_known: float = Field(default=0.25, ge=0.0, le=1.0)
    tau_unknown: float = Field(default=0.75, ge=0.0, le=1.0)
    threshold: float = Field(default=0.5, ge=0.0, le=1.0)
    teacher_momentum: float = Field(default=0.999, ge=0.0, le=1.0)
    temperature: float = Field(default=0.1, gt=0.0)
    entropy_weight: float = Field(default=0.01, ge=0.0)
    projection_dim: int = Field(default=128, ge=1)
    unknown_pairs: UnknownPairs = "own"

    @model_validator(mode="after")
    def _check_order(self) -> COMETSettings:
        if self.tau_known > self.tau_unknown:
            raise ValueError("tau_known must not lie above tau_unknown")
        return self


class COMETFSettings(COMETSettings):
    """Settings of COMET-F, which forms its prototypes itself.

    Attributes:
        prototype_samples: samples of a batch that join the sum of their class: ``all``, or the ``last`` alone; see
            ``RunningPrototypes``.
    """

    prototype_samples: Literal["all", "last"] = "all"


class SourcePrototypes(State):
    """Prototypes (C, D) of the source, which the stream does not change."""

    means: Tensor

    def __init__(self, means: Tensor) -> None:
        super().__init__()
        self.keep(means=means.clone())

    def update(self, features: Tensor, labels: Tensor) -> None:
        """The stream's features change nothing."""


class COMET(GradientMethod):
    """What both variants share; they differ in the prototypes alone."""

    Settings: ClassVar[type[MethodSettings]] = COMETSettings
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "visda": {"lr": 1e-3, "entropy_weight": 0.01},
        "domainnet": {"lr": 1e-4, "entropy_weight": 0.1},
        "office-home": {"lr": 1e-4, "entropy_weight": 0.1},
        "released": {"unknown_pairs": "all"},
    }
    settings: COMETSettings

    def __init__(self, model: SourceModel, settings: MethodSettings) -> None:
        super().__init__(model, settings)
        self.teacher = MeanTeacher(model, self.settings.teacher_momentum)
        self.prototypes = self.build_prototypes()

    @abstractmethod
    def build_prototypes(self) -> SourcePrototypes | RunningPrototypes:
        """The class prototypes, as they are before the first step."""

    def build_networks(self) -> None:
        size, width = self.model.spec.feature_dim, self.settings.projection_dim
        self.projector = nn.Sequential(nn.Linear(size, width), nn.ReLU(), nn.Linear(width, width))

    def _approximation(self) -> str:
        return BY_RUNNING if self.settings.batch_norm == "batch" else ""

    def _predict(self, images: Tensor) -> Prediction:
        return self._assess(self._forward(self._passes(), images), self.teacher.forward(images))

    def _step(self, images: Tensor) -> Prediction:
        passes = self._passes()
        output = self._forward(passes, images, last=False)
        prediction = self._assess(output, self.teacher.forward(images))
        self._tell(prediction)
        view = self._forward(passes, self.views.weak(images, self.generator))
        prototypes = self.prototypes.clone()
        prototypes.update(output.features, prediction.pseudo_labels)
        losses = self._learn(passes, self._losses(output, view, prediction.pseudo_labels, prototypes.means))
        self.teacher.update()
        self.prototypes = prototypes
        return replace(prediction, losses=losses)

    def _assess(self, output: ModelOutput, teacher: ModelOutput) -> Prediction:
        """The student predicts by its entropy, the teacher labels by its own."""
        self._check_finite(*teacher)
        chosen = self.settings
        prediction = entropy_prediction(output.logits.detach(), chosen.threshold)
        thresholds = prediction.thresholds._replace(known=chosen.tau_known, unknown=chosen.tau_unknown)
        doubt = entropy(exact(teacher.logits).log_softmax(dim=1))
        labels = pseudo_label(teacher.logits.argmax(dim=1), doubt, thresholds)
        return replace(prediction, pseudo_labels=labels, thresholds=thresholds)

    def _losses(
        self, output: ModelOutput, view: ModelOutput, pseudo_labels: Tensor, prototypes: Tensor
    ) -> dict[str, Tensor]:
        """L = L_con + lambda L_e; a batch without a known sample teaches nothing, as in the released code."""
        if not bool((pseudo_labels >= 0).any()):
            return {}
        contrastive = supcon_loss(
            self.projector(output.features),
            self.projector(view.features),
            self.projector(prototypes),
            pseudo_labels,
            temperature=self.settings.temperature,
            unknown_pairs=self.settings.unknown_pairs,
        )
        entropies = kl_loss(output.logits, pseudo_labels, form="comet", reduction="mean")
        return {"contrastive": contrastive, "entropy": self.settings.entropy_weight * entropies}


class COMETP(COMET, name="comet-p", look=Look("COMET-P", place=50, colors=("#6a4c93", "#b79fe3"))):
    """COMET with the class prototypes of the source."""

    summary: ClassVar[str] = "mean teacher, contrastive loss with the source's prototypes, entropy loss"
    source_free: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset({"prototypes"})

    def build_prototypes(self) -> SourcePrototypes:
        assert self.model.statistics is not None  # ``needs`` has refused a model without
        return SourcePrototypes(self.model.statistics.prototypes)


class COMETF(
    COMET, name="comet-f", settings=COMETFSettings, look=Look("COMET-F", place=120, colors=("#9a5cc4", "#d3a3f4"))
):
    """COMET with prototypes that run over the stream: fully source-free."""

    summary: ClassVar[str] = "mean teacher, contrastive loss with prototypes from the stream, entropy loss"
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        **COMET.presets,
        "released": {**COMET.presets["released"], "prototype_samples": "last"},
    }
    settings: COMETFSettings

    def build_prototypes(self) -> RunningPrototypes:
        last_only = self.settings.prototype_samples == "last"
        return RunningPrototypes(self.model.num_classes, self.model.spec.feature_dim, last_only=last_only)
