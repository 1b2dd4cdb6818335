"""The figures of a report: each takes a frame of runs (``read_results``) and returns a figure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from adjustText import adjust_text
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from driftgate.lab.bench import tables
from driftgate.lab.bench.names import OWN_METHOD, method_color, method_name, shift_color
from driftgate.lab.figures.style import FAINT, GROUND, INK, along_axis, look, new_figure, percent_axis, styled

Array = NDArray[np.float64]
TRUTH: dict[str, Any] = {"color": INK, "linewidth": 1.2, "linestyle": (0, (5, 3)), "zorder": 2}
"""How the line looks that a method without an error would follow."""

FEW_METHODS = 5
"""With more of them only the own method has a band; many bands hide each other."""

MOST_THIN = 12
"""With more runs than these of a method, single ones are not drawn."""

TENTHS = [10.0 * part + 5.0 for part in range(10)]
"""Middles of the tenths of a stream, in per cent."""

LINEAR_UP_TO = 6.0
"""A cost axis is logarithmic where the dearest method costs more than so many times the cheapest."""


def curves(runs: pd.DataFrame, series: str = "running_score", title: str = "") -> Figure:
    """A series along the stream, of one shift and pair: thin lines the seeds, thick lines their mean."""
    shift, (source, target) = tables.shifts_of(runs)[0], tables.pairs_of(runs)[0]
    found = {method: curves_in(group, series) for method, group in tables.by_method(runs).items()}
    with styled():
        figure, axes = new_figure()
        ends = [(float(mean[-1, 1]), method) for method, mean in _draw_means(axes, found).items()]
        percent_axis(axes, [value for value, _ in ends])
        last = max((float(curve[-1, 0]) for some in found.values() for curve in some), default=0.0)
        along_axis(axes, last, "samples seen", ends)
        words = f"running {tables.metric_of(shift)}" if series == "running_score" else series.replace("_", " ")
        axes.set_ylabel(f"{words} (%)")
        axes.set_title(title or f"{shift}, {tables.pair_label(source, target)}")
    return figure


def curves_in(runs: pd.DataFrame, series: str = "running_score") -> list[Array]:
    """The curves of a series, of the runs that have it."""
    return [curve for row in runs.curves if len(curve := row.get(series, ()))]


def _draw_means(axes: Axes, found: Mapping[str, Sequence[Array]], **more: Any) -> dict[str, Array]:
    """Draw the mean of each method's curves, and thin, where they are few, the curves themselves; gives the means."""
    means = {method: mean_curve(some) for method, some in found.items() if some}
    for method, mean in means.items():
        for curve in found[method] if 1 < len(found[method]) <= MOST_THIN else ():
            axes.plot(*curve.T, **look(method, linewidth=0.7, alpha=0.35))
        axes.plot(*mean.T, **look(method, **more))
    return means


def samples_used(runs: pd.DataFrame, method: str = OWN_METHOD) -> Figure:
    """Share of each batch that got a pseudo-label, a line a shift (the supplement's figure ``fig:development``)."""
    with styled():
        figure, axes = new_figure()
        for shift in tables.shifts_of(runs):
            mean = _mean_in_percent(runs[(runs["shift"] == shift) & (runs.method == method)], "used_share")
            if mean is not None:
                axes.plot(*mean.T, color=shift_color(shift), linewidth=2.0, label=shift)
        axes.set(xlim=(0, 100), ylim=(0, 101), xlabel="share of the stream seen (%)")
        axes.set_ylabel("samples used in a batch (%)")
        axes.set_title(f"Samples {method_name(method)} learns from")
        _legend(axes)
    return figure


def tenths(runs: pd.DataFrame, title: str = "") -> Figure:
    """Score of each tenth of the stream, of one shift: thin lines single runs, thick lines their mean."""
    shift, found = tables.shifts_of(runs)[0], {}
    for method, group in tables.by_method(runs).items():
        rows = [np.column_stack([TENTHS, scores])[np.isfinite(scores)] for scores in group.tenths]
        found[method] = [row for row in rows if len(row)]
    with styled():
        figure, axes = new_figure()
        means = _draw_means(axes, found, marker="o")
        percent_axis(axes, [float(height) for mean in means.values() for height in mean[:, 1]])
        ends = [(float(mean[-1, 1]), method) for method, mean in means.items()]
        along_axis(axes, 100.0, "share of the stream seen (%)", ends)
        axes.set_ylabel(f"{tables.metric_of(shift)} of a tenth (%)")
        axes.set_title(title or f"{shift}: score of each tenth")
    return figure


