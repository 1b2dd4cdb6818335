"""The parts of benchmarks/methods.py that can be wrong without anybody seeing it in the table."""

from __future__ import annotations

import time
from types import ModuleType

import pytest
import torch
from support import load_benchmark

from driftgate.novelty.scores import entropy


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    return load_benchmark("methods")


def test_time_inside_another_part_counts_once(benchmark: ModuleType) -> None:
    watch = benchmark.Stopwatch()
    inner = watch.timed(lambda: time.sleep(0.02), "forward")

    def outer() -> None:
        inner()
        time.sleep(0.02)

    watch.timed(outer, "backward")()
    assert watch.seconds["forward"] == 0.0 and watch.seconds["backward"] >= 0.04
    inner()
    assert watch.seconds["forward"] >= 0.02


def test_an_error_stops_the_watch(benchmark: ModuleType) -> None:
    watch = benchmark.Stopwatch()
    with pytest.raises(ZeroDivisionError):
        watch.timed(lambda: 1 / 0, "forward")()
    watch.timed(lambda: time.sleep(0.01), "optimizer")()
    assert watch.seconds["optimizer"] >= 0.01


def test_shares_add_up(benchmark: ModuleType) -> None:
    parts = {"forward": 1.0, "backward": 2.0, "augmentation": 0.5, "optimizer": 0.25}
    step = benchmark.StepTime(5.0, parts)
    assert step.outside == pytest.approx(0.4)
    assert step.share("augmentation") + step.share("optimizer") + step.rest == pytest.approx(step.outside)
    row = benchmark.summarise("gmm", [step, step], 2048)
    table = benchmark.markdown([row]).splitlines()
    assert table[2] == "| gmm | 5.0000 | 40.0 % | 10.0 % | 5.0 % | 25.0 % | 2 | 2.0 |"
    assert len({line.count("|") for line in table}) == 1


def test_everything_watched_is_put_back_and_every_part_is_seen(benchmark: ModuleType) -> None:
    torch.optim.SGD([torch.zeros(1)])  # torch wraps ``step`` itself when the first one is built
    before = [getattr(owner, name) for owner, name, _ in benchmark.WATCHED]
    setting = benchmark.Setting("cnn", 4, (28, 28), 32)
    gmm, plain = benchmark.measure(["gmm", "source-only"], setting, 1, {"memory": "low"})
    after = [getattr(owner, name) for owner, name, _ in benchmark.WATCHED]
    assert all(one is two for one, two in zip(before, after, strict=True))
    assert gmm["learned"] == 1 and plain["learned"] == 0
    assert gmm["augmentation"] > 0 and gmm["optimizer"] > 0 and 0 < gmm["outside"] < 1
    assert plain["augmentation"] == plain["optimizer"] == 0 and gmm["state_bytes"] > plain["state_bytes"] == 0


def test_the_network_is_sure_of_some_images_and_not_of_others(benchmark: ModuleType) -> None:
    model = benchmark.sure_model(benchmark.Setting("cnn", 9, (28, 28), 64))
    images = torch.rand(64, 3, 28, 28, generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        novelty = entropy(model(images).logits.log_softmax(dim=1))
    assert novelty.min() < 0.1 and novelty.max() > 0.5
