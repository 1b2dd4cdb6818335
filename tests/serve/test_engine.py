"""The engine: batches, answers before learning, a bounded queue, and state that outlives a kill."""

from __future__ import annotations

import shutil
import threading
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import torch
from servesupport import samples, small_method

from driftgate import DivergedError, DriftgateError
from driftgate.files import failed_write
from driftgate.serve.answers import Answer, BatchReport
from driftgate.serve.engine import Engine, EngineSettings, EngineStopped, QueueFull
from driftgate.serve.state_folder import BEFORE, STATE, STEPS, StateFolder


def open_engine(path: Path, listeners: Any = (), **settings: Any) -> Engine:
    folder = StateFolder(path)
    settings = {"max_delay": 0.0, "batch_size": 16, **settings}
    return Engine(folder.start(small_method()), folder, EngineSettings(**settings), listeners=listeners)


def test_answers_equal_an_offline_run_of_the_same_batches(tmp_path: Path) -> None:
    reports: list[BatchReport] = []
    with open_engine(tmp_path, [reports.append]) as engine:
        waiting = [engine.submit(samples(count, seed=count)) for count in (40, 3, 16, 1, 25)]
        answers = [answer for future in waiting for answer in future.result(timeout=120)]
    assert sum(len(report.inputs) for report in reports) == len(answers) == 85
    assert max(len(report.inputs) for report in reports) <= 16
    offline = small_method()
    for report in reports:
        expected = offline.step(report.inputs)
        assert [answer.label for answer in report.answers] == expected.labels.tolist()
        assert [answer.novelty for answer in report.answers] == expected.novelty.tolist()
    assert {answer.id for answer in answers} == {answer.id for report in reports for answer in report.answers}
    assert reports[0].before == "1.0" and reports[-1].after == f"1.{len(reports)}"


def test_the_answer_comes_before_the_learning(tmp_path: Path) -> None:
    with open_engine(tmp_path, batch_size=32) as engine:
        may_learn = threading.Event()
        learn = engine.method._learn  # type: ignore[attr-defined]

        def slowly(*arguments: Any) -> Any:
            assert may_learn.wait(timeout=120)
            return learn(*arguments)

        engine.method._learn = slowly  # type: ignore[attr-defined]
        # As many as are learned from at once: fewer would wait for company, and the step be done.
        answer = engine.submit(samples(32, seed=0)).result(timeout=120)[0]
        assert answer.version == engine.version == "1.0"
        may_learn.set()
        engine.run(lambda: None).result(timeout=120)
        assert engine.version == "1.1"


def test_the_queue_is_bounded_and_all_of_a_request_is_taken_or_nothing(tmp_path: Path) -> None:
    with open_engine(tmp_path, queue_size=20) as engine:
        go_on = threading.Event()
        engine.run(lambda: go_on.wait(timeout=120))
        held = engine.submit(samples(15, seed=0))
        with pytest.raises(QueueFull, match="room for 6 samples but 15 of 20"):
            engine.submit(samples(6, seed=1))
        with pytest.raises(DriftgateError, match="at most 20 samples"):
            engine.submit(samples(21, seed=1))
        more = engine.submit(samples(5, seed=2))
        go_on.set()
        assert len(held.result(timeout=120)) == 15 and len(more.result(timeout=120)) == 5


def test_a_batch_waits_for_company_but_not_longer_than_said(tmp_path: Path) -> None:
    reports: list[BatchReport] = []
    with open_engine(tmp_path, [reports.append], max_delay=0.5) as engine:
        started = time.monotonic()
        first, second = engine.submit(samples(2, seed=0)), engine.submit(samples(3, seed=1))
        first.result(timeout=120)
        assert time.monotonic() - started >= 0.5
        second.result(timeout=120)
    assert [len(report.inputs) for report in reports] == [5]


def test_frozen_it_predicts_and_nothing_changes(tmp_path: Path) -> None:
    with open_engine(tmp_path) as engine:
        engine.submit(samples(16, seed=0)).result(timeout=120)
        engine.freeze("test").result(timeout=120)
        assert engine.health.mode == "frozen"
        before = engine.version
        answers = engine.submit(samples(16, seed=1)).result(timeout=120)
        assert engine.version == before and all(answer.learned_from is None for answer in answers)
        engine.thaw("test").result(timeout=120)
        assert engine.health.mode == "learning"
        engine.submit(samples(16, seed=1)).result(timeout=120)
        engine.run(lambda: None).result(timeout=120)
        assert engine.version != before


