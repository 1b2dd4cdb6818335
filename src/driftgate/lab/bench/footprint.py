"""The supplement's memory comparison: what a mixture, a memory queue and a mean teacher carry across batches.

Each is given twice: by the paper's formula (section 3.7 of the paper), and as the bytes of a real object.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from driftgate.memory import ModelCopy, RingQueue, StreamingGMM
from driftgate.models import SourceModel
from driftgate.models.backbones import UNTRAINED
from driftgate.types import DriftgateError

FEATURE_DIM, REDUCED_DIM = 256, 64
QUEUE_LENGTH = 55_388
"""Samples in AdaContrast's queue: all images of VisDA-C's validation domain."""

TEACHER_VALUES = 24_033_088
"""Of a ResNet-50 and its bottleneck; a class adds its direction, its norm and its bias."""

PAPER_KB = {
    9: {"mixture": 292.57, "teacher": 94_098.23},
    200: {"mixture": 6_501.56, "teacher": 94_290.73},
}
"""What the supplement prints for VisDA-C and DomainNet (OPDA). Its mixture is that of the released code: float64 and
full matrices."""


class Kept(NamedTuple):
    """What is kept: values by the paper's formula, bytes of a real object, the KB that the paper prints."""

    values: int
    measured_bytes: int
    paper_kb: float | None

    @property
    def formula_bytes(self) -> int:
        return torch.float32.itemsize * self.values


def compare(classes: int) -> dict[str, Kept]:
    """Mixture, the same with one covariance for all (not in the paper), queue and teacher, for so many classes."""
    if classes < 1:
        raise DriftgateError(f"Expected at least one class but got {classes}; name more.")
    triangle = REDUCED_DIM * (REDUCED_DIM + 1) // 2
    rows = 64  # of a real queue, which is scaled
    queue = RingQueue(rows, features=FEATURE_DIM, predictions=classes)
    network = SourceModel.build("resnet50", [str(index) for index in range(classes)], weights=UNTRAINED)
    found = {
        "mixture": (classes * (REDUCED_DIM + triangle + 1), _bytes_of(StreamingGMM(classes, REDUCED_DIM))),
        "tied mixture": (
            classes * (REDUCED_DIM + 1) + triangle,
            _bytes_of(StreamingGMM(classes, REDUCED_DIM, covariance="tied")),
        ),
        "queue": (
            QUEUE_LENGTH * (FEATURE_DIM + classes),
            (queue.num_bytes - queue.pushed.element_size()) // rows * QUEUE_LENGTH,
        ),
        "teacher": (TEACHER_VALUES + (FEATURE_DIM + 2) * classes, ModelCopy(network).num_bytes),
    }
    paper = PAPER_KB.get(classes, {})
    return {name: Kept(values, measured, paper.get(name)) for name, (values, measured) in found.items()}


def _bytes_of(mixture: StreamingGMM) -> int:
    """Of a mixture that has seen a batch."""
    classes, dim = mixture.means.shape
    mixture.update(torch.zeros(1, dim), torch.full((1, classes), 1.0 / classes))
    return mixture.num_bytes
