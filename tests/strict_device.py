"""A device for tests, "strict": a GPU in its manners, the CPU in its numbers.

Importing this module makes torch know it. A tensor on it holds a tensor of the CPU, on which every operation runs, so
that results can be compared to the last bit. What a GPU would refuse is refused: an operation on tensors of both
devices (numbers without a dimension may come along), ``numpy``, and, inside ``without_float64``, a float64, as on MPS.
``reads`` counts by operation how often the host had to wait for a value: ``item`` and its kin, copies to the CPU, and
operations whose result has a size that only the values tell, such as indexing by a mask.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils import backend_registration
from torch.utils._pytree import tree_leaves, tree_map

aten = torch.ops.aten

MOVES = {aten._to_copy.default, aten.copy_.default}
WAITS = {
    aten._local_scalar_dense.default,
    aten.equal.default,
    aten.is_nonzero.default,
    aten.nonzero.default,
    aten.masked_select.default,
    aten.bincount.default,
    aten._unique2.default,
}
BY_MASK = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default}

reads: Counter[str] = Counter()
"""How often the host waited, by operation; cleared by the test that counts."""

_refused: set[torch.dtype] = set()


class _Backend(backend_registration._DummyBackendModule):
    """What torch asks a device's module for."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]

    def synchronize(self, device: object = None) -> None:
        """Nothing ever runs behind."""

    # It draws no random numbers: whoever lets it must draw on the CPU.
    def get_rng_state(self, device: object = None) -> Tensor:
        return torch.zeros(0, dtype=torch.uint8)

    def set_rng_state(self, state: Tensor, device: object = None) -> None:
        """There is none."""

    def manual_seed_all(self, seed: int) -> None:
        """There is none."""

    def _is_in_bad_fork(self) -> bool:
        return False


backend_registration._setup_privateuseone_for_python_backend("strict", backend_module=_Backend())
DEVICE = torch.device("strict", 0)


class OnStrict(Tensor):
    """A tensor of the device: size and kind as torch sees them, and ``held``, the numbers on the CPU."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> OnStrict:
        if held.dtype in _refused:
            raise TypeError(f"Cannot convert a strict Tensor to {held.dtype}: the device has none.")
        shell = Tensor._make_wrapper_subclass(
            cls,
            held.size(),
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=DEVICE,
        )
        shell.held = held
        return shell

    def tolist(self) -> Any:
        """One read for all values, which torch does not offer for a class of one's own."""
        return self.cpu().tolist()

    def __repr__(self, *, tensor_contents: object = None) -> str:
        return f"{self.held!r} on strict"

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return run(func, args, kwargs or {})


def run(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The operation on the numbers held; what comes out is where a GPU's result would be."""
    given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    ours = [tensor for tensor in given if isinstance(tensor, OnStrict)]
    if func not in MOVES:
        _refuse_mixing(func, given, ours)
    _count(func, args, kwargs, ours)
    target = kwargs.get("device")
    stays = bool(ours) if target is None else torch.device(target).type == "strict"
    if func is aten.copy_.default:
        stays = isinstance(args[0], OnStrict)
    plain_args, plain = tree_map(_held, (args, kwargs))
    if target is not None:
        plain["device"] = torch.device("cpu")
    plain.pop("pin_memory", None)
    result = func(*plain_args, **plain)
    known = {id(tensor.held): tensor for tensor in ours}  # an operation in place answers with what it changed

    def shell(value: Any) -> Any:
        if not isinstance(value, Tensor) or not stays:
            return value
        return known[id(value)] if id(value) in known else OnStrict(value)

    return tree_map(shell, result)


def _refuse_mixing(func: Any, given: list[Tensor], ours: list[OnStrict]) -> None:
    strangers = [tensor for tensor in given if not isinstance(tensor, OnStrict) and tensor.ndim > 0]
    if ours and strangers:
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but {func} got one of shape {tuple(strangers[0].shape)} "
            f"on {strangers[0].device} and others on {DEVICE}."
        )


def _count(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], ours: list[OnStrict]) -> None:
    if not ours:
        return
    to_host = func is aten._to_copy.default and torch.device(kwargs.get("device") or DEVICE).type != "strict"
    to_host |= func is aten.copy_.default and not isinstance(args[0], OnStrict)
    by_mask = func in BY_MASK and any(isinstance(leaf, Tensor) and leaf.dtype == torch.bool for leaf in args[1])
    if to_host or by_mask or func in WAITS:
        reads["copy to the host" if to_host else str(func)] += 1


def _held(value: Any) -> Any:
    return value.held if isinstance(value, OnStrict) else value


def _make(func: Any, *args: Any, **kwargs: Any) -> Any:
    """A new tensor on the device: what reaches it without a tensor of its own."""
    return run(func, args, {**kwargs, "device": kwargs.get("device", DEVICE)} if _takes_device(func) else kwargs)


def _takes_device(func: Any) -> bool:
    return any(argument.name == "device" for argument in func._schema.arguments)


def _copy_from(source: Tensor, target: Tensor, non_blocking: bool = False) -> Tensor:
    """How ``torch.tensor(..., device="strict")`` fills what it made."""
    _held(target).copy_(_held(source))
    return target


_everything, _copies = torch.library.Library("_", "IMPL"), torch.library.Library("aten", "IMPL")
_everything.fallback(_make, "PrivateUse1")
_copies.impl("_copy_from", _copy_from, "PrivateUse1")


@contextmanager
def without_float64() -> Iterator[None]:
    """Refuse float64, as MPS does."""
    _refused.add(torch.float64)
    try:
        yield
    finally:
        _refused.clear()
