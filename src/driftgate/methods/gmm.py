"""GMM: the paper's method. A mixture in a reduced feature space labels the stream, two losses adapt the network.

One step: forward, update the mixture with the predictions (Eqs. 1-3), score each sample by the entropy of its
likelihoods (Eq. 4), pseudo-label through the gate, predict, then learn from the batch and one augmented view of it by
the contrastive (Eq. 5) and the KL divergence loss (Eq. 6).
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from driftgate.checkpoint import under_prefix, with_prefix
from driftgate.data.augment import Augmentation
from driftgate.losses import KLForm, MeanTerm, Reduction, contrastive_loss, kl_loss
from driftgate.memory import CovarianceForm, StreamingGMM
from driftgate.methods.base import MethodSettings, register
from driftgate.methods.gradient import GradientMethod, GradientSettings
from driftgate.models.passes import Passes
from driftgate.models.source_model import ModelOutput, SourceModel
from driftgate.novelty.gate import Gate, GateKind, QuantileRule, make_gate, predict_label, pseudo_label, spare_certain
from driftgate.novelty.scores import SCORES_FROM_ZERO, ScoreInputs, get_score
from driftgate.types import DriftgateError, Prediction


class GMMSettings(GradientSettings):
    """Settings of the method; the paper's symbol in brackets. docs/gmm.md tells how the defaults were chosen.

    Attributes:
        reduced_dim: size of the reduced feature space (FD_r); at most the size of the features, for more dimensions
            than that would leave every covariance singular.
        decay: how much of the mixture's past survives a batch (alpha).
        covariance: ``full`` keeps a covariance a class (the paper), ``tied`` one for all: a few percent of the memory
            and of the mixture's time, and no shrinkage, for which there is nothing left to mix.
        covariance_floor, covariance_shrinkage, mean_shift: see ``StreamingGMM``.
        class_prior: how much the weights of the classes count beside the likelihoods: 0 not at all (the paper), 1 as
            in Bayes' rule. Without, a class that never appears gets its mean and covariance from the tails of the
            predictions, lies over a class that does, and makes its samples look unknown.
        novelty: name of the novelty score.
        gate: ``frozen`` (the paper's), ``tracking`` or ``mixture``; see ``driftgate.novelty.gate``.
        p_reject: share of the samples that get no pseudo-label.
        init_batches: batches that set the thresholds of the frozen gate (N_init), window of the tracking one.
        certain_below: a sample whose novelty lies below is never unknown, whatever the gate says; quantiles would
            reject a share of any stream, however easy. For the scores in [0, 1] only, 0 in the paper.
        quantile_rule: which scores of a batch the thresholds are read off.
        gate_window, refit_every: scores the mixture gate looks at, and batches between two of its fits.
        contrastive_weight: weight of the contrastive loss (1 in the paper).
        temperature: of the contrastive loss (tau).
        reduction: ``sum`` as the equations say, or ``mean``; of both losses.
        self_pairs, mean_term: see ``contrastive_loss``.
        kl_weight: weight of the KL divergence loss (lambda).
        kl_form, kl_temperature: see ``kl_loss``.
    """

    backbone_lr_scale: float = Field(default=1.0, ge=0.0)
    reduced_dim: int = Field(default=64, ge=1)
    decay: float = Field(default=0.999, ge=0.0, le=1.0)
    covariance: CovarianceForm = "full"
    covariance_floor: float = Field(default=1e-6, ge=0.0)
    covariance_shrinkage: float = Field(default=300.0, ge=0.0)
    mean_shift: bool = False
    class_prior: float = Field(default=1.0, ge=0.0, le=1.0)
    novelty: str = "likelihood_entropy"
    gate: GateKind = "tracking"
    p_reject: float = Field(default=0.25, ge=0.0, lt=1.0)
    init_batches: int = Field(default=30, ge=1)
    certain_below: float = Field(default=0.01, ge=0.0, le=1.0)
    quantile_rule: QuantileRule = "interpolated"
    gate_window: int = Field(default=1024, ge=32)
    refit_every: int = Field(default=5, ge=1)
    contrastive_weight: float = Field(default=1.0, ge=0.0)
    temperature: float = Field(default=0.1, gt=0.0)
    reduction: Reduction = "mean"
    self_pairs: bool = False
    mean_term: MeanTerm = "samples"
    kl_weight: float = Field(default=1.0, ge=0.0)
    kl_form: KLForm = "cross_entropy"
    kl_temperature: float = Field(default=0.1, gt=0.0)


PAPER: dict[str, Any] = {
    "lr": 0.01,
    "backbone_lr_scale": 0.1,
    "covariance_shrinkage": 0.0,
    "class_prior": 0.0,
    "gate": "frozen",
    "p_reject": 0.5,
    "certain_below": 0.0,
    "reduction": "sum",
    "self_pairs": True,
    "kl_form": "paper",
}
"""The equations as written, with the learning rate of VisDA-C."""

RELEASED: dict[str, Any] = {
    **PAPER,
    "decay": 1.0,
    "quantile_rule": "released",
    "contrastive_weight": 0.0,
    "kl_form": "bounded",
    "kl_weight": 1e-3,
}
"""What the released code does in effect: no decay, no gradient from the contrastive loss, the bounded KL loss."""


@register
class GMM(GradientMethod):
    """The paper's method; see the module's text."""

    name: ClassVar[str] = "gmm"
    summary: ClassVar[str] = "a Gaussian mixture labels the stream; contrastive and KL divergence loss (the paper)"
    Settings: ClassVar[type[MethodSettings]] = GMMSettings
    presets: ClassVar[dict[str, dict[str, Any]]] = {"paper": PAPER, "released": RELEASED}
    settings: GMMSettings

    def __init__(self, model: SourceModel, settings: MethodSettings) -> None:
        super().__init__(model, settings)
        chosen = self.settings
        self._score = get_score(chosen.novelty)
        from_zero = chosen.novelty in SCORES_FROM_ZERO
        self._certain_below = chosen.certain_below if from_zero else -math.inf
        self.mixture = StreamingGMM(
            model.num_classes,
            self.reducer.out_features,
            chosen.decay,
            covariance=chosen.covariance,
            mean_shift=chosen.mean_shift,
            floor=chosen.covariance_floor,
            shrinkage=chosen.covariance_shrinkage,
        )
        self.gate = make_gate(
            chosen.gate,
            chosen.p_reject,
            chosen.init_batches,
            quantile_rule=chosen.quantile_rule,
            window=chosen.gate_window,
            refit_every=chosen.refit_every,
            log_scale=from_zero,
        )
        self.augmentation = Augmentation(flip=model.spec.flip)

    def build_modules(self) -> dict[str, nn.Module]:
        size = self.model.spec.feature_dim
        self.reducer = nn.Linear(size, min(self.settings.reduced_dim, size))
        return {"reducer": self.reducer}

    def set_prior(
        self,
        means: Tensor,
        covariances: Tensor,
        weights: Tensor,
        *,
        space: Literal["reduced", "features"] = "reduced",
    ) -> None:
        """Start the mixture from prior knowledge, as the paper allows; before the first step only.

        ``means`` (C, R), ``covariances`` (C, R, R) and ``weights`` (C,), in samples. With ``space="features"`` they are
        (C, D) and (C, D, D), class means and covariances of g(x), and are carried through the reducer. A tied mixture
        pools the covariances by the weights.
        """
        if self.steps > 0:
            raise DriftgateError(f"Expected a prior before the first step but {self.steps} were done; set it first.")
        if space == "features":
            weight, bias = self.reducer.weight.detach(), self.reducer.bias.detach()
            means, covariances = means.float() @ weight.T + bias, weight @ covariances.float() @ weight.T
        self.mixture.set_prior(means, covariances, weights)

    def _predict(self, images: Tensor) -> Prediction:
        output, reduced = self._view(self._passes(), images)
        return self._assess(output, reduced, self.mixture.clone(), self.gate.clone())

    def _step(self, images: Tensor) -> Prediction:
        passes = self._passes()
        output, reduced = self._view(passes, images, last=self.settings.contrastive_weight == 0)
        # Copies until the end: whatever fails on the way, the state is that of the last good step.
        mixture, gate = self.mixture.clone(), self.gate.clone()
        prediction = self._assess(output, reduced, mixture, gate)
        view = self._second_view(passes, images)
        self._learn(passes, self._loss(output.logits, reduced, view, prediction.pseudo_labels, mixture.means))
        self.mixture, self.gate = mixture, gate
        return prediction

    def _view(self, passes: Passes, images: Tensor, *, last: bool = True) -> tuple[ModelOutput, Tensor]:
        """Features, logits and reduced features r(g(x)) of shape (N, R)."""
        output = self._forward(passes, images, last=last)
        reduced: Tensor = self.reducer(output.features)
        self._check_finite(reduced)
        return output, reduced

    def _assess(self, output: ModelOutput, reduced: Tensor, mixture: StreamingGMM, gate: Gate) -> Prediction:
        """Update ``mixture`` and ``gate`` with the batch, then label and predict it."""
        scores = output.logits.detach().softmax(dim=1)
        mixture.update(reduced, scores)
        evaluation = mixture.evaluate(reduced, prior=self.settings.class_prior)
        novelty = self._score(
            ScoreInputs(output.features, reduced, output.logits, evaluation, mixture.means, mixture.weights)
        )
        thresholds = spare_certain(gate.update(novelty), self._certain_below)
        return Prediction(
            labels=predict_label(scores.argmax(dim=1), novelty, thresholds),
            scores=scores,
            novelty=novelty,
            pseudo_labels=pseudo_label(evaluation.log_likelihood.argmax(dim=1), novelty, thresholds),
            thresholds=thresholds,
        )

    def _second_view(self, passes: Passes, images: Tensor) -> Tensor:
        """Reduced features (N, R) of an augmented view."""
        images = self.augmentation(images, self.generator)
        # Without a contrastive loss only the statistics of batch norm follow both views, as in the released code.
        with torch.set_grad_enabled(self.settings.contrastive_weight > 0):
            return self._view(passes, images)[1]

    def _loss(self, logits: Tensor, reduced: Tensor, view: Tensor, pseudo_labels: Tensor, means: Tensor) -> Tensor:
        """Eq. 8: the contrastive loss on both views and the KL divergence loss on the images themselves."""
        chosen = self.settings
        loss = chosen.kl_weight * kl_loss(
            logits,
            pseudo_labels,
            form=chosen.kl_form,
            reduction=chosen.reduction,
            temperature=chosen.kl_temperature,
        )
        if chosen.contrastive_weight == 0:
            return loss
        return loss + chosen.contrastive_weight * contrastive_loss(
            torch.cat([reduced, view]),
            torch.cat([pseudo_labels, pseudo_labels]),
            means,
            temperature=chosen.temperature,
            reduction=chosen.reduction,
            self_pairs=chosen.self_pairs,
            mean_term=chosen.mean_term,
        )

    def memory_tensors(self) -> dict[str, Tensor]:
        return with_prefix("mixture", self.mixture.state_dict()) | with_prefix("gate", self.gate.state_dict())

    def load_memory_tensors(self, tensors: dict[str, Tensor]) -> None:
        self.mixture.load_state_dict(under_prefix("mixture", tensors))
        self.gate.load_state_dict(under_prefix("gate", tensors))
