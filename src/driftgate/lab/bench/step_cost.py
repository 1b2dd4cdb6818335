"""Seconds and peak memory of a whole step, each configuration in a process of its own, steps taken in turns.

In turns, because the machine may be busy: a slow moment then hits all alike, and the ratio of two medians means
something. Only one process works at a time. Peak memory is what the process needed during a step above what it had
with the model loaded; it is read from the system and needs Linux. From it follows what each effort of a method costs on
a model, as a multiple of one inference, and which one fits a budget.
"""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from multiprocessing import get_context
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from driftgate.lab.bench.sweep import end_with_owner
from driftgate.methods import MethodSettings, create, get_method, resolve_settings
from driftgate.methods.effort import EffortSettings
from driftgate.models import UNTRAINED, SourceModel
from driftgate.models.normalization import BatchNorm, batch_statistics
from driftgate.models.statistics import SourceStatistics
from driftgate.plugins import import_module
from driftgate.resources import give_back_memory, peak_memory, reset_peak_memory, resident_memory
from driftgate.rng import seeded
from driftgate.types import DriftgateError

Stepper = Callable[[Tensor], Any]
Builder = Callable[[SourceModel], Stepper]
"""Makes of a loaded model what is called with each batch; must be picklable."""

Opener = Callable[[], SourceModel]

LOGIT_SPREAD = 4.0

INFERENCE = "inference"
"""One forward pass and the threshold of source-only: what the network costs without any adaptation."""

LOW = "full in low memory"
"""The same weights as ``full`` in less memory and more time."""

QUIET_THREADS = {"OMP_WAIT_POLICY": "passive", "KMP_BLOCKTIME": "0"}
"""Threads that wait actively after their work would disturb the process whose turn comes next."""


@dataclass(frozen=True)
class Setting:
    """The network and the batch that all configurations of a measurement share."""

    backbone: str
    num_classes: int
    input_size: tuple[int, int] | None = None
    batch_size: int = 64
    weights: str = UNTRAINED


@dataclass
class Cost:
    """What the steps of one configuration took; peaks are above the loaded model, what the method holds included."""

    label: str
    seconds: list[float] = field(default_factory=list)
    peaks: list[int] = field(default_factory=list)

    @property
    def median_seconds(self) -> float:
        return statistics.median(self.seconds)

    @property
    def mean_seconds(self) -> float:
        return statistics.fmean(self.seconds)

    @property
    def peak_bytes(self) -> int:
        return max(self.peaks)

    def fits(self, seconds: float | None, mebibytes: float | None) -> bool:
        """Whether a batch takes no more than that on average, and no step more memory."""
        in_time = seconds is None or self.mean_seconds <= seconds
        return in_time and (mebibytes is None or self.peak_bytes <= mebibytes * 2**20)


def method_stepper(model: SourceModel, *, name: str, settings: dict[str, Any], imports: Sequence[str] = ()) -> Stepper:
    """The step of a registered method, known once ``imports`` are imported; for ``functools.partial``."""
    for module in imports:
        import_module(module)
    return create(name, model, **settings).step


def measure(
    configurations: dict[str, Builder],
    setting: Setting,
    *,
    steps: int = 5,
    warmup: int = 2,
    on_step: Callable[[str, int, int], None] | None = None,
    open_model: Opener | None = None,
    cpu_time: bool = False,
) -> list[Cost]:
    """Take ``steps`` steps of every configuration in turns, after ``warmup`` rounds that do not count.

    ``open_model`` gives each process another model than the setting's; must be picklable. ``cpu_time`` counts the time
    of the processor, for a busy machine and one thread.
    """
    if not reset_peak_memory():
        raise DriftgateError("Expected Linux to measure peak memory but this system does not tell it; run it there.")
    costs = {label: Cost(label) for label in configurations}
    given = (open_model or partial(loaded_model, setting), setting.batch_size, cpu_time, os.getpid())
    with ExitStack() as stack:
        stack.enter_context(patch.dict(os.environ, QUIET_THREADS))  # a spawned process reads it at its start
        pools = {
            label: stack.enter_context(ProcessPoolExecutor(1, get_context("spawn"), _start, (build, *given)))
            for label, build in configurations.items()
        }
        for turn, (label, pool) in product(range(1, warmup + steps + 1), pools.items()):
            try:
                seconds, peak = pool.submit(_step).result()
            except BrokenProcessPool as error:
                raise DriftgateError(
                    f"Expected a step of {label!r} but its process ended; it may have run out of memory."
                ) from error
            costs[label].seconds += [seconds] if turn > warmup else []
            costs[label].peaks.append(peak)
            if on_step is not None:
                on_step(label, turn, warmup + steps)
    return list(costs.values())


