"""Whether a number still behaves as it did: a sequential test against its own calm past, by betting.

At each look the test bets that the value lies farther from its level than the past's values did from theirs. The bet
pays e, an e-value: where value and past could change places it is 1 in the mean, whatever their distribution. The
evidence is what the stake has become, put in anew whenever most of it is lost, so that it reaches 1 / p no more than
once in 1 / p looks in the mean while nothing changes.

A network that learns drifts also in health. The level follows the past, and the past's distances were measured in the
same way, so that the same drift is part of what is usual; only what is faster or wider than before makes evidence.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import Any, NamedTuple

LEVEL = 30
"""Newest values of the past, whose mean is where the next is expected."""

FEWEST = 20
"""Values that must be past before a distance is measured, and distances before anything is bet."""

SMALLEST_SPREAD = 1e-3
"""Of a level: a number that never moved would be unusual at its first last bit."""


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


class Seen(NamedTuple):
    """A value, the look it came with, and how far it lay from its level; NaN if there was none yet."""

    look: int
    value: float
    distance: float


class SequentialTest:
    """The past of one signal and the evidence that it left it.

    ``past`` values make the past; the newest ``lag`` are none yet, so that an episode is not taken for usual while it
    begins.
    """

    def __init__(self, past: int, lag: int) -> None:
        self.seen: deque[Seen] = deque(maxlen=past + lag)
        self.lag = lag
        self.log_evidence = 0.0
        self.begun = 0
        self.value = math.nan

    def look(self, number: int, value: float, *, most: float, follow: bool = True) -> None:
        """Bet on the value of look ``number``; ``most`` is the largest evidence, as a logarithm, that is kept.

        Without ``follow`` the value is judged but will never be past.
        """
        self.value = value
        distance = abs(value - self.level)
        usual = self._distances()
        if len(usual) >= FEWEST and not math.isnan(distance):
            if self.log_evidence <= 0.0:
                self.log_evidence, self.begun = 0.0, number
            self.log_evidence = min(self.log_evidence + math.log(e_value(distance, usual, self.spread)), most)
        if follow:
            self.seen.append(Seen(number, value, distance))

    @property
    def level(self) -> float:
        """Where the next value is expected; NaN while there is too little past."""
        past = [seen.value for seen in self._past()]
        return sum(past[-LEVEL:]) / len(past[-LEVEL:]) if len(past) >= FEWEST else math.nan

    @property
    def spread(self) -> float:
        """Usual distance from there; NaN while there is too little past."""
        usual = self._distances()
        if not usual:
            return math.nan
        return max(sum(usual) / len(usual), SMALLEST_SPREAD * abs(self.level), 1e-12)

    def rewind(self, look: int) -> None:
        """Forget the evidence, and all that came at that look or later."""
        self.log_evidence = 0.0
        while self.seen and self.seen[-1].look >= look:
            self.seen.pop()

    def state_dict(self) -> dict[str, Any]:
        """What has been seen, as JSON knows it."""
        return {"seen": [[number, value, None if math.isnan(far) else far] for number, value, far in self.seen]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Put back what ``state_dict`` gave; evidence begins anew."""
        self.log_evidence = 0.0
        self.seen.clear()
        self.seen.extend(Seen(number, value, math.nan if far is None else far) for number, value, far in state["seen"])

    def _past(self) -> list[Seen]:
        return list(self.seen)[: max(len(self.seen) - self.lag, 0)]

    def _distances(self) -> list[float]:
        return [seen.distance for seen in self._past() if not math.isnan(seen.distance)]


def e_value(distance: float, usual: list[float], unit: float) -> float:
    """(n + 1) g(d) / (g(d) + sum of g over the n usual distances), g(d) = exp(d / unit).

    If all n + 1 distances could change places, each is d equally often and the mean of the quotient is 1.
    """
    farthest = max(distance, *usual)
    mine, *others = (math.exp((far - farthest) / unit) for far in (distance, *usual))
    return (len(usual) + 1) * mine / (mine + sum(others))
