"""Category shifts: which classes the source knows, which the target shows (PDA, ODA, OPDA)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Literal

import torch
from torch import Tensor

from driftgate.types import UNKNOWN, DriftgateError

ClassOrder = Literal["shared-first", "paper"]


class Shift(str, Enum):
    """The three category shifts of universal domain adaptation."""

    PDA = "PDA"
    ODA = "ODA"
    OPDA = "OPDA"


@dataclass(frozen=True)
class ClassSplit:
    """Number of shared, source-private and target-private classes, and how they lie on the sorted class axis.

    ``shared-first`` is [shared | source-private | target-private], as the public code of all methods has it; ``paper``
    is [source-private | shared | target-private], as the paper's text says. The source classes are the same in both:
    the first ``num_source`` classes, so a source label is the class index itself.
    """

    shared: int
    source_private: int
    target_private: int
    order: ClassOrder = "shared-first"

    def __post_init__(self) -> None:
        if self.shared < 1 or self.source_private < 0 or self.target_private < 0:
            raise DriftgateError(
                f"Expected at least one shared class and no negative number but got {self}; write it as 10/5/50."
            )

    @classmethod
    def parse(cls, text: str, order: ClassOrder = "shared-first") -> ClassSplit:
        """``10/5/50`` -> 10 shared, 5 source-private, 50 target-private classes."""
        parts = text.split("/")
        if len(parts) != 3 or not all(part.strip().isdecimal() for part in parts):
            raise DriftgateError(
                f"Expected a split like 10/5/50 (shared/source-private/target-private) but got {text!r}; write it so."
            )
        shared, source_private, target_private = (int(part) for part in parts)
        return cls(shared, source_private, target_private, order)

    @property
    def num_source(self) -> int:
        return self.shared + self.source_private

    @property
    def num_classes(self) -> int:
        return self.num_source + self.target_private

    @property
    def shift(self) -> Shift:
        """The category shift this split makes."""
        if self.target_private == 0:
            return Shift.PDA
        return Shift.ODA if self.source_private == 0 else Shift.OPDA

    @property
    def source_classes(self) -> range:
        return range(self.num_source)

    @property
    def shared_classes(self) -> range:
        start = 0 if self.order == "shared-first" else self.source_private
        return range(start, start + self.shared)

    @property
    def target_classes(self) -> tuple[int, ...]:
        return (*self.shared_classes, *range(self.num_source, self.num_classes))

    def target_labels(self, classes: Tensor) -> Tensor:
        """Class indices of target samples -> labels for evaluation: the source class, or ``UNKNOWN``."""
        return torch.where(classes < self.num_source, classes, UNKNOWN)

    def __str__(self) -> str:
        return f"{self.shared}/{self.source_private}/{self.target_private}"
