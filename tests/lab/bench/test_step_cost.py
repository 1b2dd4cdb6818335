"""What whole steps cost: processes that take turns, the efforts of a method, and which one fits a budget."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from driftgate.lab.bench.step_cost import (
    INFERENCE,
    LOW,
    Cost,
    Setting,
    choose_effort,
    effort_settings,
    loaded_model,
    make_sure,
    measure,
    measure_efforts,
    method_stepper,
)
from driftgate.methods import create
from driftgate.novelty.scores import entropy
from driftgate.types import UNLABELED, DriftgateError

SETTING = Setting("cnn", 4, (16, 16), batch_size=32)


def fail(model: object) -> object:
    raise RuntimeError("no such step")


def test_every_configuration_takes_its_steps_in_turn() -> None:
    told: list[tuple[str, int, int]] = []
    builders = {
        "plain": partial(method_stepper, name="source-only", settings={}),
        "gmm": partial(method_stepper, name="gmm", settings={"memory": "low"}),
    }
    costs = measure(builders, SETTING, steps=2, warmup=1, on_step=lambda *step: told.append(step))
    assert [cost.label for cost in costs] == ["plain", "gmm"]
    assert all(len(cost.seconds) == 2 and min(cost.seconds) > 0 and cost.peak_bytes > 0 for cost in costs)
    assert told == [(label, turn, 3) for turn in (1, 2, 3) for label in builders]


def test_a_process_that_dies_is_told() -> None:
    with pytest.raises(DriftgateError, match="Expected a step of 'broken' but its process ended"):
        measure({"broken": fail}, SETTING, steps=1)


def test_the_network_is_partly_sure_so_that_every_method_learns() -> None:
    model = loaded_model(SETTING)
    make_sure(model, SETTING.batch_size)
    images = torch.rand(SETTING.batch_size, 3, 16, 16)
    doubt = entropy(model(images).logits.log_softmax(dim=1))
    assert (doubt < 0.25).any() and (doubt > 0.5).any()
    assert (create("comet-f", model).step(images).pseudo_labels != UNLABELED).any()


def costs_of(rows: dict[str, tuple[float, int]]) -> list[Cost]:
    return [Cost(name, [seconds], [mib * 2**20]) for name, (seconds, mib) in rows.items()]


COSTS = costs_of(
    {
        INFERENCE: (1.0, 50),
        "full": (7.0, 900),
        LOW: (9.0, 300),
        "light": (2.2, 120),
        "frozen": (1.1, 60),
    }
)


@pytest.mark.parametrize(
    ("seconds", "mebibytes", "chosen"),
    [
        (None, None, "full"),
        (7.0, 900.0, "full"),
        (None, 899.0, LOW),
        (8.0, 899.0, "light"),
        (2.0, None, "frozen"),
        (None, 61.0, "frozen"),
        (1.05, None, None),  # an inference alone is no effort
        (9.0, 10.0, None),
    ],
)
def test_the_dearest_effort_that_fits(seconds: float | None, mebibytes: float | None, chosen: str | None) -> None:
    found = choose_effort(COSTS, seconds, mebibytes)
    assert (found and found.label) == chosen


def test_what_is_given_wins_over_every_effort() -> None:
    found = effort_settings("gmm", "paper", {"lr": 0.5})
    assert list(found) == ["full", LOW, "light", "frozen"]
    assert all(settings.model_dump()["lr"] == 0.5 for settings in found.values())
    assert found[LOW].model_dump()["memory"] == "low" and found["full"].model_dump()["gate"] == "frozen"
    assert found["light"].model_dump()["effort"] == "light"


def test_a_method_without_gradient_has_no_efforts() -> None:
    with pytest.raises(DriftgateError, match="'source-only' has no efforts"):
        effort_settings("source-only", None, {})


def test_every_effort_is_measured_against_the_inference() -> None:
    costs = measure_efforts(partial(loaded_model, SETTING), "gmm", batch_size=32, rounds=1)
    assert [cost.label for cost in costs] == [INFERENCE, "full", LOW, "light", "frozen"]
    assert all(0 < cost.mean_seconds <= max(cost.seconds) and cost.peak_bytes > 0 for cost in costs)
