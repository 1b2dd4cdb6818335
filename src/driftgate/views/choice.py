"""Which views a method is given: those for its model's inputs, none, or the user's own."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from driftgate.models.input import InputSpec
from driftgate.types import DriftgateError
from driftgate.views.images import ImageViews
from driftgate.views.rows import RowViews

View = Callable[[Tensor, torch.Generator], Tensor]
"""Prepared inputs (N, ...) and where to draw from -> the same samples, looked at once more; same shape."""


class Views(Protocol):
    """Two looks at a batch: one that changes it a little (gmm, COMET), one that changes it much (AdaContrast)."""

    @property
    def name(self) -> str:
        """By which a saved method finds them again."""

    @property
    def weak(self) -> View:
        """Colours and places a little changed, or a little noise."""

    @property
    def strong(self) -> View:
        """Little more than the class left."""


class NoViews:
    """The batch itself; what compares two views then compares the batch with itself."""

    name = "none"

    def __init__(self, spec: InputSpec) -> None:
        """Nothing to know about the inputs."""

    def weak(self, inputs: Tensor, generator: torch.Generator) -> Tensor:
        """Itself."""
        return inputs

    strong = weak


class OwnViews:
    """The user's function for both, checked."""

    name = "own"

    def __init__(self, function: View) -> None:
        self.function = function

    def weak(self, inputs: Tensor, generator: torch.Generator) -> Tensor:
        """What the function makes of a copy of the inputs."""
        with torch.no_grad():
            view = self.function(inputs.clone(), generator)
        if not isinstance(view, Tensor) or view.shape != inputs.shape or not view.is_floating_point():
            found = f"{tuple(view.shape)} {view.dtype}" if isinstance(view, Tensor) else type(view).__name__
            raise DriftgateError(
                f"Expected views= to return floats of shape {tuple(inputs.shape)} but got {found}; mend it."
            )
        return view.to(inputs)

    strong = weak


ViewsChoice = str | View | None

KINDS: dict[str, Callable[[InputSpec], Views]] = {"images": ImageViews, "rows": RowViews, "none": NoViews}


def choose_views(choice: ViewsChoice, spec: InputSpec) -> Views:
    """The views of that name, around that function, or those that fit the inputs."""
    name = spec.kind if choice is None else choice
    if isinstance(name, str):
        if name not in KINDS or name not in (spec.kind, "none"):
            raise DriftgateError(
                f"Expected views out of {spec.kind}, none, or a function of inputs and generator, for a model that "
                f"takes {spec.kind}, but got {name!r}; name one of them."
            )
        return KINDS[name](spec)
    if callable(name):
        try:
            inspect.signature(name).bind("inputs", "generator")
        except TypeError as error:
            raise DriftgateError(
                f"Expected views= as a function of two, the inputs and a torch.Generator to draw from, but {error}; "
                "write it as `def views(inputs, generator)`."
            ) from error
        except ValueError:  # a built-in function that does not tell
            pass
        return OwnViews(name)
    raise DriftgateError(
        f"Expected views as a name or a function of inputs and generator but got {choice!r}; give one of these."
    )
