"""The supplement's memory comparison: what a mixture, a memory queue and a mean teacher carry across batches.

Each is given twice: by the paper's formula (section 3.7 of the paper), and as the bytes of a real object.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

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
    """Memory of one kind of knowledge transfer: values by the paper's formula, their bytes, bytes of a real object."""

    values: int
    measured_bytes: int
    how: str
    formula_bytes: int


@dataclass(frozen=True)
class Comparison:
    """The footprints for a number of source classes.

    Attributes:
        classes: C, the number of source classes.
        gmm, tied, queue, teacher: what is compared; ``tied`` is not in the paper.
        queue_bytes_per_sample: of a real queue.
        ratio_to_queue, ratio_to_teacher: N_GMM / N_queue and N_GMM / N_COMET.
        measured_ratio_to_queue, measured_ratio_to_teacher: the same of the bytes of real objects.
        break_even_queue_length: samples from which on a queue is larger than the mixture, as driftgate stores both.
        released_gmm_bytes: what the released code keeps, and the supplement measured: float64, full matrices.
        tied_to_released: the tied mixture to that, in bytes.
        released_break_even_queue_length: samples from which on a queue is larger than that.
        paper: what the paper prints for the same C.
    """

    classes: int
    gmm: Footprint
    tied: Footprint
    queue: Footprint
    teacher: Footprint
    queue_bytes_per_sample: float
    ratio_to_queue: float
    ratio_to_teacher: float
    measured_ratio_to_queue: float
    measured_ratio_to_teacher: float
    break_even_queue_length: int
    released_gmm_bytes: int
    tied_to_released: float
    released_break_even_queue_length: int
    paper: PaperFigures | None


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

    def footprint(values: int, measured: int, how: str) -> Footprint:
        return Footprint(values, measured, how, FLOAT32_BYTES * values)

    per_sample, released = measured_queue_row(num_classes), released_gmm_bytes(num_classes)
    gmm = footprint(gmm_values(num_classes), measured_gmm(num_classes), "a StreamingGMM after one update")
    tied_bytes = measured_gmm(num_classes, covariance="tied")
    scaled = f"a RingQueue of {MEASURED_QUEUE_ROWS} samples, scaled to {QUEUE_LENGTH:,}"
    queue = footprint(queue_values(num_classes), round(per_sample * QUEUE_LENGTH), scaled)
    copied = "a ModelCopy of a ResNet-50 with its batch norm statistics"
    teacher = footprint(teacher_values(num_classes), measured_teacher(num_classes), copied)
    return Comparison(
        classes=num_classes,
        gmm=gmm,
        tied=footprint(tied_values(num_classes), tied_bytes, "the same with covariance tied"),
        queue=queue,
        teacher=teacher,
        queue_bytes_per_sample=per_sample,
        ratio_to_queue=gmm.values / queue.values,
        ratio_to_teacher=gmm.values / teacher.values,
        measured_ratio_to_queue=gmm.measured_bytes / queue.measured_bytes,
        measured_ratio_to_teacher=gmm.measured_bytes / teacher.measured_bytes,
        break_even_queue_length=math.ceil(gmm.measured_bytes / per_sample),
        released_gmm_bytes=released,
        tied_to_released=tied_bytes / released,
        released_break_even_queue_length=math.ceil(released / per_sample),
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
