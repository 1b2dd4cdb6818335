"""What each effort of a method costs on a model, as a multiple of one inference, and which one fits a budget."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from driftgate.lab.bench.step_cost import Builder, Opener, Setting, measure, method_stepper
from driftgate.methods import MethodSettings, get_method, resolve_settings
from driftgate.types import DriftgateError

INFERENCE = "inference"
"""One forward pass and the threshold of source-only: what the network costs without any adaptation."""

LOW = "full in low memory"
"""The same weights as ``full`` in less memory and more time."""


@dataclass(frozen=True)
class EffortCost:
    """What a batch costs on average, batches that do not teach included, and what the largest step needs.

    ``peak_bytes`` are above the loaded model, optimiser and memory of the method included.
    """

    effort: str
    seconds: float
    longest_seconds: float
    to_inference: float
    peak_bytes: int
    frames_per_second: float

    def fits(self, seconds: float | None, mebibytes: float | None) -> bool:
        """Whether a batch takes no more than that on average, and no step more memory."""
        in_time = seconds is None or self.seconds <= seconds
        return in_time and (mebibytes is None or self.peak_bytes <= mebibytes * 2**20)


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
    warmup: int = 1,
    on_step: Callable[[str, int, int], None] | None = None,
) -> list[EffortCost]:
    """Steps of every effort in turns, each in a process of its own; the first is the plain inference.

    ``rounds`` grow to whole turns of the batches that teach.
    """
    efforts = effort_settings(method, preset, settings or {})
    shares = [float(getattr(chosen, "teach_share", 1.0)) for chosen in efforts.values()]
    turn = math.lcm(*(round(1 / share) for share in shares if share > 0))
    precision = {"precision": next(iter(efforts.values())).precision}
    builders: dict[str, Builder] = {INFERENCE: partial(method_stepper, name="source-only", settings=precision)}
    for name, chosen in efforts.items():
        builders[name] = partial(method_stepper, name=method, settings=chosen.model_dump(), imports=imports)
    setting, steps = Setting("", 0, (0, 0), batch_size), turn * math.ceil(rounds / turn)
    costs = measure(builders, setting, steps=steps, warmup=warmup, on_step=on_step, open_model=open_model)
    means = [sum(cost.seconds) / len(cost.seconds) for cost in costs]
    return [
        EffortCost(
            cost.label,
            seconds=seconds,
            longest_seconds=max(cost.seconds),
            to_inference=seconds / means[0],
            peak_bytes=cost.peak_bytes,
            frames_per_second=batch_size / seconds,
        )
        for cost, seconds in zip(costs, means, strict=True)
    ]


def choose_effort(costs: list[EffortCost], seconds: float | None, mebibytes: float | None) -> EffortCost | None:
    """The dearest effort that fits the budget; None where not even the cheapest does."""
    fitting = [cost for cost in costs if cost.effort != INFERENCE and cost.fits(seconds, mebibytes)]
    return fitting[0] if fitting else None
