"""Draw the pictures of docs/how-it-works.md, and write the numbers of its interactive one, from a real run.

python docs/tools/pictures.py            # about a minute; writes docs/pictures/ and docs/assets/mixture-data.js
"""

from __future__ import annotations

import argparse
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Ellipse, Rectangle
from PIL import Image
from record import Array, Plane, Run, Step, record
from torch import Tensor

from driftgate.lab.figures.style import FAINT, INK, KNOWN_COLOR, SOFT, STYLE, UNKNOWN_COLOR
from driftgate.types import UNKNOWN, UNLABELED

DOCS = Path(__file__).resolve().parents[1]
PICTURES, DATA, DIGITS = DOCS / "pictures", DOCS / "assets" / "mixture-data.js", DOCS / "assets" / "mixture-digits.png"
CLASS_COLORS = (
    *("#1f78b4", "#1f8a72", "#c2559e", "#6a4c95", "#7fb800"),
    *("#8c564c", "#17becf", "#4d5b9f", "#a05195", "#557a47"),
)
HALF = 1.177
"""Radius that holds half the mass of a two-dimensional Gaussian, in standard deviations."""

CHOSEN = 30
"""The batch that is followed through a step: the thirtieth, where the mixture knows the stream."""

EARLY_LATE = (2, 52)
"""Batches whose cosines are drawn."""

DOTTED = (0, (1, 1.5))
SMALLEST = 1e-6
"""Left end of the axis of entropies; what is smaller is drawn there."""

CONTENT = 4.2
"""Half the side of a view of the plane, in standard deviations within a class."""


def colour(label: int) -> str:
    """Of a class, of unknown, or of a sample that is left out."""
    return {UNKNOWN: UNKNOWN_COLOR, UNLABELED: FAINT}.get(label) or CLASS_COLORS[label]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    run = record(parser.parse_args().seed)
    draw_all(run)
    sheet(run)
    DATA.write_text(f"window.driftgateRun = {json.dumps(story(run), separators=(',', ':'))};\n", encoding="utf-8")


def draw_all(run: Run) -> None:
    """Every picture of the page."""
    PICTURES.mkdir(exist_ok=True)
    step = run.steps[CHOSEN - 1]
    with matplotlib.rc_context(STYLE | {"svg.fonttype": "path", "svg.hashsalt": "driftgate"}):
        for name, figure in {
            "stream": what_comes(run, step),
            "weights": what_the_classifier_says(run, step),
            "mixture": how_the_mixture_grows(run),
            "entropy": what_the_mixture_says(run, step),
            "gate": who_teaches(run, step),
            "losses": what_the_losses_do(run),
            "result": what_comes_of_it(run),
        }.items():
            figure.savefig(
                PICTURES / f"{name}.png", dpi=160, bbox_inches="tight", pad_inches=0.06, metadata={"Software": None}
            )


def what_comes(run: Run, step: Step) -> Figure:
    """Typeset digits of the source beside the batch; new digits in frames."""
    figure = Figure(figsize=(8.6, 2.35), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=[4, 16])
    tiles(left, run.source_images.flatten(0, 1), columns=4)
    tiles(right, step.images, columns=16)
    left.set_title("Trained on: typeset")
    right.set_title(f"Batch {CHOSEN} of the stream: handwritten, amber = digits it never learned")
    for place, truth in enumerate(step.truth.tolist()):
        if truth == UNKNOWN:
            row, column = divmod(place, 16)
            corner = (column * 30 + 1.5, row * 30 + 1.5)
            right.add_patch(Rectangle(corner, 27, 27, fill=False, edgecolor=UNKNOWN_COLOR, linewidth=1.6))
    return figure


