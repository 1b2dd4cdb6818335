"""What each effort of a method costs on a model, as a multiple of one inference, and which one fits a budget."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from driftgate.lab.bench.step_cost import Builder, Cost, Opener, Setting, Stepper, measure
from driftgate.methods import MethodSettings, create, get_method, resolve_settings
from driftgate.models import SourceModel
from driftgate.plugins import import_module
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

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


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


def settings_stepper(model: SourceModel, *, name: str, settings: MethodSettings, imports: tuple[str, ...]) -> Stepper:
    """The step of a method with these settings; for ``functools.partial``."""
    for module in imports:
        import_module(module)
    return create(name, model, **settings.model_dump()).step


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
    turns = [round(1 / share) for share in (_share(chosen) for chosen in efforts.values()) if share > 0]
    rounds = math.lcm(*turns) * math.ceil(rounds / math.lcm(*turns))
    precision = next(iter(efforts.values())).precision
    builders: dict[str, Builder] = {
        INFERENCE: partial(
            settings_stepper,
            name="source-only",
            settings=resolve_settings("source-only", None, {"precision": precision}),
            imports=(),
        )
    }
    for name, chosen in efforts.items():
        builders[name] = partial(settings_stepper, name=method, settings=chosen, imports=imports)
    setting = Setting("", 0, (0, 0), batch_size)
    costs = measure(builders, setting, steps=rounds, warmup=warmup, on_step=on_step, open_model=open_model)
    return [_effort_cost(cost, costs[0], batch_size) for cost in costs]


def _share(settings: MethodSettings) -> float:
    return float(getattr(settings, "teach_share", 1.0))


def _effort_cost(cost: Cost, inference: Cost, batch_size: int) -> EffortCost:
    seconds = sum(cost.seconds) / len(cost.seconds)
    return EffortCost(
        cost.label,
        seconds=seconds,
        longest_seconds=max(cost.seconds),
        to_inference=sum(cost.seconds) / sum(inference.seconds),
        peak_bytes=cost.peak_bytes,
        frames_per_second=batch_size / seconds,
    )


def choose_effort(costs: list[EffortCost], seconds: float | None, mebibytes: float | None) -> EffortCost | None:
    """The dearest effort that fits the budget; None where not even the cheapest does."""
    fitting = [cost for cost in costs if cost.effort != INFERENCE and cost.fits(seconds, mebibytes)]
    return fitting[0] if fitting else None
