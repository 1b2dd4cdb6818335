"""One look for all figures: colours, fonts, axes, and labels that do not cover each other."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Sequence
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from driftgate.files import write_atomically
from driftgate.lab.bench.names import OWN_METHOD, drawn_colors, method_color, method_name

INK, SOFT, FAINT, LINE, GROUND = "#25282d", "#5c636b", "#b9bec5", "#e6e8eb", "#fdfdfe"
KNOWN_COLOR, UNKNOWN_COLOR = "#1f8a72", "#f0a202"
GROUND_COLORS = {
    "ink": (INK, "#e7e9ec"),
    "soft": (SOFT, "#a7adb6"),
    "faint": (FAINT, "#555c66"),
    "line": (LINE, "#343a42"),
    "ground": (GROUND, "#16181c"),
}
SIZE = (4.6, 3.9)
LABEL_GAP = 0.052
"""Distance of two labels at the end of curves, as a share of the axes' height."""

STYLE: dict[str, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 10.0,
    "axes.titlesize": 11.0,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 10.0,
    "axes.labelcolor": SOFT,
    "axes.edgecolor": FAINT,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.facecolor": "none",
    "figure.facecolor": GROUND,
    "savefig.facecolor": "auto",
    "grid.color": LINE,
    "grid.linewidth": 0.8,
    "text.color": INK,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "xtick.labelsize": 9.0,
    "ytick.labelsize": 9.0,
    "xtick.major.size": 0.0,
    "ytick.major.size": 0.0,
    "lines.solid_capstyle": "round",
    "svg.fonttype": "none",
    "svg.hashsalt": "driftgate",
    "pdf.fonttype": 42,
}


def new_figure(size: tuple[float, float] = SIZE) -> tuple[Figure, Axes]:
    """An empty figure with one panel; call it, and draw, inside ``styled``."""
    figure = Figure(figsize=size, layout="constrained")
    return figure, figure.add_subplot()


def styled() -> Any:
    """The context in which everything is drawn."""
    return matplotlib.rc_context(STYLE)


def look(method: str, **more: Any) -> dict[str, Any]:
    """How the line of a method looks; its name goes with it, so that a page can bring one method forward."""
    chosen = method == OWN_METHOD
    usual = {"linewidth": 2.6 if chosen else 1.7, "zorder": 4 if chosen else 3, "markersize": 6.0 if chosen else 4.8}
    return {"color": method_color(method), **usual, "markeredgewidth": 1.4, "gid": f"method:{method}", **more}


def percent_axis(axes: Axes, values: Sequence[float]) -> None:
    """Limits at round numbers around what matters: differences of a few points must be seen."""
    low, high = min(values, default=0.0), max(values, default=100.0)
    room = max(0.12 * (high - low), 2.0)
    # A point at 0 is drawn whole, above the axis.
    floor = max(0.0 if low >= 3.0 else -3.0, 5.0 * math.floor((low - room) / 5.0))
    axes.set_ylim(floor, min(102.0, 5.0 * math.ceil((high + room) / 5.0)))


def along_axis(axes: Axes, last: float, words: str, ends: Sequence[tuple[float, str]]) -> None:
    """The x axis from nothing to ``last``, and right of it the methods by name, whose curves end at ``ends``."""
    axes.set_xlim(0, 1.36 * last)
    axes.set_xticks(round_ticks(last))
    axes.spines["bottom"].set_bounds(0, last)
    axes.set_xlabel(words)
    low, high = axes.get_ylim()
    gap = LABEL_GAP * (high - low)
    heights = spread([value for value, _ in ends], gap, low + gap / 2, high - gap / 2)
    for height, (value, method) in zip(heights, ends, strict=True):
        label = axes.text(1.03 * last, height, f"{value:.1f} {method_name(method)}", color=method_color(method))
        label.set(va="center", fontweight="bold" if method == OWN_METHOD else "normal", gid=f"method:{method}")
        label.set_fontsize(8.5)


def round_ticks(last: float) -> list[float]:
    """Three to five round numbers from 0 to ``last``."""
    step = 10.0 ** math.floor(math.log10(max(last, 1.0) / 2.0))
    step *= next(factor for factor in (5.0, 2.0, 1.0) if last / (step * factor) >= 2.0 or factor == 1.0)
    return [float(tick) for tick in np.arange(0.0, last * 1.001, step)]


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


def save_figure(figure: Figure, path: str | Path, dpi: int = 170) -> None:
    """Write a picture under a temporary name, then rename it; the ending says which kind."""
    kind = Path(path).suffix.lstrip(".") or "png"
    # The date would make the same figure another file.
    metadata = {"svg": {"Date": None, "Creator": None}, "pdf": {"CreationDate": None}}.get(kind)
    with styled():
        write_atomically(path, lambda temporary: figure.savefig(temporary, format=kind, dpi=dpi, metadata=metadata))


def color_variables() -> dict[str, tuple[str, str]]:
    """CSS variable -> its light and its dark colour."""
    return {**GROUND_COLORS, **{light.lstrip("#"): (light, dark) for light, dark in drawn_colors()}}


def to_svg(figure: Figure, name: str) -> str:
    """A drawing for a page: own ids, CSS colours instead of light ones, methods by name, as wide as there is room."""
    text = io.StringIO()
    with styled():
        figure.savefig(text, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    svg = text.getvalue()
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    svg = re.sub(r'id="method:([^"]*)"', lambda found: f'data-method="{escape(found[1])}"', svg)
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = re.sub(r"url\(#", f"url(#{name}-", svg).replace('xlink:href="#', f'xlink:href="#{name}-')
    svg = re.sub(r'^<svg ([^>]*?)width="[^"]*"', r"<svg \1", re.sub(r' height="[^"]*pt"', "", svg, count=1))
    names = {pair[0]: key for key, pair in color_variables().items()}
    pattern = r"#[0-9a-f]{6}\b"
    return re.sub(pattern, lambda hit: f"var(--c-{names[hit[0]]})" if hit[0] in names else hit[0], svg.strip())


def describe(figure: Figure) -> str:
    """What a figure shows, for those who do not see it: its titles, and where every named line begins and ends."""
    words = []
    for axes in figure.axes:
        title = axes.get_title(loc="left") or axes.get_title()
        axis = f"{axes.get_ylabel()} against {axes.get_xlabel()}".removesuffix(" against ")
        lines = {}
        named = [(method_name(str(line.get_gid())[7:]), line) for line in axes.lines if line.get_gid()]
        # The line of an error bar stands in a container, which has the name.
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            named.append((label, getattr(handle, "lines", [handle])[0]))
        for name, line in named:
            heights = [float(y) for y in np.asarray(line.get_ydata(), dtype=float) if math.isfinite(y)]
            if heights:
                ends = f"{heights[-1]:.1f}"
                lines[name] = f"{name} {ends}" if len(heights) == 1 else f"{name} from {heights[0]:.1f} to {ends}"
        words.append(f"{title}: {axis}. {', '.join(lines.values())}.")
    return " ".join(words)
