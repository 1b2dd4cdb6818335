"""The picture of the demo, and the paper's memory figure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from matplotlib import patheffects
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patches import Ellipse
from numpy.typing import NDArray
from torch import Tensor

from driftgate.lab.bench.footprint import QUEUE_LENGTH, gmm_values, queue_values, teacher_values
from driftgate.lab.bench.names import OWN_METHOD, method_color
from driftgate.lab.bench.tables import by_method, shifts_of
from driftgate.lab.figures.charts import curve_panel, used_panel
from driftgate.lab.figures.style import (
    INK,
    KNOWN_COLOR,
    SOFT,
    UNKNOWN_COLOR,
    new_figure,
    round_ticks,
    styled,
)
from driftgate.memory import StreamingGMM
from driftgate.types import UNKNOWN

CLASS_COLORS = (
    *("#1f78b4", "#1f8a72", "#c2559e", "#6a4c95", "#7fb800"),
    *("#8c564c", "#17becf", "#4d5b9f", "#a05195", "#557a47"),
)
SHIFT_WORDS = {"PDA": "classes go missing", "ODA": "new classes appear", "OPDA": "both at once"}
SMALLEST_NOVELTY = 1e-6
"""Left end of the histograms; what is smaller is drawn there."""

READABLE_SHARE = 0.4
"""Smallest share, in per cent, that is written into the memory figure."""

VIEW_RADIUS = 2.6
"""Half the side of a view of the feature space, whose class means lie on a circle of radius 1."""

Array = NDArray[np.float64]


class Gate(NamedTuple):
    """A stream's novelties (N,), which samples are unknown (N,), and the thresholds known, tau, unknown at its end."""

    novelty: Array
    unknown: NDArray[np.bool_]
    thresholds: tuple[float, float, float]


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
    present = torch.unique(labels[labels != UNKNOWN])
    shares = mixture.weights.double() / mixture.weights.double().sum()
    within = torch.einsum("c,cij->ij", shares, covariances)
    # A direction in which nothing varies must not seem to separate everything.
    within = within + 1e-3 * within.diagonal().mean() * torch.eye(len(within), dtype=within.dtype)
    center = means[present].mean(dim=0)
    centred = means[present] - center
    solved = torch.linalg.solve(within, centred.mT)
    plane = solved @ torch.linalg.pinv(centred @ solved, rtol=1e-9) @ _corners(len(present))
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


def demo(runs: pd.DataFrame, gates: Mapping[str, Gate], views: tuple[FeatureView, FeatureView]) -> Figure:
    """The demo on one page: scores over the stream, novelty and gate, samples used, feature space before and after.

    Args:
        runs: all runs of the demo.
        gates: shift -> what the own method's gate saw.
        views: the feature space before and after.
    """
    seeds = runs.seed.nunique()
    with styled():
        layout = ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.08, wspace=0.04, hspace=0.03)
        figure = Figure(figsize=(13.0, 12.0), layout=layout)
        told = f"thin: {seeds} seeds, thick: their mean" if seeds > 1 else "one seed"
        title = f"Trained on rendered digits, adapted to a stream of handwritten ones  ·  {told}"
        figure.suptitle(title, x=0.01, ha="left", fontsize=11.5)
        grid = figure.add_gridspec(3, 3)
        for column, shift in enumerate(shifts_of(runs)):
            _running_panel(figure.add_subplot(grid[0, column]), runs[runs["shift"] == shift], shift, first=column == 0)
            _novelty_panel(figure.add_subplot(grid[1, column]), gates[shift], shift, first=column == 0)
        used_panel(figure.add_subplot(grid[2, 0]), runs)
        for place, (view, words) in enumerate(
            zip(views, ("OPDA features before …", "… and after adaptation"), strict=True)
        ):
            _feature_panel(figure.add_subplot(grid[2, 1 + place]), view, words)
    return figure


def _running_panel(axes: Axes, runs: pd.DataFrame, shift: str, *, first: bool) -> None:
    """Score over all samples so far; the open circle is the score the best fixed threshold would have had."""
    last = curve_panel(axes, runs, whole=True)
    circle: dict[str, Any] = {"marker": "o", "markerfacecolor": "white", "markersize": 4.5, "markeredgewidth": 1.4}
    for method, group in by_method(runs).items():
        axes.plot(last, group.best_threshold.mean(), color=method_color(method), **circle)
    if first:
        axes.plot(last * 0.04, 95, color=INK, **circle)
        axes.text(last * 0.08, 95, "best fixed threshold, in hindsight", fontsize=7.5, va="center")
    axes.set_title(f"{shift}: {SHIFT_WORDS[shift]}")