def test_a_way_back_gives_the_answers_of_before_under_a_new_version(tmp_path: Path) -> None:
    images = samples(16, seed=7)
    with open_engine(tmp_path) as engine:
        engine.submit(samples(16, seed=0)).result(timeout=120)
        kept = engine.snapshot("test").result(timeout=120)
        before = engine.run(lambda: engine.method.predict(images)).result(timeout=120)
        for seed in range(3):
            engine.submit(samples(16, seed=seed)).result(timeout=120)
        left = engine.run(lambda: engine.version).result(timeout=120)
        # Two at once: one after the other, both answered.
        both = [engine.rollback(kept.id, "one"), engine.rollback(kept.id, "two")]
        assert [future.result(timeout=120).steps for future in both] == [kept.steps, kept.steps]
        after = engine.run(lambda: engine.method.predict(images)).result(timeout=120)
        assert torch.equal(before.novelty, after.novelty)
        assert engine.version not in (left, f"1.{kept.steps}")
        with pytest.raises(DriftgateError, match="snapshot"):
            engine.rollback(99, "test").result(timeout=120)


def test_it_goes_on_where_it_was_saved_and_says_what_was_lost(tmp_path: Path) -> None:
    with open_engine(tmp_path / "state", save_every=2) as engine:
        for seed in range(3):
            engine.submit(samples(16, seed=seed)).result(timeout=120)
        engine.run(lambda: None).result(timeout=120)
        killed = shutil.copytree(tmp_path / "state", tmp_path / "killed", ignore=shutil.ignore_patterns("lock"))
    folder = StateFolder(killed)
    assert folder.start(small_method()).steps == 2 and folder.lost == 1 and folder.life == 2
    folder.close()
    folder = StateFolder(tmp_path / "state")
    assert folder.start(small_method()).steps == 3 and folder.lost == 0
    folder.close()


def test_a_second_service_on_the_folder_is_refused(tmp_path: Path) -> None:
    with open_engine(tmp_path), pytest.raises(DriftgateError, match="another service uses"):
        StateFolder(tmp_path)


def test_an_unreadable_state_gives_way_to_the_one_before(tmp_path: Path) -> None:
    with open_engine(tmp_path, save_every=1) as engine:
        for seed in range(3):
            engine.submit(samples(16, seed=seed)).result(timeout=120)
    (tmp_path / STATE).write_bytes(b"spoilt")
    folder = StateFolder(tmp_path)
    assert folder.start(small_method()).steps == 2 and folder.lost == 1
    assert len(folder.problems) == 1 and (tmp_path / f"{STATE}.unreadable-1").read_bytes() == b"spoilt"
    folder.close()
    (tmp_path / BEFORE).write_bytes(b"")
    (tmp_path / STEPS).write_bytes(b"\xff\xff")
    folder = StateFolder(tmp_path)
    assert folder.start(small_method()).steps == 0
    folder.close()


def test_the_state_of_other_settings_is_refused(tmp_path: Path) -> None:
    with open_engine(tmp_path) as engine:
        engine.submit(samples(16, seed=0)).result(timeout=120)
    folder = StateFolder(tmp_path)
    with pytest.raises(DriftgateError, match="settings"):
        folder.start(small_method(lr=0.5))
    folder.close()


def test_a_full_disk_is_told_and_nobody_goes_without_an_answer(tmp_path: Path) -> None:
    with open_engine(tmp_path, save_every=1) as engine:
        engine.submit(samples(16, seed=0)).result(timeout=120)
        engine.run(lambda: None).result(timeout=120)
        saved = (tmp_path / STATE).read_bytes()
        save = engine.method.save

        def full(path: Any) -> None:
            with failed_write(path):  # as every writer of files does
                raise OSError(28, "No space left on device")

        engine.method.save = full  # type: ignore[method-assign]
        for seed in range(2):
            assert len(engine.submit(samples(16, seed=seed)).result(timeout=120)) == 16
        engine.run(lambda: None).result(timeout=120)
        assert "No space left" in str(engine.save_problem)
        assert (tmp_path / STATE).read_bytes() == saved
        engine.method.save = save  # type: ignore[method-assign]
        engine.submit(samples(16, seed=3)).result(timeout=120)
        engine.run(lambda: None).result(timeout=120)
        assert engine.save_problem is None


