"""What a reviewer asks of a mean: its spread, its 95 % interval, and whether two methods differ."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats
from statsmodels.stats.multitest import multipletests

from driftgate.types import DriftgateError

LEVEL = 0.95
NO_SPREAD = 1e-12
"""Values that differ by less than this share of their size differ by rounding alone."""

UNITS_FOR_T, UNITS_FOR_WILCOXON = 3, 6
"""Of two units a test says nothing; of fewer than six, Wilcoxon's can never fall below 0.05."""

EXACT_WITH_TIES = 13


class Summary(NamedTuple):
    """Mean of n values; NaN where a spread needs more values: std (n - 1) and the interval by Student's t need two."""

    n: int
    mean: float
    std: float = math.nan
    low: float = math.nan
    high: float = math.nan


class Comparison(NamedTuple):
    """First minus second over the units both have: its summary, and two-sided p-values (NaN where none is fit).

    ``t_p`` is of the paired t-test, ``wilcoxon_p`` of the signed-rank test, which leaves ties out.
    """

    difference: Summary
    wins: int
    ties: int
    t_p: float
    wilcoxon_p: float


def summarise(values: ArrayLike) -> Summary:
    """Mean, std and 95 % interval of ``values`` (at least one, all finite)."""
    given = np.asarray(values, dtype=np.float64)
    if len(given) == 0 or not np.isfinite(given).all():
        raise DriftgateError(
            f"Expected at least one value, all finite, but got {given.tolist()}; leave the others out."
        )
    n, mean = len(given), math.fsum(given) / len(given)
    if n == 1:
        return Summary(1, mean)
    std = float(given.std(ddof=1))
    if std <= NO_SPREAD * max(1.0, abs(mean)):
        return Summary(n, mean, 0.0, mean, mean)
    low, high = stats.t.interval(LEVEL, n - 1, loc=mean, scale=std / math.sqrt(n))
    return Summary(n, mean, std, float(low), float(high))


def compare(first: ArrayLike, second: ArrayLike) -> Comparison | None:
    """Compare two methods over paired units; None where there is none.

    Pairing takes out what a unit does to every method, be it the difficulty of a pair or the luck of a seed.
    """
    mine, theirs = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    if len(mine) == 0:
        return None
    differences = mine - theirs
    differences[np.abs(differences) <= NO_SPREAD * max(1.0, np.abs(mine).max())] = 0.0
    summary = summarise(differences)
    t_p = math.nan
    if len(differences) >= UNITS_FOR_T and summary.std > 0:  # without a spread the statistic is not defined
        t_p = float(stats.ttest_1samp(differences, 0.0).pvalue)
    wins, ties = int((differences > 0).sum()), int((differences == 0).sum())
    return Comparison(summary, wins, ties, t_p, _wilcoxon(differences[differences != 0]))


def _wilcoxon(differences: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> float:
    """Exact where ranks allow it: few units are the rule here, and the normal approximation is wrong for few."""
    n = len(differences)
    if n < UNITS_FOR_WILCOXON:
        return math.nan
    tied = len(np.unique(np.abs(differences))) < n
    if tied and n <= EXACT_WITH_TIES:
        # All 2^n signs of the mid-ranks.
        return float(stats.wilcoxon(differences, method=stats.PermutationMethod(n_resamples=2**n)).pvalue)
    return float(stats.wilcoxon(differences, method="exact" if n <= 50 and not tied else "approx").pvalue)


def holm(p_values: Sequence[float]) -> list[float]:
    """P-values adjusted for how many were looked at (Holm's step-down); NaN stays NaN."""
    adjusted = np.asarray(p_values, dtype=np.float64).copy()
    given = ~np.isnan(adjusted)
    if given.any():
        adjusted[given] = multipletests(adjusted[given], method="holm")[1]
    return [float(value) for value in adjusted]
