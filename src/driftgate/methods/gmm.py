"""GMM: the paper's method. A mixture in a reduced feature space labels the stream, two losses adapt the network.

One step: forward, update the mixture with the predictions (Eqs. 1-3), score each sample by the entropy of its
likelihoods (Eq. 4), pseudo-label through the gate, predict, then learn from the batch and one augmented view of it by
the contrastive (Eq. 5) and the KL divergence loss (Eq. 6).
"""

from __future__ import annotations

import logging
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from driftgate.data.augment import Augmentation
from driftgate.losses import KLForm, MeanTerm, Reduction, contrastive_loss, kl_loss
from driftgate.memory import StreamingGMM
from driftgate.methods.base import Method, MethodSettings, register
from driftgate.models.normalization import batch_statistics, preserved_buffers
from driftgate.models.source_model import ModelOutput, SourceModel
from driftgate.novelty.gate import FrozenGate, Gate, TrackingGate, predict_label, pseudo_label
from driftgate.novelty.scores import ScoreInputs, get_score
from driftgate.rng import private_rng
from driftgate.types import DivergedError, Prediction

logger = logging.getLogger(__name__)


class GMMSettings(MethodSettings):
    """Settings of the method; the paper's symbol in brackets.

    Attributes:
        lr, backbone_lr_scale, momentum, nesterov: the optimiser, SGD; the backbone learns at ``lr * backbone_lr_scale``.
        reduced_dim: size of the reduced feature space (FD_r).
        decay: forgetting of the mixture (alpha).
        covariance_floor, covariance_shrinkage, mean_shift: see ``StreamingGMM``.
        novelty: name of the novelty score.
        gate: ``frozen`` (the paper's), ``tracking`` or ``mixture``.
        p_reject, init_batches: share of samples left out, batches that set the thresholds (N_init).
        contrastive_weight, temperature, reduction, self_pairs, mean_term: the contrastive loss (Eq. 5).
        kl_weight, kl_form, kl_temperature: the KL divergence loss (Eq. 6); ``kl_weight`` is lambda.
        max_grad_norm: longest gradient that is applied as it is; longer ones are scaled down. None: any length.
        batch_norm: ``batch`` normalises by the batch and lets the running statistics follow, ``running`` keeps the
            source's.
    """

    lr: float = Field(default=0.001, gt=0.0)
    backbone_lr_scale: float = Field(default=0.1, ge=0.0)
    momentum: float = Field(default=0.9, ge=0.0, lt=1.0)
    nesterov: bool = True
    reduced_dim: int = Field(default=64, ge=1)
    decay: float = Field(default=0.999, ge=0.0, le=1.0)
    covariance_floor: float = Field(default=1e-6, ge=0.0)
    covariance_shrinkage: float = Field(default=1.0, ge=0.0)
    mean_shift: bool = False
    novelty: str = "likelihood_entropy"
    gate: Literal["frozen", "tracking", "mixture"] = "frozen"
    quantile_rule: Literal["interpolated", "released"] = "interpolated"
    p_reject: float = Field(default=0.5, ge=0.0, lt=1.0)
    init_batches: int = Field(default=30, ge=1)
    contrastive_weight: float = Field(default=1.0, ge=0.0)
    temperature: float = Field(default=0.1, gt=0.0)
    reduction: Reduction = "mean"
    self_pairs: bool = False
    mean_term: MeanTerm = "samples"
    kl_weight: float = Field(default=1.0, ge=0.0)
    kl_form: KLForm = "bounded"
    kl_temperature: float = Field(default=0.1, gt=0.0)
    max_grad_norm: float | None = Field(default=None, gt=0.0)
    batch_norm: Literal["batch", "running"] = "batch"