def test_learning_that_fails_is_switched_off_and_predictions_go_on(tmp_path: Path) -> None:
    with open_engine(tmp_path) as engine:

        def broken(*_: Any, **__: Any) -> Any:
            raise RuntimeError("the machine is on fire")

        engine.method._step = broken  # type: ignore[method-assign]
        assert len(engine.submit(samples(16, seed=0)).result(timeout=120)) == 16
        engine.run(lambda: None).result(timeout=120)
        assert engine.health.mode == "frozen" and engine.failures == 1
        engine.method._predict = broken  # type: ignore[method-assign]
        with pytest.raises(RuntimeError):
            engine.submit(samples(16, seed=0)).result(timeout=120)
        assert engine.alive


def test_a_listener_that_fails_does_no_harm(tmp_path: Path) -> None:
    def broken(_: BatchReport) -> None:
        raise RuntimeError("nobody listens")

    with open_engine(tmp_path, [broken]) as engine:
        for seed in range(2):
            engine.submit(samples(16, seed=seed)).result(timeout=120)


def test_who_hangs_up_harms_nobody(tmp_path: Path) -> None:
    with open_engine(tmp_path) as engine:
        go_on = threading.Event()
        engine.run(lambda: go_on.wait(timeout=120))
        gone, there = engine.submit(samples(4, seed=0)), engine.submit(samples(4, seed=1))
        assert gone.cancel()
        go_on.set()
        assert len(there.result(timeout=120)) == 4


def test_closing_answers_what_waits_and_takes_no_more(tmp_path: Path) -> None:
    engine = open_engine(tmp_path, max_delay=30.0)
    waiting: Future[list[Answer]] = engine.submit(samples(4, seed=0))
    engine.close()
    assert len(waiting.result(timeout=0)) == 4
    with pytest.raises(EngineStopped):
        engine.submit(samples(4, seed=0))
    with pytest.raises(EngineStopped):
        engine.freeze("test")
    engine.close()


def test_features_that_made_the_answers_come_with_the_report_where_they_are_asked_for(tmp_path: Path) -> None:
    reports: list[BatchReport] = []
    folder = StateFolder(tmp_path)
    method, settings = folder.start(small_method()), EngineSettings(max_delay=0.0, frozen=True)
    with Engine(method, folder, settings, listeners=[reports.append], keep_features=True) as engine:
        engine.submit(samples(20, seed=0)).result(timeout=120)
    assert reports[0].features is not None
    assert torch.allclose(method.model.head(reports[0].features).softmax(dim=1), reports[0].prediction.scores)


def test_snapshots_that_cannot_be_read_give_way_to_a_new_ring(tmp_path: Path) -> None:
    with open_engine(tmp_path) as engine:
        engine.submit(samples(16, seed=0)).result(timeout=120)
    (tmp_path / "snapshots" / "start.safetensors").write_bytes(b"spoilt")
    with open_engine(tmp_path) as engine:
        assert engine.method.steps == 1 and len(engine.snapshots) == 1
        assert "snapshots could not be read" in engine.folder.problems[0]


def test_after_an_alarm_the_versions_are_of_another_line_and_the_state_is_saved(tmp_path: Path) -> None:
    reports: list[BatchReport] = []
    with open_engine(tmp_path, [reports.append], save_every=100) as engine:
        for seed in range(3):
            engine.submit(samples(16, seed)).result(timeout=120)
        engine.run(lambda: None).result(timeout=120)  # the last is answered before it is learned from
        learn = engine.method._learn  # type: ignore[attr-defined]

        def diverge(*_: Any) -> None:
            raise DivergedError("left the numbers")

        engine.method._learn = diverge  # type: ignore[attr-defined]
        assert len(engine.submit(samples(16, seed=3)).result(timeout=120)) == 16
        engine.run(lambda: None).result(timeout=120)
        assert engine.health.mode == "stopped" and [event.kind for event in engine.events] == ["alarm", "rollback"]
        assert reports[-1].before == "1.3" and reports[-1].after == "2.0" and not reports[-1].learned
        assert (tmp_path / STATE).exists()
        engine.method._learn = learn  # type: ignore[attr-defined]
    folder = StateFolder(tmp_path)
    assert folder.start(small_method()).steps == 0 and folder.lost == 0
    folder.close()
