"""Charts of a report, each one panel as inline SVG: curves over the stream, score against cost, ablation studies.

A chart is small enough for a phone; the page sets several side by side where there is room. What belongs to a method
carries its name (``data-method``), so that the page can bring one method forward in all charts at once.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from driftgate.lab.bench.chart_layout import cost_axis, covered, percent_axis, round_ticks, spread
from driftgate.lab.bench.figures import STYLE
from driftgate.lab.bench.palette import FAINT, GROUND, INK, LINE, SOFT, method_color, shift_color, to_variables
from driftgate.lab.bench.runs import Run
from driftgate.lab.bench.statistics import Summary
from driftgate.lab.bench.tables import (
    by_method,
    by_variant,
    mean_summary,
    method_name,
    metric_of,
    shifts_of,
    variant_number,
)

SIZE = (4.6, 3.9)
CURVE_POINTS = 90
"""More points than this no screen shows; long streams are thinned."""

LABEL_GAP = 0.052
"""Distance of two labels at the end of curves, as a share of the axes' height."""

LINEAR_UP_TO = 6.0
"""A cost axis is logarithmic where the dearest method costs more than so many times the cheapest."""

CHART_STYLE = {
    **STYLE,
    "font.size": 10.5,
    "axes.labelsize": 10.5,
    "axes.labelcolor": SOFT,
    "axes.edgecolor": FAINT,
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "savefig.facecolor": "none",
    "grid.color": LINE,
    "text.color": INK,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "xtick.labelsize": 9.5,
    "ytick.labelsize": 9.5,
    "svg.fonttype": "none",
    "svg.hashsalt": "driftgate",
}
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Chart:
    """A drawing with its words.

    Attributes:
        title: the caption's first words.
        caption: what is drawn, in a sentence or two.
        alternative: what the drawing shows, for those who do not see it.
        svg: the drawing, ready to be put into a page.
    """

    title: str
    caption: str
    alternative: str
    svg: str


@dataclass(frozen=True)
class CostPoint:
    """A method in a chart of score against cost: bytes or seconds, mean and interval of its score."""

    method: str
    cost: float
    score: Summary
    source_free: bool


def curve_chart(runs: Sequence[Run], name: str, title: str) -> Chart | None:
    """Running score of every run of one pair and shift: thin lines the seeds, thick lines their mean."""
    ends: list[tuple[float, str]] = []
    if not any(len(run_curve(run, "running_score")) for run in runs):
        return None

    def draw(axes: Axes) -> None:
        last = 0.0
        for method, group in by_method(runs).items():
            curves = [curve for run in group if len(curve := run_curve(run, "running_score"))]
            if not curves:
                continue
            color, chosen = method_color(method), method == "gmm"
            last = max(last, *(float(curve[-1, 0]) for curve in curves))
            if len(curves) > 1:
                for curve in curves:
                    line = axes.plot(curve[:, 0], curve[:, 1], color=color, linewidth=0.7, alpha=0.35)[0]
                    line.set_gid(f"method:{method}")
            mean = mean_curve(curves)
            line = axes.plot(mean[:, 0], mean[:, 1], color=color, linewidth=2.6 if chosen else 1.7)[0]
            line.set_zorder(4 if chosen else 3)
            line.set_gid(f"method:{method}")
            ends.append((float(mean[-1, 1]), method))
        axes.set_xlim(0, last * 1.36)
        axes.set_xticks(round_ticks(last))
        axes.spines["bottom"].set_bounds(0, last)
        percent_axis(axes, [value for value, _ in ends])
        end_labels(axes, last * 1.03, ends)
        axes.set_xlabel("samples seen")
        axes.set_ylabel(f"running {metric_of(runs[0].shift)} (%)")

    svg = to_svg(draw, name)
    order = sorted(ends, reverse=True)
    words = ", ".join(f"{method_name(method)} {value:.1f} %" for value, method in order)
    return Chart(title, "", f"{title}: running {metric_of(runs[0].shift)} at the end of the stream: {words}.", svg)


