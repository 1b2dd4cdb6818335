"""Whether a number still behaves as it did: a sequential test against its own calm past, by betting.

At each look the test bets that the value lies farther from its level than the past's values did from theirs. The bet
pays e, an e-value: where value and past could change places it is 1 in the mean, whatever their distribution. The
evidence is what the stake has become, put in anew whenever part of it is lost, so that it reaches 1 / p no more than
once in 1 / p looks in the mean while nothing changes.

A network that learns drifts also in health. The level follows the past, and the past's distances were measured in the
same way, so that the same drift is part of what is usual; only what is faster or wider than before makes evidence. What
a network says that never learns has no such drift: there value and past really could change places, so all of them
together are the level, a longer past serves, and half as many values are enough to begin with. The direction counts
too, with a stake on either side, so that a small change that lasts is found sooner.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Literal, NamedTuple

LEVEL = 30
"""Newest values of the past, whose mean is where the next is expected if there is drift."""

LONGER = 4
"""How many times as long the past is where there is none."""

FEWEST = 20
"""Values that must be past before a distance is measured, and distances before anything is bet."""

FEWEST_STILL = 10
"""Values that must be past before anything is bet where there is no drift."""

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
    """A value, the look it came with, and how far it lay above its level; NaN if there was none yet."""

    look: int
    value: float
    distance: float


@dataclass
class Stake:
    """What a bet has become, as a logarithm, and the look it was put in at; ``side`` 0 bets on both sides at once."""

    side: Literal[1, 0, -1]
    log_evidence: float = 0.0
    begun: int = 0


class SequentialTest:
    """The past of one signal and the evidence that it left it.

    ``past`` values make the past; the newest ``lag`` are none yet, so that an episode is not taken for usual while it
    begins. ``directed`` bets on each side by itself.
    """

    def __init__(self, past: int, lag: int, *, directed: bool = False) -> None:
        self.directed, self.fewest = directed, FEWEST_STILL if directed else FEWEST
        self.seen: deque[Seen] = deque(maxlen=(LONGER * past if directed else past) + lag)
        self.lag = lag
        self.stakes = self._new_stakes()
        self.value = math.nan

    def look(self, number: int, value: float, *, most: float, follow: bool = True) -> None:
        """Bet on the value of look ``number``; ``most`` is the largest evidence, as a logarithm, that is kept.

        Without ``follow`` the value is judged but will never be past.
        """
        self.value = value
        distance, usual, unit = self._measured(value)
        if len(usual) >= self.fewest and not math.isnan(distance):
            for stake in self.stakes:
                if stake.log_evidence <= 0.0:
                    stake.log_evidence, stake.begun = 0.0, number
                paid = e_value(on_side(distance, stake.side), [on_side(far, stake.side) for far in usual], unit)
                stake.log_evidence = min(stake.log_evidence + math.log(paid), most)
        if follow:
            self.seen.append(Seen(number, value, distance))

    @property
    def strongest(self) -> Stake:
        """The stake with the larger evidence."""
        return max(self.stakes, key=lambda stake: stake.log_evidence)

    @property
    def level(self) -> float:
        """Where the next value is expected; NaN while there is too little past."""
        past = [seen.value for seen in self._past()]
        if len(past) < self.fewest:
            return math.nan
        return fmean(past if self.directed else past[-LEVEL:])

    @property
    def spread(self) -> float:
        """Usual distance from there; NaN while there is too little past."""
        level = self.level
        return usual_distance(self._distances(level), level)

    def rewind(self, look: int) -> None:
        """Forget the evidence, and all that came at that look or later."""
        self.stakes = self._new_stakes()
        while self.seen and self.seen[-1].look >= look:
            self.seen.pop()

    def state_dict(self) -> dict[str, Any]:
        """What has been seen, as JSON knows it."""
        return {"seen": [[number, value, None if math.isnan(far) else far] for number, value, far in self.seen]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Put back what ``state_dict`` gave; evidence begins anew."""
        self.stakes = self._new_stakes()
        self.seen.clear()
        self.seen.extend(Seen(number, value, math.nan if far is None else far) for number, value, far in state["seen"])

    def _new_stakes(self) -> tuple[Stake, ...]:
        return (Stake(1), Stake(-1)) if self.directed else (Stake(0),)

    def _past(self) -> list[Seen]:
        return list(self.seen)[: max(len(self.seen) - self.lag, 0)]

    def _measured(self, value: float) -> tuple[float, list[float], float]:
        """How far the value and those of the past lie above their levels, and the unit they are compared in.

        Where there is no drift level and unit are those of all together, so that nothing tells the value from the past.
        """
        if not self.directed:
            return value - self.level, self._distances(math.nan), self.spread
        level = fmean([*(seen.value for seen in self._past()), value])
        usual = self._distances(level)
        return value - level, usual, usual_distance([*usual, value - level], level)

    def _distances(self, level: float) -> list[float]:
        """Of the past: from ``level`` where there is no drift, else as they were measured when they came."""
        if self.directed:
            return [seen.value - level for seen in self._past()]
        return [seen.distance for seen in self._past() if not math.isnan(seen.distance)]


def usual_distance(distances: list[float], level: float) -> float:
    """Mean of how far they lie from the level, whatever the side; NaN where there are none, or no level."""
    if not distances or math.isnan(level):
        return math.nan
    return max(fmean(map(abs, distances)), SMALLEST_SPREAD * abs(level), 1e-12)


def on_side(distance: float, side: Literal[1, 0, -1]) -> float:
    """How far to that side; to either for 0."""
    return side * distance if side else abs(distance)


def e_value(distance: float, usual: list[float], unit: float) -> float:
    """(n + 1) g(d) / (g(d) + sum of g over the n usual distances), g(d) = exp(d / unit); never 0.

    If all n + 1 distances could change places, each is d equally often and the mean of the quotient is 1.
    """
    farthest = max(distance, *usual)
    mine, *others = (math.exp(max((far - farthest) / unit, -50.0)) for far in (distance, *usual))
    return (len(usual) + 1) * mine / (mine + sum(others))
