"""The guard around a method: answers as the method's, snapshots, the way back, and what it does on alarm."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support import images_of, small_model, state_of

from driftgate import DivergedError, DriftgateError, Method, create
from driftgate.guard import Event, Guard


def tent() -> Method:
    return create("tent", small_model(), adapt_layers="norm", lr=0.01)


def same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def test_a_guarded_method_answers_and_learns_as_without(tmp_path: Path) -> None:
    plain, guarded = tent(), tent()
    guard = Guard(guarded, tmp_path)
    for seed in range(3):
        images = images_of(64, seed)
        expected = plain.predict(images)
        assert torch.equal(guard.predict(images).scores, expected.scores)
        assert torch.equal(guard.step(images).scores, plain.step(images).scores)
    assert same(state_of(plain), state_of(guarded))


def test_rollback_gives_back_every_tensor(tmp_path: Path) -> None:
    method = tent()
    guard = Guard(method, tmp_path)
    start = state_of(method)
    guard.step(images_of(16, 0))
    taken = guard.snapshot()
    then = state_of(method)
    guard.step(images_of(16, 1))
    assert not same(state_of(method), then)
    assert guard.rollback(taken.id) == taken
    assert same(state_of(method), then)
    guard.rollback(0)
    assert same(state_of(method), start)
    with pytest.raises(DriftgateError, match="out of 0, 1 but got 7"):
        guard.rollback(7)


def test_a_snapshot_holds_only_what_changed(tmp_path: Path) -> None:
    from driftgate.checkpoint import read_checkpoint

    method = create("tent", small_model(), adapt_layers="norm", lr=0.01, batch_norm="running")
    guard = Guard(method, tmp_path)
    guard.step(images_of(16, 0))
    guard.snapshot()
    (file,) = tmp_path.glob("snapshot-*")
    names = set(read_checkpoint(file, "guard-snapshot")[0])
    assert "method.steps" in names and any("backbone.1.weight" in name for name in names)
    assert not any("backbone.0" in name or "classifier" in name for name in names)


def test_the_ring_forgets_the_oldest_but_the_start(tmp_path: Path) -> None:
    guard = Guard(tent(), tmp_path, keep=3)
    for _ in range(5):
        guard.snapshot()
    assert [snapshot.id for snapshot in guard.snapshots()] == [0, 3, 4, 5]
    assert len(list(tmp_path.glob("snapshot-*"))) == 3


def test_a_folder_is_taken_over_by_an_equal_method_alone(tmp_path: Path) -> None:
    first = Guard(tent(), tmp_path)
    first.step(images_of(16, 0))
    first.snapshot("before the restart")
    (tmp_path / "snapshot-00000007.safetensors").write_bytes(b"broken")
    method = tent()
    again = Guard(method, tmp_path)
    assert [snapshot.reason for snapshot in again.snapshots()] == ["start", "before the restart"]
    again.rollback(1)
    assert same(state_of(method), state_of(first.method))
    with pytest.raises(DriftgateError, match="settings"):
        Guard(create("tent", small_model(), adapt_layers="norm", lr=0.02), tmp_path)


def test_a_frozen_method_predicts_and_does_not_learn(tmp_path: Path) -> None:
    method = tent()
    events: list[Event] = []
    guard = Guard(method, tmp_path, on_event=events.append)
    guard.freeze("the inspector comes")
    before = state_of(method)
    assert torch.equal(guard.step(images_of(16, 0)).scores, method.predict(images_of(16, 0)).scores)
    assert same(state_of(method), before) and guard.mode == "frozen"
    guard.thaw()
    guard.step(images_of(16, 0))
    assert not same(state_of(method), before) and guard.mode == "learning"
    assert [event.reason for event in events] == ["the inspector comes", "asked for"]
    assert guard.events == events


def test_a_network_that_diverged_is_put_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    method = tent()
    guard = Guard(method, tmp_path)
    healthy = state_of(method)

    def diverge(batch: object, **_: object) -> None:
        with torch.no_grad():
            next(method.model.parameters()).fill_(torch.nan)
        raise DivergedError("left the numbers")

    monkeypatch.setattr(method, "step", diverge)
    answer = guard.step(images_of(16, 0))
    assert bool(answer.scores.isfinite().all()) and same(state_of(method), healthy)
    assert guard.mode == "stopped" and [event.kind for event in guard.events] == ["alarm", "rollback"]


def test_a_loss_that_is_no_number_rings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    method = tent()
    guard = Guard(method, tmp_path)
    step = method.step

    def poisoned(batch: object, **rest: object) -> object:
        return replace(step(batch, **rest), losses={"entropy": torch.tensor(torch.nan)})  # type: ignore[arg-type]

    monkeypatch.setattr(method, "step", poisoned)
    assert len(guard.step(images_of(16, 0))) == 16
    assert guard.mode == "stopped" and "a loss out of entropy" in guard.events[0].reason
