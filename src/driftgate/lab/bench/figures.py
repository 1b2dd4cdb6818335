"""Pictures: the demo's, and the paper's memory figure.

Every panel is a function of numbers and an axes. Colours mean the same everywhere: one a method, amber for unknown.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import torch
from matplotlib import patheffects
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patches import Ellipse
from numpy.typing import NDArray
from torch import Tensor

from driftgate.checkpoint import write_atomically
from driftgate.lab.bench.chart_layout import spread
from driftgate.lab.bench.footprint import QUEUE_LENGTH, gmm_values, queue_values, teacher_values
from driftgate.memory import StreamingGMM
from driftgate.shifts import Shift
from driftgate.stream import RunResult
from driftgate.types import UNKNOWN

METHOD_COLORS = {"source-only": "#8d939c", "bn-stats": "#3b7dd8", "gmm": "#c8283c"}
KNOWN_COLOR, UNKNOWN_COLOR = "#1f8a70", "#f0a202"
CLASS_COLORS = (
    "#1f78b4",
    "#1f8a70",
    "#c2559d",
    "#6a4c93",
    "#7fb800",
    "#8c564b",
    "#17becf",
    "#4d5b9e",
    "#a05195",
    "#557a46",
)
INK, ABSENT = "#25282d", "#5c636b"
ADAPTED = "gmm"
"""The method whose inside is drawn."""

SMALLEST_NOVELTY = 1e-6
"""Left end of the histograms; what is smaller is drawn there."""

READABLE_SHARE = 0.4
"""Smallest share, in per cent, that is written into the memory figure."""

VIEW_RADIUS = 2.6
"""Half the side of a view of the feature space, whose class means lie on a circle of radius 1."""

STYLE: dict[str, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 9.0,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 9.0,
    "axes.labelcolor": INK,
    "axes.edgecolor": "#b9bec5",
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#eceef0",
    "grid.linewidth": 0.8,
    "text.color": INK,
    "xtick.color": "#5c636b",
    "ytick.color": "#5c636b",
    "xtick.labelsize": 8.0,
    "ytick.labelsize": 8.0,
    "xtick.major.size": 0.0,
    "ytick.major.size": 0.0,
    "lines.solid_capstyle": "round",
    "savefig.facecolor": "white",
}

Array = NDArray[np.float64]
ShiftRun = tuple[Shift, str, RunResult]


@dataclass(frozen=True)
class FeatureView:
    """The reduced feature space seen in a plane, the mixture in it.

    Attributes:
        points: (N, 2) samples.
        labels: (N,) true class or ``UNKNOWN``, for the colour only.
        means, covariances: (C, 2) and (C, 2, 2), the mixture seen in the plane.
        class_names: names of the C classes.
    """

    points: Array
    labels: NDArray[np.int64]
    means: Array
    covariances: Array
    class_names: tuple[str, ...]


def project_mixture(mixture: StreamingGMM, features: Tensor, labels: Tensor, class_names: Sequence[str]) -> FeatureView:
    """Features (N, R) and the mixture in the plane that shows the classes of ``labels`` best.

    Of all linear maps that put the means of these classes on the corners of a regular polygon, this is the one with
    the smallest spread within classes: P = W^-1 M^T (M W^-1 M^T)^+ K for the centred means M, the mixture's mean
    covariance W and the corners K. So two views differ in nothing but how far the classes spread between the corners.
    A linear map keeps a Gaussian one: mean and covariance are projected.
    """
    means, covariances = mixture.means.double(), mixture.covariances.double()
    shown = torch.unique(labels[labels != UNKNOWN])
    shares = mixture.weights.double() / mixture.weights.double().sum()
    within = torch.einsum("c,cij->ij", shares, covariances)
    # A direction in which nothing varies must not seem to separate everything.
    within = within + 1e-3 * within.diagonal().mean() * torch.eye(len(within), dtype=within.dtype)
    center = means[shown].mean(dim=0)
    centred = means[shown] - center
    solved = torch.linalg.solve(within, centred.mT)
    plane = solved @ torch.linalg.pinv(centred @ solved, rtol=1e-9) @ _corners(len(shown))
    return FeatureView(
        points=((features.detach().double() - center) @ plane).numpy(),
        labels=labels.numpy(),
        means=((means - center) @ plane).numpy(),
        covariances=(plane.mT @ covariances @ plane).numpy(),
        class_names=tuple(class_names),
    )


def _corners(count: int) -> Tensor:
    """(count, 2) corners of a regular polygon of radius 1, a flat side below; centred even for one or two."""
    angles = torch.pi * (2.0 * torch.arange(count, dtype=torch.float64) + 1.0) / count + torch.pi / 2
    corners = torch.stack([angles.cos(), angles.sin()], dim=1)
    return corners - corners.mean(dim=0)


def demo_picture(runs: Sequence[ShiftRun], views: tuple[FeatureView, FeatureView], path: str | Path) -> None:
    """The demo on one page: scores over the stream, novelty and gate, samples used, feature space before and after."""
    shifts = list(dict.fromkeys(shift for shift, _, _ in runs))
    seeds = len(_of(runs, shifts[0], ADAPTED))
    with matplotlib.rc_context(STYLE):
        figure = Figure(
            figsize=(10.0, 10.0), layout=ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.08, wspace=0.02, hspace=0.03)
        )
        seeds_text = f"mean and range of {seeds} seeds" if seeds > 1 else "one seed"
        figure.suptitle(
            f"Trained on rendered digits, adapted to a stream of handwritten ones  ·  {seeds_text}",
            x=0.01,
            ha="left",
            fontsize=11.5,
            color=INK,
        )
        grid = figure.add_gridspec(3, 3)
        for column, shift in enumerate(shifts):
            running_panel(figure.add_subplot(grid[0, column]), shift, runs, first=column == 0)
            novelty_panel(figure.add_subplot(grid[1, column]), shift, runs, first=column == 0)
        used_panel(figure.add_subplot(grid[2, 0]), runs)
        panels = [figure.add_subplot(grid[2, 1]), figure.add_subplot(grid[2, 2])]
        for axes, view, title in zip(panels, views, ("OPDA features before …", "… and after adaptation"), strict=True):
            feature_panel(axes, view, title)
        save_figure(figure, path)


def save_figure(figure: Figure, path: str | Path, dpi: int = 170) -> None:
    """Write the picture under a temporary name, then rename it."""
    suffix = Path(path).suffix.lstrip(".") or "png"
    write_atomically(path, lambda temporary: figure.savefig(temporary, format=suffix, dpi=dpi))


def _of(runs: Sequence[ShiftRun], shift: Shift, method: str) -> list[RunResult]:
    return [result for run_shift, name, result in runs if (run_shift, name) == (shift, method)]


def _series(results: Sequence[RunResult], name: str) -> Array:
    """(seeds, batches) of a series of the records; NaN where it had nothing to measure."""
    rows = [[math.nan if value is None else value for value in result.record["series"][name]] for result in results]
    return np.array(rows, dtype=np.float64)


def _samples(result: RunResult) -> Array:
    """Samples seen after each batch."""
    return np.cumsum([len(batch) for batch in result.log.targets]).astype(np.float64)


SHIFT_COLORS = {Shift.PDA: "#e58a93", Shift.ODA: "#c8283c", Shift.OPDA: "#7d1322"}
"""Shades of the colour of gmm."""

SHIFT_WORDS = {Shift.PDA: "classes go missing", Shift.ODA: "new classes appear", Shift.OPDA: "both at once"}


def running_panel(axes: Axes, shift: Shift, runs: Sequence[ShiftRun], *, first: bool) -> None:
    """Score over all samples so far, a line a method, the band from the worst to the best seed.

    The open circle at the end is the score the best fixed threshold would have had.
    """
    ends: list[tuple[float, str, str]] = []
    last = 0.0
    for method in dict.fromkeys(name for _, name, _ in runs):
        results = _of(runs, shift, method)
        samples, scores = _samples(results[0]), 100.0 * _series(results, "running_score")
        shown = ~np.isnan(scores).any(axis=0)
        samples, scores = samples[shown], scores[:, shown]
        if len(samples) == 0:
            continue
        color, last = METHOD_COLORS.get(method, INK), max(last, float(samples[-1]))
        axes.fill_between(samples, scores.min(axis=0), scores.max(axis=0), color=color, alpha=0.16, linewidth=0)
        axes.plot(samples, scores.mean(axis=0), color=color, linewidth=2.4 if method == ADAPTED else 1.7)
        best = 100.0 * float(np.mean([result.record["metrics"]["best_threshold_score"] for result in results]))
        axes.plot(last * 1.035, best, "o", color=color, markerfacecolor="white", markersize=4.5, markeredgewidth=1.4)
        ends.append((float(scores.mean(axis=0)[-1]), method, color))
    for height, (value, method, color) in zip(spread([end[0] for end in ends], 11.5), ends, strict=True):
        axes.text(
            last * 1.08, height, f"{method}\n{value:.1f}", color=color, fontsize=8, fontweight="bold", va="center"
        )
    if first:
        axes.plot(last * 0.04, 95, "o", color=INK, markerfacecolor="white", markersize=4.5, markeredgewidth=1.2)
        axes.text(last * 0.08, 95, "best fixed threshold, in hindsight", color=INK, fontsize=7.5, va="center")
    axes.set_title(f"{shift.value}: {SHIFT_WORDS[shift]}")
    axes.set_xlim(0, last * 1.5)
    axes.set_ylim(0, 100)
    axes.set_xticks(_ticks(last))
    axes.spines["bottom"].set_bounds(0, last)
    axes.set_xlabel("samples seen")
    axes.set_ylabel(f"running {'accuracy' if shift is Shift.PDA else 'H-score'} (%)")


def _ticks(last: float) -> list[float]:
    """About three round numbers from 0 to ``last``."""
    step = 10.0 ** math.floor(math.log10(max(last, 1.0) / 2.0))
    step *= next(factor for factor in (5.0, 2.0, 1.0) if last / (step * factor) >= 2.0 or factor == 1.0)
    return [float(tick) for tick in np.arange(0.0, last * 1.001, step)]


def novelty_panel(axes: Axes, shift: Shift, runs: Sequence[ShiftRun], *, first: bool) -> None:
    """Novelty of known and unknown samples under gmm, and the thresholds as they were at the end of the stream."""
    results = _of(runs, shift, ADAPTED)
    novelty = torch.cat([torch.cat(result.log.novelty) for result in results]).numpy()
    unknown = torch.cat([torch.cat(result.log.targets) for result in results]).numpy() == UNKNOWN
    low = math.log10(SMALLEST_NOVELTY)
    bins = np.linspace(low, 0.0, 37)
    places = np.log10(np.clip(novelty, SMALLEST_NOVELTY, 1.0))
    top = 0.0
    for mask, color in ((~unknown, KNOWN_COLOR), (unknown, UNKNOWN_COLOR)):
        if not mask.any():
            continue
        share = 100.0 * np.histogram(places[mask], bins)[0] / mask.sum()
        axes.stairs(share, bins, fill=True, color=color, alpha=0.35)
        axes.stairs(share, bins, color=color, linewidth=1.4)
        top = max(top, float(share[1:].max()))
    axes.set_xlim(low, 0.0)
    axes.set_ylim(0, top * 1.35)
    known, tau = _thresholds(axes, results, top)
    # Words go where there is most room: left of the first threshold, or between it and the second.
    middle = (low + known) / 2 if known - low > tau - known else (known + tau) / 2
    axes.text(middle, top * 0.98, "known classes", color=KNOWN_COLOR, fontsize=8, fontweight="bold", ha="center")
    if unknown.any():
        axes.text(
            middle, top * 0.87, "unknown classes", color=UNKNOWN_COLOR, fontsize=8, fontweight="bold", ha="center"
        )
    axes.set_title(f"{shift.value}: novelty and the gate")
    axes.set_xticks([-5.0, -3.0, -1.0], ["$10^{-5}$", "$10^{-3}$", "$10^{-1}$"])
    axes.set_xlabel("novelty (entropy of the likelihood)")
    if first:
        axes.set_ylabel("share of known / of unknown (%)")


def _thresholds(axes: Axes, results: Sequence[RunResult], top: float) -> tuple[float, float]:
    """Lines at the thresholds, mean over the seeds; the band between the outer two is left out of learning.

    Returns where the first two lie.
    """
    known, tau, unknown = (
        float(np.log10(np.clip(_series(results, name)[:, -1], SMALLEST_NOVELTY, 1.0)).mean())
        for name in ("tau_known", "tau", "tau_unknown")
    )
    axes.axvspan(known, unknown, color=INK, alpha=0.06, linewidth=0)
    for value, style, symbol in ((known, ":", r"$\tau_k$"), (tau, "-", r"$\tau$"), (unknown, ":", r"$\tau_u$")):
        axes.axvline(value, ymax=0.9, color=INK, linewidth=1.1, linestyle=style)
        axes.text(value, top * 1.235, symbol, fontsize=9, ha="center", va="bottom")
    return known, tau


def used_panel(axes: Axes, runs: Sequence[ShiftRun]) -> None:
    """Share of each batch that got a pseudo-label (the supplement's figure), smoothed over five batches."""
    ends = []
    for shift, color in SHIFT_COLORS.items():
        results = _of(runs, shift, ADAPTED)
        if not results:
            continue
        share, samples = 100.0 * _series(results, "used_share").mean(axis=0), _samples(results[0])
        place = 100.0 * samples / samples[-1]
        smooth = np.array([share[max(0, index - 2) : index + 3].mean() for index in range(len(share))])
        axes.plot(place, share, color=color, linewidth=0.7, alpha=0.3)
        axes.plot(place, smooth, color=color, linewidth=1.9)
        ends.append((float(smooth[-1]), shift.value, color))
    for height, (_, name, color) in zip(spread([end[0] for end in ends], 7.0), ends, strict=True):
        axes.text(102, height, name, color=color, fontsize=8, fontweight="bold", va="center")
    axes.set_title("Samples used for adaptation")
    axes.set_ylim(0, 100)
    axes.set_xlim(0, 122)
    axes.set_xticks([0, 50, 100])
    axes.spines["bottom"].set_bounds(0, 100)
    axes.set_xlabel("share of the stream seen (%)")
    axes.set_ylabel("share of the batch (%)")


def feature_panel(axes: Axes, view: FeatureView, title: str) -> None:
    """Samples by true class, and the mixture's ellipses at one standard deviation; both views at one scale."""
    unknown = view.labels == UNKNOWN
    shown = sorted(set(view.labels[~unknown].tolist()))
    colors = np.array([UNKNOWN_COLOR if label == UNKNOWN else _class_color(label) for label in view.labels.tolist()])
    # In the order of the stream, so that no class is drawn over the others.
    axes.scatter(view.points[:, 0], view.points[:, 1], s=3.5, c=colors, alpha=0.4, linewidths=0)
    for index, name in enumerate(view.class_names):
        color = _class_color(index) if index in shown else ABSENT
        _ellipse(axes, view.means[index], view.covariances[index], color, dashed=index not in shown)
        if index in shown:
            across, up = view.means[index].tolist()
            text = axes.text(across, up, name, color=color, fontsize=15, fontweight="bold", ha="center", va="center")
            text.set_path_effects([patheffects.withStroke(linewidth=3, foreground="white")])
    axes.text(0.02, 0.02, "unknown", color=UNKNOWN_COLOR, fontsize=8, fontweight="bold", transform=axes.transAxes)
    axes.set_title(title)
    axes.set_xlim(-VIEW_RADIUS, VIEW_RADIUS)
    axes.set_ylim(-VIEW_RADIUS, VIEW_RADIUS)
    axes.set_box_aspect(1)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_xlabel(r"ellipses: the mixture, 1$\sigma$;  dashed: absent classes", fontsize=8)
    axes.spines[["top", "right"]].set_visible(True)


def _class_color(index: int) -> str:
    return CLASS_COLORS[index % len(CLASS_COLORS)]


def _ellipse(axes: Axes, mean: Array, covariance: Array, color: str, *, dashed: bool) -> None:
    values, vectors = np.linalg.eigh(covariance)
    small, large = 2.0 * np.sqrt(np.maximum(values, 0.0))
    angle = math.degrees(math.atan2(vectors[1, 1], vectors[0, 1]))
    axes.add_patch(
        Ellipse(
            (float(mean[0]), float(mean[1])),
            float(large),
            float(small),
            angle=angle,
            facecolor="none",
            edgecolor=color,
            linewidth=1.2 if dashed else 2.0,
            linestyle=(0, (3, 2)) if dashed else "-",
        )
    )


def memory_figure(path: str | Path, *, marked: Sequence[int] = (9, 200, 345)) -> None:
    """The paper's memory figure: N_GMM / N_queue and N_GMM / N_COMET against the number of source classes."""
    classes = np.arange(1, max(400, *marked) + 1)
    curves: dict[str, tuple[str, Callable[[int], int]]] = {
        "of a mean teacher\n(ResNet-50)": ("#3b7dd8", teacher_values),
        f"of a memory queue\n({QUEUE_LENGTH:,} samples)": ("#c8283c", queue_values),
    }
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(7.0, 4.0), layout="constrained")
        axes = figure.add_subplot()
        for name, (color, values) in curves.items():
            share = np.array([100.0 * gmm_values(int(count)) / values(int(count)) for count in classes])
            axes.plot(classes, share, color=color, linewidth=2.2)
            axes.plot(marked, share[np.array(marked) - 1], "o", color=color, markersize=5)
            axes.text(classes[-1] * 1.01, share[-1], name, color=color, fontsize=8.5, fontweight="bold", va="center")
            for count in marked:
                if (
                    share[count - 1] > READABLE_SHARE
                ):  # near 0 the two curves, and their labels, would lie on each other
                    axes.annotate(
                        f"{share[count - 1]:.2g} %",
                        (count, share[count - 1]),
                        xytext=(0, 8 if values is teacher_values else -14),
                        textcoords="offset points",
                        color=color,
                        fontsize=8,
                        ha="center",
                    )
        axes.set_title("Memory of the mixture")
        axes.set_xlim(0, classes[-1] * 1.3)
        axes.set_ylim(0, None)
        axes.set_xticks(_ticks(float(classes[-1])))
        axes.spines["bottom"].set_bounds(0, int(classes[-1]))
        axes.set_xlabel("source classes")
        axes.set_ylabel("values the mixture keeps, as a share (%)")
        save_figure(figure, path)
