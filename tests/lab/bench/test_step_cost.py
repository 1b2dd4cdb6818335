"""The whole-step benchmark: processes that take turns, and figures that can be compared."""

from __future__ import annotations

from functools import partial

import pytest

from driftgate.lab.bench.step_cost import Setting, loaded_model, make_sure, measure, method_stepper
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
    import torch

    model = loaded_model(SETTING)
    make_sure(model, SETTING.batch_size)
    images = torch.rand(SETTING.batch_size, 3, 16, 16)
    doubt = entropy(model(images).logits.log_softmax(dim=1))
    assert (doubt < 0.25).any() and (doubt > 0.5).any()
    assert (create("comet-f", model).step(images).pseudo_labels != UNLABELED).any()
