"""Seconds of a step of every registered method, and the share of it spent outside the network's own passes.

The network is the time inside the model's forward passes (the teachers' among them) and inside autograd's backward
pass (that of the losses among it). What is left is what a method adds: augmentation, the optimiser, and the rest,
which is clustering, memory, mixtures, scores and losses forward. All methods run in one process and take their steps
in turns, so that a busy machine slows all alike. Images and weights are random, but the network is made as sure as a
trained one: where it doubts everything, some methods find nothing to learn from and would look fast.

    python benchmarks/methods.py
    python benchmarks/methods.py --backbone lite0 --image-size 112 --steps 3 --methods gmm comet-p
    python benchmarks/methods.py --json
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from driftgate.lab.bench.step_cost import Setting, loaded_model, make_sure
from driftgate.methods import Method, available, create
from driftgate.models import SourceModel
from driftgate.rng import seeded
from driftgate.views.images import Augmentation, StrongAugmentation

WARMUP = 1
SIZES = {"cnn": 28, "lite0": 112, "resnet50": 224}
PARTS = ("forward", "backward", "augmentation", "optimizer")
WATCHED: tuple[tuple[object, str, str], ...] = (
    (SourceModel, "forward", "forward"),
    (SourceModel, "features", "forward"),
    (torch.autograd, "backward", "backward"),
    (Augmentation, "__call__", "augmentation"),
    (StrongAugmentation, "__call__", "augmentation"),
    (torch.optim.SGD, "step", "optimizer"),
)
"""Where each part of a step is measured: owner, name of the function, part."""


class Stopwatch:
    """Seconds by part; what runs inside another part (a pass done again in the backward pass) counts for that one."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(PARTS, 0.0)
        self._running = False

    def reset(self) -> None:
        self.seconds = dict.fromkeys(PARTS, 0.0)

    def timed(self, function: Callable[..., Any], part: str) -> Callable[..., Any]:
        @functools.wraps(function)
        def run(*inputs: Any, **named: Any) -> Any:
            if self._running:
                return function(*inputs, **named)
            self._running = True
            start = time.perf_counter()
            try:
                return function(*inputs, **named)
            finally:
                self.seconds[part] += time.perf_counter() - start
                self._running = False

        return run


@contextmanager
def replaced(owner: object, name: str, function: Callable[..., Any]) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, function)
    try:
        yield
    finally:
        setattr(owner, name, before)


@contextmanager
def watched(watch: Stopwatch) -> Iterator[None]:
    with ExitStack() as stack:
        for owner, name, part in WATCHED:
            stack.enter_context(replaced(owner, name, watch.timed(getattr(owner, name), part)))
        yield


@dataclass(frozen=True)
class StepTime:
    """One step: the whole, and its parts."""

    total: float
    parts: dict[str, float]

    @property
    def outside(self) -> float:
        """Share of the step outside the network's forward and backward passes."""
        return 1.0 - (self.parts["forward"] + self.parts["backward"]) / self.total

    def share(self, part: str) -> float:
        return self.parts[part] / self.total

    @property
    def rest(self) -> float:
        """Share of the step in none of the parts."""
        return 1.0 - sum(self.parts.values()) / self.total


def sure_model(setting: Setting) -> SourceModel:
    """A random network, as sure as a trained one."""
    model = loaded_model(setting)
    make_sure(model, setting.batch_size)
    return model


def time_step(method: Method, images: torch.Tensor, watch: Stopwatch) -> StepTime:
    watch.reset()
    start = time.perf_counter()
    method.step(images)
    return StepTime(time.perf_counter() - start, watch.seconds)


def measure(names: list[str], setting: Setting, steps: int, settings: dict[str, Any]) -> list[dict[str, Any]]:
    """A row for each method: medians of ``steps`` steps, taken in turns after ``WARMUP`` rounds."""
    methods = {name: create(name, sure_model(setting), **given(name, settings)) for name in names}
    times: dict[str, list[StepTime]] = {name: [] for name in names}
    generator, watch, shape = seeded(0), Stopwatch(), sure_model(setting).spec.shape
    with watched(watch):
        for turn in range(WARMUP + steps):
            images = torch.rand(setting.batch_size, *shape, generator=generator)
            for name, method in methods.items():
                taken = time_step(method, images, watch)
                if turn >= WARMUP:
                    times[name].append(taken)
    return [summarise(name, times[name], method.num_bytes) for name, method in methods.items()]


def given(name: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Those of the settings that the method has."""
    return {key: value for key, value in settings.items() if key in available()[name].Settings.model_fields}


def summarise(name: str, times: list[StepTime], remembered: int) -> dict[str, Any]:
    """Medians over the steps."""

    def median(value: Callable[[StepTime], float]) -> float:
        return statistics.median(value(step) for step in times)

    return {
        "method": name,
        "seconds": median(lambda step: step.total),
        "outside": median(lambda step: step.outside),
        "learned": sum(step.parts["backward"] > 0 for step in times),
        "augmentation": median(lambda step: step.share("augmentation")),
        "optimizer": median(lambda step: step.share("optimizer")),
        "rest": median(lambda step: step.rest),
        "state_bytes": remembered,
    }


COLUMNS = (
    "seconds a step",
    "outside the network",
    "augmentation",
    "optimiser",
    "rest",
    "steps that learned",
    "state, KiB",
)


def markdown(rows: list[dict[str, Any]]) -> str:
    """A table; the shares of augmentation, optimiser and rest add up to the one outside the network."""
    lines = [" | ".join(("| method", *COLUMNS)) + " |", "|---" * (1 + len(COLUMNS)) + "|"]
    for row in rows:
        shares = (f"{100 * row[part]:.1f} %" for part in ("outside", "augmentation", "optimizer", "rest"))
        state = f"{row['state_bytes'] / 1024:,.1f}"
        lines.append(
            " | ".join((f"| {row['method']}", f"{row['seconds']:.4f}", *shares, str(row["learned"]), state)) + " |"
        )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description="Time of a step of every method, and the share outside the network.")
    parser.add_argument("--backbone", choices=sorted(SIZES), default="cnn")
    parser.add_argument("--classes", type=int, default=9)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--image-size", type=int, help="pixels; that of the backbone's usual data if left out")
    parser.add_argument("--steps", type=int, default=10, help="steps of each method, after one to warm up")
    parser.add_argument("--methods", nargs="+", choices=sorted(available()), default=sorted(available()))
    parser.add_argument("--memory", choices=["fast", "balanced", "low"], default="fast")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    chosen = parser.parse_args()
    size = chosen.image_size or SIZES[chosen.backbone]
    setting = Setting(chosen.backbone, chosen.classes, (size, size), chosen.batch_size)
    rows = measure(chosen.methods, setting, chosen.steps, {"memory": chosen.memory})
    if chosen.json:
        print(json.dumps({"setting": vars(chosen) | {"image_size": size}, "rows": rows}, indent=2))
    else:
        threads = torch.get_num_threads()
        print(
            f"{chosen.backbone} at {size} px, C={chosen.classes}, N={chosen.batch_size}, {threads} threads, "
            f"memory={chosen.memory}, medians of {chosen.steps} steps"
        )
        print(markdown(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
