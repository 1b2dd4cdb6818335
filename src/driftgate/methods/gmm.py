"""GMM: the paper's method. A mixture in a reduced feature space labels the stream, two losses adapt the network.

One step: forward, update the mixture with the predictions (Eqs. 1-3), score each sample by the entropy of its
likelihoods (Eq. 4), pseudo-label through the gate, predict, then learn from the batch and one augmented view of it by
the contrastive (Eq. 5) and the KL divergence loss (Eq. 6).

The default keeps the network from harm where the paper trusts the stream: only the norm layers of a pretrained network
learn; batch norm uses the statistics it was trained with; a class label needs the consent of the classifier as it was
trained; a batch unlike all before it is predicted but teaches nothing; and a few samples wait until they are enough.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from driftgate.export import BEFORE_BATCH, BY_RUNNING, Frozen, MixtureJudge
from driftgate.losses import KLForm, MeanTerm, Reduction, contrastive_loss, kl_loss
from driftgate.memory import CovarianceForm, MixtureEvaluation, StreamingGMM
from driftgate.memory.frozen import FrozenMixture
from driftgate.memory.gmm import FloorRule
from driftgate.methods.base import MethodSettings
from driftgate.methods.gradient import GradientMethod, GradientSettings
from driftgate.methods.look import Look
from driftgate.models.normalization import (
    batch_is_steadier,
    batch_mean_shift,
    buffer_values,
    last_statistics,
    restore_buffers,
)
from driftgate.models.passes import Passes
from driftgate.models.source_model import ModelOutput, SourceModel
from driftgate.novelty.calm import CalmPast, mixture_shift
from driftgate.novelty.gate import (
    TIES,
    Gate,
    GateKind,
    QuantileRule,
    TieRule,
    make_gate,
    predict_label,
    pseudo_label,
    spare_certain,
)
from driftgate.novelty.rejection import entropy_prediction
from driftgate.novelty.scores import SCORES_FROM_ZERO, MixtureView, ScoreInputs, get_score
from driftgate.novelty.share import ShareGate, UnknownShare, share_bounds
from driftgate.rng import seeded
from driftgate.types import UNLABELED, DriftgateError, Prediction

SOURCE_THRESHOLD = 0.5
"""Of the prediction's entropy, for samples that come before anything was learned; as source-only has it."""


