"""Work in blocks: how the blocks lie, who works on them, and that torch's threads are left as they were."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch

from driftgate.memory.blocks import BLOCK_ELEMENTS, blocks, for_each_block, one_thread


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("count", [1, 2, 7, 345])
@pytest.mark.parametrize("elements", [1, 100, BLOCK_ELEMENTS // 3, BLOCK_ELEMENTS, BLOCK_ELEMENTS + 1, 10**9])
def test_blocks_are_the_fewest_that_fit_and_equally_long(count: int, elements: int) -> None:
    parts = blocks(count, elements)
    assert [index for part in parts for index in range(part.start, part.stop)] == list(range(count))
    lengths = [part.stop - part.start for part in parts]
    most = max(BLOCK_ELEMENTS // elements, 1)
    assert max(lengths) <= most and max(lengths) - min(lengths) <= 1
    assert (len(parts) - 1) * most < count


def test_a_block_fits_the_cache() -> None:
    assert BLOCK_ELEMENTS * torch.finfo(torch.float64).bits // 8 == 2**20


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_every_block_is_done_once_by_threads_of_one_core(count: int, inference: bool, two_threads: None) -> None:
    seen: list[tuple[int, str, int, bool]] = []

    def work(part: slice) -> None:
        name = threading.current_thread().name
        seen.append((part.start, name, torch.get_num_threads(), torch.is_inference_mode_enabled()))

    with torch.inference_mode(inference):
        for_each_block(work, [slice(start, start + 1) for start in range(count)])
    assert sorted(start for start, *_ in seen) == list(range(count))
    assert {(threads, mode) for _, _, threads, mode in seen} == {(1, inference)}
    # One block is not worth a second thread.
    assert all(name.startswith("driftgate") == (count > 1) for _, name, _, _ in seen)
    assert torch.get_num_threads() == 2


def test_one_thread_is_one_thread_until_it_ends(two_threads: None) -> None:
    with pytest.raises(RuntimeError), one_thread():
        assert torch.get_num_threads() == 1
        raise RuntimeError
    assert torch.get_num_threads() == 2
