"""The supplement's memory comparison: what a mixture, a memory queue and a mean teacher carry across batches.

Each is given twice: by the paper's formula (section 3.7 of the paper), and as the bytes of a real object.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch

from driftgate.memory import CovarianceForm, ModelCopy, RingQueue, StreamingGMM
from driftgate.models import SourceModel
from driftgate.models.backbones import UNTRAINED
from driftgate.types import DriftgateError

FEATURE_DIM = 256
REDUCED_DIM = 64
QUEUE_LENGTH = 55_388
"""Samples in AdaContrast's queue: all images of VisDA-C's validation domain."""

TEACHER_BASE_PARAMETERS = 24_033_088
TEACHER_PARAMETERS_PER_CLASS = FEATURE_DIM + 2
"""A class costs its direction, its norm and its bias in the weight-normed classifier."""
FLOAT32_BYTES = 4
MEASURED_QUEUE_ROWS = 64
KIB = 1024.0
"""The paper's KB."""


@dataclass(frozen=True)
class PaperFigures:
    """What the supplement prints for a number of classes, in its KB; the break-even is in samples of a queue."""

    gmm_kb: float
    teacher_kb: float
    queue_kb_per_sample: float
    break_even: int
    gmm_peak_mb: float
    comet_peak_mb: float


PAPER: dict[int, PaperFigures] = {
    9: PaperFigures(292.57, 94_098.23, 10.25, 29, gmm_peak_mb=5_792.14, comet_peak_mb=16_115.05),
    200: PaperFigures(6_501.56, 94_290.73, 58.00, 113, gmm_peak_mb=6_954.79, comet_peak_mb=16_113.88),
}
"""VisDA-C OPDA and DomainNet OPDA. The queue figures are those of 64-sample tensors, not of one sample. The peaks are
of a whole step on a GPU in half precision; the supplement does not give the batch size (COMET's own configuration has
128, the paper's experiments 64)."""


@dataclass(frozen=True)
class Footprint:
    """Memory of one kind of knowledge transfer: values by the paper's formula, bytes of a real object."""

    values: int
    measured_bytes: int
    how: str

    @property
    def formula_bytes(self) -> int:
        """The formula's values as float32."""
        return FLOAT32_BYTES * self.values


@dataclass(frozen=True)
class Comparison:
    """The footprints for C source classes, and what the paper prints for the same C; ``tied`` is not in the paper."""

    num_classes: int
    gmm: Footprint
    tied: Footprint
    queue: Footprint
    teacher: Footprint
    queue_bytes_per_sample: float
    released_gmm_bytes: int
    paper: PaperFigures | None

    @property
    def ratio_to_queue(self) -> float:
        """N_GMM / N_queue."""
        return self.gmm.values / self.queue.values

    @property
    def ratio_to_teacher(self) -> float:
        """N_GMM / N_COMET."""
        return self.gmm.values / self.teacher.values

    @property
    def tied_to_released(self) -> float:
        """The tied mixture to that of the released code, in bytes."""
        return self.tied.measured_bytes / self.released_gmm_bytes

    @property
    def break_even(self) -> int:
        """Samples from which on a queue is larger than the mixture, as driftgate stores both."""
        return math.ceil(self.gmm.measured_bytes / self.queue_bytes_per_sample)

    @property
    def released_break_even(self) -> int:
        """The same for the mixture as the released code stores it: float64, full matrices."""
        return math.ceil(self.released_gmm_bytes / self.queue_bytes_per_sample)

    def as_dict(self) -> dict[str, Any]:
        """Everything, ready for JSON."""
        parts = {"gmm": self.gmm, "tied": self.tied, "queue": self.queue, "teacher": self.teacher}
        return {
            "classes": self.num_classes,
            **{name: {**asdict(part), "formula_bytes": part.formula_bytes} for name, part in parts.items()},
            "queue_bytes_per_sample": self.queue_bytes_per_sample,
            "ratio_to_queue": self.ratio_to_queue,
            "ratio_to_teacher": self.ratio_to_teacher,
            "measured_ratio_to_queue": self.gmm.measured_bytes / self.queue.measured_bytes,
            "measured_ratio_to_teacher": self.gmm.measured_bytes / self.teacher.measured_bytes,
            "break_even_queue_length": self.break_even,
            "released_gmm_bytes": self.released_gmm_bytes,
            "tied_to_released": self.tied_to_released,
            "released_break_even_queue_length": self.released_break_even,
            "paper": asdict(self.paper) if self.paper else None,
        }