def used_chart(runs: Sequence[Run], method: str, name: str) -> Chart | None:
    """Share of each batch that got a pseudo-label, a line a shift (the supplement's figure ``fig:development``)."""
    ends: list[tuple[float, float, str]] = []
    if not any(len(run_curve(run, "used_share")) for run in runs if run.method == method):
        return None

    def draw(axes: Axes) -> None:
        for shift in dict.fromkeys(run.shift for run in runs):
            chosen = [run for run in runs if run.shift == shift and run.method == method]
            curves = [curve for run in chosen if len(curve := run_curve(run, "used_share", smooth=5))]
            if not curves:
                continue
            curve = mean_curve(curves)
            place = 100.0 * curve[:, 0] / curve[-1, 0]
            axes.plot(place, curve[:, 1], color=shift_color(shift), linewidth=2.0)
            ends.append((float(curve[-1, 1]), float(curve[0, 1]), shift))
        heights = spread([end[0] for end in ends], 6.5, 0.0, 100.0)
        for height, (_, _, shift) in zip(heights, ends, strict=True):
            axes.text(102, height, shift, color=shift_color(shift), fontsize=9.5, fontweight="bold", va="center")
        axes.set_xlim(0, 118)
        axes.set_ylim(0, 101)
        axes.set_xticks([0, 25, 50, 75, 100])
        axes.spines["bottom"].set_bounds(0, 100)
        axes.set_xlabel("share of the stream seen (%)")
        axes.set_ylabel("samples used in a batch (%)")

    svg = to_svg(draw, name)
    words = ", ".join(f"{shift} from {first:.0f} % to {last:.0f} %" for last, first, shift in ends)
    title = f"Samples {method_name(method)} learns from"
    return Chart(title, "Mean over the runs, smoothed over five batches.", f"{title}: {words}.", svg)


def cost_chart(points: Sequence[CostPoint], name: str, title: str, axis: str, unit: Callable[[float], str]) -> Chart:
    """Score against a cost; the line joins the methods that no other beats in both."""
    costs = [point.cost for point in points if point.cost > 0]
    smallest = min(costs, default=1.0)
    # A logarithm has no place for nothing: it stands left of a gap, under a tick of its own.
    zero = smallest / 10.0 ** max(0.6, 0.15 * math.log10(max(costs, default=1.0) / smallest))
    logarithmic = max(costs, default=1.0) > LINEAR_UP_TO * smallest or len(costs) < len(points)

    def draw(axes: Axes) -> None:
        front = pareto(points)
        axes.step(
            [point.cost or zero for point in front],
            [point.score.mean for point in front],
            where="post",
            color=FAINT,
            linewidth=1.2,
            linestyle=(0, (4, 3)),
        )
        for point in points:
            place, color = point.cost or zero, method_color(point.method)
            if point.score.half_width:
                bar = axes.errorbar(place, point.score.mean, yerr=point.score.half_width, color=color, linewidth=1.0)
                bar.lines[2][0].set_gid(f"method:{point.method}")
                bar.lines[2][0].set_alpha(0.55)
            dot = axes.plot(
                place,
                point.score.mean,
                marker="o" if point.source_free else "s",
                markersize=8 if point.method == "gmm" else 6.5,
                markerfacecolor=color if point.source_free else GROUND,
                markeredgecolor=color,
                markeredgewidth=1.6,
                linestyle="none",
                zorder=4,
            )[0]
            dot.set_gid(f"method:{point.method}")
        percent_axis(axes, [point.score.mean for point in points])
        cost_axis(
            axes,
            smallest,
            max(costs, default=1.0),
            zero=zero if len(costs) < len(points) else None,
            unit=unit,
            logarithmic=logarithmic,
        )
        _point_labels(axes, points, zero)
        axes.set_xlabel(axis)
        axes.set_ylabel("mean score (%)")

    words = ", ".join(
        f"{method_name(point.method)} {point.score.mean:.1f} % at {unit(point.cost)}"
        for point in sorted(points, key=lambda point: point.cost)
    )
    caption = (
        "Bars: 95 % interval over the seeds. Dashed: nobody scores higher at this cost or less. "
        "Open squares use source statistics."
    )
    return Chart(title, caption, f"{title}: {words}.", to_svg(draw, name))


