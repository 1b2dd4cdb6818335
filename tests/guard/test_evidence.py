"""The sequential test: what its bets pay, what it forgives, and what it finds."""

from __future__ import annotations

import math
import random

import pytest

from driftgate.guard.evidence import FEWEST, SequentialTest, e_value

LIMIT = math.log(14 * 20_000)


def play(test: SequentialTest, values: list[float], first: int = 0) -> int | None:
    """How many of the values had come when the evidence reached the limit."""
    for number, value in enumerate(values, start=1):
        test.look(first + number, value, most=LIMIT)
        if test.strongest.log_evidence >= LIMIT:
            return number
    return None


def noise(count: int, seed: int, level: float = 0.0) -> list[float]:
    generator = random.Random(seed)
    return [level + generator.gauss(0.0, 1.0) for _ in range(count)]


def test_a_bet_pays_one_in_the_mean_if_all_could_change_places() -> None:
    distances = [0.1, 0.4, 0.4, 2.0, 7.5]
    paid = [e_value(far, distances[:place] + distances[place + 1 :], 0.7) for place, far in enumerate(distances)]
    assert sum(paid) / len(paid) == pytest.approx(1.0)
    assert paid == sorted(paid) and paid[0] > 0.0


def test_a_bet_on_a_value_beyond_all_measure_is_still_a_number() -> None:
    assert e_value(1e9, [1.0] * 20, 1e-3) == pytest.approx(21.0)
    assert e_value(0.0, [1e9] * 20, 1e-3) > 0.0


@pytest.mark.parametrize("directed", [True, False])
def test_calm_noise_does_not_ring(directed: bool) -> None:
    for seed in range(3):
        assert play(SequentialTest(100, 10, directed=directed), noise(1_000, seed)) is None


def test_the_drift_of_healthy_learning_does_not_ring() -> None:
    drifting = [4.0 * math.exp(-look / 150) + value for look, value in enumerate(noise(600, 0))]
    assert play(SequentialTest(100, 10), drifting) is None


@pytest.mark.parametrize(("shift", "directed", "within"), [(8.0, False, 5), (-8.0, True, 5), (1.5, True, 20)])
def test_a_change_is_found_soon(shift: float, directed: bool, within: int) -> None:
    for seed in range(5):
        test = SequentialTest(100, 10, directed=directed)
        assert play(test, noise(200, seed)) is None
        found = play(test, noise(within, seed + 100, shift), first=200)
        assert found is not None
        assert 196 <= test.strongest.begun <= 201 + found // 2


def test_without_drift_a_bet_pays_one_in_the_mean_whichever_value_comes_last() -> None:
    values = [*noise(12, 3), 4.0]
    for side in (0, 1):
        paid = []
        for place, last in enumerate(values):
            test = SequentialTest(100, 0, directed=True)
            for number, value in enumerate(values[:place] + values[place + 1 :]):
                test.look(number, value, most=LIMIT)
            test.stakes[side].log_evidence = 0.0
            test.look(len(values), last, most=LIMIT)
            paid.append(math.exp(test.stakes[side].log_evidence))
        assert sum(paid) / len(paid) == pytest.approx(1.0)


def test_without_drift_ten_values_are_past_enough() -> None:
    for seed in range(5):
        test = SequentialTest(100, 10, directed=True)
        assert play(test, noise(20, seed)) is None and test.strongest.log_evidence == 0.0
        assert play(test, noise(10, seed + 50), first=20) is None
        assert play(test, noise(12, seed + 100, 3.5), first=30) is not None


def test_nothing_is_bet_without_a_past() -> None:
    test = SequentialTest(100, 10)
    assert play(test, [0.0] * (2 * FEWEST + 9) + [1e6]) is None and test.strongest.log_evidence == 0.0
    assert math.isnan(SequentialTest(100, 10).level) and math.isnan(SequentialTest(100, 10).spread)


def test_what_is_judged_without_following_never_becomes_usual() -> None:
    test = SequentialTest(100, 10)
    play(test, noise(100, 0))
    level = test.level
    for number in range(200):
        test.look(number, 50.0, most=3.0, follow=False)
    assert test.level == level and test.strongest.log_evidence == 3.0


def test_rewinding_forgets_what_came_since_and_the_evidence() -> None:
    test = SequentialTest(100, 10)
    play(test, noise(100, 0))
    level, spread = test.level, test.spread
    play(test, [30.0] * 3, first=100)
    assert test.strongest.log_evidence > 0.0 and test.level != level
    test.rewind(101)
    assert (test.level, test.spread, test.strongest.log_evidence) == (level, spread, 0.0)


def test_state_survives_json() -> None:
    import json

    test, again = SequentialTest(100, 10, directed=True), SequentialTest(100, 10, directed=True)
    play(test, noise(90, 0))
    again.load_state_dict(json.loads(json.dumps(test.state_dict())))
    assert (again.level, again.spread) == (test.level, test.spread)
    assert play(again, [9.0] * 9) == play(test, [9.0] * 9)