def gmm_values(num_classes: int, dim: int = REDUCED_DIM) -> int:
    """N_GMM: a mean, a lower triangle and a weight a class."""
    return num_classes * (dim + dim * (dim + 1) // 2 + 1)


def tied_values(num_classes: int, dim: int = REDUCED_DIM) -> int:
    """A mean and a weight a class, one lower triangle for all."""
    return num_classes * (dim + 1) + dim * (dim + 1) // 2


def queue_values(num_classes: int, length: int = QUEUE_LENGTH, dim: int = FEATURE_DIM) -> int:
    """N_queue: a feature vector and a prediction a sample."""
    return length * (dim + num_classes)


def teacher_values(num_classes: int) -> int:
    """N_COMET: the parameters of the ResNet-50, its bottleneck and its classifier."""
    return TEACHER_BASE_PARAMETERS + TEACHER_PARAMETERS_PER_CLASS * num_classes


def released_gmm_bytes(num_classes: int, dim: int = REDUCED_DIM) -> int:
    """What the released code keeps, and the supplement measured: float64 with full covariance matrices."""
    return 8 * num_classes * (dim + dim * dim + 1)


def compare(num_classes: int) -> Comparison:
    """The comparison for ``num_classes`` source classes."""
    if num_classes < 1:
        raise DriftgateError(f"Expected at least one class but got {num_classes}; name more.")
    per_sample = measured_queue_row(num_classes)
    scaled = f"a RingQueue of {MEASURED_QUEUE_ROWS} samples, scaled to {QUEUE_LENGTH:,}"
    copied = "a ModelCopy of a ResNet-50 with its batch norm statistics"
    return Comparison(
        num_classes=num_classes,
        gmm=Footprint(gmm_values(num_classes), measured_gmm(num_classes), "a StreamingGMM after one update"),
        tied=Footprint(
            tied_values(num_classes), measured_gmm(num_classes, covariance="tied"), "the same with covariance tied"
        ),
        queue=Footprint(queue_values(num_classes), round(per_sample * QUEUE_LENGTH), scaled),
        teacher=Footprint(teacher_values(num_classes), measured_teacher(num_classes), copied),
        queue_bytes_per_sample=per_sample,
        released_gmm_bytes=released_gmm_bytes(num_classes),
        paper=PAPER.get(num_classes),
    )


def measured_gmm(num_classes: int, dim: int = REDUCED_DIM, covariance: CovarianceForm = "full") -> int:
    """Bytes of a mixture that has seen a batch."""
    mixture = StreamingGMM(num_classes, dim, covariance=covariance)
    mixture.update(torch.zeros(1, dim), torch.full((1, num_classes), 1.0 / num_classes))
    return mixture.num_bytes


def measured_queue_row(num_classes: int, feature_dim: int = FEATURE_DIM) -> float:
    """Bytes a sample of a real queue: its feature vector and its prediction, float32."""
    queue = RingQueue(MEASURED_QUEUE_ROWS, features=feature_dim, predictions=num_classes)
    return (queue.num_bytes - queue.pushed.element_size()) / MEASURED_QUEUE_ROWS


def measured_teacher(num_classes: int) -> int:
    """Bytes of a copy of a real ResNet-50 model: parameters and batch norm statistics."""
    names = [str(index) for index in range(num_classes)]
    return ModelCopy(SourceModel.build("resnet50", names, weights=UNTRAINED)).num_bytes
