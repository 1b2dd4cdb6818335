"""What all methods that learn by gradient share: the optimiser, the layers that learn, the passes, the guard."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import reduce
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from typing_extensions import Self

from driftgate.checkpoint import under_prefix, with_prefix
from driftgate.methods.base import Method, MethodSettings
from driftgate.methods.effort import EffortSettings, is_due
from driftgate.methods.loss_scale import LossScale
from driftgate.models.apart import ApartPasses
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


def largest(*outputs: Tensor) -> Tensor:
    """() the largest number in any of them, whatever its sign; NaN where there is one."""
    return torch.stack([part.detach().abs().max() for part in outputs]).max()


OptimizerName = Literal["sgd", "adam", "adamw"]

LARGEST_RATE = 1e6
"""Of a learning rate: beyond it a step leaves the range of float32, whatever the gradient."""


class GradientSettings(EffortSettings):
    """Settings of the optimiser and of the network's passes.

    Attributes:
        optimizer: ``sgd``, ``adam`` or ``adamw``.
        lr, weight_decay: of any of them.
        momentum, nesterov: of SGD; for Adam, ``momentum`` is its first beta, the second is 0.999.
        backbone_lr_scale: the backbone learns at ``lr`` times this; None for a tenth where it is pretrained, else 1.
        max_grad_norm: gradients longer than this are scaled down to it; None leaves them as they are.
        adapt_layers: which parameters learn; see ``driftgate.models.layers``.
        batch_norm: ``batch`` normalises by the batch and lets the running statistics follow, ``running`` keeps the
            source's.
        memory: how much memory a step may take; see ``driftgate.models.passes``.
        piece_size: so many samples go through the backbone at a time, so that memory does not grow with the batch, at
            the price of one more forward pass; the same weights to rounding. None takes the batch whole. Refused where
            batch norm in the backbone normalises by the batch.
    """

    optimizer: OptimizerName = "sgd"
    lr: float = Field(default=0.001, gt=0.0, le=LARGEST_RATE)
    backbone_lr_scale: float | None = Field(default=0.1, ge=0.0)
    momentum: float = Field(default=0.9, ge=0.0, lt=1.0)
    nesterov: bool = True
    weight_decay: float = Field(default=0.0, ge=0.0)
    max_grad_norm: float | None = Field(default=None, gt=0.0)
    adapt_layers: str = "all"
    batch_norm: Literal["batch", "running"] = "batch"
    memory: MemoryMode = "fast"
    piece_size: int | None = Field(default=None, ge=1)


class GradientMethod(Method):
    """A method that takes one step of its optimiser a batch.

    A subclass may have networks of its own (``build_networks``); they learn at the full rate.
    """

    Settings: ClassVar[type[MethodSettings]] = GradientSettings
    settings: GradientSettings

    def __init__(self, model: SourceModel, settings: MethodSettings) -> None:
        super().__init__(model, settings)
        model.piece_size = self.settings.piece_size
        with DrawFrom(self.generator):
            self.build_networks()
        self.optimizer = self._build_optimizer()
        self.scale = LossScale() if self.settings.precision == "float16" else None

    @property
    def teach_share(self) -> float:
        """At most this share of the batches teaches."""
        return self.settings.share_that_teaches(pretrained=self.model.spec.pretrained)

    def _teaches(self, learn: bool) -> bool:
        return learn and is_due(self.steps, self.teach_share)

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
        if chosen.optimizer != "sgd":
            kind = torch.optim.Adam if chosen.optimizer == "adam" else torch.optim.AdamW
            return kind(groups, lr=chosen.lr, betas=(chosen.momentum, 0.999), weight_decay=chosen.weight_decay)
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
        memory, share = self.settings.memory, self.settings.backward_share
        if self.settings.backward == "apart":
            return ApartPasses(self.model, memory=memory, follow=normalise, share=share)
        return Passes(self.model, memory=memory, follow=normalise)

    def _check_finite(self, *outputs: Tensor) -> None:
        """Refuse to go on with a network that has diverged."""
        self._check_largest(float(largest(*outputs)))

    def _check_largest(self, value: float) -> None:
        # NaN is not smaller than anything, so it is caught as well.
        if not value < LARGEST_FEATURE:
            raise DivergedError(
                f"Expected finite features but the network diverged after {self.steps} steps; load an earlier state, "
                f"and lower lr (now {self.settings.lr}) or set max_grad_norm."
            )

    def _forward(self, passes: Passes, images: Tensor, *, last: bool = True) -> ModelOutput:
        """One view through the network; refused if the network has diverged."""
        output = passes.forward(images, last=last)
        self._check_finite(*output)
        return output

    def _learn(self, passes: Passes, losses: Mapping[str, Tensor], unseen: Tensor | None = None) -> dict[str, Tensor]:
        """One step of the optimiser on the sum of ``losses``; what was minimised, by name, without gradient.

        A gradient that is not finite is left out, for it would destroy the network.

        ``unseen`` is the ``largest`` of outputs that nobody has looked at yet; the step does, before anything changes.
        """
        if not any(loss.requires_grad for loss in losses.values()):  # every term of the loss was empty
            if unseen is not None:
                self._check_largest(float(unseen))
            return {}
        loss = reduce(torch.add, losses.values())
        self.optimizer.zero_grad(set_to_none=True)
        self._backward(passes, loss)
        self._apply_gradients(loss, unseen)
        return {name: value.detach() for name, value in losses.items()}

    def _backward(self, passes: Passes, loss: Tensor) -> None:
        """Add the gradient of ``loss``; in float16 of its ``scale``-fold, or small ones would vanish."""
        passes.backward(loss if self.scale is None else self.scale.value * loss)

    def _apply_gradients(self, loss: Tensor, unseen: Tensor | None = None) -> None:
        """Step along the gradients gathered so far; for a method whose losses need backward passes of their own."""
        parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        if self.scale is not None:
            self.scale.divide(parameters)
        limit = self.settings.max_grad_norm
        norm = nn.utils.clip_grad_norm_(parameters, float("inf") if limit is None else limit)
        states = self.optimizer.state.values()
        remembered = [value for state in states for value in state.values() if isinstance(value, Tensor) and value.ndim]
        momentum = nn.utils.get_total_norm(remembered) if remembered else torch.zeros_like(norm)
        # All in one read, for which a device has to finish its work.
        told = [norm, momentum.to(norm), *([] if unseen is None else [unseen.to(norm)])]
        length, memory, *outputs = torch.stack(told).tolist()
        try:
            for value in outputs:
                self._check_largest(value)
            if not math.isfinite(memory):
                raise DivergedError(
                    f"Expected a finite momentum but it is {memory} after {self.steps} steps; load an earlier state."
                )
            if self.scale is not None:
                self.scale.follow(length < LARGEST_FEATURE)
            if length < LARGEST_FEATURE:  # with a momentum below it too, no weight can leave float32
                self.optimizer.step()
            elif self.scale is None:  # in float16 it only tells that the scale was too large
                facts = (self.steps, loss.item())
                logger.warning("step %d: the gradient is not finite (loss %.4g); nothing learned", *facts)
        finally:
            self.optimizer.zero_grad(set_to_none=True)

    @contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        """Put back weights and optimiser where an error is on its way out, for a method that goes on after the update.

        It holds what learns twice for the time of the step; all others fail before anything has changed.
        """
        learning = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        weights = [parameter.detach().clone() for parameter in learning]
        tensors = {name: value.clone() for name, value in self._optimizer_tensors().items()}
        try:
            yield
        except BaseException:
            with torch.no_grad():
                for parameter, before in zip(learning, weights, strict=True):
                    parameter.copy_(before)
            self._fill_optimizer(tensors)
            raise

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move the optimiser too: a moved parameter may be a new one, so that it is built again and filled."""
        tensors, groups = self._optimizer_tensors(), self.optimizer.param_groups
        super()._apply(fn, recurse)
        self.optimizer = self._build_optimizer()
        for group, before in zip(self.optimizer.param_groups, groups, strict=True):
            group["lr"] = before["lr"]  # which a guard may have lowered
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

    def _numbers(self) -> dict[str, Tensor]:
        return {} if self.scale is None else {"loss_scale": self.scale.to_tensor()}

    def _load_numbers(self, numbers: dict[str, Tensor]) -> None:
        if self.scale is not None:
            self.scale.fill(numbers["loss_scale"])

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