class _Worker:
    """A model and its stepper, in a process of their own."""

    def __init__(self, build: Builder, opener: Opener, batch_size: int, cpu_time: bool, owner: int) -> None:
        end_with_owner(owner)
        self.model, self.generator = opener(), seeded(0)
        self.loaded = resident_memory() or 0
        self.shape = (batch_size, *self.model.spec.shape)
        self.clock = time.process_time if cpu_time else time.perf_counter
        make_sure(self.model, batch_size)
        self.take_step = build(self.model)

    def step(self) -> tuple[float, int]:
        """Seconds of a step, and its peak memory above that of the loaded model."""
        images = torch.rand(self.shape, generator=self.generator)
        reset_peak_memory()
        started = self.clock()
        self.take_step(images)
        measured = self.clock() - started, peak_memory() - self.loaded
        del images
        give_back_memory()  # the next process needs it
        return measured


_workers: list[_Worker] = []
"""The worker of this process."""


def _start(*given: Any) -> None:
    _workers.append(_Worker(*given))


def _step() -> tuple[float, int]:
    return _workers[0].step()


def loaded_model(setting: Setting) -> SourceModel:
    """A network of the setting's with random source statistics, which some methods ask for."""
    names = [f"class {index}" for index in range(setting.num_classes)]
    model = SourceModel.build(setting.backbone, names, input_size=setting.input_size, weights=setting.weights)
    size, generator = model.spec.feature_dim, seeded(1)
    model.statistics = SourceStatistics(
        torch.randn(setting.num_classes, size, generator=generator), torch.zeros(size), torch.eye(size)
    )
    return model


def make_sure(model: SourceModel, batch_size: int) -> None:
    """Let a random network be partly sure and partly not of random images, with batch norm statistics that fit them.

    Where a network doubts everything, some methods find nothing to learn from, and their steps would look cheap.
    """
    images = torch.rand(batch_size, *model.spec.shape, generator=seeded(2))
    norms = [layer for layer in model.modules() if isinstance(layer, BatchNorm)]
    momenta = [layer.momentum for layer in norms]
    for layer in norms:
        layer.momentum = 1.0
    with torch.no_grad(), batch_statistics(model, batch_size):
        model(images)
    for layer, momentum in zip(norms, momenta, strict=True):
        layer.momentum = momentum
    with torch.no_grad():
        spread = model(images).logits.std()
        if isinstance(model.head, nn.Linear):
            # Logits of this spread give entropies between sure and undecided. Assigning goes through the weight norm.
            wide = model.head.weight * (LOGIT_SPREAD / spread)
            model.head.weight = nn.Parameter(wide) if "weight" in dict(model.head.named_parameters()) else wide


def effort_settings(method: str, preset: str | None, given: dict[str, Any]) -> dict[str, MethodSettings]:
    """The settings of every effort of a method, the dearest first, those ``given`` on top; none for one that has no
    gradient to save."""
    efforts = getattr(get_method(method).Settings, "efforts", {})
    if not efforts:
        raise DriftgateError(
            f"Expected a method that learns by gradient but {method!r} has no efforts to choose from; name "
            "another --method."
        )
    rows = {name: {"effort": name} for name in efforts}
    rows = {"full": rows["full"], LOW: {"effort": "full", "memory": "low"}, **rows}
    return {name: resolve_settings(method, preset, {**extra, **given}) for name, extra in rows.items()}


def measure_efforts(
    open_model: Opener,
    method: str,
    *,
    batch_size: int,
    preset: str | None = None,
    settings: dict[str, Any] | None = None,
    imports: tuple[str, ...] = (),
    rounds: int = 4,
    on_step: Callable[[str, int, int], None] | None = None,
) -> list[Cost]:
    """Steps of every effort in turns, each in a process of its own; the first is the plain inference.

    ``rounds`` grow to whole turns of the batches that teach.
    """
    efforts = effort_settings(method, preset, settings or {})
    # Of a pretrained network perhaps none teaches, which takes no turn at all.
    shares = [
        chosen.share_that_teaches(pretrained=False) for chosen in efforts.values() if isinstance(chosen, EffortSettings)
    ]
    turn = math.lcm(*(round(1 / share) for share in shares if share > 0))
    precision = {"precision": next(iter(efforts.values())).precision}
    builders: dict[str, Builder] = {INFERENCE: partial(method_stepper, name="source-only", settings=precision)}
    for name, chosen in efforts.items():
        builders[name] = partial(method_stepper, name=method, settings=chosen.model_dump(), imports=imports)
    setting, steps = Setting("", 0, (0, 0), batch_size), turn * math.ceil(rounds / turn)
    return measure(builders, setting, steps=steps, warmup=1, on_step=on_step, open_model=open_model)


def choose_effort(costs: list[Cost], seconds: float | None, mebibytes: float | None) -> Cost | None:
    """The dearest effort that fits the budget; None where not even the cheapest does."""
    fitting = [cost for cost in costs if cost.label != INFERENCE and cost.fits(seconds, mebibytes)]
    return fitting[0] if fitting else None
