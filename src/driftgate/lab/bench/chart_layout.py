"""Where things go in a chart: limits and ticks of its axes, and labels that do not cover each other."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator


def percent_axis(axes: Axes, values: Sequence[float]) -> None:
    """Limits at round numbers around what matters: differences of a few points must be seen."""
    low, high = min(values, default=0.0), max(values, default=100.0)
    room = max(0.12 * (high - low), 2.0)
    # A point at 0 is drawn whole, above the axis.
    floor = max(0.0 if low >= 3.0 else -3.0, 5.0 * math.floor((low - room) / 5.0))
    axes.set_ylim(floor, min(102.0, 5.0 * math.ceil((high + room) / 5.0)))


def round_ticks(last: float) -> list[float]:
    """Three to five round numbers from 0 to ``last``."""
    step = 10.0 ** math.floor(math.log10(max(last, 1.0) / 2.0))
    step *= next(factor for factor in (5.0, 2.0, 1.0) if last / (step * factor) >= 2.0 or factor == 1.0)
    return [float(tick) for tick in np.arange(0.0, last * 1.001, step)]


def cost_axis(
    axes: Axes,
    low: float,
    high: float,
    *,
    zero: float | None,
    unit: Callable[[float], str],
    logarithmic: bool,
) -> None:
    """Limits with room for names, and ticks at round numbers of the unit."""
    if not logarithmic:
        room = max(0.18 * (high - low), 0.02 * high)
        base = unit_size(high) if unit(1024.0) == "1 KiB" else 1.0
        ticks = [base * float(tick) for tick in MaxNLocator(4).tick_values(low / base, high / base)]
        ticks = [tick for tick in ticks if low - room <= tick <= high + room]
        axes.set_xticks(ticks[:: 2 if len(ticks) > 4 else 1])
        axes.set_xlim(max(0.0, low - room), high + room)
        axes.xaxis.set_major_formatter(lambda value, _: unit(value))
        return
    axes.set_xscale("log")
    room = max((high / (zero or low)) ** 0.16, 1.6)
    axes.set_xlim((zero or low) / room**0.7, high * room)
    step, factors = (1024.0, (1, 4, 16, 64, 256)) if unit(1024.0) == "1 KiB" else (10.0, (1, 2, 5))
    powers = range(math.floor(math.log(low, step)) - 1, math.ceil(math.log(high, step)) + 1)
    ticks = [factor * step**power for power in powers for factor in factors]
    ticks = [tick for tick in ticks if 0.8 * low <= tick <= high * room]
    while len(ticks) > 5:
        ticks = ticks[::2]
    places = ([zero] if zero else []) + ticks
    axes.set_xticks(places, [unit(0.0) if place == zero else unit(place) for place in places])
    axes.minorticks_off()


def unit_size(count: float) -> float:
    """The power of 1,024 that a number of bytes is told in."""
    return 1024.0 ** math.floor(math.log(max(count, 1.0), 1024.0))


def covered(box: tuple[float, ...], others: Sequence[tuple[float, ...]], width: float) -> float:
    """Area of ``box`` that others cover, and what lies outside the axes."""
    outside = max(0.0, -box[0]) + max(0.0, box[2] - width)
    return 20.0 * outside + sum(
        max(0.0, min(box[2], other[2]) - max(box[0], other[0]))
        * max(0.0, min(box[3], other[3]) - max(box[1], other[1]))
        for other in others
    )


def spread(heights: Sequence[float], gap: float, low: float = -math.inf, high: float = math.inf) -> list[float]:
    """Move labels apart until they are ``gap`` from each other, in their order, between ``low`` and ``high``."""
    order = sorted(range(len(heights)), key=lambda index: heights[index])
    placed = list(heights)
    for _ in range(200):
        for below, above in pairwise(order):
            overlap = gap - (placed[above] - placed[below])
            if overlap > 0:
                placed[below] -= overlap / 2
                placed[above] += overlap / 2
        if order:
            placed[order[0]] = max(placed[order[0]], low)
            placed[order[-1]] = min(placed[order[-1]], high)
    return placed
