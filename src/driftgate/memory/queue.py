"""A queue of fixed size: the newest rows overwrite the oldest."""

from __future__ import annotations

import torch
from torch import Tensor

from driftgate.types import DriftgateError


class RingQueue:
    """Rows of several columns, allocated once; its bytes do not depend on how full it is.

    ``RingQueue(16_384, features=256, probabilities=9, labels=None)``: a width for a column of vectors, None for one of
    single numbers.
    """

    def __init__(self, capacity: int, **widths: int | None) -> None:
        if capacity < 1 or not widths:
            raise DriftgateError(f"Expected a queue of at least one row and column but got {capacity} and {widths}.")
        self.capacity = capacity
        self.columns = {
            name: torch.zeros(capacity) if width is None else torch.zeros(capacity, width)
            for name, width in widths.items()
        }
        self.pushed = torch.zeros((), dtype=torch.int64)

    def __len__(self) -> int:
        return min(int(self.pushed), self.capacity)

    def __getitem__(self, name: str) -> Tensor:
        """The filled rows of a column, in the order they lie in the ring, not of age; a view, not to be changed."""
        return self.columns[name][: len(self)]

    def push(self, **rows: Tensor) -> None:
        """Add as many rows to every column; of more than fit, the last ones stay."""
        sizes = {len(values) for values in rows.values()}
        if rows.keys() != self.columns.keys() or len(sizes) != 1:
            raise DriftgateError(
                f"Expected equally many rows for {', '.join(self.columns)} but got "
                f"{', '.join(f'{name} {len(values)}' for name, values in rows.items())}."
            )
        count = sizes.pop()
        kept = min(count, self.capacity)
        places = (int(self.pushed) + count - kept + torch.arange(kept)) % self.capacity
        for name, values in rows.items():
            self.columns[name][places] = values[count - kept :].detach().to(self.columns[name].dtype)
        self.pushed += count

    def clone(self) -> RingQueue:
        """An independent copy."""
        copy = RingQueue.__new__(RingQueue)
        copy.capacity = self.capacity
        copy.columns = {name: column.clone() for name, column in self.columns.items()}
        copy.pushed = self.pushed.clone()
        return copy

    def state_dict(self) -> dict[str, Tensor]:
        """All columns, and how many rows were ever pushed."""
        return {**self.columns, "pushed": self.pushed}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Put back what ``state_dict`` gave."""
        self.columns = {name: state[name].clone() for name in self.columns}
        self.pushed = state["pushed"].clone()

    @property
    def num_bytes(self) -> int:
        return sum(tensor.numel() * tensor.element_size() for tensor in self.state_dict().values())
