"""AdaContrast: labels by vote of near neighbours in a bank, contrast against a queue of keys (Chen et al., CVPR 2022).

One step, in the form of the online port: predict the batch, refine the predictions by the neighbours among past
samples, then learn from one strong view of it by cross-entropy towards the refined labels, by class-aware InfoNCE
against the keys a momentum encoder made of another strong view, and by keeping all classes in use.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional as F

from driftgate.export import BEFORE_UPDATE, BY_RUNNING
from driftgate.losses import class_aware_info_nce, negative_marginal_entropy
from driftgate.memory import MeanTeacher, RingQueue, mean_over, nearest
from driftgate.methods.base import MethodSettings, taught_nothing
from driftgate.methods.gradient import GradientMethod, GradientSettings
from driftgate.methods.look import Look
from driftgate.methods.source_only import EntropyThresholdSettings
from driftgate.models.normalization import batch_statistics, preserved_buffers
from driftgate.models.source_model import ModelOutput, SourceModel
from driftgate.novelty.rejection import entropy_prediction
from driftgate.types import Prediction


class AdaContrastSettings(GradientSettings, EntropyThresholdSettings):
    """Settings of the method; the defaults are the published ones, the same for VisDA-C and DomainNet-126.

    Attributes:
        lr: of bottleneck and classifier; the backbone learns at a tenth, 2e-4.
        weight_decay: of SGD.
        neighbors: how many neighbours vote on a label.
        refine_after: samples to be seen before neighbours vote; until then the network's own label counts.
        queue_size: rows of the bank of neighbours and of the queue of keys, each.
        temperature: of InfoNCE.
        teacher_momentum: of the momentum encoder.
        class_weight, instance_weight, diversity_weight: weights of the three losses.
        predict_after_update: answer after the step, by the running statistics, as the online port does; otherwise
            before it, by those of the batch.
        threshold: reject where the normalised entropy exceeds it; AdaContrast itself rejects nothing.
    """

    lr: float = Field(default=0.002, gt=0.0)
    weight_decay: float = Field(default=1e-4, ge=0.0)
    neighbors: int = Field(default=10, ge=1)
    refine_after: int = Field(default=1024, ge=1)
    queue_size: int = Field(default=16_384, ge=1)
    temperature: float = Field(default=0.07, gt=0.0)
    teacher_momentum: float = Field(default=0.999, ge=0.0, le=1.0)
    class_weight: float = Field(default=1.0, ge=0.0)
    instance_weight: float = Field(default=1.0, ge=0.0)
    diversity_weight: float = Field(default=1.0, ge=0.0)
    predict_after_update: bool = True


PUBLISHED: dict[str, Any] = {"lr": 0.002, "backbone_lr_scale": 0.1, "weight_decay": 1e-4}
"""Of VisDA-C and DomainNet-126; nobody has published others for Office-Home."""


class MomentumEncoder(MeanTeacher):
    """A mean teacher that normalises by the batch, as the model it follows does, and keeps statistics of its own."""

    def copy_statistics(self) -> dict[str, Tensor]:
        """Its buffers again, to be written into."""
        parameters = dict(self.model.named_parameters())
        return {name: tensor.clone() for name, tensor in self.tensors.items() if name not in parameters}

    @torch.no_grad()
    def keep_statistics(self, statistics: dict[str, Tensor]) -> None:
        """Take over what ``follow`` wrote."""
        tensors = self.tensors
        for name, value in statistics.items():
            tensors[name].copy_(value)

    def follow(self, images: Tensor, statistics: dict[str, Tensor], *, by_batch: bool) -> ModelOutput:
        """Features and logits of a view; its running statistics go into ``statistics`` and change nothing else."""
        with torch.no_grad(), batch_statistics(self.model, len(images), enabled=by_batch):
            output: ModelOutput = functional_call(self.model, {**self.tensors, **statistics}, (images,))
        return output


def refine_labels(features: Tensor, bank: Tensor, probabilities: Tensor, neighbors: int) -> Tensor:
    """(N, D), (L, D), (L, C) -> (N,): class of the largest mean probability among the nearest rows by cosine."""
    return mean_over(probabilities, nearest(features, bank, neighbors)).argmax(dim=1)


class AdaContrast(
    GradientMethod,
    name="adacontrast",
    settings=AdaContrastSettings,
    look=Look("AdaContrast", place=110, block="universal", colors=("#c2559d", "#ec94cd")),
):
    """See the module's text."""

    summary: ClassVar[str] = "neighbours vote on labels, contrast with a queue (closed-set); entropy threshold"
    universal: ClassVar[bool] = False
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "visda": PUBLISHED,
        "domainnet": PUBLISHED,
        "office-home": PUBLISHED,
    }
    settings: AdaContrastSettings

    def __init__(self, model: SourceModel, settings: MethodSettings) -> None:
        super().__init__(model, settings)
        size, width = self.settings.queue_size, model.spec.feature_dim
        self.bank = RingQueue(size, features=width, probabilities=model.num_classes)
        self.keys = RingQueue(size, features=width, labels=None)
        self.teacher = MomentumEncoder(model, self.settings.teacher_momentum)

    def _approximation(self) -> str:
        if self.settings.predict_after_update:
            return BEFORE_UPDATE
        return BY_RUNNING if self.settings.batch_norm == "batch" else ""

    def _predict(self, images: Tensor) -> Prediction:
        if self.settings.predict_after_update:
            with self._rehearsal(), torch.enable_grad():
                return replace(self._step(images), losses={})
        return self._assess(images)

    def _watch(self, images: Tensor) -> Prediction:
        with preserved_buffers(self.model):
            return taught_nothing(self._assess(images))

    def _step(self, images: Tensor) -> Prediction:
        with self._all_or_nothing() if self.settings.predict_after_update else nullcontext():
            return self._learn_and_answer(images)

    def _learn_and_answer(self, images: Tensor) -> Prediction:
        prediction = self._assess(images)
        labels = prediction.pseudo_labels
        query_view = self.views.strong(images, self.generator)
        key_view = self.views.strong(images, self.generator)

        passes = self._passes()
        query = self._forward(passes, query_view)
        statistics, by_batch = self.teacher.copy_statistics(), self.settings.batch_norm == "batch"
        keys = F.normalize(self.teacher.follow(key_view, statistics, by_batch=by_batch).features, dim=1)
        neighbor = self.teacher.follow(images, statistics, by_batch=by_batch)
        self._check_finite(keys, *neighbor)

        losses = self._learn(passes, self._losses(query, keys, labels))
        if self.settings.predict_after_update:
            with torch.no_grad():
                output = self._forward(self._passes(follow=False), images)
            prediction = self._prediction(output.logits, labels)
        # Only now, when nothing can fail any more: the queues are too large to work on copies of them.
        self.bank.push(features=neighbor.features, probabilities=neighbor.logits.softmax(dim=1))
        self.keys.push(features=keys, labels=labels)
        self.teacher.keep_statistics(statistics)
        self.teacher.update()
        return replace(prediction, losses=losses)

    def _assess(self, images: Tensor) -> Prediction:
        """The prediction before the step, by the statistics of the batch, and the labels the step learns from."""
        with torch.no_grad():
            output = self._forward(self._passes(), images)
            labels = output.logits.argmax(dim=1)
            if int(self.bank.pushed) >= self.settings.refine_after:
                bank = self.bank["features"], self.bank["probabilities"]
                labels = refine_labels(output.features, *bank, self.settings.neighbors)
            return self._prediction(output.logits, labels)

    def _prediction(self, logits: Tensor, pseudo_labels: Tensor) -> Prediction:
        return replace(entropy_prediction(logits.detach(), self.settings.threshold), pseudo_labels=pseudo_labels)

    def _losses(self, query: ModelOutput, keys: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Cross-entropy, InfoNCE and minus the entropy of the mean prediction, all on the strong view."""
        chosen = self.settings
        instance = class_aware_info_nce(
            query.features,
            keys,
            labels,
            self.keys["features"],
            self.keys["labels"],
            temperature=chosen.temperature,
        )
        return {
            "class": chosen.class_weight * F.cross_entropy(query.logits, labels),
            "instance": chosen.instance_weight * instance,
            "diversity": chosen.diversity_weight * negative_marginal_entropy(query.logits),
        }
