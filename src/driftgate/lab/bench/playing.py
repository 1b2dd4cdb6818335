"""How a target is played as a stream, as suites, jobs and records tell it: order, arrangement, passes and shares."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from driftgate.lab.data.orders import Arrangement, Order, StreamShare
from driftgate.types import DriftgateError

AND_SO_ON = "..."


class Playing(BaseModel):
    """How the samples of a target are played; see ``DomainStream``. The defaults are the paper's way."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    order: Order = "shuffled"
    concentration: float = Field(default=0.1, gt=0.0)
    arrangement: Arrangement = "mixed"
    repeat: int = Field(default=1, ge=1)

    def as_dict(self) -> dict[str, Any]:
        """For a record; a concentration counts only where classes come together."""
        return {**self.model_dump(), "concentration": self.concentration if self.order == "dirichlet" else None}


USUAL = Playing().as_dict()


def unusual(facts: Mapping[str, Any]) -> dict[str, Any]:
    """What of a job's or a record's playing is not as usual; records of older versions have none of it."""
    return {name: facts[name] for name in USUAL if facts.get(name) is not None and facts[name] != USUAL[name]}


def playing_words(facts: Mapping[str, Any]) -> list[str]:
    """``dirichlet 0.1``, ``continual``, ``3 passes``: what is not as usual, for people."""
    found = unusual(facts)
    words = [f"{found['order']} {facts['concentration']:g}"] if "order" in found else []
    words += [str(found["arrangement"])] if "arrangement" in found else []
    return words + ([f"{found['repeat']} passes"] if "repeat" in found else [])


def parse_shares(text: str) -> tuple[str, ...]:
    """``0,0.1,...,0.9`` -> 0, 0.1, 0.2 up to 0.9; ``0.5,0->0.8`` -> one that holds and one that changes."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise DriftgateError(f"Expected unknown shares like 0,0.3 or 0,0.1,...,0.9 but got {text!r}; write them so.")
    return check_shares(part for part in _filled(parts, text))


def check_shares(shares: Iterable[Any]) -> tuple[str, ...]:
    """Each share as it is written everywhere, and once."""
    return tuple(dict.fromkeys(str(StreamShare.parse(str(share))) for share in shares))


def _filled(parts: list[str], text: str) -> list[str]:
    """The parts, with what ``...`` stands for: steps as large as the one before it, up to the share after it."""
    filled: list[str] = []
    for place, part in enumerate(parts):
        if part != AND_SO_ON:
            filled.append(part)
            continue
        try:
            first, second, last = (float(parts[near]) for near in (place - 2, place - 1, place + 1) if near >= 0)
        except (ValueError, IndexError) as error:
            raise DriftgateError(
                f"Expected two shares before ... and one after it, as in 0,0.1,...,0.9, but got {text!r}; write it so."
            ) from error
        steps = (last - second) / (second - first) if second != first else 0.0
        if steps < 1 or abs(steps - round(steps)) > 1e-6:
            raise DriftgateError(
                f"Expected equal steps between the shares around ... but got {text!r}; write them out."
            )
        filled += [f"{second + number * (second - first):.6g}" for number in range(1, round(steps))]
    return filled
