"""OWTTT: open-world test-time training. Source prototypes and a growing pool of new ones label the stream.

One step: score the batch by its cosine to the source prototypes, tell seen from unseen by Otsu's threshold over recent
scores, add prototypes for what is far from all of them, learn by a prototype cross-entropy and by aligning the seen
features with the source's Gaussian, and predict with the network that has just learned.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from driftgate.export import BEFORE_BATCH, BEFORE_UPDATE, Frozen, PrototypeJudge
from driftgate.losses.alignment import symmetric_kl
from driftgate.memory.neighbors import cosine_similarity
from driftgate.memory.queue import RingQueue
from driftgate.memory.running_gaussian import RunningGaussian
from driftgate.methods.base import MethodSettings, taught_nothing
from driftgate.methods.gradient import GradientMethod, GradientSettings
from driftgate.methods.look import Look
from driftgate.models.passes import Passes
from driftgate.models.source_model import SourceModel
from driftgate.models.statistics import SourceStatistics
from driftgate.novelty.gate import predict_label
from driftgate.novelty.otsu import otsu_threshold
from driftgate.state import State, exact
from driftgate.types import UNKNOWN, UNLABELED, Prediction, Thresholds

ONLY_KNOWN = 1.0
"""Threshold while the scores form one group: a sample with a positive cosine to some prototype is known."""


class OWTTTSettings(GradientSettings):
    """Settings of OWTTT; the published values of ImageNet-C, there are none for the paper's data sets.

    Attributes:
        temperature: the cosines are divided by it before the softmax (delta).
        queue_length: recent scores the two thresholds are taken from (N_m).
        pool_size: prototypes of new classes kept, the oldest give way.
        gaussian_window: samples after which the target's mean and covariance become moving averages.
        alignment_scale: factor inside the alignment loss.
        alignment_weight, prototype_weight: weights of the two losses (da_scale and ce_scale in the released code).
        bias_divisor: the largest source covariance divided by it is added to both covariances' diagonals.
        predict_after_update: answer with the network that has learned from the batch (published), or as all other
            methods do with the one before.
    """

    backbone_lr_scale: float = Field(default=1.0, ge=0.0)
    nesterov: bool = False
    adapt_layers: str = "features"
    temperature: float = Field(default=0.1, gt=0.0)
    queue_length: int = Field(default=512, ge=1)
    pool_size: int = Field(default=100, ge=1)
    gaussian_window: int = Field(default=1280, ge=1)
    alignment_scale: float = Field(default=0.05, ge=0.0)
    alignment_weight: float = Field(default=0.1, ge=0.0)
    prototype_weight: float = Field(default=0.05, ge=0.0)
    bias_divisor: float = Field(default=30.0, gt=0.0)
    predict_after_update: bool = True


IMAGENET: dict[str, Any] = {"lr": 1e-3, "alignment_weight": 0.1, "prototype_weight": 0.05}
CIFAR100: dict[str, Any] = {"lr": 1e-3, "alignment_weight": 1.0, "prototype_weight": 0.2}
CIFAR10: dict[str, Any] = {**CIFAR100, "lr": 1e-2}


class OWTTTMemory(State):
    """What survives a batch: two queues of scores, the pool of new prototypes, the Gaussian of the seen features."""

    def __init__(self, dim: int, settings: OWTTTSettings) -> None:
        super().__init__()
        self.learning = RingQueue(settings.queue_length, score=None)
        self.answering = RingQueue(settings.queue_length, score=None)
        self.pool = RingQueue(settings.pool_size, feature=dim)
        self.gaussian = RunningGaussian(dim, settings.gaussian_window)


class SourceGaussian(State):
    """The source's statistics, which count as memory: a source-free method does without.

    ``prototypes`` (C, D), ``feature_mean`` (D,) and ``feature_covariance`` (D, D).
    """

    prototypes: Tensor
    feature_mean: Tensor
    feature_covariance: Tensor

    def __init__(self, statistics: SourceStatistics) -> None:
        super().__init__()
        self.keep(**statistics.tensors())


class Assessment(NamedTuple):
    """How the batch was labelled before the network learned from it.

    ``seen`` (N,) says who lies below ``threshold``; ``pseudo_labels`` (N,) are those of the surer half of the seen and
    of the unseen (``surer_halves``), the rest is ``UNLABELED``.
    """

    seen: Tensor
    pseudo_labels: Tensor
    threshold: float


class OWTTT(
    GradientMethod, name="owttt", settings=OWTTTSettings, look=Look("OWTTT", place=40, colors=("#8a6d1c", "#d6b955"))
):
    """Li et al., "On the Robustness of Open-World Test-Time Training" (ICCV 2023); see the module's text."""

    summary: ClassVar[str] = "source prototypes and a growing pool of new ones; predicts after the update"
    source_free: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset({"prototypes", "feature_moments"})
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "visda": IMAGENET,
        "domainnet": IMAGENET,
        "office-home": IMAGENET,
        "imagenet-c": IMAGENET,
        "cifar-10": CIFAR10,
        "cifar-100": CIFAR100,
    }
    settings: OWTTTSettings

    def __init__(self, model: SourceModel, settings: MethodSettings) -> None:
        super().__init__(model, settings)
        assert model.statistics is not None  # ``needs`` has refused a model without
        self.source = SourceGaussian(model.statistics)
        self.memory = OWTTTMemory(model.spec.feature_dim, self.settings)

    def frozen(self) -> Frozen:
        threshold = otsu_threshold(self.memory.answering["score"], one_group=ONLY_KNOWN)
        judge = PrototypeJudge(self.source.prototypes, self.settings.temperature)
        known = BEFORE_UPDATE if self.settings.predict_after_update else BEFORE_BATCH
        return Frozen(self.model, judge, threshold, approximation=known)

    def _predict(self, images: Tensor) -> Prediction:
        if self.settings.predict_after_update:
            with self._rehearsal(), torch.enable_grad():
                return replace(self._step(images), losses={})
        return self._answer_as_it_stands(images)

    def _watch(self, images: Tensor) -> Prediction:
        with torch.no_grad():
            return taught_nothing(self._answer_as_it_stands(images))

    def _answer_as_it_stands(self, images: Tensor) -> Prediction:
        """By network and memory before they learn the batch."""
        memory = self.memory.clone()
        features = self._forward(self._passes(follow=False), images).features
        return self._answer(features, self._assess(features, memory), memory)

    def _step(self, images: Tensor) -> Prediction:
        with self._all_or_nothing() if self.settings.predict_after_update else nullcontext():
            return self._learn_and_answer(images)

    def _learn_and_answer(self, images: Tensor) -> Prediction:
        # Copies until the end: whatever fails on the way, the memory is that of the last good step.
        memory = self.memory.clone()
        pool = memory.pool["feature"].clone()
        passes = self._passes(follow=False)
        features = self._forward(passes, images).features
        assessment = self._assess(features.detach(), memory)
        prototype_loss = self._prototype_loss(features, pool, assessment.pseudo_labels)
        losses = self._adapt(images, passes, prototype_loss, assessment, memory)
        if self.settings.predict_after_update:
            with torch.no_grad():
                features = self._forward(self._passes(follow=False), images).features
        prediction = self._answer(features.detach(), assessment, memory)
        self.memory = memory
        return replace(prediction, losses=losses)

    def _assess(self, features: Tensor, memory: OWTTTMemory) -> Assessment:
        """Steps 1 to 4: score, threshold, pool growth and labels of features (N, D); ``memory`` learns the batch."""
        cosines = cosine_similarity(features, self.source.prototypes)
        novelty = _novelty(cosines)
        memory.learning.push(score=novelty)
        threshold = otsu_threshold(memory.learning["score"], one_group=ONLY_KNOWN)
        seen = novelty < threshold
        pseudo_labels = torch.full_like(seen, UNLABELED, dtype=torch.int64)
        # As published, nobody learns a label before there is a prototype for the unseen ones.
        if len(memory.pool) > 0:
            known, unknown = surer_halves(novelty, seen)
            classes = cosines.argmax(dim=1).to(seen.device)
            pseudo_labels = torch.where(known, classes, torch.where(unknown, UNKNOWN, UNLABELED))
        grow_pool(memory.pool, features, novelty, threshold)
        return Assessment(seen.to(features.device), pseudo_labels.to(features.device), threshold)

    def _prototype_loss(self, features: Tensor, pool: Tensor, pseudo_labels: Tensor) -> Tensor:
        """Half of the cross-entropy over the C prototypes on seen, and over C + 1 on unseen samples (step 6)."""
        known, unknown = pseudo_labels >= 0, pseudo_labels == UNKNOWN
        loss = features.new_zeros(())
        logits = cosine_similarity(features, self.source.prototypes) / self.settings.temperature
        if bool(known.any()):
            loss = loss + 0.5 * F.cross_entropy(logits[known], pseudo_labels[known])
        if bool(unknown.any()):
            # The nearest prototype of the pool stands for all that is new.
            new = cosine_similarity(features[unknown], pool).amax(dim=1, keepdim=True) / self.settings.temperature
            extended = torch.cat([logits[unknown], new], dim=1)
            last = torch.full((len(extended),), logits.shape[1], device=logits.device)
            loss = loss + 0.5 * F.cross_entropy(extended, last)
        return self.settings.prototype_weight * loss

    def _adapt(
        self, images: Tensor, passes: Passes, prototype_loss: Tensor, assessment: Assessment, memory: OWTTTMemory
    ) -> dict[str, Tensor]:
        """Step 7: one step of SGD on both losses; what they were, by name.

        Backward from the first before the second pass: that one moves the running statistics of batch norm, which the
        first needs as they were.
        """
        self.optimizer.zero_grad(set_to_none=True)
        losses = {}
        if prototype_loss.requires_grad:
            self._backward(passes, prototype_loss)
            losses["prototypes"] = prototype_loss.detach()
        total = prototype_loss.detach()
        weight = self.settings.alignment_weight * self.settings.alignment_scale
        if weight > 0 and bool(assessment.seen.any()):
            passes = self._passes()
            features = self._forward(passes, images[assessment.seen]).features
            alignment = weight * self._alignment(*memory.gaussian.update(features))
            self._backward(passes, alignment)
            losses["alignment"] = alignment.detach()
            total = total + alignment.detach().to(total)
        self._apply_gradients(total)
        return losses

    def _alignment(self, mean: Tensor, covariance: Tensor) -> Tensor:
        """KL divergence both ways between the source's Gaussian and the target's mean (D,) and covariance (D, D)."""
        source = self.source.feature_mean, self.source.feature_covariance
        bias = float(self.source.feature_covariance.max()) / self.settings.bias_divisor
        return symmetric_kl(source, (mean, covariance), bias)

    def _answer(self, features: Tensor, assessment: Assessment, memory: OWTTTMemory) -> Prediction:
        """Step 8: the class of the nearest prototype, or unknown above Otsu's threshold over recent answers."""
        cosines = cosine_similarity(features, self.source.prototypes)
        novelty = _novelty(cosines)
        memory.answering.push(score=novelty)
        threshold = otsu_threshold(memory.answering["score"], one_group=ONLY_KNOWN)
        thresholds = Thresholds(known=assessment.threshold, unknown=assessment.threshold, prediction=threshold)
        labels = predict_label(cosines.argmax(dim=1), novelty, thresholds)
        scores = (cosines / self.settings.temperature).softmax(dim=1)
        return Prediction(labels, scores, novelty, assessment.pseudo_labels, thresholds)