class GMMSettings(GradientSettings):
    """Settings of the method; the paper's symbol in brackets. docs/gmm.md tells how the defaults were chosen.

    Attributes:
        reduced_dim: size of the reduced feature space (FD_r); at most the size of the features, for more dimensions
            than that would leave every covariance singular.
        decay: how much of the mixture's past survives a batch (alpha).
        covariance: ``full`` keeps a covariance a class (the paper), ``tied`` one for all: a few percent of the memory
            and of the mixture's time, and no shrinkage, for which there is nothing left to mix.
        covariance_floor, floor_rule, covariance_shrinkage, mean_shift: see ``StreamingGMM``.
        class_prior: how much the weights of the classes count beside the likelihoods: 0 not at all (the paper), 1 as
            in Bayes' rule. Without, a class that never appears gets its mean and covariance from the tails of the
            predictions, lies over a class that does, and makes its samples look unknown.
        likelihood_temperature: the logarithms of the likelihoods are divided by it; 1 in the paper. Gaussians of many
            dimensions are too sure of themselves, and the entropies of 64 of them lie near zero whatever the sample.
        novelty: name of the novelty score.
        gate: ``frozen`` (the paper's), ``tracking`` or ``mixture``; see ``driftgate.novelty.gate``.
        unknown_share: ``auto``; the share of the stream that is unknown, where it is known (0: nothing is rejected and
            nobody is taught to be unknown); or bounds (low, high) of it. Anything but ``auto`` takes the place of the
            gate; see ``driftgate.novelty.share``.
        p_reject: share of the samples that get no pseudo-label.
        init_batches: batches that set the thresholds of the frozen gate (N_init), window of the tracking one.
        certain_below: a sample whose novelty lies below is never unknown, whatever the gate says; quantiles would
            reject a share of any stream, however easy. For the scores in [0, 1] only, 0 in the paper.
        quantile_rule: which scores of a batch the thresholds are read off.
        tie_rule: on which side of a threshold a novelty equal to it lies; see ``driftgate.novelty.gate.Ties``.
        gate_window, refit_every: scores the mixture gate looks at, and batches between two of its fits.
        contrastive_weight: weight of the contrastive loss (1 in the paper).
        temperature: of the contrastive loss (tau).
        reduction: ``sum`` as the equations say, or ``mean``; of both losses.
        self_pairs, mean_term: see ``contrastive_loss``.
        kl_weight: weight of the KL divergence loss (lambda).
        kl_form, kl_temperature: see ``kl_loss``.
        unknown_weight: weight of the unknown samples in the KL divergence loss; None for 0 where the network is
            pretrained, else 1. To be undecided is quickly learned and spreads to the classes: a good classifier whose
            stream holds nothing new would be unlearned by the half that the gate takes for unknown.
        adapt_layers, backbone_lr_scale: by default what the model knows of itself decides: a pretrained backbone learns
            at a tenth of the rate under a head that stays, a network trained from scratch as a whole.
        batch_norm: ``auto`` normalises as the backbone was trained; where that is not known, by the batch if a network
            trained from scratch, else by those that keep the answers of the first batch steadier between two views.
        veto_below: a class label is dropped where the classifier as it came gives the class no more than this
            probability, or an unknown class may take over the slot of one the network cannot recognise; 0 for never.
        skip_unusual: predict batches that look like none before, but do not learn from them; see ``CalmPast``.
        min_batch: smaller batches are predicted at once by what is known, and wait until so many samples are together.
    """

    adapt_layers: str = "auto"
    batch_norm: Literal["auto", "batch", "running"] = "auto"  # type: ignore[assignment]
    veto_below: float = Field(default=0.2, ge=0.0, lt=1.0)
    skip_unusual: bool = True
    min_batch: int = Field(default=16, ge=1)
    backbone_lr_scale: float | None = Field(default=None, ge=0.0)
    reduced_dim: int = Field(default=64, ge=1)
    decay: float = Field(default=0.999, ge=0.0, le=1.0)
    covariance: CovarianceForm = "full"
    covariance_floor: float = Field(default=1e-6, ge=0.0)
    floor_rule: FloorRule = "relative"
    covariance_shrinkage: float = Field(default=300.0, ge=0.0)
    mean_shift: bool = False
    class_prior: float = Field(default=1.0, ge=0.0, le=1.0)
    likelihood_temperature: float = Field(default=1.0, gt=0.0)
    novelty: str = "likelihood_entropy"
    gate: GateKind = "tracking"
    unknown_share: UnknownShare = "auto"
    p_reject: float = Field(default=0.25, ge=0.0, lt=1.0)
    init_batches: int = Field(default=30, ge=1)
    certain_below: float = Field(default=0.01, ge=0.0, le=1.0)
    quantile_rule: QuantileRule = "interpolated"
    tie_rule: TieRule = "paper"
    gate_window: int = Field(default=1024, ge=32)
    refit_every: int = Field(default=5, ge=1)
    contrastive_weight: float = Field(default=1.0, ge=0.0)
    temperature: float = Field(default=0.1, gt=0.0)
    reduction: Reduction = "mean"
    self_pairs: bool = False
    mean_term: MeanTerm = "samples"
    kl_weight: float = Field(default=1.0, ge=0.0)
    unknown_weight: float | None = Field(default=None, ge=0.0)
    kl_form: KLForm = "cross_entropy"
    kl_temperature: float = Field(default=0.1, gt=0.0)


PAPER: dict[str, Any] = {
    "lr": 0.01,
    "adapt_layers": "all",
    "batch_norm": "batch",
    "veto_below": 0.0,
    "skip_unusual": False,
    "min_batch": 1,
    "backbone_lr_scale": 0.1,
    "covariance_shrinkage": 0.0,
    "class_prior": 0.0,
    "gate": "frozen",
    "p_reject": 0.5,
    "certain_below": 0.0,
    "reduction": "sum",
    "self_pairs": True,
    "kl_form": "paper",
    "unknown_weight": 1.0,
}
"""The equations as written, with the learning rate of VisDA-C."""

