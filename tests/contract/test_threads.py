"""Threads: methods beside each other, and many threads at one method, give what one after another gives."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch
from support import images_of, small_model, state_of

import driftgate
from driftgate import DivergedError, DriftgateError, Method
from driftgate.methods.gradient import GradientMethod

BATCHES = [images_of(16, seed) for seed in range(10)]


def in_threads(*tasks: Callable[[], object]) -> list[BaseException]:
    """Run the tasks at once; what went wrong in them."""
    errors: list[BaseException] = []

    def run(task: Callable[[], object]) -> None:
        try:
            task()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(task,)) for task in tasks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return errors


def stepping(method: Method, steps: int) -> Callable[[], None]:
    def run() -> None:
        for number in range(steps):
            method.step(BATCHES[number % len(BATCHES)])

    return run


def assert_same_state(one: Method, two: Method) -> None:
    first, second = state_of(one), state_of(two)
    assert first.keys() == second.keys() and [key for key in first if not torch.equal(first[key], second[key])] == []


@pytest.mark.timeout(900)
def test_four_methods_in_four_threads_are_four_methods_alone() -> None:
    """1,000 steps in all, of methods with and without views, queues and teachers."""
    names = ["gmm", "tent", "comet-f", "owttt"]
    alone, together = ([driftgate.create(name, small_model(), seed=1) for name in names] for _ in range(2))
    for method in alone:
        stepping(method, 250)()
    assert in_threads(*(stepping(method, 250) for method in together)) == []
    for one, two in zip(alone, together, strict=True):
        assert_same_state(one, two)


@pytest.mark.parametrize("name", ["gmm", "adacontrast"])
def test_predictions_beside_steps_wait_and_change_nothing(name: str) -> None:
    alone, shared = (driftgate.create(name, small_model(), seed=1) for _ in range(2))
    stepping(alone, 30)()
    answers: list[torch.Tensor] = []

    def ask() -> None:
        for number in range(15):
            answers.append(shared.predict(BATCHES[number % len(BATCHES)]).labels)
            assert shared.state_dict()["steps"] >= 0

    assert in_threads(stepping(shared, 30), ask, ask, ask) == []
    assert len(answers) == 45
    assert_same_state(alone, shared)


def test_steps_from_four_threads_are_steps_one_after_another() -> None:
    """Which thread comes first is chance, so all bring the same batch."""
    alone, shared = (driftgate.create("gmm", small_model(), seed=1) for _ in range(2))
    for _ in range(40):
        alone.step(BATCHES[0])

    def run() -> None:
        for _ in range(10):
            shared.step(BATCHES[0])

    assert in_threads(run, run, run, run) == []
    assert shared.steps == 40
    assert_same_state(alone, shared)


@pytest.mark.parametrize(
    "name", [name for name, kind in driftgate.available().items() if issubclass(kind, GradientMethod)]
)
@pytest.mark.parametrize("where", ["momentum", "weights", "after the update"])
def test_a_failed_step_leaves_weights_and_optimiser_as_they_were(
    name: str, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = driftgate.create(name, small_model(), **({"adapt_layers": "all"} if name != "tent" else {}))
    assert isinstance(method, GradientMethod)
    for batch in BATCHES[:3]:
        method.step(batch)
    if where == "momentum":
        if not method.optimizer.state:
            return  # nothing was learned yet, so there is none
        for state in method.optimizer.state.values():
            state["momentum_buffer"].fill_(float("nan"))
    elif where == "weights":
        with torch.no_grad():
            next(iter(method.model.parameters())).fill_(float("inf"))
    else:
        step = method.optimizer.step

        def destroy() -> None:
            step()
            raise DriftgateError("the machine failed")

        monkeypatch.setattr(method.optimizer, "step", destroy)
    before = state_of(method)
    if where == "after the update":
        if name not in ("owttt", "adacontrast"):
            return  # nothing can fail there: the memory is made already
        with pytest.raises(DriftgateError, match="machine"):
            method.step(BATCHES[4])
    else:
        with pytest.raises(DivergedError):
            method.step(BATCHES[4])
    after = state_of(method)
    same = {key: torch.equal(before[key].nan_to_num(), after[key].nan_to_num()) for key in before}
    assert [key for key, unchanged in same.items() if not unchanged] == []