def _novelty(cosines: Tensor) -> Tensor:
    """(N, C) -> (N,) float64: one minus the largest cosine; in [0, 2]."""
    # Rounded to float32 first, as the queue keeps it, so that a sample falls on the same side in both.
    return exact(1.0 - cosines.detach().amax(dim=1))


def surer_halves(novelty: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
    """(N,), (N,) bool -> (N,) bool each: who of the seen and who of the unseen learns a label.

    On each side the surer half, and strictly below (above) the score at its edge: of n seen samples floor(n / 2) - 1,
    of n unseen ones floor(n / 2). Where one side has no sample there is no half, and all learn. So the released code.
    """
    unseen = ~seen
    if not bool(seen.any()) or not bool(unseen.any()):
        return seen, unseen
    rising, falling = novelty[seen].sort().values, novelty[unseen].sort(descending=True).values
    lower, upper = rising[max(0, len(rising) // 2 - 1)], falling[len(falling) // 2]
    return seen & (novelty < lower), unseen & (novelty > upper)


def grow_pool(pool: RingQueue, features: Tensor, novelty: Tensor, threshold: float) -> None:
    """Step 3: new prototypes from the unseen samples of features (N, D), the most novel first.

    A sample becomes one if it is further than Otsu's threshold over the unseen from every prototype, the source's and
    the pool's, those just added included.
    """
    unseen = (novelty >= threshold).nonzero()[:, 0]
    if len(unseen) == 0:
        return
    unseen = unseen[novelty[unseen].argsort(descending=True, stable=True)]
    # One sample after another decides whether the next may join: work for the host.
    candidates = F.normalize(features[unseen.to(features.device)], dim=1).cpu()
    novelty, unseen = novelty.cpu(), unseen.cpu()
    to_source = 1.0 - novelty[unseen].numpy()
    to_pool = (candidates @ _oldest_first(pool).T.cpu()).double().numpy()
    between = (candidates @ candidates.T).double().numpy()
    nearest = np.maximum(to_source, to_pool.max(axis=1, initial=-1.0))
    distance = otsu_threshold(torch.from_numpy(1.0 - nearest), one_group=0.0)
    far = int((novelty[unseen] > threshold).sum())
    chosen = choose_prototypes(to_source[:far], to_pool[:far], between[:far, :far], pool.capacity, distance)
    if chosen:
        pool.push(feature=candidates[chosen])


def choose_prototypes(
    to_source: NDArray[np.float64],
    to_pool: NDArray[np.float64],
    between: NDArray[np.float64],
    capacity: int,
    distance: float,
) -> list[int]:
    """Indices of the candidates that join the pool, greedily in their order.

    Cosines of U candidates: (U,) to the nearest source prototype, (U, M) to the pool with its oldest first, (U, U)
    among each other. The oldest of the pool give way as they will in the queue.
    """
    members = to_pool.shape[1]
    cosines = np.concatenate([to_pool, np.empty_like(between)], axis=1)
    chosen: list[int] = []
    for row in range(len(to_source)):
        alive = cosines[row, max(0, members - capacity) : members]
        if 1.0 - alive.max(initial=to_source[row]) > distance:
            cosines[:, members] = between[:, row]
            members += 1
            chosen.append(row)
    return chosen


def _oldest_first(pool: RingQueue) -> Tensor:
    """(M, D): the rows of the pool in the order they came."""
    rows = pool["feature"]
    return rows.roll(-(int(pool.pushed) % pool.capacity), dims=0) if len(pool) == pool.capacity else rows