RELEASED: dict[str, Any] = {
    **PAPER,
    "decay": 1.0,
    "floor_rule": "absolute",
    "quantile_rule": "released",
    "tie_rule": "released",
    "contrastive_weight": 0.0,
    "kl_form": "bounded",
    "kl_weight": 1e-3,
}
"""What the released code does in effect: no decay, no gradient from the contrastive loss, the bounded KL loss, and its
own floor, quantiles and inequalities."""


class GMM(GradientMethod, name="gmm", settings=GMMSettings, look=Look("GMM", place=140, colors=("#c8283c", "#ff6b7b"))):
    """The paper's method; see the module's text."""

    summary: ClassVar[str] = "a Gaussian mixture labels the stream; contrastive and KL divergence loss (the paper)"
    presets: ClassVar[dict[str, dict[str, Any]]] = {"paper": PAPER, "released": RELEASED}
    any_size: ClassVar[frozenset[str]] = frozenset({"waiting"})
    settings: GMMSettings
    source_head: Tensor
    waiting: Tensor

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
            floor_rule=chosen.floor_rule,
            shrinkage=chosen.covariance_shrinkage,
        )
        self.gate: Gate = (
            make_gate(
                chosen.gate,
                chosen.p_reject,
                chosen.init_batches,
                quantile_rule=chosen.quantile_rule,
                window=chosen.gate_window,
                refit_every=chosen.refit_every,
                log_scale=from_zero,
            )
            if chosen.unknown_share == "auto"
            else ShareGate(share_bounds(chosen.unknown_share), chosen.p_reject, window=chosen.gate_window)
        )
        self.calm = CalmPast()
        self.by_batch = self._statistics_by_training()
        self.keep(source_head=self._copy_head(), waiting=torch.zeros(0, *model.spec.shape))

    def build_networks(self) -> None:
        size = self.model.spec.feature_dim
        self.reducer = nn.Linear(size, min(self.settings.reduced_dim, size))

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

    def frozen(self) -> Frozen:
        """As batches too small to learn from are answered, ``_answer_few``; learning and large batches go beyond it."""
        chosen = self.settings
        if not bool((self.mixture.weights > 0).any()):
            raise DriftgateError(f"Expected a method that has seen a batch but {self.name!r} has an empty mixture.")
        mixture = FrozenMixture(self.mixture, chosen.class_prior, chosen.likelihood_temperature)
        return Frozen(
            self.model,
            MixtureJudge(self.reducer, mixture, self.mixture.weights, self._score),
            spare_certain(self.gate.thresholds, self._certain_below).prediction,
            inclusive=TIES[chosen.tie_rule].prediction,
            approximation=f"{BEFORE_BATCH}; {BY_RUNNING}" if self.by_batch else BEFORE_BATCH,
        )

    def _predict(self, images: Tensor) -> Prediction:
        if len(images) < self.settings.min_batch:
            return self._answer_few(images)
        output, reduced = self._view(self._passes(follow=self._choose_statistics(images)), images)
        return self._assess(output, reduced, self.mixture.clone(), self.gate.clone())[0]

    def _step(self, images: Tensor) -> Prediction:
        if len(images) >= self.settings.min_batch:
            return self._adapt(images)
        with torch.no_grad():
            prediction = self._answer_few(images)
        self._tell(prediction)
        waiting = torch.cat([self.waiting, images])
        if len(waiting) >= self.settings.min_batch:
            prediction = replace(prediction, losses=self._adapt(waiting).losses)
            waiting = waiting[:0]
        self.waiting = waiting
        return prediction

    def _adapt(self, images: Tensor) -> Prediction:
        """Predict a batch, then learn from it unless it looks like none before."""
        by_batch, buffers = self._choose_statistics(images), buffer_values(self.model)
        statistics = last_statistics(self.model) if by_batch else None
        passes = self._passes(follow=by_batch)
        output, reduced = self._view(passes, images, last=self.settings.contrastive_weight == 0)
        # Copies until the end: whatever fails on the way, the state is that of the last good step.
        mixture, gate, calm = self.mixture.clone(), self.gate.clone(), self.calm.clone()
        prediction, evaluation = self._assess(output, reduced, mixture, gate)
        # By its own statistics every batch has the same mean, so the last norm layer is asked what it took away.
        shift = mixture_shift(self.mixture, reduced) if statistics is None else batch_mean_shift(self.model, statistics)
        facts = (evaluation.log_likelihood, prediction.scores, output.features, shift)
        if self.settings.skip_unusual and not calm.accept(*facts):
            restore_buffers(self.model, buffers)
            self.calm = calm
            return replace(prediction, pseudo_labels=torch.full_like(prediction.labels, UNLABELED))
        self._tell(prediction)
        view = self._second_view(passes, images)
        losses = self._losses(output.logits, reduced, view, prediction.pseudo_labels, mixture.means)
        prediction = replace(prediction, losses=self._learn(passes, losses))
        self.mixture, self.gate, self.calm = mixture, gate, calm
        self.by_batch = int(by_batch)
        return prediction

    def _answer_few(self, images: Tensor) -> Prediction:
        """Samples too few for statistics of their own: by those that followed the stream, the mixture and the gate as
        they stand; before anything was learned, as the source model."""
        output, reduced = self._view(self._passes(follow=False), images)
        if not bool((self.mixture.weights > 0).any()):
            return entropy_prediction(output.logits, SOURCE_THRESHOLD)
        evaluation = self._evaluate(self.mixture, reduced)
        novelty = self._novelty(output, reduced, self.mixture, evaluation)
        prediction = self._judge(output, evaluation, novelty, self.gate)
        return replace(prediction, pseudo_labels=torch.full_like(prediction.labels, UNLABELED))

    def _choose_statistics(self, images: Tensor) -> bool:
        """Whether batch norm uses the batch's statistics; where nobody knows yet, this batch tells."""
        if self.by_batch < 0:
            # A generator of its own: the answer to a batch must not hang on whether it was asked before.
            view = self.views.weak(images, seeded(self.settings.seed))
            return batch_is_steadier(self.model, images, view)
        return bool(self.by_batch)

    def _statistics_by_training(self) -> int:
        """1 for the batch's statistics, 0 for the source's, -1 where the first batch must tell."""
        chosen, spec = self.settings.batch_norm, self.model.spec
        if chosen == "auto" and spec.backbone_norm is None and spec.pretrained:
            return -1
        by_training = spec.backbone_norm or "batch"
        return int((by_training if chosen == "auto" else chosen) == "batch")

    def _copy_head(self) -> Tensor:
        """(C, D + 1) weight and bias of the classifier as it came; none where it stays as it is, or is no linear layer:
        then the classifier itself is asked for its veto."""
        head = self.model.head
        learns = any(parameter.requires_grad for parameter in head.parameters())
        if self.settings.veto_below == 0 or not learns or not isinstance(head, nn.Linear):
            return torch.zeros(0)
        bias = head.weight.new_zeros(head.out_features) if head.bias is None else head.bias
        return torch.cat([head.weight, bias[:, None]], dim=1).detach().clone()

    def _view(self, passes: Passes, images: Tensor, *, last: bool = True) -> tuple[ModelOutput, Tensor]:
        """Features, logits and reduced features r(g(x)) of shape (N, R)."""
        output = self._forward(passes, images, last=last)
        reduced: Tensor = self.reducer(output.features)
        self._check_finite(reduced)
        return output, reduced

    def _assess(
        self, output: ModelOutput, reduced: Tensor, mixture: StreamingGMM, gate: Gate
    ) -> tuple[Prediction, MixtureEvaluation]:
        """Update ``mixture`` and ``gate`` with the batch, then label and predict it; and what the mixture said."""
        mixture.update(reduced, output.logits.detach().softmax(dim=1))
        evaluation = self._evaluate(mixture, reduced)
        novelty = self._novelty(output, reduced, mixture, evaluation)
        gate.update(novelty)
        return self._judge(output, evaluation, novelty, gate), evaluation

    def _evaluate(self, mixture: StreamingGMM, reduced: Tensor) -> MixtureEvaluation:
        """What the mixture says of (N, R), tempered."""
        sharp = mixture.evaluate(reduced, prior=self.settings.class_prior)
        return sharp._replace(log_likelihood=sharp.log_likelihood / self.settings.likelihood_temperature)

    def _novelty(
        self, output: ModelOutput, reduced: Tensor, mixture: StreamingGMM, evaluation: MixtureEvaluation
    ) -> Tensor:
        """(N,) how new each sample looks."""
        return self._score(
            ScoreInputs(
                output.features,
                output.logits,
                MixtureView(reduced, evaluation, mixture.means, mixture.weights),
            )
        )

    def _judge(self, output: ModelOutput, evaluation: MixtureEvaluation, novelty: Tensor, gate: Gate) -> Prediction:
        """Class or unknown for each sample, to answer and to learn from."""
        scores = output.logits.detach().softmax(dim=1)
        thresholds = spare_certain(gate.thresholds, self._certain_below)
        likeliest = evaluation.log_likelihood.argmax(dim=1)
        labels = pseudo_label(likeliest, novelty, thresholds, self.settings.tie_rule)
        return Prediction(
            labels=predict_label(scores.argmax(dim=1), novelty, thresholds, self.settings.tie_rule),
            scores=scores,
            novelty=novelty,
            pseudo_labels=torch.where(self._vetoed(output, labels), UNLABELED, labels),
            thresholds=thresholds,
            unknown_share=gate.unknown_share,
        )

    def _vetoed(self, output: ModelOutput, labels: Tensor) -> Tensor:
        """(N,) -> (N,): class labels that the classifier as it came does not believe."""
        if self.settings.veto_below == 0:
            return torch.zeros_like(labels, dtype=torch.bool)
        logits = output.logits.detach()
        if len(self.source_head):
            logits = F.linear(output.features.detach(), self.source_head[:, :-1], self.source_head[:, -1])
        believed = logits.softmax(dim=1).gather(1, labels.clamp_min(0)[:, None])
        return (labels >= 0) & (believed[:, 0] <= self.settings.veto_below)

    def _second_view(self, passes: Passes, images: Tensor) -> Tensor:
        """Reduced features (N, R) of another view."""
        images = self.views.weak(images, self.generator)
        # Without a contrastive loss only the statistics of batch norm follow both views, as in the released code.
        with torch.set_grad_enabled(self.settings.contrastive_weight > 0):
            return self._view(passes, images)[1]

    def _losses(
        self, logits: Tensor, reduced: Tensor, view: Tensor, pseudo_labels: Tensor, means: Tensor
    ) -> dict[str, Tensor]:
        """Eq. 8: the contrastive loss on both views and the KL divergence loss on the images themselves."""
        chosen, unknown_weight = self.settings, self.settings.unknown_weight
        if unknown_weight is None:
            unknown_weight = 0.0 if self.model.spec.pretrained else 1.0
        divergence = kl_loss(
            logits,
            pseudo_labels,
            form=chosen.kl_form,
            reduction=chosen.reduction,
            temperature=chosen.kl_temperature,
            unknown_weight=unknown_weight,
        )
        losses = {"kl": chosen.kl_weight * divergence}
        if chosen.contrastive_weight == 0:
            return losses
        contrastive = contrastive_loss(
            torch.cat([reduced, view]),
            torch.cat([pseudo_labels, pseudo_labels]),
            means,
            temperature=chosen.temperature,
            reduction=chosen.reduction,
            self_pairs=chosen.self_pairs,
            mean_term=chosen.mean_term,
        )
        return {**losses, "contrastive": chosen.contrastive_weight * contrastive}

    def _numbers(self) -> dict[str, Tensor]:
        return {"by_batch": torch.tensor(self.by_batch)}

    def _load_numbers(self, numbers: dict[str, Tensor]) -> None:
        self.by_batch = int(numbers["by_batch"])
