"""What float16 needs to learn: a loss so much larger that small gradients do not vanish."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

FIRST, LARGEST = 2.0**16, 2.0**24
PATIENCE = 2000
"""Steps without an overflow after which twice the scale is tried."""


class LossScale:
    """The factor of the loss: halved when a gradient overflows, doubled when none has for long.

    torch's ``GradScaler`` does the same but asks the device once more; a step reads the gradient's length already.
    """

    def __init__(self) -> None:
        self.value, self.good = FIRST, 0

    def divide(self, parameters: Sequence[nn.Parameter]) -> None:
        """Bring the gradients back to their size."""
        torch._foreach_mul_([part.grad for part in parameters if part.grad is not None], 1.0 / self.value)

    def follow(self, finite: bool) -> None:
        """Take note of how a step went."""
        self.good = self.good + 1 if finite else 0
        if not finite:
            self.value = max(self.value / 2.0, 1.0)
        elif self.good % PATIENCE == 0:
            self.value = min(2.0 * self.value, LARGEST)

    def to_tensor(self) -> Tensor:
        """(2,) float64, to be saved."""
        return torch.tensor([self.value, self.good], dtype=torch.float64)

    def fill(self, values: Tensor) -> None:
        """The inverse of ``to_tensor``."""
        value, good = values.tolist()
        self.value, self.good = min(max(value, 1.0), LARGEST), int(good)
