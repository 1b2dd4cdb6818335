"""Pictures: the demo's, and the paper's memory figure.

Every panel is a function of numbers and an axes. Colours mean the same everywhere: one a method, amber for unknown.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import torch
from matplotlib import patheffects
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Ellipse
from numpy.typing import NDArray
from torch import Tensor

from driftgate.bench.footprint import gmm_values, queue_values, teacher_values
from driftgate.checkpoint import write_atomically
from driftgate.data.shifts import Shift
from driftgate.memory import StreamingGMM
from driftgate.stream import RunResult
from driftgate.types import UNKNOWN

METHOD_COLORS = {"source-only": "#8d939c", "bn-stats": "#3b7dd8", "gmm": "#c8283c"}
KNOWN_COLOR, UNKNOWN_COLOR = "#1f8a70", "#f0a202"
CLASS_COLORS = ("#1f78b4", "#1f8a70", "#c2559d", "#6a4c93", "#7fb800", "#8c564b", "#17becf", "#4d5b9e", "#a05195", "#557a46")
INK, FAINT = "#25282d", "#9aa0a8"
ELLIPSE_DEVIATIONS = 2.0

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
    """A plane through the reduced feature space in which the mixture's classes lie furthest apart.

    Attributes:
        points: (N, 2) samples; the unit of both axes is the mixture's standard deviation within a class.
        labels: (N,) true class or ``UNKNOWN``, for the colour only.
        means, covariances: (C, 2) and (C, 2, 2), the mixture seen in the plane.
        weights: (C,) share of each class in the mixture.
        class_names: names of the C classes.
    """

    points: Array
    labels: NDArray[np.int64]
    means: Array
    covariances: Array
    weights: Array
    class_names: tuple[str, ...]


def project_mixture(
    mixture: StreamingGMM,
    features: Tensor,
    labels: Tensor,
    class_names: Sequence[str],
    like: FeatureView | None = None,
) -> FeatureView:
    """Features (N, R) and the mixture in the plane of Fisher's discriminant analysis, made of the mixture alone.

    The map is linear, so a Gaussian stays one: its mean and covariance are projected. ``like`` turns the plane (no
    more than a rotation or mirroring) so that classes lie near where they lie in another view.
    """
    means, covariances = mixture.means.double(), mixture.covariances.double()
    shares = (mixture.weights.double() / mixture.weights.double().sum()).clamp_min(0)
    center = shares @ means
    within = torch.einsum("c,cij->ij", shares, covariances)
    # A direction in which nothing varies must not be blown up to unit variance.
    within = within + 1e-3 * within.diagonal().mean() * torch.eye(len(within), dtype=within.dtype)
    inverse = torch.linalg.inv(torch.linalg.cholesky(within))
    spread = inverse @ ((means - center) * shares.sqrt()[:, None]).mT
    plane = inverse.mT @ torch.linalg.svd(spread, full_matrices=False).U[:, :2]
    flat_means = (means - center) @ plane
    if like is not None:
        left, _, right = torch.linalg.svd((flat_means * shares[:, None]).mT @ torch.from_numpy(like.means))
        plane, flat_means = plane @ (left @ right), flat_means @ (left @ right)
    return FeatureView(
        points=((features.detach().double() - center) @ plane).numpy(),
        labels=labels.numpy(),
        means=flat_means.numpy(),
        covariances=(plane.mT @ covariances @ plane).numpy(),
        weights=shares.numpy(),
        class_names=tuple(class_names),
    )


def demo_picture(runs: Sequence[ShiftRun], views: tuple[FeatureView, FeatureView], path: str | Path) -> None:
    """The demo on one page: scores over the stream, novelty and gate, samples used, feature space before and after."""
    shifts = list(dict.fromkeys(shift for shift, _, _ in runs))
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(10.0, 9.6), layout="constrained")
        figure.get_layout_engine().set(w_pad=0.08, h_pad=0.1, wspace=0.02, hspace=0.03)  # type: ignore[union-attr]
        grid = figure.add_gridspec(3, 3)
        for column, shift in enumerate(shifts):
            running_panel(figure.add_subplot(grid[0, column]), shift, runs, first=column == 0)
            novelty_panel(figure.add_subplot(grid[1, column]), shift, runs, first=column == 0)
        used_panel(figure.add_subplot(grid[2, 0]), runs)
        left = figure.add_subplot(grid[2, 1])
        right = figure.add_subplot(grid[2, 2], sharex=left, sharey=left)
        feature_panel(left, views[0], "Feature space before (OPDA)")
        feature_panel(right, views[1], "… and after adaptation")
        _frame(left, views)
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

SHIFT_WORDS = {
    Shift.PDA: "classes go missing",
    Shift.ODA: "new classes appear",
    Shift.OPDA: "both at once",
}


def running_panel(axes: Axes, shift: Shift, runs: Sequence[ShiftRun], *, first: bool) -> None:
    """Score over all samples so far, a line a method, the band from the worst to the best seed."""
    ends: list[tuple[float, str, str]] = []
    end = 0.0
    for method in dict.fromkeys(name for _, name, _ in runs):
        results = _of(runs, shift, method)
        samples, scores = _samples(results[0]), 100.0 * _series(results, "running_score")
        shown = ~np.isnan(scores).any(axis=0)
        samples, scores = samples[shown], scores[:, shown]
        if len(samples) == 0:
            continue
        color = METHOD_COLORS.get(method, INK)
        axes.fill_between(samples, scores.min(axis=0), scores.max(axis=0), color=color, alpha=0.16, linewidth=0)
        axes.plot(samples, scores.mean(axis=0), color=color, linewidth=2.2 if method == "gmm" else 1.6)
        ends.append((float(scores.mean(axis=0)[-1]), method, color))
        end = max(end, float(samples[-1]))
    axes.set_title(f"{shift.value}: {SHIFT_WORDS[shift]}")
    axes.set_xlim(0, end * 1.36)
    axes.set_ylim(0, 100)
    axes.set_xticks([tick for tick in range(0, int(end) + 1, 1000 if end < 4000 else 2000)])
    axes.set_xlabel("samples seen")
    axes.set_ylabel(f"running {'accuracy' if shift is Shift.PDA else 'H-score'} (%)")
    for height, (value, method, color) in zip(_spread([end[0] for end in ends], 11.0), ends, strict=True):
        axes.text(end * 1.02, height, f"{method}\n{value:.1f}", color=color, fontsize=8, fontweight="bold", va="center",
                  linespacing=1.0)


def _spread(heights: Sequence[float], gap: float) -> list[float]:
    """Move labels apart until they are ``gap`` from each other, keeping their order."""
    order = sorted(range(len(heights)), key=lambda index: heights[index])
    placed = list(heights)
    for _ in range(100):
        for low, high in zip(order, order[1:], strict=False):
            overlap = gap - (placed[high] - placed[low])
            if overlap > 0:
                placed[low] -= overlap / 2
                placed[high] += overlap / 2
    return placed


def novelty_panel(axes: Axes, shift: Shift, runs: Sequence[ShiftRun], *, first: bool) -> None:
    """Novelty of known and unknown samples under gmm, and the thresholds as they were at the end of the stream."""
    results = _of(runs, shift, "gmm")
    novelty = torch.cat([torch.cat(result.log.novelty) for result in results]).numpy()
    unknown = torch.cat([torch.cat(result.log.targets) for result in results]).numpy() == UNKNOWN
    bins = np.linspace(0.0, 1.0, 41)
    top = 0.0
    for mask, color in ((~unknown, KNOWN_COLOR), (unknown, UNKNOWN_COLOR)):
        if mask.any():
            share = 100.0 * np.histogram(novelty[mask], bins)[0] / mask.sum()
            axes.stairs(share, bins, fill=True, color=color, alpha=0.35)
            axes.stairs(share, bins, color=color, linewidth=1.4)
            top = max(top, float(share.max()))
    axes.set_xlim(-0.02, 1.02)
    axes.set_ylim(0, top * 1.32)
    tau_known, tau, tau_unknown = (_series(results, name)[:, -1].mean() for name in ("tau_known", "tau", "tau_unknown"))
    axes.axvspan(tau_known, tau_unknown, color=INK, alpha=0.05, linewidth=0)
    for value, style in ((tau_known, ":"), (tau_unknown, ":"), (tau, "-")):
        axes.axvline(value, color=INK, linewidth=1.1, linestyle=style)
    axes.set_xlabel("novelty (entropy of the likelihood)")
    axes.set_ylabel("share of samples (%)")


def used_panel(axes: Axes, runs: Sequence[ShiftRun]) -> None:
    """Share of each batch that got a pseudo-label (the supplement's figure), smoothed over five batches."""
    ends = []
    for shift, color in SHIFT_COLORS.items():
        results = _of(runs, shift, "gmm")
        if not results:
            continue
        share, samples = 100.0 * _series(results, "used_share").mean(axis=0), _samples(results[0])
        smooth = np.array([share[max(0, index - 2) : index + 3].mean() for index in range(len(share))])
        axes.plot(samples, share, color=color, linewidth=0.7, alpha=0.3)
        axes.plot(samples, smooth, color=color, linewidth=1.8)
        ends.append((float(smooth[-1]), float(samples[-1]), shift.value, color))
    axes.set_title("Samples used for adaptation")
    axes.set_ylim(0, 100)
    axes.set_xlim(0, max(end[1] for end in ends) * 1.22)
    axes.set_xlabel("samples seen")
    axes.set_ylabel("share of the batch (%)")
    for value, samples_seen, name, color in ends:
        axes.text(samples_seen * 1.02, value, name, color=color, fontsize=8, fontweight="bold", va="center")


def feature_panel(axes: Axes, view: FeatureView, title: str) -> None:
    """Samples by true class and the mixture's ellipses at two standard deviations."""
    unknown = view.labels == UNKNOWN
    axes.scatter(*view.points[unknown].T, s=4, marker="o", color=UNKNOWN_COLOR, alpha=0.45, linewidths=0)
    shared = sorted(set(view.labels[~unknown].tolist()))
    for index in shared:
        chosen = view.labels == index
        axes.scatter(*view.points[chosen].T, s=4, color=CLASS_COLORS[index % len(CLASS_COLORS)], alpha=0.45, linewidths=0)
    for index, name in enumerate(view.class_names):
        present = index in shared
        color = CLASS_COLORS[index % len(CLASS_COLORS)] if present else FAINT
        _ellipse(axes, view.means[index], view.covariances[index], color, dashed=not present)
        text = axes.text(*view.means[index], name, color=color, fontsize=11, fontweight="bold", ha="center", va="center")
        text.set_path_effects([patheffects.withStroke(linewidth=2.5, foreground="white")])
    axes.set_title(title)
    axes.set_xlabel("within-class standard deviations")


def _ellipse(axes: Axes, mean: Array, covariance: Array, color: str, *, dashed: bool) -> None:
    values, vectors = np.linalg.eigh(covariance)
    small, large = 2.0 * ELLIPSE_DEVIATIONS * np.sqrt(np.maximum(values, 0.0))
    angle = math.degrees(math.atan2(vectors[1, 1], vectors[0, 1]))
    axes.add_patch(
        Ellipse(
            (float(mean[0]), float(mean[1])),
            float(large),
            float(small),
            angle=angle,
            facecolor="none",
            edgecolor=color,
            linewidth=1.0 if dashed else 1.8,
            linestyle=(0, (3, 2)) if dashed else "-",
        )
    )


def _frame(axes: Axes, views: Sequence[FeatureView]) -> None:
    """The same scale for all views: what nearly all samples need."""
    points = np.concatenate([view.points for view in views])
    low, high = np.quantile(points, 0.005, axis=0), np.quantile(points, 0.995, axis=0)
    margin = 0.08 * (high - low)
    axes.set_xlim(low[0] - margin[0], high[0] + margin[0])
    axes.set_ylim(low[1] - margin[1], high[1] + margin[1])


def memory_figure(classes: Sequence[int], path: str | Path, *, marked: Sequence[int] = (9, 200, 345)) -> None:
    """The paper's memory figure: N_GMM / N_queue and N_GMM / N_COMET against the number of source classes."""
    counts = np.array(classes)
    curves = {
        "mean teacher": (METHOD_COLORS["bn-stats"], [gmm_values(c) / teacher_values(c) for c in classes]),
        "memory queue": (METHOD_COLORS["gmm"], [gmm_values(c) / queue_values(c) for c in classes]),
    }
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(6.4, 3.8), layout="constrained")
        axes = figure.add_subplot()
        for name, (color, ratio) in curves.items():
            axes.plot(counts, 100.0 * np.array(ratio), color=color, linewidth=2.2)
        save_figure(figure, path)
