"""Charts of the share sweep: score and rejected share against the true share, and shares along a stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from matplotlib.axes import Axes

from driftgate.lab.bench.chart_layout import percent_axis
from driftgate.lab.bench.charts import Chart, end_labels, mean_curve, run_curve, to_svg
from driftgate.lab.bench.palette import FAINT, GROUND, INK, SOFT, method_color
from driftgate.lab.bench.runs import Run
from driftgate.lab.bench.statistics import Summary
from driftgate.lab.bench.tables import by_method, method_name
from driftgate.lab.data.orders import StreamShare

TRUTH: dict[str, Any] = {"color": INK, "linewidth": 1.2, "linestyle": (0, (5, 3)), "zorder": 2}
"""How the line looks that a method without an error would follow."""

SMOOTH_OVER = 0.1
"""Part of the stream over which shares of batches are smoothed."""

FEW_METHODS = 5
"""With more of them only the own method has a band; many bands hide each other."""


class Point(Protocol):
    """What a chart needs of a method at one share; in per cent."""

    @property
    def score(self) -> Summary | None: ...

    @property
    def rejected(self) -> float | None: ...

    @property
    def estimated(self) -> float | None: ...


Points = Mapping[str, Mapping[StreamShare, Point]]
"""Method -> share -> point."""


def score_chart(points: Points, name: str, shift: str) -> Chart:
    """Score of every method against the share of unknown samples.

    Where nothing is unknown accuracy scores, which is another thing than the H-score: that point is open and joined to
    none.
    """
    words: list[str] = []

    def draw(axes: Axes) -> None:
        ends: list[tuple[float, str]] = []
        heights: list[float] = []
        for method, found in points.items():
            scores = {100.0 * share.mean: point.score for share, point in found.items() if point.score is not None}
            if not scores:
                continue
            line = {place: score for place, score in scores.items() if place > 0}
            _score_line(axes, method, line, band=len(points) <= FEW_METHODS or method == "gmm")
            if 0.0 in scores:
                axes.plot(0.0, scores[0.0].mean, **_look(method, marker="o", hollow=True))
            last = max(scores)
            ends.append((scores[last].mean, method))
            heights += [score.mean for score in scores.values()]
            told = ", ".join(f"{score.mean:.1f} % at {place:g} %" for place, score in scores.items())
            words.append(f"{method_name(method)} {told}")
        percent_axis(axes, heights)
        _share_axis(axes, places, ends)
        _two_scores(axes, places)
        axes.set_ylabel("score (%)")

    title = f"{shift}, score"
    caption = "Filled: H-score; open, where nothing is unknown: accuracy. Band: 95 % interval over the seeds."
    places = _places(points)
    svg = to_svg(draw, name)
    return Chart(title, caption, f"{title} against the share of unknown samples: {'; '.join(words)}.", svg)


def rejected_chart(points: Points, name: str, shift: str) -> Chart:
    """Rejected and, where a method makes one, estimated share against the truth, which is the dashed line."""
    words: list[str] = []

    def draw(axes: Axes) -> None:
        ends: list[tuple[float, str]] = []
        axes.plot([0, places[-1]], [0, places[-1]], **TRUTH)
        for method, found in points.items():
            rejected = {100.0 * share.mean: point.rejected for share, point in found.items()}
            estimated = {100.0 * share.mean: point.estimated for share, point in found.items()}
            shown = {place: value for place, value in rejected.items() if value is not None}
            guessed = {place: value for place, value in estimated.items() if value is not None}
            if not shown:
                continue
            axes.plot(list(shown), list(shown.values()), **_look(method, marker="o"))
            if guessed:
                axes.plot(list(guessed), list(guessed.values()), **_look(method, marker="D", hollow=True, dotted=True))
            ends.append((shown[max(shown)], method))
            told = ", ".join(f"{value:.1f} % at {place:g} %" for place, value in shown.items())
            words.append(f"{method_name(method)} {told}")
        axes.set_ylim(-3.0, 102.0)
        _share_axis(axes, places, ends)
        axes.set_ylabel("rejected share (%)")

    places = _places(points)
    svg = to_svg(draw, name)
    title = f"{shift}, rejected share"
    several = any(point.estimated is not None for found in points.values() for point in found.values())
    caption = "Dashed: as many as are unknown." + (" Dotted diamonds: the method's own estimate." if several else "")
    return Chart(title, caption, f"{title} against the true share: {'; '.join(words)}.", svg)


def along_chart(runs: Sequence[Run], name: str, title: str) -> Chart | None:
    """Rejected and estimated share along a stream whose share of unknown samples changes; dashed the truth."""
    if not any(run.series("rejected_share") for run in runs):
        return None
    words: list[str] = []

    def draw(axes: Axes) -> None:
        ends: list[tuple[float, str]] = []
        truth = _along(runs, "true_share")
        if truth is not None:
            axes.plot(truth[:, 0], truth[:, 1], **TRUTH)
        for method, group in by_method(runs).items():
            rejected, estimated = _along(group, "rejected_share"), _along(group, "estimated_share")
            if rejected is None:
                continue
            axes.plot(rejected[:, 0], rejected[:, 1], **_look(method))
            if estimated is not None:
                axes.plot(estimated[:, 0], estimated[:, 1], **_look(method, dotted=True))
            ends.append((float(rejected[-1, 1]), method))
            words.append(f"{method_name(method)} from {rejected[0, 1]:.0f} % to {rejected[-1, 1]:.0f} %")
        axes.set_ylim(-3.0, 102.0)
        _share_axis(axes, [0.0, 100.0], ends)
        axes.set_xlabel("share of the stream seen (%)")
        axes.set_ylabel("rejected share (%)")

    svg = to_svg(draw, name)
    caption = "Dashed: as many as are unknown. Dotted: the method's own estimate, where it makes one."
    return Chart(title, caption, f"{title}: {'; '.join(words)}.", svg)


def _along(runs: Sequence[Run], series: str) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]] | None:
    """(points, 2): per cent of the stream and of the samples, smoothed; the mean of the runs."""
    curves = []
    for run in runs:
        window = 2 * round(SMOOTH_OVER * len(run.series(series)) / 2) + 1
        curve = run_curve(run, series, smooth=window)
        if len(curve):
            curve[:, 0] *= 100.0 / curve[-1, 0]
            curves.append(curve)
    return mean_curve(curves) if curves else None


def _score_line(axes: Axes, method: str, scores: Mapping[float, Summary], *, band: bool) -> None:
    places, means = list(scores), [score.mean for score in scores.values()]
    axes.plot(places, means, **_look(method, marker="o"))
    halves = np.array([score.half_width or 0.0 for score in scores.values()])
    if band and halves.any():
        low, high = np.maximum(means - halves, 0.0), np.minimum(means + halves, 100.0)
        axes.fill_between(
            places, low, high, color=method_color(method), alpha=0.12, linewidth=0, gid=f"method:{method}"
        )


def _places(points: Points) -> list[float]:
    """All shares in per cent, in order."""
    return sorted({100.0 * share.mean for found in points.values() for share in found})


def _share_axis(axes: Axes, places: Sequence[float], ends: Sequence[tuple[float, str]]) -> None:
    """From nothing to the largest share, and the methods by name right of it."""
    last = places[-1]
    axes.set_xlim(-0.03 * last, 1.36 * last)
    axes.set_xticks([tick for tick in range(0, 101, 20 if last > 40 else 10) if tick <= last])
    axes.spines["bottom"].set_bounds(0, last)
    axes.set_xlabel("unknown samples in the stream (%)")
    end_labels(axes, 1.04 * last, ends)


def _two_scores(axes: Axes, places: Sequence[float]) -> None:
    """Part what accuracy scores from what the H-score scores, and say so."""
    if places[0] > 0 or len(places) < 2:
        return
    middle = places[1] / 2
    axes.axvline(middle, color=FAINT, linewidth=0.8, zorder=1)
    for place, align, words in ((middle - 1.0, "right", "accuracy"), (middle + 1.0, "left", "H-score")):
        label = axes.text(place, 1.03, words, color=SOFT, fontsize=8.5, transform=axes.get_xaxis_transform())
        label.set(ha=align, va="bottom")


def _look(method: str, *, marker: str = "", hollow: bool = False, dotted: bool = False) -> dict[str, Any]:
    """How the line and the markers of a method look."""
    color, chosen = method_color(method), method == "gmm"
    return {
        "color": color,
        "linewidth": 2.6 if chosen else 1.7,
        "linestyle": (0, (1, 1.6)) if dotted else "-",
        "marker": marker or None,
        "markersize": 6.0 if chosen else 4.8,
        "markerfacecolor": GROUND if hollow else color,
        "markeredgewidth": 1.4,
        "zorder": 4 if chosen else 3,
        "gid": f"method:{method}",
    }
