"""A stream that does not wait: predictions in time, learning where there is time, nothing that grows."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from support import images_of, small_model
from torch import Tensor

import driftgate
from driftgate import UNLABELED, DriftgateError, Prediction, pacing
from driftgate.pacing import RECENT, TRIALS, Arrivals, Pacing, Recent
from driftgate.types import Thresholds


class Clock:
    """A clock of its own, in the place of ``time``: only what is said to take time does."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += max(0.0, seconds)


class Schedule:
    """In the place of the reader's thread: batches that come at times, on such a clock."""

    def __init__(self, clock: Clock, batches: Iterator[tuple[float, int]], room: Callable[[], int]) -> None:
        self.clock, self.coming, self.room = clock, deque(batches), room
        self.most = 0

    def __enter__(self) -> Schedule:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    @property
    def waiting(self) -> int:
        count = sum(came <= self.clock.now for came, _ in self.coming)
        self.most = max(self.most, count)
        return count

    def __iter__(self) -> Iterator[tuple[float, int]]:
        while self.coming:
            came, batch = self.coming.popleft()
            self.clock.now = max(self.clock.now, came)
            yield came, batch


class Learner:
    """Predicts in one time and learns in another."""

    def __init__(self, clock: Any, predict: float, learn: float) -> None:
        self.clock, self.predict, self.learn = clock, predict, learn
        self.seen: list[int] = []
        self.learned: list[int] = []

    def step(
        self, batch: Any, *, on_prediction: Callable[[Prediction], None] | None = None, learn: bool = True
    ) -> Prediction:
        self.clock.sleep(self.predict)
        nothing = torch.zeros(1)
        said = Prediction(nothing.long(), torch.ones(1, 1), nothing, nothing.long() + UNLABELED, Thresholds(0, 0, 0))
        assert on_prediction is not None
        on_prediction(said)
        self.seen.append(batch)
        if learn:
            self.clock.sleep(self.learn)
            self.learned.append(batch)
        return said


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()

    def schedule(batches: Iterator[float], room: Callable[[], int]) -> Schedule:
        return Schedule(clock, ((clock.now + after, TRIALS + place) for place, after in enumerate(batches)), room)

    monkeypatch.setattr(pacing, "time", clock)
    monkeypatch.setattr(pacing, "Arrivals", schedule)
    return clock


def play(learner: Learner, times: list[float], max_delay: float) -> tuple[Pacing, list[float]]:
    """Batches at these times after the trials; the trials themselves are numbers too."""
    pace = Pacing(max_delay)
    return pace, [step.delay for step in pace.steps(learner, iter([*range(TRIALS), *times]))]


def every(gap: float, count: int) -> list[float]:
    return [place * gap for place in range(count)]


def test_a_stream_twice_as_fast_as_the_step_is_predicted_in_time_and_learned_in_part(clock: Clock) -> None:
    learner = Learner(clock, predict=0.01, learn=0.09)
    pace, delays = play(learner, every(0.05, 2000), max_delay=0.12)
    assert learner.seen == list(range(2000 + TRIALS))  # every batch once, in order
    told = pace.as_dict()
    assert told["late"] == 0 and max(delays) == told["largest_delay"] <= 0.12
    assert told["learned"] + told["not_learned"] == 2000 + TRIALS and told["learned"] == len(learner.learned)
    # A lesson takes two gaps, in which two batches come: one in three or four teaches.
    assert 500 <= told["learned"] <= 1000


def test_a_slow_stream_is_learned_from_whole(clock: Clock) -> None:
    """Also where learning alone takes longer than a prediction may: the next batch is far away."""
    pace, _ = play(Learner(clock, predict=0.01, learn=0.5), every(1.0, 50), max_delay=0.1)
    # Until the distance of two batches is known, the next may come at once.
    assert pace.not_learned == 1 and pace.late == 0


def test_a_burst_puts_learning_off_until_it_has_passed(clock: Clock) -> None:
    learner = Learner(clock, predict=0.01, learn=0.5)
    burst = [20.0 + 0.02 * place for place in range(30)]
    pace, delays = play(learner, [*every(1.0, 20), *burst, *(21.0 + time for time in every(1.0, 40))], max_delay=0.6)
    within = [number for number in learner.learned if TRIALS + 20 <= number < TRIALS + 50]
    assert len(within) <= 3  # the first, for nobody can know what follows it, and where none waits
    assert pace.late == 0 and max(delays) <= 0.6
    assert set(range(TRIALS + 72, TRIALS + 90)) <= set(learner.learned)


def test_without_time_nothing_is_learned_after_the_trials(clock: Clock) -> None:
    learner = Learner(clock, predict=0.01, learn=0.6)
    pace, _ = play(learner, every(0.2, 30), max_delay=0.3)
    assert learner.learned == list(range(TRIALS)) and pace.not_learned == 30 and pace.late == 0


def test_predictions_that_are_too_slow_are_counted(clock: Clock) -> None:
    pace, delays = play(Learner(clock, predict=0.2, learn=0.0), every(0.1, 20), max_delay=0.5)
    assert pace.late == sum(delay > 0.5 for delay in delays) > 0 and pace.largest_delay == max(delays)


