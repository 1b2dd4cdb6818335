"""What the efforts cost, and which one fits a budget."""

from __future__ import annotations

from functools import partial

import pytest

from driftgate import DriftgateError
from driftgate.lab.bench import step_cost

SETTING = step_cost.Setting("cnn", 4, (16, 16), batch_size=32)


def costs_of(rows: dict[str, tuple[float, int]]) -> list[step_cost.EffortCost]:
    return [
        step_cost.EffortCost(name, seconds, seconds, 1.0, mib * 2**20, 1.0) for name, (seconds, mib) in rows.items()
    ]


COSTS = costs_of(
    {
        step_cost.INFERENCE: (1.0, 50),
        "full": (7.0, 900),
        step_cost.LOW: (9.0, 300),
        "light": (2.2, 120),
        "frozen": (1.1, 60),
    }
)


@pytest.mark.parametrize(
    ("seconds", "mebibytes", "chosen"),
    [
        (None, None, "full"),
        (7.0, 900.0, "full"),
        (None, 899.0, step_cost.LOW),
        (8.0, 899.0, "light"),
        (2.0, None, "frozen"),
        (None, 61.0, "frozen"),
        (1.05, None, None),  # an inference alone is no effort
        (9.0, 10.0, None),
    ],
)
def test_the_dearest_effort_that_fits(seconds: float | None, mebibytes: float | None, chosen: str | None) -> None:
    found = step_cost.choose_effort(COSTS, seconds, mebibytes)
    assert (found and found.effort) == chosen


def test_what_is_given_wins_over_every_effort() -> None:
    found = step_cost.effort_settings("gmm", "paper", {"lr": 0.5})
    assert list(found) == ["full", step_cost.LOW, "light", "frozen"]
    assert all(settings.model_dump()["lr"] == 0.5 for settings in found.values())
    assert found[step_cost.LOW].model_dump()["memory"] == "low" and found["full"].model_dump()["gate"] == "frozen"
    assert found["light"].model_dump()["effort"] == "light"


def test_a_method_without_gradient_has_no_efforts() -> None:
    with pytest.raises(DriftgateError, match="'source-only' has no efforts"):
        step_cost.effort_settings("source-only", None, {})


def test_every_effort_is_measured_against_the_inference() -> None:
    costs = step_cost.measure_efforts(partial(step_cost.loaded_model, SETTING), "gmm", batch_size=32, rounds=1)
    assert [cost.effort for cost in costs] == [step_cost.INFERENCE, "full", step_cost.LOW, "light", "frozen"]
    assert costs[0].to_inference == 1.0
    for cost in costs:
        assert 0 < cost.seconds <= cost.longest_seconds and cost.peak_bytes > 0
        assert cost.frames_per_second == pytest.approx(32 / cost.seconds)
        assert cost.to_inference == pytest.approx(cost.seconds / costs[0].seconds)