def _novelty_panel(axes: Axes, gate: Gate, shift: str, *, first: bool) -> None:
    """Novelty of known and unknown samples under gmm, and the thresholds as they were at the end of the stream."""
    low = math.log10(SMALLEST_NOVELTY)
    bins, places = np.linspace(low, 0.0, 37), np.log10(np.clip(gate.novelty, SMALLEST_NOVELTY, 1.0))
    top, words = 0.0, []
    for mask, color, name in ((~gate.unknown, KNOWN_COLOR, "known"), (gate.unknown, UNKNOWN_COLOR, "unknown")):
        if mask.any():
            share = 100.0 * np.histogram(places[mask], bins)[0] / mask.sum()
            axes.stairs(share, bins, fill=True, color=color, alpha=0.35)
            axes.stairs(share, bins, color=color, linewidth=1.4)
            top = max(top, float(share[1:].max()))
            words.append((f"{name} classes", color))
    axes.set_xlim(low, 0.0)
    axes.set_ylim(0, top * 1.35)
    known, tau, unknown = (math.log10(min(max(value, SMALLEST_NOVELTY), 1.0)) for value in gate.thresholds)
    axes.axvspan(known, unknown, color=INK, alpha=0.06, linewidth=0)  # what is left out of learning
    for value, style, symbol in ((known, ":", r"$\tau_k$"), (tau, "-", r"$\tau$"), (unknown, ":", r"$\tau_u$")):
        axes.axvline(value, ymax=0.9, color=INK, linewidth=1.1, linestyle=style)
        axes.text(value, top * 1.235, symbol, fontsize=9, ha="center", va="bottom")
    # Words go where there is most room: left of the first threshold, or between it and the second.
    middle = (low + known) / 2 if known - low > tau - known else (known + tau) / 2
    for place, (text, color) in enumerate(words):
        axes.text(middle, top * (0.98 - 0.11 * place), text, color=color, fontsize=8, fontweight="bold", ha="center")
    axes.set_title(f"{shift}: novelty and the gate")
    axes.set_xticks([-5.0, -3.0, -1.0], ["$10^{-5}$", "$10^{-3}$", "$10^{-1}$"])
    axes.set_xlabel("novelty (entropy of the likelihood)")
    axes.set_ylabel("share of known / of unknown (%)" if first else "")


def _feature_panel(axes: Axes, view: FeatureView, title: str) -> None:
    """Samples by true class, and the mixture's ellipses at one standard deviation; both views at one scale."""
    present = sorted(set(view.labels[view.labels != UNKNOWN].tolist()))
    colors = [UNKNOWN_COLOR if label == UNKNOWN else _class_color(label) for label in view.labels.tolist()]
    # In the order of the stream, so that no class is drawn over the others.
    axes.scatter(view.points[:, 0], view.points[:, 1], s=3.5, c=colors, alpha=0.4, linewidths=0)
    for index, name in enumerate(view.class_names):
        color = _class_color(index) if index in present else SOFT
        _ellipse(axes, view.means[index], view.covariances[index], color, dashed=index not in present)
        if index in present:
            x, y = view.means[index].tolist()
            text = axes.text(x, y, name, color=color, fontsize=15, fontweight="bold")
            text.set(ha="center", va="center", path_effects=[patheffects.withStroke(linewidth=3, foreground="white")])
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
    ellipse = Ellipse((float(mean[0]), float(mean[1])), float(large), float(small), facecolor="none", edgecolor=color)
    ellipse.set_angle(math.degrees(math.atan2(vectors[1, 1], vectors[0, 1])))
    ellipse.set(linewidth=1.2 if dashed else 2.0, linestyle=(0, (3, 2)) if dashed else "-")
    axes.add_patch(ellipse)


def memory(marked: Sequence[int] = (9, 200, 345)) -> Figure:
    """The paper's memory figure: N_GMM / N_queue and N_GMM / N_COMET against the number of source classes."""
    classes = np.arange(1, max(400, *marked) + 1)
    wanted: dict[str, tuple[str, Callable[[int], int], int]] = {
        "of a mean teacher\n(ResNet-50)": (method_color("bn-stats"), teacher_values, 8),
        f"of a memory queue\n({QUEUE_LENGTH:,} samples)": (method_color(OWN_METHOD), queue_values, -14),
    }
    with styled():
        figure, axes = new_figure((7.0, 4.0))
        for name, (color, values, offset) in wanted.items():
            share = np.array([100.0 * gmm_values(int(count)) / values(int(count)) for count in classes])
            axes.plot(classes, share, color=color, linewidth=2.2)
            axes.plot(marked, share[np.array(marked) - 1], "o", color=color, markersize=5)
            axes.text(classes[-1] * 1.01, share[-1], name, color=color, fontsize=8.5, fontweight="bold", va="center")
            # Near 0 the two curves, and their labels, would lie on each other.
            for count in (count for count in marked if share[count - 1] > READABLE_SHARE):
                where: dict[str, Any] = {"xytext": (0, offset), "textcoords": "offset points", "ha": "center"}
                axes.annotate(f"{share[count - 1]:.2g} %", (count, share[count - 1]), color=color, fontsize=8, **where)
        axes.set_title("Memory of the mixture")
        axes.set_xlim(0, classes[-1] * 1.3)
        axes.set_ylim(0, None)
        axes.set_xticks(round_ticks(float(classes[-1])))
        axes.spines["bottom"].set_bounds(0, int(classes[-1]))
        axes.set_xlabel("source classes")
        axes.set_ylabel("values the mixture keeps, as a share (%)")
    return figure