def study_chart(variants: Mapping[str, Mapping[str, Summary]], name: str, title: str, *, default: str | None) -> Chart:
    """A study: variant -> shift -> score, as ``study_panel`` draws it."""
    words = "; ".join(
        f"{variant}: " + ", ".join(f"{shift} {score.mean:.1f} %" for shift, score in scores.items())
        for variant, scores in variants.items()
    )
    caption = "Mean and 95 % interval over the seeds." + (" Grey: the setting of the main table." if default else "")
    svg = to_svg(lambda axes: study_panel(axes, variants, default=default), name)
    return Chart(title, caption, f"{title}. {words}.", svg)


def study_scores(runs: Sequence[Run]) -> dict[str, dict[str, Summary]]:
    """Variant -> shift -> score of a study: the mean over the pairs, its spread over the seeds."""
    found: dict[str, dict[str, Summary]] = {}
    for variant, group in by_variant(runs).items():
        for shift in shifts_of(group):
            cells: dict[tuple[str, str], dict[int, float]] = {}
            for run in group:
                if run.shift == shift and run.score is not None:
                    cells.setdefault(run.pair, {})[run.seed] = run.score
            if cells:
                found.setdefault(variant, {})[shift] = mean_summary(list(cells.values()))
    return found


def study_panel(axes: Axes, variants: Mapping[str, Mapping[str, Summary]], *, default: str | None = None) -> None:
    """Draw a study, variant -> shift -> score. Numbers are joined by lines, names are not; the default is marked."""
    settings, _, labels = zip(*(variant.rpartition("=") for variant in variants), strict=True)
    numeric = len(set(settings)) == 1 and all(variant_number(variant) is not None for variant in variants)
    shifts = list(dict.fromkeys(shift for scores in variants.values() for shift in scores))
    if default is not None and default in variants:
        axes.axvline(list(variants).index(default), color=FAINT, linewidth=8, alpha=0.35, zorder=0)
    for place, shift in enumerate(shifts):
        shown = [(index, scores[shift]) for index, scores in enumerate(variants.values()) if shift in scores]
        offset = 0.0 if numeric else 0.16 * (place - (len(shifts) - 1) / 2)
        across = [index + offset for index, _ in shown]
        axes.errorbar(
            across,
            [score.mean for _, score in shown],
            yerr=[score.half_width or 0.0 for _, score in shown],
            color=shift_color(shift),
            ecolor=shift_color(shift),
            elinewidth=1.0,
            marker="o",
            markersize=6,
            linewidth=2.0,
            linestyle="-" if numeric else "none",
            label=shift,
        )
    axes.set_xlim(-0.5, len(labels) - 0.5)
    long = max(map(len, labels)) * len(labels) > 48
    axes.set_xticks(range(len(labels)), labels, rotation=28 if long else 0, ha="right" if long else "center")
    summaries = [score for scores in variants.values() for score in scores.values()]
    percent_axis(axes, [end for score in summaries for end in interval_ends(score)])
    axes.grid(axis="x", visible=False)
    axes.set_ylabel("score (%)" if len(shifts) > 1 else f"{metric_of(shifts[0])} (%)")
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=3, frameon=False, fontsize=9, borderaxespad=0.2)


def interval_ends(score: Summary) -> tuple[float, float]:
    """Where the bar of a score begins and ends; few seeds give intervals that go beyond what a score can be."""
    half = score.half_width or 0.0
    return max(score.mean - half, 0.0), min(score.mean + half, 100.0)


def end_labels(axes: Axes, place: float, ends: Sequence[tuple[float, str]]) -> None:
    """Name the methods at ``place`` right of their curves, which end at the values of ``ends``."""
    low, high = axes.get_ylim()
    gap = LABEL_GAP * (high - low)
    heights = spread([value for value, _ in ends], gap, low + gap / 2, high - gap / 2)
    for height, (value, method) in zip(heights, ends, strict=True):
        label = axes.text(place, height, f"{value:.1f} {method_name(method)}", color=method_color(method), fontsize=9)
        label.set(va="center", fontweight="bold" if method == "gmm" else "normal", gid=f"method:{method}")


