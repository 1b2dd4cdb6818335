"""What all methods that learn by gradient share: the optimiser, the layers that learn, the passes, the guard."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any, ClassVar, Literal, Self

import torch
from pydantic import Field
from torch import Tensor, nn

from driftgate.checkpoint import under_prefix, with_prefix
from driftgate.methods.base import Method, MethodSettings
from driftgate.models.layers import select_parameters
from driftgate.models.passes import MemoryMode, Passes
from driftgate.models.source_model import ModelOutput, SourceModel
from driftgate.rng import DrawFrom
from driftgate.types import DivergedError

logger = logging.getLogger(__name__)

LARGEST_FEATURE = 1e18
"""Beyond it a variance leaves the range of float32, and no statistic could be kept."""


OPTIMIZER = "optimizer"
"""Before the names of the optimiser's tensors in a method's state."""


class GradientSettings(MethodSettings):
    """Settings of SGD and of the network's passes.

    Attributes:
        lr, momentum, nesterov, weight_decay: of SGD.
        backbone_lr_scale: the backbone learns at ``lr`` times this; None for a tenth where it is pretrained, else 1.
        max_grad_norm: gradients longer than this are scaled down to it; None leaves them as they are.
        adapt_layers: which parameters learn; see ``driftgate.models.layers``.
        batch_norm: ``batch`` normalises by the batch and lets the running statistics follow, ``running`` keeps the
            source's.
        memory: how much memory a step may take; see ``driftgate.models.passes``.
    """

    lr: float = Field(default=0.001, gt=0.0)
    backbone_lr_scale: float | None = Field(default=0.1, ge=0.0)
    momentum: float = Field(default=0.9, ge=0.0, lt=1.0)
    nesterov: bool = True
    weight_decay: float = Field(default=0.0, ge=0.0)
    max_grad_norm: float | None = Field(default=None, gt=0.0)
    adapt_layers: str = "all"
    batch_norm: Literal["batch", "running"] = "batch"
    memory: MemoryMode = "fast"


class GradientMethod(Method):
    """A method that takes one step of SGD a batch.

    A subclass may have networks of its own (``build_networks``); they learn at the full rate.
    """

    Settings: ClassVar[type[MethodSettings]] = GradientSettings
    settings: GradientSettings

    def __init__(self, model: SourceModel, settings: MethodSettings) -> None:
        super().__init__(model, settings)
        with DrawFrom(self.generator):
            self.build_networks()
        self.optimizer = self._build_optimizer()

    def build_networks(self) -> None:
        """Make networks of the method's own, as attributes; runs once, with the method's own random numbers."""

    def _build_optimizer(self) -> torch.optim.Optimizer:
        chosen = self.settings
        learning = select_parameters(self.model, chosen.adapt_layers)
        for name, parameter in self.model.named_parameters():
            # What does not learn needs no gradient, and the layers before the first that learns keep no activations.
            parameter.requires_grad_(name in learning)
        backbone = [parameter for name, parameter in learning.items() if self.model.part_of(name) == "backbone"]
        head = [parameter for name, parameter in learning.items() if self.model.part_of(name) != "backbone"]
        own = [parameter for name, parameter in self.named_parameters() if not name.startswith("model.")]
        scale = chosen.backbone_lr_scale
        if scale is None:
            scale = 0.1 if self.model.spec.pretrained else 1.0
        groups: list[dict[str, Any]] = [
            {"params": backbone, "lr": chosen.lr * scale},
            {"params": [*head, *own]},
        ]
        return torch.optim.SGD(
            groups,
            lr=chosen.lr,
            momentum=chosen.momentum,
            nesterov=chosen.nesterov and chosen.momentum > 0,
            weight_decay=chosen.weight_decay,
        )

    def _passes(self, *, follow: bool | None = None) -> Passes:
        """The network's passes of one step; ``follow`` overrides the ``batch_norm`` setting."""
        normalise = self.settings.batch_norm == "batch" if follow is None else follow
        return Passes(self.model, memory=self.settings.memory, follow=normalise)

    def _check_finite(self, *outputs: Tensor) -> None:
        """Refuse to go on with a network that has diverged."""
        # NaN is not smaller than anything, so it is caught as well.
        if not all(bool(part.detach().abs().max() < LARGEST_FEATURE) for part in outputs):
            raise DivergedError(
                f"Expected finite features but the network diverged after {self.steps} steps; load an earlier state, "
                f"and lower lr (now {self.settings.lr}) or set max_grad_norm."
            )

    def _forward(self, passes: Passes, images: Tensor, *, last: bool = True) -> ModelOutput:
        """One view through the network; refused if the network has diverged."""
        output = passes.forward(images, last=last)
        self._check_finite(*output)
        return output

    def _learn(self, passes: Passes, losses: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """One step of the optimiser on the sum of ``losses``; what was minimised, by name, without gradient.

        A gradient that is not finite is left out, for it would destroy the network.
        """
        if not any(loss.requires_grad for loss in losses.values()):
            return {}  # nothing to learn from: every term of the loss was empty
        loss = reduce(torch.add, losses.values())
        self.optimizer.zero_grad(set_to_none=True)
        passes.backward(loss)
        self._apply_gradients(loss)
        return {name: value.detach() for name, value in losses.items()}

    def _apply_gradients(self, loss: Tensor) -> None:
        """Step along the gradients gathered so far; for a method whose losses need backward passes of their own."""
        parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        limit = self.settings.max_grad_norm
        norm = nn.utils.clip_grad_norm_(parameters, float("inf") if limit is None else limit)
        if bool(norm.isfinite()):
            self.optimizer.step()
        else:
            logger.warning("step %d: the gradient is not finite (loss %.4g); nothing learned", self.steps, loss.item())
        self.optimizer.zero_grad(set_to_none=True)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move the optimiser too: a moved parameter may be a new one, so that it is built again and filled."""
        tensors = self._optimizer_tensors()
        super()._apply(fn, recurse)
        self.optimizer = self._build_optimizer()
        self._fill_optimizer(tensors)
        return self

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination.update(with_prefix(f"{prefix}{OPTIMIZER}", self._optimizer_tensors()))

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        tensors = under_prefix(f"{prefix}{OPTIMIZER}", state_dict)
        for name in tensors:
            del state_dict[f"{prefix}{OPTIMIZER}.{name}"]
        super()._load_from_state_dict(state_dict, prefix, *rest)
        self._fill_optimizer(tensors)

    def _optimizer_tensors(self) -> dict[str, Tensor]:
        """What the optimiser remembers of each parameter, as ``kind.parameter``."""
        return {
            f"{kind}.{name}": value
            for name, parameter in self.named_parameters()
            for kind, value in self.optimizer.state.get(parameter, {}).items()
            if isinstance(value, Tensor)
        }

    def _fill_optimizer(self, tensors: dict[str, Tensor]) -> None:
        """Put back what ``_optimizer_tensors`` gave."""
        named = dict(self.named_parameters())
        self.optimizer.state.clear()
        for path, value in tensors.items():
            kind, name = path.split(".", 1)
            alike = value.shape == named[name].shape  # or it is a counter, which stays on the host
            # In the layout of the parameter: another order of summation is another last bit.
            kept = torch.empty_like(named[name], requires_grad=False).copy_(value) if alike else value.clone()
            self.optimizer.state[named[name]][kind] = kept
