"""GMM: the paper's method. A mixture in a reduced feature space labels the stream, two losses adapt the network.

One step: forward, update the mixture with the predictions (Eqs. 1-3), score each sample by the entropy of its
likelihoods (Eq. 4), pseudo-label through the gate, predict, then learn from the batch and one augmented view of it by
the contrastive (Eq. 5) and the KL divergence loss (Eq. 6).

The default keeps the network from harm where the paper trusts the stream: a pretrained network learns only if asked to,
and then its backbone alone, slowly; batch norm uses the statistics it was trained with, and the others, the neighbours
and the mixture have a say in every answer; a label, class or unknown, needs the consent of the classifier as it was
trained; a batch unlike all before it is predicted but teaches nothing; and a few samples wait until they are enough.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

from driftgate.export import Frozen, MixtureJudge
from driftgate.losses import agreement_loss, as_sure_as, contrastive_loss, kl_loss
from driftgate.memory import MixtureEvaluation, StreamingGMM
from driftgate.memory.frozen import FrozenMixture
from driftgate.memory.gmm import TOO_LARGE
from driftgate.methods.base import MethodSettings, taught_nothing
from driftgate.methods.consent import Consent
from driftgate.methods.effort import LabelledView, answer_scores, at_half, check_second_view, differences, sure_enough
from driftgate.methods.gmm_settings import PAPER, RELEASED, GMMSettings
from driftgate.methods.gradient import GradientMethod, largest
from driftgate.methods.look import Look
from driftgate.methods.neighbor_opinion import pool_neighbors
from driftgate.methods.second_opinion import SecondOpinion, opinion_share
from driftgate.methods.third_opinion import ThirdOpinion, pool_third
from driftgate.models.apart import ApartPasses
from driftgate.models.normalization import (
    batch_is_steadier,
    batch_mean_shift,
    buffer_values,
    last_statistics,
    restate_statistics,
    restore_buffers,
)
from driftgate.models.passes import Passes
from driftgate.models.source_model import ModelOutput, SourceModel
from driftgate.novelty.calm import CalmPast, mixture_shift
from driftgate.novelty.gate import LEVEL, TIES, Gate, LevelGate, predict_label, pseudo_label, spare_certain
from driftgate.novelty.need import follow_doubt, need
from driftgate.novelty.rejection import entropy_prediction
from driftgate.novelty.scores import SCORES_FROM_ZERO, MixtureView, ScoreInputs, entropy, get_score
from driftgate.rng import seeded
from driftgate.state import exact
from driftgate.types import UNLABELED, DriftgateError, Prediction, Thresholds


class Assessment(NamedTuple):
    """What a batch was found to be, like those before it (``usual``) or not, and the memory that has taken it in."""

    prediction: Prediction
    mixture: StreamingGMM
    gate: Gate
    gate_alone: Gate | None
    calm: CalmPast
    usual: bool


class GMM(GradientMethod, name="gmm", settings=GMMSettings, look=Look("GMM", place=140, colors=("#c8283c", "#ff6b7b"))):
    """The paper's method; see the module's text."""

    summary: ClassVar[str] = "a Gaussian mixture labels the stream; contrastive and KL divergence loss (the paper)"
    presets: ClassVar[dict[str, dict[str, Any]]] = {"paper": PAPER, "released": RELEASED}
    any_size: ClassVar[frozenset[str]] = frozenset({"waiting"})
    settings: GMMSettings
    waiting: Tensor
    doubt: Tensor

    def __init__(self, model: SourceModel, settings: MethodSettings) -> None:
        super().__init__(model, settings)
        chosen = self.settings
        check_second_view(chosen.second_view, model.spec)
        head_learns = any(parameter.requires_grad for parameter in model.head.parameters())
        share = opinion_share(chosen.second_opinion, model)
        # A classifier that learns the mixture's labels says what the mixture says: it would be asked twice.
        stays = model.spec.pretrained and not head_learns
        self.neighbor_share, self.third_weight = chosen.further_opinions(classifier_stays=stays)
        novelty, certain_below = chosen.novelty_score(head_learns=head_learns)
        self._score = get_score(novelty)
        self._certain_below = certain_below if novelty in SCORES_FROM_ZERO else -math.inf
        self.mixture = chosen.make_mixture(model.num_classes, self.reducer.out_features)
        self.gate: Gate = chosen.make_gate(novelty, third_opinion=self.third_weight > 0)
        self.calm = CalmPast()
        self.by_batch = self._statistics_by_training()
        self.consent = Consent(
            model.head, veto_below=chosen.veto_below, doubt_above=chosen.doubt_above, learns=head_learns
        )
        self.second_opinion = SecondOpinion(model, share, keeps_source=self.by_batch != 0)
        # For few samples and an exported network, who are answered without second opinion and neighbours: they doubt
        # less. A level holds for whoever is asked.
        apart = max(share, self.neighbor_share) > 0 and not isinstance(self.gate, LevelGate)
        self.gate_alone: Gate | None = self.gate.clone() if apart else None
        self.keep(waiting=torch.zeros(0, *model.spec.shape), doubt=torch.zeros(2))

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
            raise DriftgateError(
                f"Expected a method that has seen a batch but {self.name!r} has an empty mixture; let it see one first."
            )
        third = ThirdOpinion.of(self.mixture, self.third_weight)
        mixture = FrozenMixture(self.mixture, chosen.class_prior, chosen.likelihood_temperature)
        return Frozen(
            self.model,
            MixtureJudge(self.reducer, mixture, self.mixture.weights, self._score, third),
            spare_certain((self.gate_alone or self.gate).thresholds, self._certain_below).prediction,
            inclusive=TIES[chosen.tie_rule].prediction,
            approximation=differences(
                by_batch=bool(self.by_batch),
                answer=chosen.answer,
                second=self.second_opinion.share > 0,
                neighbors=self.neighbor_share > 0,
            ),
        )

    def _predict(self, images: Tensor) -> Prediction:
        if len(images) < self.settings.min_batch:
            return self._answer_few(images)
        by_batch = self._choose_statistics(images)
        other = self.second_opinion.ask(self.model, images, by_batch=by_batch)
        output, reduced = self._view(self._passes(follow=by_batch), images)
        return self._assess(output, reduced, other=other).prediction

    def _step(self, images: Tensor) -> Prediction:
        return self._take(images, learn=True)

    def _watch(self, images: Tensor) -> Prediction:
        """Statistics, mixture and gate follow the batch; no gradient, no second view."""
        with torch.no_grad():
            return self._take(images, learn=False)

    def _take(self, images: Tensor, *, learn: bool) -> Prediction:
        if len(images) >= self.settings.min_batch:
            return self._adapt(images, learn=learn)
        with torch.no_grad():
            prediction = self._answer_few(images)
        self._tell(prediction)
        waiting = torch.cat([self.waiting, images])
        if len(waiting) >= self.settings.min_batch:
            prediction = replace(prediction, losses=self._adapt(waiting, learn=learn).losses)
            if self.by_batch == 1 and int(self.calm.refused) == 0:  # the next few are answered by these
                restate_statistics(self.model, waiting)
            waiting = waiting[:0]
        self.waiting = waiting
        return prediction

    def _adapt(self, images: Tensor, *, learn: bool) -> Prediction:
        """Predict a batch, then learn from it if asked to, unless it looks like none before."""
        by_batch, buffers = self._choose_statistics(images), buffer_values(self.model)
        statistics = last_statistics(self.model) if by_batch else None
        passes = self._passes(follow=by_batch)
        # First, for what it moves and puts back would invalidate a graph.
        other = self.second_opinion.ask(self.model, images, by_batch=by_batch)
        output, reduced = self._view(passes, images, last=not self._learns_from_view)
        # By its own statistics every batch has the same mean, so the last norm layer is asked what it took away.
        shift = mixture_shift(self.mixture, reduced) if statistics is None else batch_mean_shift(self.model, statistics)
        # Copies until the end: whatever fails on the way, the state is that of the last good step.
        prediction, mixture, gate, gate_alone, calm, usual = self._assess(output, reduced, other=other, shift=shift)
        if not usual:
            restore_buffers(self.model, buffers)
            self.calm = calm
            return taught_nothing(prediction)
        teaches = learn and sure_enough(prediction.pseudo_labels, self.settings.min_sure)
        if not teaches:
            prediction = taught_nothing(prediction)
        self._tell(prediction)
        doubt = self.doubt
        if teaches:
            answers = prediction.scores
            if self.settings.agreement_weight > 0:
                # The pool of two opinions is in more doubt than each: who learns from it is not to grow undecided.
                answers = as_sure_as(answers, output.logits.detach().float())
            view, unseen = self._second_view(passes, images, prediction.pseudo_labels, answers)
            losses = self._losses(output.logits, reduced, view, prediction.pseudo_labels, mixture.means)
            if (above := self.settings.doubt_above) > 0:
                doubt = follow_doubt(doubt, entropy(self.consent.logs(output)), above)
                losses = {name: need(doubt) * loss for name, loss in losses.items()}
            prediction = replace(prediction, losses=self._learn(passes, losses, unseen))
        self.mixture, self.gate, self.gate_alone, self.calm, self.doubt = mixture, gate, gate_alone, calm, doubt
        self.by_batch = int(by_batch)
        return prediction

    def _answer_few(self, images: Tensor) -> Prediction:
        """Samples too few for statistics of their own: by those that followed the stream, the mixture and the gate as
        they stand; before anything was learned, as the source model."""
        output, reduced = self._view(self._passes(follow=False), images)
        self._check_finite(*output, reduced)
        if not bool((self.mixture.weights > 0).any()):
            return entropy_prediction(output.logits, LEVEL)
        evaluation = self._tempered(self.mixture.evaluate(reduced, prior=self.settings.class_prior))
        output = pool_third(output, reduced, ThirdOpinion.of(self.mixture, self.third_weight))
        novelty = self._novelty(output, reduced, self.mixture, evaluation)
        gate = self.gate_alone or self.gate
        prediction = self._judge(output, evaluation, novelty, gate, gate.thresholds)
        return taught_nothing(prediction)

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

    def _view(self, passes: Passes, images: Tensor, *, last: bool = True) -> tuple[ModelOutput, Tensor]:
        """Features, logits and reduced features r(g(x)) of shape (N, R); nobody has looked at them yet."""
        output = passes.forward(images, last=last)
        reduced: Tensor = self.reducer(output.features)
        return output, reduced

    def _assess(
        self,
        output: ModelOutput,
        reduced: Tensor,
        *,
        other: Tensor | None = None,
        shift: Tensor | None = None,
        beside: tuple[Tensor, ...] = (),
    ) -> Assessment:
        """Let copies of mixture, gate and calm past take the batch in, then label and predict it, by the ``other``
        logits too, if there is a second opinion.

        All that the host must know of it comes in one read: whether the outputs are finite, those ``beside`` included,
        and the mixture sound, the thresholds, and, with a ``shift``, whether the batch is usual.
        """
        pooled = pool_neighbors(self.second_opinion.pool(output, other), self.neighbor_share)
        scores = pooled.logits.detach().softmax(dim=1)
        mixture, height = self.mixture.clone(), largest(*output, reduced, *beside)
        # Before the third opinion, which must not feed on itself.
        sound, third = mixture.update_unseen(reduced, scores), ThirdOpinion.of(mixture, self.third_weight)
        pooled = pool_third(pooled, reduced, third)
        for retry in (False, True):
            gate, calm, gate_alone = self.gate.clone(), self.calm.clone(), self.gate_alone and self.gate_alone.clone()
            evaluation, failed = mixture.evaluate_unseen(reduced, prior=self.settings.class_prior, retry=retry)
            evaluation = self._tempered(evaluation)
            novelty = self._novelty(pooled, reduced, mixture, evaluation)
            gate.take_in(novelty)
            if gate_alone is not None:
                alone = pool_third(output, reduced, third)
                gate_alone.take_in(self._novelty(alone, reduced, mixture, evaluation))
            usual = torch.ones_like(sound)
            if self.settings.skip_unusual and shift is not None:
                usual = calm.take_in(evaluation.log_likelihood, scores, output.features, shift)
            told = torch.stack([exact(value) for value in (height, sound, failed, usual, *gate.cuts)]).tolist()
            self._check_largest(told[0])
            if not told[1]:
                raise DriftgateError(TOO_LARGE)
            if not told[2]:
                break
        prediction = self._judge(pooled, evaluation, novelty, gate, Thresholds(*told[4:]))
        # Of the first opinion: by the other statistics a classifier that is at home would seem to be in doubt.
        vetoed = self.consent.vetoed(output, prediction.pseudo_labels)
        prediction = replace(prediction, pseudo_labels=torch.where(vetoed, UNLABELED, prediction.pseudo_labels))
        return Assessment(prediction, mixture, gate, gate_alone, calm, bool(told[3]))

    def _tempered(self, sharp: MixtureEvaluation) -> MixtureEvaluation:
        """What the mixture says, divided by the temperature."""
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

    def _judge(
        self, output: ModelOutput, evaluation: MixtureEvaluation, novelty: Tensor, gate: Gate, found: Thresholds
    ) -> Prediction:
        """Class or unknown for each sample, to answer and to learn from, by the thresholds ``found`` by the gate."""
        scores = answer_scores(self.settings.answer, output.logits.detach(), evaluation.log_likelihood)
        thresholds = spare_certain(found, self._certain_below)
        likeliest = evaluation.log_likelihood.argmax(dim=1).to(scores.device)
        return Prediction(
            labels=predict_label(scores.argmax(dim=1), novelty, thresholds, self.settings.tie_rule),
            scores=scores,
            novelty=novelty,
            pseudo_labels=pseudo_label(likeliest, novelty, thresholds, self.settings.tie_rule),
            thresholds=thresholds,
            unknown_share=gate.unknown_share,
        )

    @property
    def _learns_from_view(self) -> bool:
        """Whether any loss looks at the second view."""
        return self.settings.contrastive_weight > 0 or self.settings.agreement_weight > 0

    def _second_view(
        self, passes: Passes, images: Tensor, labels: Tensor, answers: Tensor
    ) -> tuple[LabelledView, Tensor | None]:
        """Another view of a batch, and the ``largest`` of its outputs, which nobody has looked at. Where samples go
        backward apart, it is a view of those with a label alone."""
        if isinstance(passes, ApartPasses):
            chosen = labels != UNLABELED
            passes.choose(chosen)
            images, labels, answers = images[chosen], labels[chosen], answers[chosen]
        if self.settings.second_view == "none" or not len(images):
            reduced = self.reducer.weight.new_zeros(0, self.reducer.out_features)
            return LabelledView(reduced, answers[:0], labels[:0], answers[:0]), None
        images = self.views.weak(images, self.generator)
        if self.settings.second_view == "half":
            images = at_half(images)
        # Where no loss looks at it only the statistics of batch norm follow both views, as in the released code.
        with torch.set_grad_enabled(self._learns_from_view):
            output, reduced = self._view(passes, images)
        return LabelledView(reduced, output.logits, labels, answers), largest(*output, reduced)

    def _losses(
        self, logits: Tensor, reduced: Tensor, view: LabelledView, pseudo_labels: Tensor, means: Tensor
    ) -> dict[str, Tensor]:
        """Eq. 8: the contrastive loss on both views and the KL divergence loss on the images themselves; beside it, if
        asked for, the agreement of the second view with what was answered."""
        chosen = self.settings
        divergence = kl_loss(
            logits,
            pseudo_labels,
            form=chosen.kl_form,
            reduction=chosen.reduction,
            temperature=chosen.kl_temperature,
        )
        losses = {"kl": chosen.kl_weight * divergence}
        if chosen.agreement_weight > 0:
            losses["agreement"] = chosen.agreement_weight * agreement_loss(view.logits, view.answers)
        if chosen.contrastive_weight == 0:
            return losses
        contrastive = contrastive_loss(
            torch.cat([reduced, view.reduced]),
            torch.cat([pseudo_labels, view.labels]),
            means,
            temperature=chosen.temperature,
            reduction=chosen.reduction,
            self_pairs=chosen.self_pairs,
            mean_term=chosen.mean_term,
        )
        return {**losses, "contrastive": chosen.contrastive_weight * contrastive}

    def _numbers(self) -> dict[str, Tensor]:
        return super()._numbers() | {"by_batch": torch.tensor(self.by_batch)}

    def _load_numbers(self, numbers: dict[str, Tensor]) -> None:
        super()._load_numbers(numbers)
        self.by_batch = int(numbers["by_batch"])