def test_what_the_caller_does_counts_as_time_of_a_step(clock: Clock) -> None:
    learner, pace = Learner(clock, predict=0.01, learn=0.01), Pacing(0.3)
    for _ in pace.steps(learner, iter([*range(TRIALS), *every(0.1, 20)])):
        if len(learner.seen) <= TRIALS:
            clock.sleep(0.5)
    assert learner.learned == list(range(TRIALS))


def test_as_many_may_wait_as_can_be_predicted_in_time(clock: Clock) -> None:
    pace, _ = play(Learner(clock, predict=0.1, learn=0.0), every(1.0, 4), max_delay=0.55)
    assert pace._room() == 5
    assert Pacing(0.5)._room() >= 1


def test_the_reader_waits_where_there_is_no_room() -> None:
    drawn: list[int] = []

    def endless() -> Iterator[int]:
        while True:
            drawn.append(len(drawn))
            yield len(drawn)

    with Arrivals(endless(), lambda: 3) as arrivals:
        found = iter(arrivals)
        for _ in range(10):
            next(found)
            assert arrivals.waiting <= 3
        thread = arrivals._thread
    thread.join(timeout=20)
    assert not thread.is_alive() and len(drawn) <= 10 + 3 + 2


def test_by_a_real_clock() -> None:
    """The short form of benchmarks/pacing.py, with room for a busy machine."""
    started: list[float] = []

    def on_time() -> Iterator[int]:
        yield from range(TRIALS)
        started.append(time.monotonic())
        for place in range(15):
            time.sleep(max(0.0, started[0] + 0.1 * place - time.monotonic()))
            yield TRIALS + place

    learner, pace = Learner(time, predict=0.01, learn=0.19), Pacing(5.0)
    assert len(list(pace.steps(learner, on_time()))) == 15 + TRIALS
    assert learner.seen == list(range(15 + TRIALS)) and pace.late == 0
    assert TRIALS < pace.learned < 15 + TRIALS


def test_an_error_of_the_stream_comes_out_after_what_came_before_it() -> None:
    def broken() -> Iterator[int]:
        yield from range(TRIALS + 2)
        raise DriftgateError("broken")

    learner = Learner(time, 0.0, 0.0)
    with pytest.raises(DriftgateError, match="broken"):
        list(Pacing(1.0).steps(learner, broken()))
    assert learner.seen == list(range(TRIALS + 2))


def test_one_stray_time_counts_for_nothing() -> None:
    recent = Recent()
    assert recent.most() == 0.0 and recent.least() == 0.0
    for value in (0.2, 9.0, 0.3):
        recent.add(value)
    assert recent.most() == 0.3 and recent.least() == 0.2
    for _ in range(RECENT):
        recent.add(0.1)
    assert recent.most() == 0.1 and len(recent.values) == RECENT


@pytest.mark.parametrize("delay", [0.0, -1.0, float("nan"), float("inf")])
def test_a_delay_that_is_none_is_refused(delay: float) -> None:
    with pytest.raises(DriftgateError, match="max_delay"):
        Pacing(delay)


def labelled(count: int) -> Iterator[tuple[Tensor, Tensor]]:
    for number in range(count):
        yield images_of(32, seed=number), torch.arange(32) % 5


def test_the_record_tells_the_pace() -> None:
    method = driftgate.create("gmm", small_model())
    result = driftgate.run_stream(method, labelled(8), max_delay=60.0)
    pace = result.record["pace"]
    assert pace["max_delay"] == 60.0 and pace["learned"] + pace["not_learned"] == 8 and pace["late"] == 0
    assert pace["learned"] >= TRIALS and 0 < pace["largest_delay"] < 60
    assert result.record["protocol"]["batches"] == 8 and method.steps == 8
    assert "pace" not in driftgate.run_stream(method, labelled(1)).record


def test_steps_have_a_delay_only_where_the_stream_does_not_wait() -> None:
    method, pace = driftgate.create("source-only", small_model()), Pacing(60.0)
    steps = list(driftgate.stream_steps(method, labelled(5), max_delay=pace))
    assert [step.number for step in steps] == [1, 2, 3, 4, 5] and all(step.delay > 0 for step in steps)
    assert "delay" in steps[0].scalars() and pace.learned + pace.not_learned == 5
    (plain,) = driftgate.stream_steps(method, labelled(1))
    assert "delay" not in plain.scalars()


def test_a_run_by_the_clock_cannot_be_resumed(tmp_path: Any) -> None:
    method = driftgate.create("source-only", small_model())
    with pytest.raises(DriftgateError, match="max_delay without a checkpoint"):
        driftgate.run_stream(method, labelled(2), max_delay=1.0, checkpoint=tmp_path / "run")


def test_a_bad_label_is_refused_before_it_is_learned_from() -> None:
    method = driftgate.create("gmm", small_model())
    bad = [(images_of(32, seed=0), torch.full((32,), 99))]
    with pytest.raises(DriftgateError):
        list(driftgate.stream_steps(method, bad, max_delay=1.0))
    assert method.steps == 0
