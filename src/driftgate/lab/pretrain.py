"""Source training with the recipe SHOT, GLC, COMET and the paper share.

Cross-entropy with label smoothing, SGD with Nesterov momentum and weight decay, and a learning rate that falls as
lr_t = lr_0 (1 + 10 t / T)^-0.75; a pretrained backbone learns at a tenth of the rate. Afterwards the source statistics
are taken, which some methods need: class prototypes, mean and covariance of the features.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from pydantic import BaseModel, Field, ValidationError
from torch import Tensor
from torch.nn import functional as F

from driftgate.checkpoint import (
    CHECKPOINT_SECONDS,
    Pace,
    foreign_content,
    read_checkpoint,
    under_prefix,
    with_prefix,
    write_checkpoint,
)
from driftgate.lab.data.domains import Domain
from driftgate.lab.data.source import SourceSamples
from driftgate.models.normalization import keep_statistics
from driftgate.models.source_model import SourceModel
from driftgate.models.statistics import source_statistics
from driftgate.progress import saving_to
from driftgate.rng import DrawFrom, seeded
from driftgate.shifts import ClassSplit
from driftgate.text import problems
from driftgate.types import Batch, DivergedError, DriftgateError

KIND = "pretraining"
SCRATCH_LR_SCALE, PRETRAINED_LR_SCALE = 1.0, 0.1

DEFAULTS: dict[str, dict[str, Any]] = {
    "visda": {"epochs": 10, "lr": 1e-3},
    "domainnet": {"epochs": 50, "lr": 1e-2},
    "office-home": {"epochs": 50, "lr": 1e-2},
    "pacs": {"epochs": 5, "lr": 3e-2, "backbone_norm": "running"},
    "digits": {"epochs": 2, "lr": 1e-2},
}
"""Epochs and learning rate of a data set. The first two are the paper's; Office-Home's are GLC's, for the paper names
none; PACS and the digits are not in the paper."""

logger = logging.getLogger(__name__)
Domains = Domain | Sequence[Domain]
"""A source domain, or several that are used as one."""


class PretrainSettings(BaseModel, frozen=True, extra="forbid"):
    """Settings of source training.

    Attributes:
        epochs, lr, batch_size: how long, how fast and how many samples at once.
        label_smoothing: share of the target that is spread over all classes.
        momentum, nesterov, weight_decay: of SGD.
        backbone_lr_scale: the backbone learns at ``lr`` times this; None for 0.1 if it is pretrained, else 1.
        backbone_norm: ``batch`` lets batch norm of the backbone follow the source data, as the published recipes do;
            ``running`` keeps the pretrained statistics, for domains of a few hundred images.
        held_out: share of each source class kept out of training to measure accuracy on.
        precision: what the backbone computes in; bfloat16 halves the time where the processor has it.
        seed: of the order, the crops and dropout.
    """

    epochs: int = Field(default=20, ge=1)
    lr: float = Field(default=1e-2, gt=0.0)
    batch_size: int = Field(default=64, ge=2)
    label_smoothing: float = Field(default=0.1, ge=0.0, lt=1.0)
    momentum: float = Field(default=0.9, ge=0.0, lt=1.0)
    nesterov: bool = True
    weight_decay: float = Field(default=1e-3, ge=0.0)
    backbone_lr_scale: float | None = Field(default=None, ge=0.0)
    backbone_norm: Literal["batch", "running"] = "batch"
    held_out: float = Field(default=0.0, ge=0.0, lt=1.0)
    precision: Literal["float32", "bfloat16"] = "float32"
    seed: int = 0

    @classmethod
    def for_dataset(cls, name: str, **settings: Any) -> PretrainSettings:
        """The recipe of a data set, with ``settings`` that are not None on top; any other name gets the defaults."""
        chosen = {key: value for key, value in settings.items() if value is not None}
        try:
            return cls(**{**DEFAULTS.get(name, {}), **chosen})
        except ValidationError as error:
            raise DriftgateError(f"Settings of source training: {problems(error)}; mend it.") from error


@dataclass(frozen=True)
class PretrainReport:
    """How source training went.

    Attributes:
        loss, accuracy: mean over the last epoch's training batches, as they were learned from.
        held_out_accuracy: on the held-out share, in eval mode with the test transform; None without one.
        steps: optimiser steps in all.
        samples, held_out_samples: images to train and to measure on.
        seconds: time spent training, over all parts of a resumed run.
        skipped: images that could not be read.
    """

    loss: float
    accuracy: float
    held_out_accuracy: float | None
    steps: int
    samples: int
    held_out_samples: int
    seconds: float
    skipped: list[str]


class TrainingStep(NamedTuple):
    """What ``on_step`` is told: steps done, steps in all, loss of the batch, learning rate of the head."""

    step: int
    steps: int
    loss: float
    lr: float


def pretrain(
    model: SourceModel,
    domain: Domains,
    split: ClassSplit,
    settings: PretrainSettings,
    *,
    workers: int = 1,
    strict: bool = False,
    on_step: Callable[[TrainingStep], None] | None = None,
    checkpoint: str | Path | None = None,
    checkpoint_every: float = CHECKPOINT_SECONDS,
) -> PretrainReport:
    """Train ``model`` in place on the source classes of ``domain`` and take its source statistics.

    Args:
        model: as ``SourceModel.build`` gives it.
        domain: the source domain, or several that are used as one.
        split: says which classes are the source's.
        settings: the recipe.
        workers: threads that decode images.
        strict: fail at a broken image instead of skipping it.
        on_step: called after each step.
        checkpoint: file that holds everything. If it is there, training goes on from it, bit for bit as if it had never
            stopped. It stays after the end: the caller removes it once the model is saved.
        checkpoint_every: seconds between two checkpoints; 0 for one after each step.
    """
    model.spec = model.spec.model_copy(update={"backbone_norm": settings.backbone_norm})
    samples, training = _begin(model, domain, split, settings, workers=workers, strict=strict)
    fingerprint = _fingerprint(model, samples, split, settings)
    with saving_to(checkpoint) as stopped:
        if checkpoint is not None and Path(checkpoint).exists():
            _resume(training, checkpoint, fingerprint)
        started = time.perf_counter() - training.seconds
        pace = Pace(checkpoint_every)
        for batch in samples.batches(settings.epochs, training.step):
            if training.step % samples.steps_per_epoch == 0:
                training.tally.zero_()
            done = training.learn(batch)
            training.seconds = time.perf_counter() - started
            if on_step is not None:
                on_step(done)
            ended = stopped.is_set()
            if checkpoint is not None and (ended or pace.due() or training.step == training.steps):
                write_checkpoint(checkpoint, KIND, training.tensors(), fingerprint)
            if ended:
                raise KeyboardInterrupt
    model.eval()
    model.statistics = source_statistics(
        _features(model, samples.clean_batches()), model.spec.class_names, model.spec.feature_dim
    )
    held_out = len(samples.held_out_indices)
    loss, accuracy = training.means()
    report = PretrainReport(
        loss=loss,
        accuracy=accuracy,
        held_out_accuracy=accuracy_on(model, samples.held_out_batches()) if held_out else None,
        steps=training.step,
        samples=len(samples.train_indices),
        held_out_samples=held_out,
        seconds=time.perf_counter() - started,
        skipped=samples.skipped,
    )
    model.set_precision("float32")  # whoever uses it says anew what it computes in
    logger.info("source training: %s", report)
    return report


def learning_rate(lr: float, step: int, steps: int) -> float:
    """lr_t = lr_0 (1 + 10 t / T)^-0.75 for step t of T, counted from 0."""
    return float(lr * (1.0 + 10.0 * step / steps) ** -0.75)


@torch.no_grad()
def accuracy_on(model: SourceModel, batches: Iterable[Batch]) -> float:
    """Share of samples whose largest logit is that of their class."""
    right = total = 0
    for images, labels in (to_device(batch, model) for batch in batches):
        right += int((model(images).logits.argmax(dim=1) == labels).sum())
        total += len(labels)
    return right / max(total, 1)


def to_device(batch: Batch, model: SourceModel) -> Batch:
    """The batch where the model is."""
    device = model.mean.device
    return Batch(*(tensor.to(device, non_blocking=device.type != "cpu") for tensor in batch))


class Training:
    """A model, its optimiser and how far they are: all that a training step changes."""

    def __init__(self, model: SourceModel, settings: PretrainSettings, steps: int) -> None:
        self.model, self.settings, self.steps = model, settings, steps
        scale = settings.backbone_lr_scale
        if scale is None:
            scale = PRETRAINED_LR_SCALE if model.spec.pretrained else SCRATCH_LR_SCALE
        self.scales = (scale, 1.0)
        self.optimizer = torch.optim.SGD(
            [{"params": list(model.backbone.parameters())}, {"params": model.head_parameters()}],
            lr=settings.lr,
            momentum=settings.momentum,
            nesterov=settings.nesterov and settings.momentum > 0,
            weight_decay=settings.weight_decay,
        )
        self.generator = seeded(settings.seed)
        self.step, self.seconds = 0, 0.0
        # Sums over the epoch so far: loss, samples predicted rightly, samples.
        self.tally = torch.zeros(3, dtype=torch.float64)

    def learn(self, batch: Batch) -> TrainingStep:
        """One optimiser step; a batch of one sample has no statistics to normalise by and is passed over."""
        lr = learning_rate(self.settings.lr, self.step, self.steps)
        for group, scale in zip(self.optimizer.param_groups, self.scales, strict=True):
            group["lr"] = lr * scale
        self.step += 1
        if len(batch.labels) < 2:
            return TrainingStep(self.step, self.steps, float("nan"), lr)
        batch = to_device(batch, self.model)
        self.model.train()
        if self.settings.backbone_norm == "running":
            keep_statistics(self.model.backbone)
        with DrawFrom(self.generator):  # dropout and stochastic depth draw from here
            logits: Tensor = self.model(batch.images).logits
        loss = F.cross_entropy(logits, batch.labels, label_smoothing=self.settings.label_smoothing)
        value = loss.item()
        if not torch.isfinite(loss):
            raise DivergedError(f"Expected a finite loss but got {value} at step {self.step}; lower the learning rate.")
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        number = len(batch.labels)
        right = int((logits.argmax(dim=1) == batch.labels).sum())
        self.tally += torch.tensor([value * number, right, number], dtype=torch.float64)
        return TrainingStep(self.step, self.steps, value, lr)

    def means(self) -> tuple[float, float]:
        """Mean loss and accuracy of the epoch so far."""
        loss, right, number = self.tally.tolist()
        return loss / max(number, 1), right / max(number, 1)

    def tensors(self) -> dict[str, Tensor]:
        """Everything a step changes, by name."""
        momentum = {
            name: state["momentum_buffer"]
            for name, parameter in self.model.named_parameters()
            if isinstance((state := self.optimizer.state.get(parameter, {})).get("momentum_buffer"), Tensor)
        }
        return {
            **with_prefix("model", self.model.state_dict()),
            **with_prefix("momentum", momentum),
            "rng": self.generator.get_state(),
            "step": torch.tensor(self.step),
            "seconds": torch.tensor(self.seconds, dtype=torch.float64),
            "tally": self.tally,
        }

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """The inverse of ``tensors``."""
        self.model.load_state_dict(under_prefix("model", tensors))
        parameters = dict(self.model.named_parameters())
        self.optimizer.state.clear()
        for name, value in under_prefix("momentum", tensors).items():
            # In the layout of its parameter: another order of summation is another last bit.
            buffer = torch.empty_like(parameters[name], requires_grad=False).copy_(value)
            self.optimizer.state[parameters[name]]["momentum_buffer"] = buffer
        self.generator.set_state(tensors["rng"])
        self.step, self.seconds = int(tensors["step"]), float(tensors["seconds"])
        self.tally = tensors["tally"].clone()


@torch.no_grad()
def _features(model: SourceModel, batches: Iterable[Batch]) -> Iterator[tuple[Tensor, Tensor]]:
    for batch in batches:
        yield model.features(to_device(batch, model).images), batch.labels


def _begin(
    model: SourceModel, domain: Domains, split: ClassSplit, settings: PretrainSettings, **reading: Any
) -> tuple[SourceSamples, Training]:
    """What is learned from, and the training before its first step."""
    if split.num_source != model.num_classes:
        raise DriftgateError(
            f"Expected a split with {model.num_classes} source classes, as the model has, but {split} has "
            f"{split.num_source}; give the split of the model."
        )
    samples = SourceSamples(
        domain,
        split,
        input_size=model.spec.image_size,
        batch_size=settings.batch_size,
        seed=settings.seed,
        flip=model.spec.flip,
        held_out=settings.held_out,
        **reading,
    )
    if len(samples.train_indices) < 2:
        raise DriftgateError(
            f"Expected at least 2 source images to train on but got {len(samples.train_indices)}; add images, or look "
            "at --source and --split."
        )
    model.set_precision(settings.precision)
    return samples, Training(model, settings, settings.epochs * samples.steps_per_epoch)


def _fingerprint(
    model: SourceModel, samples: SourceSamples, split: ClassSplit, settings: PretrainSettings
) -> dict[str, Any]:
    """What must be the same for a stopped training to go on."""
    return {
        "settings": settings.model_dump(mode="json"),
        "model": model.spec.model_dump(mode="json"),
        "data": {
            "domains": [source.name for source in samples.samples.domains],
            "split": str(split),
            "class_order": split.order,
            "samples": len(samples.train_indices),
        },
    }


def _resume(training: Training, path: str | Path, fingerprint: dict[str, Any]) -> None:
    tensors, info = read_checkpoint(path, KIND)
    for name, mine in fingerprint.items():
        theirs = info.get(name)
        if theirs != mine:
            held = theirs if isinstance(theirs, dict) else {}
            changed = ", ".join(f"{key} {value}" for key, value in mine.items() if held.get(key) != value)
            raise DriftgateError(
                f"Expected to resume training with {name}: {changed}; but {path} was begun with another; "
                "remove the file to start anew."
            )
    with foreign_content(path):
        training.restore(tensors)
    logger.info("source training goes on at step %d of %d", training.step, training.steps)
