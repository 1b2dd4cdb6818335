"""What a reviewer asks of a mean: its spread, its 95 % interval, and whether two methods differ."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy import stats

from driftgate.types import DriftgateError

LEVEL = 0.95
NO_SPREAD = 1e-12
"""Values that differ by less than this share of their size differ by rounding alone."""


@dataclass(frozen=True)
class Summary:
    """Mean of n values; std (n - 1), and the interval by Student's t, need two."""

    n: int
    mean: float
    std: float | None
    low: float | None
    high: float | None

    @property
    def half_width(self) -> float | None:
        """Half the interval."""
        return None if self.low is None or self.high is None else (self.high - self.low) / 2


@dataclass(frozen=True)
class Comparison:
    """A method against another over the n units (``findings.units``) that both have run.

    Attributes:
        difference: mean, std and 95 % interval of first minus second.
        wins, ties: units in which the first is better, and in which both are equal.
        t_p: two-sided p-value of the paired t-test; None for one unit, or where all differences are equal.
        wilcoxon_p: the same of Wilcoxon's signed-rank test, which ignores ties; None where all units tie.
    """

    difference: Summary
    wins: int
    ties: int
    t_p: float | None
    wilcoxon_p: float | None

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return asdict(self)


def summarise(values: Sequence[float]) -> Summary:
    """Mean, std and 95 % interval of ``values`` (at least one, all finite)."""
    if len(values) == 0 or not all(math.isfinite(value) for value in values):
        raise DriftgateError(f"Expected at least one value, all finite, but got {list(values)}.")
    n, mean = len(values), math.fsum(values) / len(values)
    if n == 1:
        return Summary(1, mean, None, None, None)
    std = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (n - 1))
    if std <= NO_SPREAD * max(1.0, abs(mean)):
        return Summary(n, mean, 0.0, mean, mean)
    half = float(stats.t.ppf((1.0 + LEVEL) / 2.0, n - 1)) * std / math.sqrt(n)
    return Summary(n, mean, std, mean - half, mean + half)


def compare(first: Mapping[Hashable, float], second: Mapping[Hashable, float]) -> Comparison | None:
    """Compare two methods over the units both have; None if they share none.

    Pairing takes out what a unit does to every method, be it the difficulty of a pair or the luck of a seed.
    """
    shared = [unit for unit in first if unit in second]
    if not shared:
        return None
    differences = np.array([first[unit] - second[unit] for unit in shared], dtype=np.float64)
    scale = max(1.0, *(abs(first[unit]) for unit in shared))
    differences[np.abs(differences) <= NO_SPREAD * scale] = 0.0
    summary = summarise(differences.tolist())
    return Comparison(
        difference=summary,
        wins=int((differences > 0).sum()),
        ties=int((differences == 0).sum()),
        t_p=_t_test(summary),
        wilcoxon_p=_wilcoxon(differences[differences != 0]),
    )


def _t_test(difference: Summary) -> float | None:
    if not difference.std:  # one unit, or no spread: the statistic is not defined
        return None
    statistic = difference.mean / (difference.std / math.sqrt(difference.n))
    return float(2.0 * stats.t.sf(abs(statistic), difference.n - 1))


def _wilcoxon(differences: np.ndarray[Any, np.dtype[np.float64]]) -> float | None:
    """Exact where ranks allow it: few units are the rule here, and the normal approximation is wrong for few."""
    if len(differences) == 0:
        return None
    sizes = np.abs(differences)
    tied = len(np.unique(sizes)) < len(sizes)
    exact = len(differences) <= (13 if tied else 50)
    if exact and tied:
        return _exact_with_ties(differences)
    return float(stats.wilcoxon(differences, method="exact" if exact else "approx").pvalue)


def _exact_with_ties(differences: np.ndarray[Any, np.dtype[np.float64]]) -> float:
    """The two-sided p-value from all 2^n signs of the (mid-)ranks."""
    ranks = stats.rankdata(np.abs(differences))
    sums = np.zeros(1)
    for rank in ranks:
        sums = np.concatenate([sums, sums + rank])
    observed, centre = float(ranks[differences > 0].sum()), float(ranks.sum()) / 2.0
    return float(np.mean(np.abs(sums - centre) >= abs(observed - centre) - 1e-9))


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """P-values adjusted for how many were looked at (Holm's step-down); None stays None."""
    given = sorted((value, index) for index, value in enumerate(p_values) if value is not None)
    adjusted: list[float | None] = [None] * len(p_values)
    largest = 0.0
    for place, (value, index) in enumerate(given):
        largest = max(largest, min(1.0, value * (len(given) - place)))
        adjusted[index] = largest
    return adjusted