def pareto(points: Sequence[CostPoint]) -> list[CostPoint]:
    """The methods that score higher than all that cost as much or less, by cost."""
    best, front = -math.inf, []
    for point in sorted(points, key=lambda point: (point.cost, -point.score.mean)):
        if point.score.mean > best:
            front.append(point)
            best = point.score.mean
    return front


def run_curve(run: Run, series: str, smooth: int = 1) -> Array:
    """(points, 2): samples seen and a series in per cent, thinned, without what had nothing to measure."""
    values = 100.0 * np.array(run.series(series), dtype=np.float64)
    if smooth > 1 and len(values):
        # Fewer at both ends: the last batch may hold a few samples only and must not count for several.
        reach = smooth // 2
        values = np.array([values[max(index - reach, 0) : index + reach + 1].mean() for index in range(len(values))])
    samples = run.number("protocol", "samples") or float(len(values))
    batch = run.number("protocol", "batch_size") or samples / max(len(values), 1)
    seen = np.minimum(batch * np.arange(1, len(values) + 1), samples)
    known = np.flatnonzero(np.isfinite(values))
    if len(known) > CURVE_POINTS:
        known = known[np.unique(np.linspace(0, len(known) - 1, CURVE_POINTS).round().astype(int))]
    return np.stack([seen[known], values[known]], axis=1)


def mean_curve(curves: Sequence[Array]) -> Array:
    """The mean of several curves where all of them are there; seeds may differ in length."""
    start, end = max(curve[0, 0] for curve in curves), min(curve[-1, 0] for curve in curves)
    longest = max(curves, key=len)
    inner = longest[(longest[:, 0] > start) & (longest[:, 0] < end), 0]
    places = np.unique(np.concatenate([[min(start, end)], inner, [end]]))
    means = np.mean([np.interp(places, curve[:, 0], curve[:, 1]) for curve in curves], axis=0)
    return np.stack([places, means], axis=1)


def _point_labels(axes: Axes, points: Sequence[CostPoint], zero: float) -> None:
    """Name every point where its name covers the least of other names and points."""
    width, height = 0.87 * 72 * SIZE[0], 0.84 * 72 * SIZE[1]
    shares = (axes.transScale + axes.transLimits).transform(
        [(point.cost or zero, point.score.mean) for point in points]
    )
    centres = shares * np.array([width, height])
    boxes = [(x - 4.5, y - 4.5, x + 4.5, y + 4.5) for x, y in centres]
    for point, (x, y) in sorted(zip(points, centres.tolist(), strict=True), key=lambda item: -item[0].score.mean):
        text = method_name(point.method)
        wide, tall = 5.4 * len(text), 10.0
        candidates = [
            (
                x + side * 8 - (wide if side < 0 else 0.0),
                y + lift - tall / 2,
                "left" if side > 0 else "right",
                side * 8,
                lift,
            )
            for lift in (0.0, 9.0, -9.0, 17.0, -17.0)
            for side in (1, -1)
        ]
        left, bottom, align, across, up = min(
            candidates, key=lambda place: covered((place[0], place[1], place[0] + wide, place[1] + tall), boxes, width)
        )
        boxes.append((left, bottom, left + wide, bottom + tall))
        label = axes.annotate(
            text, (point.cost or zero, point.score.mean), xytext=(across, up), textcoords="offset points", fontsize=9
        )
        label.set(color=method_color(point.method), va="center", ha=align, gid=f"method:{point.method}")
        label.set_fontweight("bold" if point.method == "gmm" else "normal")


def to_svg(draw: Callable[[Axes], None], name: str) -> str:
    """Draw one panel and make it fit for a page: own ids, CSS colours, methods by name."""
    with matplotlib.rc_context(CHART_STYLE):
        figure = Figure(figsize=SIZE, layout="constrained")
        draw(figure.add_subplot())
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    svg = text.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r'id="method:([^"]*)"', lambda found: f'data-method="{escape(found[1])}"', svg)
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = re.sub(r"url\(#", f"url(#{name}-", svg).replace('xlink:href="#', f'xlink:href="#{name}-')
    svg = re.sub(r'^<svg ([^>]*?)width="[^"]*"', r"<svg \1", re.sub(r' height="[^"]*pt"', "", svg, count=1))
    return to_variables(svg.strip())
