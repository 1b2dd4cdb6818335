"""A stream with a bad stretch: the guard rings, goes back, waits, and lets the method learn again more slowly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from support import images_of, small_model, state_of
from synthetic import SIZE, source_model, target_batches
from torch import Tensor

from driftgate import Method, create
from driftgate.guard import Guard
from driftgate.guard.signals import MEANINGS, Looks, StartNetwork, changes

CALM = 90
QUICK: dict[str, Any] = {"warmup": 5, "lag": 5, "snapshot_every": 10}


def learner(lr: float = 1e-3) -> Method:
    return create("shot-o", source_model(), lr=lr)


def pictures(count: int, seed: int = 0) -> list[Tensor]:
    return [images for images, _ in target_batches(count, seed=seed)]


BLACK = torch.zeros(64, 3, SIZE, SIZE)


def test_a_bad_stretch_is_undone_and_waited_for(tmp_path: Path) -> None:
    method = learner()
    guard = Guard(method, tmp_path, slow_looks=6, **QUICK)
    for images in pictures(CALM):
        guard.step(images)
    assert guard.mode == "learning" and guard.health().alarms == 0
    for _ in range(40):
        guard.step(BLACK)
    alarm, rollback = [event for event in guard.events if event.kind in ("alarm", "rollback")]
    assert CALM < alarm.look <= CALM + 6 and alarm.signal in MEANINGS and "was usual" in alarm.reason
    healthy = {snapshot.id: snapshot for snapshot in guard.snapshots()}[rollback.snapshot or 0]
    assert CALM - QUICK["snapshot_every"] <= healthy.look <= CALM
    assert guard.mode == "stopped" and guard.health().steps == healthy.steps
    rates = [group["lr"] for group in method.optimizer.param_groups]
    for images in pictures(60, seed=1):
        guard.step(images)
        if guard.mode == "slow":
            assert [group["lr"] for group in method.optimizer.param_groups] == pytest.approx([0.1 * r for r in rates])
    told = [event for event in guard.events if event.kind != "snapshot"][2:]
    assert [event.kind for event in told] == ["slow", "learning"]
    assert told[0].reason == f"the last {guard.settings.settle} looks were like those before the alarm"
    assert [group["lr"] for group in method.optimizer.param_groups] == rates


def test_a_bad_stretch_soon_after_the_start_is_undone_too(tmp_path: Path) -> None:
    """Before the method's own signals have a past: the network as it came has one from its first looks on."""
    guard = Guard(learner(), tmp_path)
    for images in [*pictures(30), *[BLACK] * 10]:
        guard.step(images)
    alarm, rollback = [event for event in guard.events if event.kind in ("alarm", "rollback")]
    assert 30 < alarm.look <= 38 and alarm.signal is not None and alarm.signal.startswith("source_")
    assert {snapshot.id: snapshot for snapshot in guard.snapshots()}[rollback.snapshot or 0].look == 20


def test_an_alarm_puts_back_exactly_the_healthy_state(tmp_path: Path) -> None:
    method, twin = learner(), learner()
    guard = Guard(method, tmp_path, **QUICK)
    for images in pictures(CALM):
        guard.step(images)
    healthy, last = guard.snapshots()[-2:]
    assert last.look - healthy.look == QUICK["snapshot_every"]
    for images in pictures(healthy.look):
        twin.step(images)
    sorted(tmp_path.glob("snapshot-*"))[-1].unlink()  # so that it is not the state it stands in
    while guard.mode == "learning":
        guard.step(BLACK)
    assert all(torch.equal(value, state_of(twin)[name]) for name, value in state_of(method).items())


def test_what_lasts_is_the_stream(tmp_path: Path) -> None:
    guard = Guard(learner(), tmp_path, patience=12, **QUICK)
    for images in [*pictures(CALM), *[BLACK] * 40]:
        guard.step(images)
    slow = next(event for event in guard.events if event.kind == "slow")
    assert "taken for the stream" in slow.reason
    assert guard.mode != "stopped" and guard.health().alarms == 1


