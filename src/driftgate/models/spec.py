"""What a model takes and what its outputs mean, as it travels in a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator
from torch import Tensor

from driftgate.models.input import InputSpec
from driftgate.types import DriftgateError

CUSTOM_BACKBONE = "custom"


class ModelSpec(InputSpec):
    """What the network takes and what its outputs mean; it travels in the checkpoint.

    Attributes:
        backbone: name by which the backbone can be built again, or ``custom`` for the user's own module.
        head: in a network that was wrapped whole, the name of the layer that makes the logits; None elsewhere.
        class_names: names of the C source classes, in the order of the classifier's outputs.
        backbone_dim: size of the backbone's output.
        feature_dim: size D of the features between g and h.
        pretrained: whether the backbone was trained before source training, which then changes it slowly.
        backbone_norm: by which statistics batch norm of the backbone normalised in source training, ``batch`` or
            ``running``; None where nobody wrote it down.
    """

    backbone: str = CUSTOM_BACKBONE
    head: str | None = None
    class_names: tuple[str, ...] = Field(min_length=1)
    backbone_dim: int = Field(ge=1)
    feature_dim: int = Field(default=256, ge=1)
    pretrained: bool = True
    backbone_norm: Literal["batch", "running"] | None = None

    @model_validator(mode="after")
    def _check(self) -> ModelSpec:
        if len(set(self.class_names)) != len(self.class_names):
            raise ValueError("class names must differ from each other")
        return self

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    def check_same(self, other: ModelSpec, path: str | Path) -> None:
        """Refuse a model of another spec for the file this one was read from."""
        if other != self:
            raise DriftgateError(f"Expected a model for {path} with {self.differences(other)}; give it that one.")

    def check_size(self, tensors: Mapping[str, Tensor], path: str | Path) -> None:
        """Refuse a file that promises a larger network than it has numbers for, before memory is taken for it."""
        needed, there = self.num_classes * self.feature_dim, sum(tensor.numel() for tensor in tensors.values())
        if needed > there:
            raise DriftgateError(
                f"Expected at least {needed} numbers in {path} for {self.num_classes} classes of {self.feature_dim} "
                f"features but there are {there}; the file is not what it says."
            )

    def differences(self, other: ModelSpec) -> str:
        """What differs between this (expected) and the ``other`` (found) spec, for a person; empty if nothing does."""
        pairs = [(name, getattr(self, name), getattr(other, name)) for name in type(self).model_fields]
        return "; ".join(f"{name} {mine} but got {found}" for name, mine, found in pairs if mine != found)
