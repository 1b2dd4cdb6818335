"""What survives a batch: modules whose buffers move with ``.to``, are saved by ``state_dict`` and counted in bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from typing_extensions import Self

from driftgate.types import DriftgateError

WITHOUT_FLOAT64 = {"mps"}
"""Types of devices that cannot hold a float64; what needs one is computed on the CPU beside them."""


def exact(values: Tensor) -> Tensor:
    """The values in float64: where they are, or on the CPU where the device has none."""
    return (values.cpu() if values.device.type in WITHOUT_FLOAT64 else values).double()


def bytes_of(tensors: Iterable[Tensor]) -> int:
    """How much memory the tensors' elements take."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


class State(nn.Module):
    """A module of buffers. An update assigns new tensors and changes none in place, so that a clone may share them.

    A subclass calls ``keep`` for everything it remembers, and says what makes no sense in a file: ``at_least_zero``
    names buffers without negative numbers, ``any_size`` those whose first dimension may grow. ``in_float64`` states
    stay on the CPU beside a device that has no float64.
    """

    at_least_zero: ClassVar[frozenset[str]] = frozenset()
    any_size: ClassVar[frozenset[str]] = frozenset()
    in_float64: ClassVar[bool] = False

    def keep(self, **tensors: Tensor) -> None:
        """Remember ``tensors`` under their names, as buffers."""
        for name, tensor in tensors.items():
            self.register_buffer(name, tensor)

    def clone(self) -> Self:
        """An independent copy, what ``predict`` may play with; it shares tensors until its first update."""
        twin = type(self).__new__(type(self))
        twin.__dict__.update(self.__dict__)
        twin.__dict__["_buffers"] = dict(self._buffers)
        twin.__dict__["_modules"] = {
            name: part.clone() if isinstance(part, State) else part for name, part in self._modules.items()
        }
        return twin

    @property
    def num_bytes(self) -> int:
        """Bytes of everything remembered."""
        return bytes_of(self.buffers())

    def extra_repr(self) -> str:
        kept = (
            f"{name} {tuple(buffer.shape)} {str(buffer.dtype).removeprefix('torch.')}"
            for name, buffer in self.named_buffers(recurse=False)
        )
        return ", ".join([*kept, f"{self.num_bytes} bytes"])

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """What ``.to`` and its kin do: only the device changes, for half of a memory's digits would be another one."""
        target = fn(torch.zeros(())).device
        if self.in_float64 and target.type in WITHOUT_FLOAT64:
            target = torch.device("cpu")
        kept = {name: buffer.to(target) for name, buffer in self.named_buffers(recurse=False)}
        self._buffers.clear()
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._buffers.update(kept)
        return self

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """New tensors in the place of the old ones, which clones may share; refuses what no run could have left."""
        _, strict, missing_keys, unexpected_keys, _ = rest
        for name, mine in self.named_buffers(recurse=False):
            if f"{prefix}{name}" not in state_dict:
                missing_keys.append(f"{prefix}{name}")
                continue
            given: Tensor = state_dict[f"{prefix}{name}"]
            free = int(name in self.any_size)
            if given.ndim != mine.ndim or given.shape[free:] != mine.shape[free:]:
                raise DriftgateError(
                    f"Expected {prefix}{name} of shape {tuple(mine.shape)} but got {tuple(given.shape)}; load it with "
                    "the model and the settings it was saved with."
                )
            check_finite(f"{prefix}{name}", given)
            if name in self.at_least_zero and bool((given < 0).any()):
                raise DriftgateError(
                    f"Expected {prefix}{name} of at least 0 but the smallest is {float(given.min()):.4g}; the file is "
                    "damaged, load an earlier one."
                )
            self._buffers[name] = given.detach().to(mine.device, mine.dtype, copy=True)
        if strict:
            known = {*self._buffers, *self._modules}
            own = (key for key in state_dict if key.startswith(prefix))
            unexpected_keys += [key for key in own if key[len(prefix) :].split(".")[0] not in known]


def check_finite(name: str, values: Tensor) -> None:
    """Refuse NaN and infinity in what is loaded: they would spread to everything, and never leave again."""
    if values.is_floating_point() and not bool(values.isfinite().all()):
        raise DriftgateError(f"Expected finite numbers in {name} but got NaN or infinity; load an earlier state.")
