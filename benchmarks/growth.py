"""How the part of a gmm step outside the network grows with classes C, reduced dimensions R and batch size N.

    python benchmarks/growth.py --plot docs/growth.png

Mixture, gate and losses with their gradient on given features: no network, no augmentation, no optimiser. Time is that
of the fastest of several steps; memory is what torch allocated at once, above what it held before, told by its own
profiler. Both stand beside a formula whose factors are fitted.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.profiler import ProfilerActivity, profile

from driftgate.methods import create
from driftgate.methods.effort import LabelledView
from driftgate.methods.gmm import GMM
from driftgate.models import SourceModel
from driftgate.models.source_model import ModelOutput
from driftgate.rng import seeded

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.ticker import LogLocator, NullFormatter

Array = NDArray[np.float64]

FEATURES = 256
BASE = {"C": 65, "R": 64, "N": 64}
AXES: dict[str, tuple[int, ...]] = {
    "C": (9, 25, 65, 130, 200, 345),
    "R": (16, 32, 48, 64, 96, 128),
    "N": (1, 4, 16, 64, 128, 256),
}
NAMES = {"C": "source classes C", "R": "reduced dimensions R", "N": "batch size N"}


def make(num_classes: int, dim: int) -> GMM:
    """The method around a network of no cost."""
    backbone = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, FEATURES))
    names = [f"class {index}" for index in range(num_classes)]
    model = SourceModel.untrained(backbone, class_names=names, input_size=(8, 8), feature_dim=FEATURES)
    method = create("gmm", model, reduced_dim=dim)
    assert isinstance(method, GMM)
    return method


def step(method: GMM, features: torch.Tensor, logits: torch.Tensor) -> None:
    """All of a step but the network's passes, the augmentation and the optimiser."""
    output = ModelOutput(features.requires_grad_(), logits.requires_grad_())
    reduced = method.reducer(output.features)
    prediction, mixture, gate, *_ = method._assess(output, reduced)
    view = LabelledView(reduced.detach(), output.logits.detach(), prediction.pseudo_labels, prediction.scores)
    terms = method._losses(output.logits, reduced, view, prediction.pseudo_labels, mixture.means)
    loss = torch.stack(list(terms.values())).sum()
    torch.autograd.backward(loss)
    method.mixture, method.gate = mixture, gate


def costs(points: list[dict[str, int]], repeats: int) -> list[dict[str, Any]]:
    """Seconds of the fastest step and the largest allocation at each point.

    The points take turns, and the fastest step counts: a busy machine only adds to the time, and not for long.
    """
    methods = [make(point["C"], point["R"]) for point in points]
    seconds: list[list[float]] = [[] for _ in points]
    for _ in range(repeats):
        for point, method, taken in zip(points, methods, seconds, strict=True):
            features, logits = draw_batch(point)
            started = time.perf_counter()
            step(method, features, logits)
            taken.append(time.perf_counter() - started)
    return [
        {
            **point,
            "seconds": min(taken),
            "state_bytes": method.mixture.num_bytes,
            "peak_bytes": _largest_allocation(method, *draw_batch(point)),
        }
        for point, method, taken in zip(points, methods, seconds, strict=True)
    ]


