"""Randomness that belongs to one object: seeded, saved, and invisible to everybody else's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def private_rng(generator: torch.Generator) -> Iterator[None]:
    """Draw from ``generator`` wherever torch's global CPU generator is used inside; the global one stays as it was.

    For libraries that take no generator argument (kornia, ``nn.init``).
    """
    before = torch.get_rng_state()
    torch.set_rng_state(generator.get_state())
    try:
        yield
    finally:
        generator.set_state(torch.get_rng_state())
        torch.set_rng_state(before)


def seeded(seed: int) -> torch.Generator:
    """A generator of its own, seeded."""
    return torch.Generator().manual_seed(seed)