@register
class GMM(Method):
    """The paper's method; see the module's text."""

    name: ClassVar[str] = "gmm"
    summary: ClassVar[str] = "Gaussian mixture in a reduced feature space; contrastive and KL divergence loss (the paper)"
    Settings: ClassVar[type[MethodSettings]] = GMMSettings
    settings: GMMSettings
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "paper": dict(
            lr=0.01, covariance_shrinkage=0.0, reduction="sum", self_pairs=True, kl_form="paper", gate="frozen"
        ),
        "released": dict(
            lr=0.01, decay=1.0, covariance_shrinkage=0.0, contrastive_weight=0.0, reduction="sum", kl_form="bounded",
            kl_weight=1e-3, gate="frozen", quantile_rule="released",
        ),
    }

    def __init__(self, model: SourceModel, settings: MethodSettings) -> None:
        super().__init__(model, settings)
        chosen = self.settings
        with private_rng(self.generator):
            self.reducer = nn.Linear(model.spec.feature_dim, chosen.reduced_dim)
        self.mixture = StreamingGMM(
            model.num_classes,
            chosen.reduced_dim,
            chosen.decay,
            mean_shift=chosen.mean_shift,
            floor=chosen.covariance_floor,
            shrinkage=chosen.covariance_shrinkage,
        )
        self.gate = self._make_gate()
        self.augmentation = Augmentation(flip=model.spec.flip)
        self._optimizer = torch.optim.SGD(
            [
                {"params": list(model.backbone.parameters()), "lr": chosen.lr * chosen.backbone_lr_scale},
                {"params": [*model.head_parameters(), *self.reducer.parameters()], "lr": chosen.lr},
            ],
            lr=chosen.lr,
            momentum=chosen.momentum,
            nesterov=chosen.nesterov,
        )

    def _make_gate(self) -> Gate:
        chosen = self.settings
        if chosen.gate == "mixture":
            from driftgate.novelty.gate import MixtureGate
            return MixtureGate(chosen.p_reject, chosen.init_batches)
        if chosen.gate == "tracking":
            return TrackingGate(chosen.p_reject, chosen.init_batches)
        return FrozenGate(chosen.p_reject, chosen.init_batches, chosen.quantile_rule)

    def _predict(self, images: Tensor) -> Prediction:
        output = self._forward(images)
        return self._assess(output, self.reducer(output.features), self.mixture.clone(), self.gate.clone())

    def _step(self, images: Tensor) -> Prediction:
        output = self._forward(images)
        reduced = self.reducer(output.features)
        prediction = self._assess(output, reduced, self.mixture, self.gate)
        labels = prediction.pseudo_labels
        loss = self._loss(output, reduced, labels, images)
        self._optimizer.zero_grad(set_to_none=True)
        if loss.requires_grad:
            loss.backward()
            params=[p for g in self._optimizer.param_groups for p in g["params"]]
            norm=nn.utils.clip_grad_norm_(params, self.settings.max_grad_norm or float("inf"))
            if torch.isfinite(norm): self._optimizer.step()
            else: self.skipped=getattr(self,'skipped',0)+1
        self.last_loss=float(loss)
        return prediction

    def _forward(self, images: Tensor) -> ModelOutput:
        adapts = self.settings.batch_norm == "batch"
        with batch_statistics(self.model, len(images) if adapts else 1):
            output: ModelOutput = self.model(images)
            return output

    def _assess(self, output: ModelOutput, reduced: Tensor, mixture: StreamingGMM, gate: Gate) -> Prediction:
        """Update ``mixture`` and ``gate`` with the batch, then label and predict it."""
        scores = output.logits.detach().softmax(dim=1)
        mixture.update(reduced, scores)
        evaluation = mixture.evaluate(reduced)
        novelty = get_score(self.settings.novelty)(
            ScoreInputs(output.features, reduced, output.logits, evaluation, mixture.means, mixture.weights)
        )
        thresholds = gate.update(novelty)
        self.thresholds=thresholds
        return Prediction(
            labels=predict_label(scores.argmax(dim=1), novelty, thresholds),
            scores=scores,
            novelty=novelty,
            pseudo_labels=pseudo_label(evaluation.log_likelihood.argmax(dim=1), novelty, thresholds),
            thresholds=thresholds,
        )

    def _loss(self, output: ModelOutput, reduced: Tensor, labels: Tensor, images: Tensor) -> Tensor:
        chosen = self.settings
        loss = kl_loss(output.logits, labels, form=chosen.kl_form, reduction=chosen.reduction, temperature=chosen.kl_temperature) * chosen.kl_weight
        view = self.augmentation(images, self.generator)
        if chosen.contrastive_weight == 0:
            with torch.no_grad(): self._forward(view)
            return loss
        view_reduced = self.reducer(self._forward(view).features)
        return loss + chosen.contrastive_weight * contrastive_loss(
            torch.cat([reduced, view_reduced]), torch.cat([labels, labels]), self.mixture.means,
            temperature=chosen.temperature, reduction=chosen.reduction, self_pairs=chosen.self_pairs, mean_term=chosen.mean_term)