def draw_batch(point: dict[str, int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Features (N, D) and logits (N, C)."""
    generator = seeded(0)
    features = torch.randn(point["N"], FEATURES, generator=generator)
    return features, 3 * torch.randn(point["N"], point["C"], generator=generator)


def _largest_allocation(method: GMM, features: torch.Tensor, logits: torch.Tensor) -> int:
    """Running sum of torch's allocations and releases during one step; the largest value it reaches."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        step(method, features, logits)
    total = largest = 0
    assert profiler.profiler is not None
    for event in profiler.profiler.kineto_results.events():
        if event.name() == "[memory]":
            total += event.nbytes()
            largest = max(largest, total)
    return largest


def time_terms(point: dict[str, Any]) -> list[float]:
    """Constant, N C R^2 (moments, solves), C R^3 (factorisation), N^2 R (contrastive loss)."""
    n, c, r = point["N"], point["C"], point["R"]
    return [1.0, n * c * r**2, c * r**3, n**2 * r]


def memory_terms(point: dict[str, Any]) -> list[float]:
    """Constant, C R^2 (the mixture before and after), N R^2 (packed outer products), N^2 (contrastive loss), N C."""
    n, c, r = point["N"], point["C"], point["R"]
    return [1.0, c * r**2, n * r**2, n**2, n * c]


def fit(points: list[dict[str, Any]], terms: Callable[[dict[str, Any]], list[float]], name: str) -> Array:
    """Non-negative factors of the terms, fitted to the relative errors of what was measured."""
    from scipy.optimize import nnls

    measured = np.array([point[name] for point in points])
    factors: Array = nnls(np.array([terms(point) for point in points]) / measured[:, None], np.ones(len(points)))[0]
    return factors


def draw(points: list[dict[str, Any]], path: Path) -> None:
    """Three panels of time above three of memory, measured beside the formula."""
    seconds, peak = fit(points, time_terms, "seconds"), fit(points, memory_terms, "peak_bytes")
    formulas = ((seconds, time_terms), (peak, memory_terms))
    figure, axes = plt.subplots(2, 3, figsize=(11, 6), layout="constrained")
    for column, (axis, values) in enumerate(AXES.items()):
        chosen = [point for point in points if all(point[o] == BASE[o] for o in BASE if o != axis)]
        chosen.sort(key=lambda point: int(point[axis]))
        xs = [point[axis] for point in chosen]
        fixed = ", ".join(f"{other} = {BASE[other]}" for other in BASE if other != axis)
        top, bottom = axes[0, column], axes[1, column]
        milliseconds = [1e3 * point["seconds"] for point in chosen]
        peaks, states = ([point[name] / 2**20 for point in chosen] for name in ("peak_bytes", "state_bytes"))
        top.plot(xs, milliseconds, "o", color="#0b6e99", label="measured")
        lines = [[factors @ terms(point) for point in chosen] for factors, terms in formulas]
        top.plot(xs, 1e3 * np.array(lines[0]), color="#d1495b", label="a + b NCR² + c CR³ + d N²R")
        bottom.plot(xs, peaks, "o", color="#0b6e99", label="peak of the step")
        bottom.plot(xs, np.array(lines[1]) / 2**20, color="#d1495b", label="a + b CR² + c NR² + d N² + e NC")
        bottom.plot(xs, states, color="#6a994e", label="state, 4C(R + R(R+1)/2 + 1)")
        top.set(xscale="log", yscale="log", title=fixed, ylabel="ms" if column == 0 else "")
        bottom.set(xscale="log", yscale="log", xlabel=NAMES[axis], ylabel="MiB" if column == 0 else "")
        for panel in (top, bottom):
            panel.set_xticks(values, [str(value) for value in values])
            panel.tick_params(axis="x", which="minor", bottom=False, labelbottom=False)
            panel.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            panel.yaxis.set_major_formatter("{x:g}")
            panel.yaxis.set_minor_formatter(NullFormatter())
            panel.grid(alpha=0.3)
    axes[0, 0].legend(frameon=False, fontsize=8)
    axes[1, 0].legend(frameon=False, fontsize=8)
    figure.suptitle("A gmm step outside the network: time and memory")
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    wanted = {tuple({**BASE, axis: value}.items()) for axis, values in AXES.items() for value in values}
    points = costs([dict(point) for point in sorted(wanted)], arguments.repeats)
    if arguments.json:
        print(json.dumps(points))
    else:
        print("| C | R | N | ms | peak MiB | state MiB |\n|---|---|---|---|---|---|")
        for p in points:
            sizes = f"{p['peak_bytes'] / 2**20:.2f} | {p['state_bytes'] / 2**20:.3f}"
            print(f"| {p['C']} | {p['R']} | {p['N']} | {1e3 * p['seconds']:.2f} | {sizes} |")
        for name, terms, texts in (
            ("seconds", time_terms, ("1", "N C R^2", "C R^3", "N^2 R")),
            ("peak_bytes", memory_terms, ("1", "C R^2", "N R^2", "N^2", "N C")),
        ):
            factors = zip(texts, fit(points, terms, name), strict=True)
            print(f"{name} = " + " + ".join(f"{value:.2e} * {text}" for text, value in factors))
    if arguments.plot:
        draw(points, arguments.plot)


if __name__ == "__main__":
    main()
