"""Other views of rows of features: noise and dropout, as large as each feature's own spread."""

from __future__ import annotations

import torch
from torch import Tensor

from driftgate.models.input import InputSpec


class RowView:
    """x' = x + noise * spread * N(0, 1), and a share ``drop`` of the features put to their mean, drawn for each row.

    Mean and spread of a feature are the source's where the model knows them (its ``mean`` and ``std``), and the
    batch's elsewhere. A row alone has neither: then those over its features stand in.
    """

    def __init__(self, noise: float, drop: float, spec: InputSpec) -> None:
        self.noise, self.drop = noise, drop
        known = spec.mean != (0.0,) or spec.std != (1.0,)
        self.moments = (torch.tensor(spec.mean), torch.tensor(spec.std)) if known else None

    @torch.no_grad()
    def __call__(self, rows: Tensor, generator: torch.Generator) -> Tensor:
        """(N, D) -> the same; draws from ``generator`` only, on the CPU, so that a seed means the same everywhere."""
        mean, spread = self._moments(rows)
        noise = torch.randn(rows.shape, generator=generator).to(rows) * (self.noise * spread)
        dropped = (torch.rand(rows.shape, generator=generator) < self.drop).to(rows.device)
        return torch.where(dropped, mean, rows + noise)

    def _moments(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and spread, (D,), (1,) or (1, 1)."""
        if self.moments is not None:
            return self.moments[0].to(rows), self.moments[1].to(rows)
        alone = len(rows) == 1
        return rows.mean(dim=int(alone), keepdim=True), rows.std(dim=int(alone), keepdim=True, correction=0)


class RowViews:
    """The two looks at rows."""

    name = "rows"

    def __init__(self, spec: InputSpec) -> None:
        self.weak = RowView(0.1, 0.1, spec)
        self.strong = RowView(0.3, 0.3, spec)
