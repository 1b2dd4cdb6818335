"""Whether a number still behaves as it did: a sequential test against its own calm past."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SignalHealth:
    """What the guard thinks of one signal.

    Attributes:
        value: at the last look.
        expected: where the calm past puts it.
        spread: usual distance from there.
        evidence: that it left its past, from 0 to 1, where the alarm is.
    """

    value: float
    expected: float
    spread: float
    evidence: float