def cost(costs: pd.DataFrame, value: str, title: str, axis: str, unit: Callable[[float], str]) -> Figure:
    """Score against a cost; the dashed line joins the methods that no other beats in both.

    Args:
        costs: indexed by method, with ``score``, its interval's half width ``half``, ``source_free``, and costs.
        value: column of the cost: bytes or seconds.
        title, axis: words.
        unit: says a cost in words.
    """
    points = costs[costs.score.notna() & costs[value].notna()].sort_values([value, "score"], ascending=[True, False])
    low, high = points[value].min(), points[value].max()
    wide = high > LINEAR_UP_TO * low  # not where nobody costs anything
    front = points.score > points.score.cummax().shift(fill_value=-math.inf)
    with styled():
        figure, axes = new_figure()
        dashed: dict[str, Any] = {"where": "post", "color": FAINT, "linewidth": 1.2, "linestyle": (0, (4, 3))}
        axes.step(points[value][front], points.score[front], **dashed)
        for method, point in points.iterrows():
            if point.half > 0:
                bar = axes.errorbar(point[value], point.score, yerr=point.half, color=method_color(method), linewidth=1)
                bar.lines[2][0].set(gid=f"method:{method}", alpha=0.55)
            fill = method_color(method) if point.source_free else GROUND
            marker = {"marker": "o" if point.source_free else "s", "markerfacecolor": fill, "linestyle": "none"}
            axes.plot(point[value], point.score, **look(method, **marker))
        percent_axis(axes, points.score.tolist())
        if wide:  # nothing at all has a place too: the axis is linear up to the smallest cost
            least, base = points[value][points[value] > 0].min(), 32 if unit(1024.0) == "1 KiB" else 10
            axes.set_xscale("symlog", linthresh=least, linscale=0.5, base=base)
            axes.set_xlim(-0.1 * least if low == 0 else low / 1.8, high * (4.0 if low == 0 else (high / low) ** 0.22))
        else:
            spread = high - low or max(high, 1.0)
            axes.set_xlim(max(0.0, low - 0.25 * spread), high + 0.35 * spread)
            axes.xaxis.set_major_locator(MaxNLocator(4))
        axes.xaxis.set_major_formatter(lambda cost, _: unit(cost))
        axes.minorticks_off()
        axes.set_xlabel(axis)
        axes.set_ylabel("mean score (%)")
        axes.set_title(title)
        _point_labels(figure, axes, points.index, points[value], points.score)
    return figure


def _point_labels(figure: Figure, axes: Axes, methods: pd.Index, across: pd.Series, up: pd.Series) -> None:
    """The methods by name beside their points, none over another."""
    texts = []
    for method in methods:
        label = axes.text(across[method], up[method], method_name(method), color=method_color(method), fontsize=8.5)
        label.set(fontweight="bold" if method == OWN_METHOD else "normal", gid=f"method:{method}")
        texts.append(label)
    figure.canvas.draw()  # where the axes are is known only then
    arrows = {"arrowstyle": "-", "color": FAINT, "linewidth": 0.6}
    adjust_text(texts, x=across.to_numpy(), y=up.to_numpy(), ax=axes, arrowprops=arrows, iter_lim=400)


def study(runs: pd.DataFrame, title: str = "", default: str | None = None) -> Figure:
    """A study: mean and 95 % interval of every variant, a colour a shift; ``default`` is marked."""
    with styled():
        figure, axes = new_figure()
        study_panel(axes, runs, default)
        axes.set_title(title, pad=22)
    return figure