def tiles(axes: Axes, images: Tensor, columns: int) -> None:
    """(N, 28, 28) in rows, a gap of two pixels between them."""
    rows = -(-len(images) // columns)
    sheet = np.full((rows * 30, columns * 30), np.nan)
    for place, image in enumerate(images.numpy()):
        row, column = divmod(place, columns)
        sheet[row * 30 + 1 : row * 30 + 29, column * 30 + 1 : column * 30 + 29] = 1.0 - image
    axes.imshow(sheet, cmap="gray", vmin=0.0, vmax=1.0, interpolation="nearest")
    axes.axis("off")


def what_the_classifier_says(run: Run, step: Step) -> Figure:
    """Probabilities f_c(x_i) of the batch, samples grouped by what they truly are."""
    order = np.argsort(np.where(step.truth == UNKNOWN, 99, step.truth), kind="stable")
    truth = step.truth.numpy()[order]
    figure = Figure(figsize=(8.6, 2.5), layout="constrained")
    axes = figure.subplots()
    drawn = axes.imshow(step.said.scores.numpy()[order].T, aspect="auto", cmap="Greys", vmin=0.0, vmax=1.0)
    axes.set_yticks(range(len(run.class_names)), [f"class {name}" for name in run.class_names])
    edges = np.flatnonzero(np.diff(truth)) + 0.5
    for edge in edges:
        axes.axvline(edge, color=INK, linewidth=0.8)
    starts = np.concatenate([[-0.5], edges, [len(truth) - 0.5]])
    for low, high in pairwise(starts):
        label = int(truth[int(low + 1)])
        axes.axvspan(low, high, ymin=1.015, ymax=1.06, color=colour(label), clip_on=False)
        text = "new digits" if label == UNKNOWN else f"truly {run.class_names[label]}"
        axes.text((low + high) / 2, -0.95, text, ha="center", va="bottom", fontsize=8.5, color=INK)
    axes.grid(visible=False)
    axes.set_xticks([])
    axes.set_xlabel("the 64 samples of the batch")
    bar = figure.colorbar(drawn, ax=axes, pad=0.01)
    bar.set_label("probability $f_c(x_i)$")
    bar.outline.set_visible(False)  # type: ignore[operator]
    return figure


def how_the_mixture_grows(run: Run) -> Figure:
    """The mixture in the plane after some batches: a Gaussian a class, fed by soft labels alone."""
    figure = Figure(figsize=(8.6, 3.3), layout="constrained")
    for axes, number in zip(figure.subplots(1, 3), (1, 10, CHOSEN), strict=True):
        view(axes, run, [run.steps[number - 1]])
        axes.set_title(f"After batch {number}")
    figure.legend(
        handles=class_marks(run),
        loc="outside lower center",
        ncols=7,
        columnspacing=1.2,
        frameon=False,
        handletextpad=0.3,
    )
    return figure


def class_marks(run: Run) -> list[Line2D]:
    """A legend: classes that come, and unknown."""
    labels = [(f"truly {run.class_names[label]}", colour(label)) for label in run.shared]
    labels.append(("truly new", UNKNOWN_COLOR))
    marks = [Line2D([], [], marker="o", linestyle="", color=shade, label=text) for text, shade in labels]
    for text, style in (("Gaussian of a class, half its mass", "solid"), ("of one that never comes", DOTTED)):
        marks.append(Line2D([], [], color=SOFT, linewidth=1.4, linestyle=style, label=text))
    return marks


def view(axes: Axes, run: Run, steps: list[Step]) -> None:
    """Samples of some batches, in the colour of what they truly are, and the Gaussians after the last of them."""
    mixture = steps[-1].after
    plane = Plane.of(mixture, run.shared)
    means, spreads = plane.points(mixture.means), plane.spreads(mixture)
    points = plane.points(torch.cat([step.reduced for step in steps])).clip(-CONTENT, CONTENT)
    colours = [colour(int(label)) for step in steps for label in step.truth]
    axes.scatter(points[:, 0], points[:, 1], c=colours, s=14, linewidths=0.4, edgecolors="white", zorder=3)
    for label, name in enumerate(run.class_names):
        shade = colour(label) if label in run.shared else SOFT
        ellipse(axes, means[label], spreads[label], HALF, shade, dotted=label not in run.shared)
        if label in run.shared:
            badge: dict[str, Any] = {
                "boxstyle": "circle,pad=0.18",
                "facecolor": shade,
                "edgecolor": "white",
                "linewidth": 0.8,
            }
            look: dict[str, Any] = {
                "ha": "center",
                "va": "center",
                "fontsize": 9,
                "weight": "bold",
                "color": "white",
                "zorder": 5,
            }
            axes.text(means[label, 0], means[label, 1], name, bbox=badge, **look)
    axes.set(xlim=(-CONTENT, CONTENT), ylim=(-CONTENT, CONTENT), xticks=[], yticks=[], aspect="equal")
    axes.grid(visible=False)
    axes.spines[["top", "right"]].set_visible(True)


def ellipse(axes: Axes, mean: Array, spread: Array, radius: float, shade: str, *, dotted: bool) -> None:
    values, vectors = np.linalg.eigh(spread)
    width, height = 2.0 * radius * np.sqrt(values.clip(0))
    angle = float(np.degrees(np.arctan2(vectors[1, 0], vectors[0, 0])))
    style = {"linestyle": DOTTED if dotted else "solid", "linewidth": 1.4, "edgecolor": shade}
    axes.add_patch(Ellipse((mean[0], mean[1]), width, height, angle=angle, facecolor="none", **style))
    if not dotted:
        axes.add_patch(Ellipse((mean[0], mean[1]), width, height, angle=angle, facecolor=shade, alpha=0.08))


def what_the_mixture_says(run: Run, step: Step) -> Figure:
    """Four samples, the mixture's likelihoods of them and the entropy, from sure to undecided."""
    figure = Figure(figsize=(8.6, 3.0), layout="constrained")
    chosen = examples(step)
    top, bottom = figure.subplots(2, len(chosen), height_ratios=[1, 1.3])
    for position, (picture, bars, place) in enumerate(zip(top, bottom, chosen, strict=True)):
        tiles(picture, step.images[place : place + 1], columns=1)
        entropy, label = float(step.said.novelty[place]), int(step.said.pseudo_labels[place])
        said = {UNKNOWN: "learns: unknown", UNLABELED: "learns nothing"}.get(label)
        picture.set_title(said or f"learns: class {run.class_names[label]}", loc="center", color=INK)
        bars.bar(run.class_names, step.posterior[place].numpy(), color=colour(label), width=0.7)
        bars.set(ylim=(0, 1.02), yticks=[0, 0.5, 1])
        bars.set_xlabel(f"entropy $I$ = {entropy:.3f}" if entropy >= 0.0005 else "entropy $I$ < 0.001")
        bars.grid(visible=False, axis="x")
        if position:
            bars.set_yticklabels([])
    bottom[0].set_ylabel("likelihood $p$")
    return figure


def examples(step: Step) -> list[int]:
    """Places of five samples along the axis of entropies: sure, in between, undecided."""
    order = step.said.novelty.argsort()
    labels = step.said.pseudo_labels[order]
    known, none, unknown = (order[labels >= 0], order[labels == UNLABELED], order[labels == UNKNOWN])
    return [int(group[int(share * (len(group) - 1))]) for group, share in
            ((known, 0.1), (known, 0.7), (none, 0.5), (unknown, 0.4), (unknown, 0.9))]  # fmt: skip


def who_teaches(run: Run, step: Step) -> Figure:
    """The batch on the axis of entropies with the thresholds, and how many are left out and rightly labelled."""
    figure = Figure(figsize=(8.6, 2.9), layout="constrained")
    axes, history = figure.subplots(1, 2, width_ratios=[1.7, 1])
    entropies = step.said.novelty.clamp_min(SMALLEST).numpy()
    order = np.argsort(entropies, kind="stable")
    truth = step.truth.numpy()[order]
    limits = step.said.thresholds
    axes.axvspan(SMALLEST / 1.5, limits.known, color=KNOWN_COLOR, alpha=0.09, linewidth=0)
    axes.axvspan(limits.unknown, 1.0, color=UNKNOWN_COLOR, alpha=0.12, linewidth=0)
    colours = [colour(int(label)) for label in truth]
    axes.scatter(entropies[order], np.arange(len(order)), c=colours, s=20, linewidths=0.4, edgecolors="white", zorder=3)
    axes.axvline(limits.prediction, color=INK, linewidth=1.0, linestyle=(0, (4, 2)))
    axes.set(xscale="log", xlim=(SMALLEST / 1.5, 1.0), ylim=(-1.5, len(order) + 15), yticks=[])
    for place, text in (
        (np.sqrt(SMALLEST / 1.5 * limits.known), "learn their class"),
        (np.sqrt(limits.known * limits.unknown), "left out"),
        (np.sqrt(limits.unknown), "learn\nunknown"),
    ):
        axes.text(place, len(order) + 14, text, ha="center", va="top", fontsize=8.5, color=INK)
    axes.text(
        limits.prediction * 0.85,
        3.0,
        "answered as\nunknown\nright of τ",
        fontsize=8,
        color=INK,
        va="bottom",
        ha="right",
    )
    axes.set_xlabel("entropy $I$ of the likelihoods (logarithmic)")
    axes.set_ylabel("64 samples, sorted")
    axes.set_title("The gate, and what the samples truly are")
    numbers = np.arange(1, len(run.steps) + 1)
    used = [float((step.said.pseudo_labels != UNLABELED).double().mean()) for step in run.steps]
    right = [rightly_taught(step) for step in run.steps]
    history.plot(numbers, smooth(used), color=SOFT, linewidth=1.8)
    history.plot(numbers, smooth(right), color=KNOWN_COLOR, linewidth=1.8)
    history.text(1, smooth(used)[8] + 0.06, "teach, of all", ha="left", color=SOFT, fontsize=9)
    history.text(22, smooth(right)[21] - 0.065, "right, of these", ha="left", color=KNOWN_COLOR, fontsize=9)
    history.set(ylim=(0.4, 1.0), xlabel="batch", title="Who teaches, who is right")
    history.yaxis.set_major_formatter(matplotlib.ticker.PercentFormatter(1.0, decimals=0))
    return figure


def rightly_taught(step: Step) -> float:
    """Share of the pseudo-labels that are true."""
    used = step.said.pseudo_labels != UNLABELED
    return float((step.said.pseudo_labels == step.truth)[used].double().mean())


def smooth(values: list[float], window: int = 5) -> Array:
    """Mean of the last batches."""
    sums = np.cumsum(np.concatenate([[0.0], values]))
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(ends - window, 0)
    return np.asarray((sums[ends] - sums[starts]) / (ends - starts))


def what_the_losses_do(run: Run) -> Figure:
    """Cosines between samples at the start and near the end, and how decided the classifier is."""
    figure = Figure(figsize=(8.6, 2.9), layout="constrained")
    *matrices, decided = figure.subplots(1, 3, width_ratios=[1, 1, 1.15])
    for axes, number in zip(matrices, EARLY_LATE, strict=True):
        step = run.steps[number - 1]
        drawn = similarities(axes, step)
        axes.set_title(f"Batch {number}")
    bar = figure.colorbar(drawn, ax=matrices, location="bottom", shrink=0.5, aspect=30, pad=0.02)
    bar.set_label("cosine of two samples in the reduced space")
    bar.outline.set_visible(False)  # type: ignore[operator]
    numbers = np.arange(1, len(run.steps) + 1)
    for text, known, shade in (("learn a class", True, KNOWN_COLOR), ("learn unknown", False, UNKNOWN_COLOR)):
        values = smooth([doubt(step, known=known) for step in run.steps])
        decided.plot(numbers, values, color=shade, linewidth=2.0)
        decided.text(numbers[-1], values[-1] + 0.1, text, ha="right", color=shade, weight="bold")
    decided.set(ylim=(0, 1.1), xlabel="batch", title="Entropy of the classifier")
    return figure


def similarities(axes: Axes, step: Step) -> Any:
    """(N, N) cosines, samples sorted by their pseudo-label; those left out are not shown."""
    labels = step.said.pseudo_labels.numpy()
    order = [place for place in np.argsort(np.where(labels == UNKNOWN, 99, labels), kind="stable")
             if labels[place] != UNLABELED]  # fmt: skip
    directions = torch.nn.functional.normalize(step.reduced[order], dim=1)
    drawn = axes.imshow((directions @ directions.T).numpy(), cmap="RdBu_r", vmin=-1.0, vmax=1.0)
    sorted_labels = labels[order]
    edges = [0, *(np.flatnonzero(np.diff(sorted_labels)) + 1), len(order)]
    for low, high in pairwise(edges):
        label = int(sorted_labels[low])
        size = high - low
        frame = Rectangle((low - 0.5, low - 0.5), size, size, fill=False, edgecolor=colour(label), linewidth=1.8)
        axes.add_patch(frame)
        if size >= 3:
            text = "unknown" if label == UNKNOWN else str(label)
            look: dict[str, Any] = {"color": colour(label), "weight": "bold", "rotation": 90 if label == UNKNOWN else 0}
            axes.text(-1.5, (low + high) / 2, text, ha="right", va="center", fontsize=8, **look)
    axes.set(xticks=[], yticks=[])
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    return drawn


def doubt(step: Step, *, known: bool) -> float:
    """Mean normalised entropy of f(x) over the samples that learn a class, or that learn to be unknown."""
    labels, scores = step.said.pseudo_labels, step.said.scores.double()
    entropy = -torch.special.xlogy(scores, scores).sum(dim=1) / np.log(scores.shape[1])
    return float(entropy[labels >= 0 if known else labels == UNKNOWN].mean())


def what_comes_of_it(run: Run) -> Figure:
    """Share of right answers along the stream, and the feature space at its end."""
    figure = Figure(figsize=(8.6, 3.2), layout="constrained")
    axes, first, last = figure.subplots(1, 3, width_ratios=[1.25, 1, 1])
    numbers = np.arange(1, len(run.steps) + 1)
    for text, labels, shade in (
        ("gmm", [step.said.labels for step in run.steps], "#c8283c"),
        ("source model", [step.source_labels for step in run.steps], "#7d848e"),
    ):
        right = [float((said == step.truth).double().mean()) for said, step in zip(labels, run.steps, strict=True)]
        axes.scatter(numbers, right, s=7, color=shade, alpha=0.35, linewidths=0)
        axes.plot(numbers, smooth(right, 8), color=shade, linewidth=2.0)
        axes.text(numbers[-1], smooth(right, 8)[-1] + 0.035, text, ha="right", color=shade, weight="bold")
    axes.set(ylim=(0.3, 1.0), xlabel="batch", title="Right answers, new digits included")
    axes.yaxis.set_major_formatter(matplotlib.ticker.PercentFormatter(1.0, decimals=0))
    last_full = len(run.steps) - 1
    for panel, steps in ((first, run.steps[:4]), (last, run.steps[last_full - 4 : last_full])):
        view(panel, run, steps)
    first.set_title("Batches 1 to 4")
    last.set_title(f"… and {last_full - 3} to {last_full}")
    return figure


def story(run: Run) -> dict[str, Any]:
    """The numbers of the interactive picture: every step in its plane, rounded."""
    return {"classes": run.class_names, "shared": run.shared, "side": CONTENT, "half": HALF, "smallest": SMALLEST,
            "steps": [scene(run, step) for step in run.steps]}  # fmt: skip


def scene(run: Run, step: Step) -> dict[str, Any]:
    """One step: samples, Gaussians and thresholds."""
    plane = Plane.of(step.after, run.shared)
    spreads = plane.spreads(step.after)
    return {
        "points": rounded(plane.points(step.reduced)),
        "entropy": [float(f"{value:.3g}") for value in step.said.novelty.clamp_min(SMALLEST).tolist()],
        "truth": step.truth.tolist(),
        "learns": step.said.pseudo_labels.tolist(),
        "answer": step.said.labels.tolist(),
        "source": step.source_labels.tolist(),
        "means": rounded(plane.points(step.after.means)),
        "spreads": rounded(spreads.reshape(len(spreads), 4)[:, [0, 1, 3]]),
        "thresholds": [float(f"{value:.3g}") for value in step.said.thresholds],
    }


def sheet(run: Run) -> None:
    """All digits of the stream in one picture, a row a batch, in 16 greys: what the interactive picture shows."""
    rows = [np.hstack([*(image.numpy() for image in step.images), np.zeros((28, 28 * (64 - len(step.images))))])
            for step in run.steps]  # fmt: skip
    greys = (np.vstack(rows) * 15).round().astype(np.uint8) * 17
    Image.fromarray(greys).quantize(16).save(DIGITS, optimize=True)


def rounded(values: Array, digits: int = 2) -> Any:
    return np.round(values, digits).tolist()


if __name__ == "__main__":
    main()
