"""Orders: which samples of a target come, and when: shuffled or label-correlated, once or again, with some unknown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from pydantic import BaseModel, Field
from torch import Tensor

from driftgate.rng import seeded
from driftgate.shifts import ClassSplit
from driftgate.types import DriftgateError

Order = Literal["shuffled", "dirichlet"]
Arrangement = Literal["mixed", "continual"]


@dataclass(frozen=True)
class StreamShare:
    """Share of the samples that come from target-private classes, and how it changes from ``start`` to ``end``."""

    start: float
    end: float

    def __post_init__(self) -> None:
        if not (0 <= self.start <= 1 and 0 <= self.end <= 1):
            raise DriftgateError(f"Expected an unknown share from 0 to 1 but got {self}; name one.")

    @classmethod
    def parse(cls, text: str) -> StreamShare:
        """``0.3``, or ``0->0.8`` for a share that changes evenly along the stream."""
        start, arrow, end = text.partition("->")
        try:
            return cls(float(start), float(end if arrow else start))
        except ValueError as error:
            raise DriftgateError(
                f"Expected an unknown share from 0 to 1 like 0.3, or 0->0.8 for one that changes, but got {text!r}; "
                "write it so."
            ) from error

    @property
    def changes(self) -> bool:
        return self.start != self.end

    @property
    def mean(self) -> float:
        return (self.start + self.end) / 2.0

    def at(self, places: Tensor) -> Tensor:
        """The share at places from 0, the beginning, to 1, the end of the stream."""
        return self.start + (self.end - self.start) * places

    def longest(self, known: int, unknown: int) -> int:
        """Samples of a stream with this share, of so many known and unknown ones, none of them twice."""
        ends = [count / share for count, share in ((known, 1 - self.mean), (unknown, self.mean)) if share > 0]
        return int(min(ends) + 1e-9)

    def scored(self, split: ClassSplit) -> ClassSplit:
        """The split that scores a stream with this share: with nothing unknown in it by accuracy, as under PDA."""
        return split if self.mean > 0 else replace(split, target_private=0)

    def __str__(self) -> str:
        return f"{self.start:g}->{self.end:g}" if self.changes else f"{self.start:g}"


class Playing(BaseModel, frozen=True, extra="forbid"):
    """How the samples of a target are played; see ``DomainStream``. The defaults are the paper's way."""

    order: Order = "shuffled"
    concentration: float = Field(default=0.1, gt=0.0)
    arrangement: Arrangement = "mixed"
    repeat: int = Field(default=1, ge=1)

    def as_dict(self) -> dict[str, Any]:
        """For a record; a concentration counts only where classes come together."""
        played = {name: getattr(self, name) for name in Playing.model_fields}
        return {**played, "concentration": self.concentration if self.order == "dirichlet" else None}

    def unusual(self) -> dict[str, Any]:
        """What is not as usual."""
        return {name: value for name, value in self.as_dict().items() if value != USUAL[name]}

    def words(self) -> list[str]:
        """``dirichlet 0.1``, ``continual``, ``3 passes``: what is not as usual, for people."""
        texts = {"order": f"{self.order} {self.concentration:g}", "arrangement": self.arrangement}
        texts["repeat"] = f"{self.repeat} passes"
        return [text for name, text in texts.items() if name in self.unusual()]


USUAL = Playing().as_dict()


