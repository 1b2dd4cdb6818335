"""Work on many classes block by block: each block fits the processor's cache, and threads share the blocks.

torch factorises a batch of small matrices one after another on one core; blocks on several threads use them all.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache
from itertools import pairwise
from threading import Barrier

import torch

BLOCK_ELEMENTS = 1 << 17
"""Most numbers in a temporary array of a block: 1 MiB in float64."""


def blocks(count: int, elements: int, device: torch.device | None = None) -> list[slice]:
    """Slices that cover ``range(count)``, about equally long, where one item has ``elements`` numbers.

    On another ``device`` than the CPU all is one block: it has threads of its own, and waits for each call.
    """
    if device is not None and device.type != "cpu":
        return [slice(0, count)]
    number = math.ceil(count / max(1, BLOCK_ELEMENTS // elements))
    ends = [count * index // number for index in range(number + 1)]
    return [slice(start, end) for start, end in pairwise(ends)]


def for_each_block(function: Callable[[slice], None], parts: list[slice]) -> None:
    """Call ``function`` on every block, on as many threads as torch may use; each call must write to its own block.

    The blocks do not depend on the number of threads, so neither does the result.
    """
    threads = torch.get_num_threads()
    if threads == 1 or len(parts) == 1:
        with one_thread():
            for part in parts:
                function(part)
        return
    inference = torch.is_inference_mode_enabled()  # holds for one thread only

    def work(first: int) -> None:
        with torch.inference_mode(inference):
            for part in parts[first::threads]:
                function(part)

    list(_pool(threads).map(work, range(threads)))


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch work on the calling thread alone: to wake another for less than a millisecond of work takes longer."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@lru_cache(maxsize=1)
def _pool(threads: int) -> ThreadPoolExecutor:
    """Threads that each run torch on one core, or they would all start helpers and get in each other's way."""
    pool, all_started = ThreadPoolExecutor(threads, thread_name_prefix="driftgate"), Barrier(threads)

    def start(_: int) -> None:
        torch.get_num_threads()  # a thread takes over the common number when torch first asks for it, so it must be now
        torch.set_num_threads(1)
        all_started.wait()

    list(pool.map(start, range(threads)))
    torch.set_num_threads(threads)  # the calls above also set what threads yet to come start with
    return pool


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)  # a forked process has the pool's memory but not its threads
