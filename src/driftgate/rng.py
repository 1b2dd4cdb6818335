"""Randomness that belongs to one object: seeded, saved, and invisible to everybody else's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


class DrawFrom(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch has no types for it
    """Inside ``with DrawFrom(generator):`` every random operation of this thread that names no generator draws from
    this one; torch's global generators are not touched, and no other thread notices.

    For libraries that take no generator (kornia, ``nn.init``, dropout). Whatever the device, the numbers are drawn on
    the CPU and then moved, so that a seed means the same everywhere.
    """

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.generator = generator

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        named = dict(kwargs or {})
        if func is torch.ops.aten.native_dropout.default:
            return self._dropout(*args)
        drawing = _with_generator(func) if torch.Tag.nondeterministic_seeded in func.tags else None
        if drawing is None or named.get("generator") is not None:
            return func(*args, **named)
        return self._draw(drawing, args, {**named, "generator": self.generator})

    def _draw(self, func: Any, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """The operation on the CPU, its result where it was asked for."""
        first = args[0] if args and isinstance(args[0], Tensor) else None
        device = torch.device(named.get("device") or (torch.device("cpu") if first is None else first.device))
        if device.type == "cpu":
            return func(*args, **named)
        if "device" in named:
            named["device"] = torch.device("cpu")
        plain = [value.cpu() if isinstance(value, Tensor) else value for value in args]
        drawn = func(*plain, **named)
        return first.copy_(drawn) if first is not None and drawn is plain[0] else drawn.to(device)

    def _dropout(self, values: Tensor, share: float, train: bool | None) -> tuple[Tensor, Tensor]:
        """What ``native_dropout`` answers: the values that stay, scaled, and which they are."""
        kept = torch.rand(values.shape, generator=self.generator).to(values.device) >= (share if train else 0.0)
        return values * kept / (1.0 - share) if train and share < 1.0 else values * kept, kept


def _with_generator(func: Any) -> Any:
    """The form of a random operation that takes a generator: itself, or the one beside it that ``randn`` and others
    have. None for fused attention, which draws only for a dropout of its own inside one kernel of a GPU."""
    if any(argument.name == "generator" for argument in func._schema.arguments):
        return func
    name = "generator" if func._overloadname == "default" else f"{func._overloadname}_generator"
    return getattr(func.overloadpacket, name, None)


def seeded(seed: int) -> torch.Generator:
    """A generator of its own, seeded."""
    return torch.Generator().manual_seed(seed)