def parse_shares(text: str) -> tuple[str, ...]:
    """``0,0.1,...,0.9`` -> 0, 0.1, 0.2 up to 0.9; ``0.5,0->0.8`` -> one that holds and one that changes."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise DriftgateError(f"Expected unknown shares like 0,0.3 or 0,0.1,...,0.9 but got {text!r}; write them so.")
    while "..." in parts:
        place = parts.index("...")
        try:
            first, second, last = (float(parts[near]) for near in (place - 2, place - 1, place + 1))
            steps = (last - second) / (second - first)
            if place < 2 or steps < 1 or abs(steps - round(steps)) > 1e-6:
                raise ValueError
        except (ValueError, IndexError, ZeroDivisionError) as error:
            raise DriftgateError(
                "Expected two shares before ... and one after it in equal steps, as in 0,0.1,...,0.9, but got "
                f"{text!r}; write it so."
            ) from error
        parts[place : place + 1] = [f"{share:.6g}" for share in np.linspace(second, last, round(steps) + 1)[1:-1]]
    return tuple(dict.fromkeys(str(StreamShare.parse(part)) for part in parts))


class Ordering:
    """Puts samples in order, and mixes unknown ones among the known.

    Args:
        classes: (n,) class index of every sample there is.
        is_unknown: (n,) whether it belongs to a target-private class.
        order: ``shuffled``, or ``dirichlet`` for an order in which the same classes come together.
        concentration: of the Dirichlet distribution.
        share: of unknown samples; None for as many as there are.
        seed: decides everything.
    """

    def __init__(
        self,
        classes: Tensor,
        is_unknown: Tensor,
        *,
        order: Order,
        concentration: float,
        share: StreamShare | None,
        seed: int,
    ) -> None:
        self.classes, self.is_unknown, self.share = classes, is_unknown, share
        self.order, self.concentration = order, concentration
        self._generator, self._random = seeded(seed), np.random.default_rng(seed % 2**63)

    def choose(self, samples: Tensor, limit: int | None) -> Tensor:
        """At most ``limit`` of the samples, with the share that is wanted, in their order."""
        if self.share is None:
            return self._ordered(samples)[:limit].clone()
        known, unknown = map(self._ordered, self._parted(samples))
        total = self.share.longest(len(known), len(unknown))
        total = total if limit is None else min(total, limit)
        many = round(self.share.mean * total)
        return self._mixed(known[: total - many], unknown[:many], self.share)

    def again(self, chosen: Tensor) -> Tensor:
        """What was chosen, in a new order."""
        if self.share is None:
            return self._ordered(chosen)
        known, unknown = map(self._ordered, self._parted(chosen))
        return self._mixed(known, unknown, self.share)

    def _parted(self, samples: Tensor) -> tuple[Tensor, Tensor]:
        return samples[~self.is_unknown[samples]], samples[self.is_unknown[samples]]

    def _ordered(self, samples: Tensor) -> Tensor:
        if self.order == "dirichlet":
            return samples[dirichlet_order(self.classes[samples], self.concentration, self._random)]
        return samples[torch.randperm(len(samples), generator=self._generator)]

    def _mixed(self, known: Tensor, unknown: Tensor, share: StreamShare) -> Tensor:
        """Both in their own orders; a place is unknown with the probability that the share has there."""
        total = len(known) + len(unknown)
        wanted = share.at((torch.arange(total) + 0.5) / max(total, 1))
        # The places below their share by chance, but for a few more or less, so that all samples have one.
        first = (torch.rand(total, generator=self._generator) - wanted).argsort()[: len(unknown)]
        mixed = torch.empty(total, dtype=torch.int64)
        taken = torch.zeros(total, dtype=torch.bool)
        taken[first] = True
        mixed[taken], mixed[~taken] = unknown, known
        return mixed


def play(segments: Sequence[Tensor], ordering: Ordering, *, limit: int | None, repeat: int) -> list[Tensor]:
    """The samples in the order in which they come: segment after segment, and all of that ``repeat`` times.

    Each pass shows the same samples in a new order. ``limit`` is for one pass, in equal shares as far as the segments
    have them.
    """
    left = limit
    chosen: list[Tensor] = []
    for number, segment in enumerate(segments):
        share = None if left is None else -(-left // (len(segments) - number))
        chosen.append(ordering.choose(segment, share))
        left = None if left is None else left - len(chosen[-1])
    passes = [chosen]
    for _ in range(repeat - 1):
        passes.append([ordering.again(segment) for segment in chosen])
    return [segment for one_pass in passes for segment in one_pass if len(segment)]


def dirichlet_order(classes: Tensor, concentration: float, random: np.random.Generator) -> Tensor:
    """A label-correlated order of n samples with ``classes`` (n,).

    The stream is cut into as many stretches as there are classes; each class spreads its samples over them with
    proportions drawn from Dirichlet(concentration, ..., concentration); a stretch is shuffled. (NOTE and LAME order
    their streams in this way.)
    """
    labels = classes.numpy()
    present = np.unique(labels)
    if len(present) == 0:
        return torch.zeros(0, dtype=torch.int64)
    stretches: list[list[np.ndarray[tuple[int, ...], np.dtype[np.int64]]]] = [[] for _ in present]
    for label in present:
        members = random.permutation(np.flatnonzero(labels == label))
        shares = random.dirichlet(np.full(len(present), concentration))
        # Far below 1 the proportions can underflow to nothing: then the class takes one stretch.
        if not np.isfinite(shares).all() or shares.sum() == 0:
            shares = np.eye(len(present))[random.integers(len(present))]
        cuts = np.rint(np.cumsum(shares)[:-1] * len(members)).astype(np.int64)
        for stretch, part in zip(stretches, np.split(members, cuts), strict=True):
            stretch.append(part)
    return torch.from_numpy(np.concatenate([random.permutation(np.concatenate(stretch)) for stretch in stretches]))
