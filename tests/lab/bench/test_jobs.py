from __future__ import annotations

from multiprocessing import active_children

import pytest
import torch

from driftgate.lab.bench.jobs import Progress, run_jobs
from driftgate.types import DriftgateError


def _job(number: int, progress: Progress) -> tuple[int, int, torch.Tensor]:
    """Its number, the threads it may use, and a result that depends on nothing else."""
    progress(f"job {number}", 1, 1)
    if number < 0:
        raise DriftgateError(f"Expected no negative number but got {number}.")
    return number, torch.get_num_threads(), torch.full((3,), float(number)).cumsum(0)


def test_one_worker_runs_here_on_one_thread_and_puts_the_threads_back() -> None:
    before = torch.get_num_threads()
    results = run_jobs(_job, [(2,), (1,)], progress=lambda *_: None)
    assert [(number, threads) for number, threads, _ in results] == [(2, 1), (1, 1)]
    assert torch.get_num_threads() == before


def test_several_workers_keep_the_order_and_report() -> None:
    told: list[tuple[str, int, int]] = []
    results = run_jobs(_job, [(3,), (1,), (2,)], workers=2, progress=lambda *report: told.append(report))
    assert [(number, threads) for number, threads, _ in results] == [(3, 1), (1, 1), (2, 1)]
    assert results[0][2].tolist() == [3.0, 6.0, 9.0]
    assert sorted(told) == [("job 1", 1, 1), ("job 2", 1, 1), ("job 3", 1, 1)]


def test_an_error_in_a_worker_arrives_as_it_is_and_ends_the_others() -> None:
    children = set(active_children())
    with pytest.raises(DriftgateError, match="negative number but got -1"):
        run_jobs(_job, [(-1,), (2,), (3,)], workers=2, progress=lambda *_: None)
    for child in set(active_children()) - children:
        child.join(timeout=20)
    assert set(active_children()) <= children
