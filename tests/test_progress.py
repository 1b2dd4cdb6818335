"""Runs that can be stopped at any moment: the log only grows, signals leave a checkpoint, damage is told."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from support import small_model, state_of
from test_stream import SPLIT, StopsAfter, stream

import driftgate
from driftgate import DriftgateError, Method
from driftgate.lab.data.streams import TensorStream
from driftgate.log import Step, StreamLog
from driftgate.progress import remove_progress
from driftgate.stream import RunResult, run_stream
from driftgate.types import Batch, Prediction, Thresholds

posix = pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")


def fresh() -> Method:
    return driftgate.create("gmm", small_model(), seed=2, min_batch=1)


def run(
    path: Path | None, method: Method | None = None, source: TensorStream | None = None, **options: object
) -> RunResult:
    return run_stream(method or fresh(), source or stream(), SPLIT, checkpoint=path, checkpoint_every=0, **options)  # type: ignore[arg-type]


def assert_same_log(one: StreamLog, two: StreamLog) -> None:
    first, second = one.tensors(), two.tensors()
    assert first.keys() == second.keys()
    for name in first.keys() - {"seconds"}:
        assert torch.equal(first[name].nan_to_num(), second[name].nan_to_num()), name


def test_the_log_is_appended_to_and_what_was_written_stays(tmp_path: Path) -> None:
    path, log = tmp_path / "p.safetensors", tmp_path / "p.safetensors.log"
    seen: list[bytes] = []
    sizes: list[int] = []

    def look(_: object) -> None:
        if log.exists():
            content = log.read_bytes()
            assert not seen or content.startswith(seen[-1])
            seen.append(content)
            sizes.append(path.stat().st_size)

    run(path, on_batch=look)
    assert len(seen) == 8 and len(seen[-1]) > len(seen[0])
    assert max(sizes) - min(sizes[2:]) < 200, "the method's file does not grow with the stream"


def stopped_run(path: Path) -> None:
    full = stream()
    with pytest.raises(KeyboardInterrupt):
        run(path, source=StopsAfter(full.images, full.labels, batch_size=8, seed=1))


def test_what_a_kill_left_behind_the_last_checkpoint_is_cut_off(tmp_path: Path) -> None:
    path, log = tmp_path / "p.safetensors", tmp_path / "p.safetensors.log"
    whole = run(None)
    stopped_run(path)
    with log.open("ab") as file:
        file.write(b"half a block of the batch that was next")
    resumed = run(path)
    assert_same_log(whole.log, resumed.log)
    again = run(path)
    assert_same_log(whole.log, again.log)
    remove_progress(path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("damage", ["flipped", "cut", "gone", "empty"])
def test_a_damaged_log_is_refused(tmp_path: Path, damage: str) -> None:
    path, log = tmp_path / "p.safetensors", tmp_path / "p.safetensors.log"
    stopped_run(path)
    content = bytearray(log.read_bytes())
    content[len(content) // 2] ^= 4
    if damage == "gone":
        log.unlink()
    else:
        log.write_bytes({"flipped": bytes(content), "cut": log.read_bytes()[:-20], "empty": b""}[damage])
    with pytest.raises(DriftgateError, match="Expected"):
        run(path)


def test_two_runs_on_one_checkpoint_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "p.safetensors"

    def second(_: object) -> None:
        with pytest.raises(DriftgateError, match="only one who writes"):
            run(path)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(path, on_batch=second)
    run(path)


class Signalled(TensorStream):
    """A stream during whose fourth batch the process gets a signal, as from a terminal or a service manager."""

    number = signal.SIGTERM

    def batches(self, start: int = 0) -> Iterator[Batch]:
        for place, batch in enumerate(super().batches(start)):
            if place == 3:
                os.kill(os.getpid(), self.number)
            yield batch


@posix
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_leave_a_checkpoint_after_the_batch_at_hand(tmp_path: Path, number: signal.Signals) -> None:
    """With the usual two minutes between checkpoints, so that only the signal can have left it."""
    path, full, whole = tmp_path / "p.safetensors", stream(), fresh()
    expected = run(None, whole)
    source = Signalled(full.images, full.labels, batch_size=8, seed=1)
    source.number = number
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        run_stream(fresh(), source, SPLIT, checkpoint=path)
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before
    method, first = fresh(), []
    resumed = run(path, method, on_batch=lambda log: first.append(len(log)))
    assert first[0] == 5, "four batches were done"
    assert_same_log(expected.log, resumed.log)
    different = [name for name, value in state_of(whole).items() if not torch.equal(value, state_of(method)[name])]
    assert different == []


@posix
def test_signals_are_left_alone_where_somebody_else_listens_or_nothing_is_saved(tmp_path: Path) -> None:
    caught: list[int] = []
    full = stream()
    before = signal.signal(signal.SIGTERM, lambda number, frame: caught.append(number))
    try:
        run(tmp_path / "p.safetensors", source=Signalled(full.images, full.labels, batch_size=8, seed=1))
    finally:
        signal.signal(signal.SIGTERM, before)
    assert caught == [signal.SIGTERM]
    other = threading.Thread(target=lambda: run(tmp_path / "q.safetensors"))
    other.start()
    other.join()
    assert (tmp_path / "q.safetensors").exists(), "another thread than the first runs and saves, too"


def test_logs_with_other_losses_fit_together() -> None:
    def log(*names: str) -> StreamLog:
        made = StreamLog()
        said = Prediction(
            torch.zeros(2, dtype=torch.int64),
            torch.ones(2, 3) / 3,
            torch.zeros(2, dtype=torch.float64),
            torch.zeros(2, dtype=torch.int64),
            Thresholds(0.0, 1.0, 0.5),
            losses={name: torch.tensor(1.0) for name in names},
        )
        made.add(Step(1, said, None, 0.1))
        return made

    both = log("a")
    both.extend(log("b"))
    assert str(both.losses) == "{'a': [1.0, nan], 'b': [nan, 1.0]}" and len(both) == 2
    assert both.tensors(first=1)["losses.b"].tolist() == [1.0]


def test_progress_from_before_the_log_had_its_own_file_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from driftgate.checkpoint import read_checkpoint, with_prefix, write_checkpoint

    path = tmp_path / "p.safetensors"
    stopped_run(path)
    tensors, info = read_checkpoint(path, "run-in-progress")
    method = fresh()
    five = run_stream(method, [batch for _, batch in zip(range(5), stream().batches(), strict=False)], SPLIT).log
    info.pop("log")
    facts = {key: value for key, value in info.items() if key not in ("format", "kind")}
    write_checkpoint(path, "run-in-progress", {**tensors, **with_prefix("log", five.tensors())}, facts)
    (tmp_path / "p.safetensors.log").unlink()
    assert_same_log(run(None).log, run(path).log)