def test_small_batches_are_gathered_to_looks(tmp_path: Path) -> None:
    guard = Guard(learner(), tmp_path, look_samples=64)
    for images in pictures(2):
        for piece in images.split(24):
            guard.step(piece)
    assert guard.health().look == 2
    for images in images_of(5, 0).split(1):
        guard.step(torch.nn.functional.interpolate(images, (SIZE, SIZE)))
    assert guard.health().look == 2


def test_a_full_disk_does_not_stop_the_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    guard = Guard(learner(), tmp_path, warmup=0, snapshot_every=2)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("driftgate.guard.snapshots.write_checkpoint", full)
    for images in pictures(4):
        assert len(guard.step(images)) == 64
    assert [event.kind for event in guard.events] == ["failure", "failure"] and "No space" in guard.events[0].reason


def test_a_broken_snapshot_is_passed_over(tmp_path: Path) -> None:
    guard = Guard(learner(), tmp_path, **QUICK)
    for images in pictures(CALM):
        guard.step(images)
    newest = sorted(tmp_path.glob("snapshot-*"))[-1]
    newest.write_bytes(b"nothing")
    while guard.mode == "learning":
        guard.step(BLACK)
    kinds = [event.kind for event in guard.events if event.kind != "snapshot"]
    assert kinds == ["alarm", "failure", "rollback"]
    assert guard.events[-1].snapshot == guard.snapshots()[-2].id


def test_the_calm_past_survives_a_restart(tmp_path: Path) -> None:
    first = Guard(learner(), tmp_path, **QUICK)
    for images in pictures(CALM):
        first.step(images)
    last = first.snapshot()
    again = Guard(learner(), tmp_path, **QUICK)
    again.rollback(last.id)
    health = again.health()
    assert health.signals.keys() == first.health().signals.keys() and health.look == CALM
    assert health.signals["classes"].expected == first.health().signals["classes"].expected
    for _ in range(6):
        again.step(BLACK)
    assert again.mode == "stopped"


def test_the_start_network_answers_as_the_network_did_and_keeps_only_what_learns() -> None:
    model = small_model()
    images = images_of(20, 0)
    start = {name: value.clone() for name, value in model.state_dict().items()}
    with torch.no_grad():
        expected = model(images).logits
    method = create("tent", model, adapt_layers="norm", lr=0.1)
    network = StartNetwork(model, start)
    assert network.distance() == 0.0
    before = changes(method)
    method.step(images)
    assert changes(method) > before and network.distance() > 0.0
    assert torch.equal(network.forward(images).logits, expected)
    assert not any("backbone.0" in name or "classifier" in name for name in network.tensors)
    with torch.no_grad():
        assert not torch.equal(model(images).logits, expected)


def test_signals_are_those_of_the_samples() -> None:
    method = create("source-only", small_model())
    start = {name: value.clone() for name, value in method.model.state_dict().items()}
    looks = Looks(method, StartNetwork(method.model, start), look_samples=40, source_samples=40, reference_looks=1)
    images = images_of(40, 0)
    answer = method.predict(images)
    signals = looks.add(images, answer, None)
    assert signals is not None and "source_shift" not in signals and "taught" not in signals
    assert signals["agreement"] == 1.0 and signals["rejected"] == float((answer.labels == -1).double().mean())
    assert signals["novelty_median"] == pytest.approx(float(answer.novelty.quantile(0.5)))
    assert signals["source_doubt"] == pytest.approx(float(answer.novelty.mean()))
    again = looks.add(images, answer, None)
    assert again is not None and again["source_shift"] == pytest.approx(0.0, abs=1e-6)
    other = looks.add(torch.zeros_like(images), answer, None)
    assert other is not None and other["source_shift"] > 0.1


def test_a_method_that_only_predicts_can_be_guarded(tmp_path: Path) -> None:
    guard = Guard(create("source-only", source_model()), tmp_path, **QUICK)
    for images in [*pictures(CALM), *[BLACK] * 8]:
        guard.step(images)
    assert guard.health().alarms == 1 and "taught" in guard.health().signals


def test_threads_share_a_guard(tmp_path: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    guard = Guard(learner(), tmp_path, **QUICK)
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(guard.step, pictures(20)))
        list(pool.map(lambda _: (guard.health(), guard.snapshot(), guard.rollback(0)), range(8)))
    assert len(results) == 20 and guard.health().look == 20 and len(guard.snapshots()) == 9
