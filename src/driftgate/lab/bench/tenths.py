"""Along the stream: the score of each tenth, which tells whether a method tires."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes

from driftgate.lab.bench import table_writers
from driftgate.lab.bench.chart_layout import percent_axis
from driftgate.lab.bench.charts import Chart, end_labels, to_svg
from driftgate.lab.bench.palette import method_color
from driftgate.lab.bench.runs import Run
from driftgate.lab.bench.table_writers import PlainTable
from driftgate.lab.bench.tables import by_method, method_name, metric_of, shifts_of
from driftgate.stream import LONG_STREAM

PARTS = 10


@dataclass(frozen=True)
class TenthsRow:
    """A method: the mean score of each tenth in per cent, and how far a run fell from its best to its last tenth."""

    method: str
    name: str
    tenths: tuple[float | None, ...]
    largest_fall: float
    runs: int


@dataclass(frozen=True)
class Tenths:
    """The long streams of one shift."""

    shift: str
    rows: list[TenthsRow]
    chart: Chart


def long_streams(runs: Sequence[Run], anchor: str) -> list[Tenths]:
    """Every shift with long streams; empty where all streams are short."""
    long = [run for run in runs if (run.number("protocol", "batches") or 0) >= LONG_STREAM and _whole(run)]
    found = []
    for shift in shifts_of(long):
        chosen = [run for run in long if run.shift == shift]
        rows = [_row(method, group) for method, group in by_method(chosen).items()]
        chart = tenths_chart(chosen, f"{anchor}-tenths{shift}", shift)
        if chart is not None:
            found.append(Tenths(shift, rows, chart))
    return found


def scores_of(run: Run) -> list[float]:
    """The score of each tenth in per cent; NaN where it had nothing to measure."""
    values = run.record.get("tenths") or [None] * PARTS
    return [math.nan if value is None else 100.0 * value for value in values]


def _whole(run: Run) -> bool:
    return all(math.isfinite(score) for score in scores_of(run))


def _row(method: str, runs: Sequence[Run]) -> TenthsRow:
    scores = [scores_of(run) for run in runs]
    fall = max(max(score) - score[-1] for score in scores)
    return TenthsRow(method, method_name(method), tuple(_means(runs)), fall, len(runs))


def _means(runs: Sequence[Run]) -> list[float | None]:
    """The mean of each tenth over the runs that measured something in it."""
    means: list[float | None] = []
    for column in zip(*map(scores_of, runs), strict=True):
        there = [score for score in column if math.isfinite(score)]
        means.append(sum(there) / len(there) if there else None)
    return means


def tenths_chart(runs: Sequence[Run], name: str, title: str) -> Chart | None:
    """Score of each tenth of the stream, a line a method; thin lines are single runs."""
    if not any(math.isfinite(score) for run in runs for score in scores_of(run)):
        return None
    words: list[str] = []
    metric = metric_of(runs[0].shift)

    def draw(axes: Axes) -> None:
        ends: list[tuple[float, str]] = []
        heights: list[float] = []
        places = [10.0 * part + 5.0 for part in range(PARTS)]
        for method, group in by_method(runs).items():
            means = [math.nan if mean is None else mean for mean in _means(group)]
            there = [mean for mean in means if math.isfinite(mean)]
            if not there:
                continue
            color, chosen = method_color(method), method == "gmm"
            for run in group if len(group) > 1 else ():
                thin = axes.plot(places, scores_of(run), color=color, linewidth=0.7, alpha=0.35)[0]
                thin.set_gid(f"method:{method}")
            line = axes.plot(places, means, color=color, linewidth=2.6 if chosen else 1.7, marker="o", markersize=4)[0]
            line.set(zorder=4 if chosen else 3, gid=f"method:{method}")
            ends.append((there[-1], method))
            heights += there
            words.append(f"{method_name(method)} from {there[0]:.1f} % to {there[-1]:.1f} %")
        axes.set_xlim(0, 136)
        axes.set_xticks([0, 20, 40, 60, 80, 100])
        axes.spines["bottom"].set_bounds(0, 100)
        percent_axis(axes, heights)
        end_labels(axes, 100.0, ends)
        axes.set_xlabel("share of the stream seen (%)")
        axes.set_ylabel(f"{metric} of a tenth (%)")

    svg = to_svg(draw, name)
    caption = "Score of each tenth of the stream. Thin: single runs; thick: their mean."
    return Chart(title, caption, f"{title}: {metric} of the first and the last tenth: {'; '.join(words)}.", svg)


def tenths_table(name: str, title: str, parts: Sequence[Tenths]) -> PlainTable | None:
    """A row for each shift and method."""
    if not parts:
        return None
    heads = ("shift", "method", *(f"tenth_{part}" for part in range(1, PARTS + 1)), "largest_fall", "runs")
    rows = [(part.shift, row.method, *row.tenths, row.largest_fall, row.runs) for part in parts for row in part.rows]
    texts = [
        (part.shift, row.name, *map(table_writers.number, (*row.tenths, row.largest_fall)), str(row.runs))
        for part in parts
        for row in part.rows
    ]
    words = "score of each tenth of the stream; largest fall of a run from its best to its last tenth"
    return PlainTable(f"{name}-tenths", f"{title}: {words}", heads, tuple(rows), tuple(texts))
