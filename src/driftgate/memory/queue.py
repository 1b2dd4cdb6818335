"""A queue of fixed size: the newest rows overwrite the oldest."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor
from typing_extensions import Self

from driftgate.state import State
from driftgate.types import DriftgateError


class RingQueue(State):
    """Rows of several columns, allocated once; its bytes do not depend on how full it is.

    ``RingQueue(16_384, features=256, probabilities=9, labels=None)``: a width for a column of vectors, None for one of
    single numbers.
    """

    at_least_zero: ClassVar[frozenset[str]] = frozenset({"pushed"})
    pushed: Tensor

    def __init__(self, capacity: int, **widths: int | None) -> None:
        super().__init__()
        if capacity < 1 or not widths:
            raise DriftgateError(f"Expected a queue of at least one row and column but got {capacity} and {widths}.")
        self.capacity = capacity
        for name, width in widths.items():
            self.keep(**{name: torch.zeros(capacity) if width is None else torch.zeros(capacity, width)})
        self.keep(pushed=torch.zeros((), dtype=torch.int64))

    @property
    def columns(self) -> dict[str, Tensor]:
        """All columns by name, whole."""
        return {name: column for name, column in self.named_buffers() if name != "pushed"}

    def __len__(self) -> int:
        return min(int(self.pushed), self.capacity)

    def __getitem__(self, name: str) -> Tensor:
        """The filled rows of a column, in the order they lie in the ring, not of age; a view, not to be changed."""
        return self.columns[name][: len(self)]

    def push(self, **rows: Tensor) -> None:
        """Add as many rows to every column, in place; of more than fit, the last ones stay."""
        columns, sizes = self.columns, {len(values) for values in rows.values()}
        if rows.keys() != columns.keys() or len(sizes) != 1:
            raise DriftgateError(
                f"Expected equally many rows for {', '.join(columns)} but got "
                f"{', '.join(f'{name} {len(values)}' for name, values in rows.items())}."
            )
        count = sizes.pop()
        kept = min(count, self.capacity)
        places = (self.pushed + count - kept + torch.arange(kept, device=self.pushed.device)) % self.capacity
        for name, values in rows.items():
            columns[name][places] = values[count - kept :].detach().to(columns[name])
        self.pushed = self.pushed + count

    def clone(self) -> Self:
        """An independent copy, with columns of its own, for ``push`` writes into them."""
        twin = super().clone()
        twin.keep(**{name: column.clone() for name, column in self.columns.items()})
        return twin
