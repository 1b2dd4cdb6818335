"""Independent jobs on all cores, one thread each: faster than one job on all of them, and not upset by neighbours.

A job computes the same on any number of cores, because it never uses more than one.
"""

from __future__ import annotations

import os
import pickle
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager, suppress
from multiprocessing import Queue, active_children, get_context
from queue import Empty
from typing import Any, TypeAlias, TypeVar

import torch
from threadpoolctl import threadpool_limits

R = TypeVar("R")

Progress = Callable[[str, int, int], None]
"""Told what is being done, and how many of its steps are done out of how many."""

LAST_REPORTS_SECONDS = 30.0

Reports: TypeAlias = "Queue[tuple[str, int, int] | None]"
"""From the workers: reports, and None at the end of each job."""

_reports: Reports | None = None


def available_cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_jobs(
    function: Callable[..., R], jobs: Sequence[tuple[Any, ...]], *, workers: int = 1, progress: Progress
) -> list[R]:
    """``function(*job, progress)`` for every job, in their order; in this process if there is one worker.

    With more workers, function and jobs must be picklable, and a script must start under ``if __name__ == "__main__"``.
    """
    if workers == 1 or len(jobs) < 2:
        with single_thread():
            return [function(*job, progress) for job in jobs]
    # A fork would inherit torch's threads half-alive.
    context = get_context("spawn")
    reports: Reports = context.Queue()
    before = set(active_children())
    with ProcessPoolExecutor(
        min(workers, len(jobs)), mp_context=context, initializer=_start_worker, initargs=(reports,)
    ) as pool:
        futures = [pool.submit(_work, function, job) for job in jobs]
        children = set(active_children()) - before
        try:
            _wait_for(futures, reports, progress)
        except BaseException:
            # Leave at once: what still runs is of no use to anybody. A bare signal, because the pool's own thread waits
            # for its workers, and of two threads that wait for one process the second takes it for alive for ever.
            for child in children:
                _end(child.pid)
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    return [pickle.loads(future.result()) for future in futures]


@contextmanager
def single_thread() -> Iterator[None]:
    """Let torch and the libraries under NumPy and scikit-learn use one thread inside."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(limits=1):
            yield
    finally:
        torch.set_num_threads(before)


def _wait_for(futures: Sequence[Future[bytes]], reports: Reports, progress: Progress) -> None:
    pending, ended = set(futures), 0
    while pending:
        done, pending = wait(pending, timeout=0.1, return_when=FIRST_COMPLETED)
        for future in done:
            future.result()  # raises what the job raised
        ended += _pass_on(reports, progress)
    # A result may overtake the last reports of its job, which come another way.
    while ended < len(futures):
        ended += _pass_on(reports, progress, timeout=LAST_REPORTS_SECONDS)


def _pass_on(reports: Reports, progress: Progress, timeout: float = 0.0) -> int:
    """Hand on what has been reported; answers how many jobs have reported their end."""
    ended = 0
    while True:
        try:
            report = reports.get(timeout=timeout) if timeout else reports.get_nowait()
        except Empty:
            if timeout:
                raise
            return ended
        if report is None:
            return ended + 1
        progress(*report)


def _end(pid: int | None) -> None:
    """Ask a process to end, if it has not ended by itself."""
    if pid is not None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)


def _start_worker(reports: Reports) -> None:
    global _reports  # noqa: PLW0603  # how a pool hands its workers something that cannot be pickled with a job
    _reports = reports
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent hears it and ends its workers


def _work(function: Callable[..., R], job: tuple[Any, ...]) -> bytes:
    with single_thread():
        result = function(*job, _report)
    if _reports is not None:
        _reports.put(None)
    # As bytes: torch would pass each tensor through a file descriptor of its own, and there are thousands.
    return pickle.dumps(result)


def _report(label: str, done: int, total: int) -> None:
    if _reports is not None:
        _reports.put((label, done, total))