def study_panel(axes: Axes, runs: pd.DataFrame, default: str | None = None) -> None:
    """Draw a study. Numbers are joined by lines, names are not; few seeds give intervals beyond what a score can be."""
    rows = tables.by_variant(runs)
    lines = tables.cells(rows, [column for column in tables.result_columns(runs, means_only=True) if column.shift])
    names = list(rows)
    settings, _, labels = zip(*(name.rpartition("=") for name in names), strict=True)
    numeric = len(set(settings)) == 1 and not any(math.isnan(tables.variant_number(name)) for name in names)
    if default in names:
        axes.axvline(names.index(default), color=FAINT, linewidth=8, alpha=0.35, zorder=0)
    shifts = tables.shifts_of(runs)
    for place, shift in enumerate(shifts):
        shown = lines[(lines["shift"] == shift) & lines["mean"].notna()]
        offset = 0.0 if numeric else 0.16 * (place - (len(shifts) - 1) / 2)
        half = ((shown.high_95 - shown.low_95) / 2).fillna(0.0)
        bars: dict[str, Any] = {"color": shift_color(shift), "linewidth": 2.0, "elinewidth": 1.0, "markersize": 6}
        across = [names.index(name) + offset for name in shown.row]
        axes.errorbar(across, shown["mean"], yerr=half, fmt="o-" if numeric else "o", label=shift, **bars)
    axes.set_xlim(-0.5, len(labels) - 0.5)
    long = max(map(len, labels)) * len(labels) > 48
    axes.set_xticks(range(len(labels)), labels, rotation=28 if long else 0, ha="right" if long else "center")
    ends = pd.concat([lines.low_95.fillna(lines["mean"]), lines.high_95.fillna(lines["mean"])])
    percent_axis(axes, ends.dropna().clip(0.0, 100.0).tolist())
    axes.grid(axis="x", visible=False)
    axes.set_ylabel("score (%)" if len(shifts) > 1 else f"{tables.metric_of(shifts[0])} (%)")
    _legend(axes)


def _legend(axes: Axes) -> None:
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=3, frameon=False, fontsize=9, borderaxespad=0.2)
    axes.set_title(axes.get_title(loc="left"), pad=22)


def shares(points: pd.DataFrame, value: str = "score") -> Figure:
    """What every method scores (``score``) or rejects (``rejected``) against the true share of unknown samples.

    Where nothing is unknown accuracy scores, which is another thing than the H-score: that point is open and joined to
    none. ``points`` is of one shift, as ``share_points`` gives it.
    """
    steady = points[~points.share.map(lambda share: share.changes)]
    shift, last = points["shift"].iloc[0], 100.0 * max(share.mean for share in steady.share)
    with styled():
        figure, axes = new_figure()
        ends = []
        if value == "rejected":
            axes.plot([0, last], [0, last], **TRUTH)
        for method, group in steady[steady[value].notna()].groupby("method", sort=False):
            place = group.share.map(lambda share: 100.0 * share.mean)
            joined = (place > 0) | (value == "rejected")
            axes.plot(place[joined], group[value][joined], **look(method, marker="o"))
            if value == "score":
                axes.plot(place[~joined], group.score[~joined], **look(method, marker="o", markerfacecolor=GROUND))
                if steady.method.nunique() <= FEW_METHODS or method == OWN_METHOD:
                    band = axes.fill_between(place[joined], group.low[joined], group.high[joined], linewidth=0)
                    band.set(color=method_color(method), alpha=0.12, gid=f"method:{method}")
            elif group.estimated.notna().any():
                dotted = {"marker": "D", "markerfacecolor": GROUND, "linestyle": (0, (1, 1.6))}
                axes.plot(place, group.estimated, **look(method, **dotted))
            ends.append((float(group[value].iloc[-1]), str(method)))
        if value == "score":
            percent_axis(axes, steady.score.dropna().tolist())
        else:
            axes.set_ylim(-3.0, 102.0)
        along_axis(axes, last, "unknown samples in the stream (%)", ends)
        axes.set_xlim(-0.03 * last, 1.36 * last)
        axes.set_ylabel("score (%)" if value == "score" else "rejected share (%)")
        axes.set_title(f"{shift}, {'score' if value == 'score' else 'rejected share'} by share of unknown samples")
    return figure


def _mean_in_percent(runs: pd.DataFrame, series: str) -> Array | None:
    """The mean of a series against the share of the stream instead of samples."""
    found = [curve * [100.0 / curve[-1, 0], 1.0] for curve in curves_in(runs, series)]
    return mean_curve(found) if found else None


def mean_curve(found: Sequence[Array]) -> Array:
    """The mean of several curves where all of them are there; seeds may differ in length."""
    start, end = max(curve[0, 0] for curve in found), min(curve[-1, 0] for curve in found)
    longest = max(found, key=len)
    inner = longest[(longest[:, 0] > start) & (longest[:, 0] < end), 0]
    places = np.unique(np.concatenate([[min(start, end)], inner, [end]]))
    means = np.mean([np.interp(places, curve[:, 0], curve[:, 1]) for curve in found], axis=0)
    return np.stack([places, means], axis=1)
