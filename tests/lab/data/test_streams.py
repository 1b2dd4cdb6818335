from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from lab.data.numbered import numbered, who
from torch import Tensor

from driftgate.lab.data.datasets import open_dataset
from driftgate.lab.data.domains import FileDomain, MemoryDomain, read_tree
from driftgate.lab.data.loading import BrokenImage, Transform
from driftgate.lab.data.orders import dirichlet_order
from driftgate.lab.data.streams import DomainStream, TensorStream
from driftgate.shifts import ClassSplit
from driftgate.types import UNKNOWN, Batch, DriftgateError

SIZE = (8, 8)
ONE = ClassSplit(1, 0, 0)


def streamed(*domains: MemoryDomain, split: ClassSplit = ONE, **options: Any) -> DomainStream:
    return DomainStream(domains, split, **{"input_size": SIZE, "batch_size": 4, **options})


class Flawed(MemoryDomain):
    """A domain in which some samples cannot be read."""

    def __init__(self, classes: list[int], broken: set[int]) -> None:
        whole = numbered("flawed", classes)
        super().__init__("flawed", whole.images, whole.classes)
        self.broken = broken

    def load(self, index: int, transform: Transform) -> Tensor:
        if index in self.broken:
            raise BrokenImage(self.describe(index), "flawed")
        return super().load(index, transform)


def same(first: list[Batch], second: list[Batch]) -> bool:
    pairs = zip(first, second, strict=True)
    return all(torch.equal(a.images, b.images) and torch.equal(a.labels, b.labels) for a, b in pairs)


@pytest.mark.parametrize("order", ["shared-first", "paper"])
def test_only_target_classes_and_their_labels(order: str) -> None:
    classes = [0, 1, 2, 3, 4, 5, 6] * 5
    split = ClassSplit(3, 2, 1, order)  # type: ignore[arg-type]
    stream = streamed(numbered("a", classes), split=split)
    seen = {}
    for batch in stream.batches():
        for sample, label in zip(who(batch), batch.labels.tolist(), strict=True):
            seen[sample] = label
    expected = {i: c if c < 5 else UNKNOWN for i, c in enumerate(classes) if c in split.target_classes}
    assert seen == expected
    assert set(seen.values()) == ({0, 1, 2, UNKNOWN} if order == "shared-first" else {2, 3, 4, UNKNOWN})


def test_equals_the_stream_over_tensors() -> None:
    domain = numbered("a", [0, 1, 2, 3] * 10)
    split = ClassSplit(2, 0, 2)
    ours = list(streamed(domain, split=split, batch_size=7, seed=3).batches())
    plain = TensorStream(domain.images, split.target_labels(domain.classes), batch_size=7, seed=3)
    assert same(ours, list(plain.batches()))


@pytest.mark.parametrize(("drop_last", "sizes"), [(False, [4, 4, 2]), (True, [4, 4])])
def test_incomplete_last_batch(drop_last: bool, sizes: list[int]) -> None:
    stream = streamed(numbered("a", [0] * 10), drop_last=drop_last)
    assert [len(batch.labels) for batch in stream.batches()] == sizes
    assert len(stream) == len(sizes) and stream.num_samples == sum(sizes)


def test_seed_fixes_the_order() -> None:
    def order(seed: int) -> list[int]:
        return [sample for batch in streamed(numbered("a", [0] * 50), seed=seed).batches() for sample in who(batch)]

    assert order(0) == order(0) != order(1)
    assert sorted(order(0)) == list(range(50))


def test_mixed_and_continual() -> None:
    domains = [numbered("a", [0] * 10), numbered("b", [0] * 7, first=100)]
    mixed = streamed(*domains, batch_size=5)
    assert any(len({sample >= 100 for sample in who(batch)}) == 2 for batch in mixed.batches())
    continual = streamed(*domains, arrangement="continual")
    batches = [who(batch) for batch in continual.batches()]
    assert [len(batch) for batch in batches] == [4, 4, 2, 4, 3] and len(continual) == 5
    assert all(sample < 100 for batch in batches[:3] for sample in batch)
    assert sorted(sample for batch in batches[3:] for sample in batch) == list(range(100, 107))
    assert same(list(continual.batches(start=2)), list(continual.batches())[2:])


@pytest.mark.parametrize(("limit", "shares"), [(8, (4, 4)), (5, (3, 2)), (100, (10, 3)), (9, (5, 3))])
def test_limit_is_shared_by_continual_domains(limit: int, shares: tuple[int, int]) -> None:
    domains = [numbered("a", [0] * 10), numbered("b", [0] * 3 if limit > 8 else [0] * 10, first=100)]
    stream = streamed(*domains, arrangement="continual", limit=limit)
    samples = [sample for batch in stream.batches() for sample in who(batch)]
    assert (sum(sample < 100 for sample in samples), sum(sample >= 100 for sample in samples)) == shares


def classes_per_batch(stream: DomainStream) -> float:
    classes = stream.samples.classes
    return float(np.mean([len(set(classes[stream.positions(i)].tolist())) for i in range(len(stream))]))


def test_dirichlet_puts_classes_together() -> None:
    classes = [index % 10 for index in range(2000)]
    domain = MemoryDomain("a", torch.zeros(2000, 3, 1, 1, dtype=torch.uint8), torch.tensor(classes))

    def spread(**options: object) -> float:
        stream = DomainStream([domain], ClassSplit(10, 0, 0), input_size=(1, 1), batch_size=50, **options)  # type: ignore[arg-type]
        return classes_per_batch(stream)

    assert spread() > 9.5
    assert spread(order="dirichlet", concentration=1e4) > 9.5
    assert spread(order="dirichlet", concentration=0.1) < 6.0
    assert spread(order="dirichlet", concentration=1e-3) < 5.0


@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=60),
    st.sampled_from([1e-300, 1e-3, 0.1, 1.0, 100.0]),
    st.integers(0, 20),
)
def test_dirichlet_is_a_permutation(classes: list[int], concentration: float, seed: int) -> None:
    order = dirichlet_order(torch.tensor(classes), concentration, np.random.default_rng(seed))
    assert sorted(order.tolist()) == list(range(len(classes)))
    again = dirichlet_order(torch.tensor(classes), concentration, np.random.default_rng(seed))
    assert torch.equal(order, again)


@given(st.sets(st.integers(0, 22)), st.integers(1, 6), st.integers(0, 25))
def test_start_gives_the_rest_of_the_stream_with_broken_images(broken: set[int], batch_size: int, start: int) -> None:
    def stream() -> DomainStream:
        return streamed(Flawed([0, 1, 2] * 8, broken), split=ClassSplit(2, 0, 1), batch_size=batch_size, workers=0)

    whole = stream()
    batches = list(whole.batches())
    assert sorted(sample for batch in batches for sample in who(batch)) == sorted(set(range(24)) - broken)
    assert sorted(whole.skipped) == sorted(f"flawed[{index}]" for index in broken)
    resumed = stream()
    rest = list(resumed.batches(start=min(start, len(batches))))
    assert same(rest, batches[start:])
    assert set(resumed.skipped) <= set(whole.skipped)


def test_a_broken_image_moves_no_other_sample() -> None:
    def batches(broken: set[int]) -> list[list[int]]:
        return [who(batch) for batch in streamed(Flawed([0] * 20, broken)).batches()]

    whole, flawed = batches(set()), batches({3, 8})
    assert flawed == [[sample for sample in batch if sample not in {3, 8}] for batch in whole]


def test_skipped_are_those_of_batches_given_out() -> None:
    stream = streamed(Flawed([0] * 40, set(range(0, 40, 2))))
    batches = stream.batches()
    next(batches)
    assert len(stream.skipped) <= 4 + 4, "what was read ahead is not reported yet"
    list(batches)
    assert len(stream.skipped) == 20
    list(stream.batches())
    assert len(stream.skipped) == 20, "a second pass names nothing twice"
    resumed = streamed(*stream.domains)
    resumed.restore_skipped(["x.jpg"])
    assert resumed.skipped == ["x.jpg"]


def test_strict_fails_on_a_broken_image() -> None:
    stream = streamed(Flawed([0] * 40, {39}), batch_size=64, strict=True)
    before = set(threading.enumerate())
    with pytest.raises(DriftgateError, match=r"flawed\[39\] cannot be read"):
        list(stream.batches())
    assert set(threading.enumerate()) == before


def test_nothing_readable_is_an_error() -> None:
    stream = streamed(Flawed([0] * 9, set(range(9))), batch_size=2)
    with pytest.raises(DriftgateError, match="none of the 9 can be read"):
        list(stream.batches())


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_workers_change_nothing_and_leave_nothing_behind(
    tmp_path: Path, make_picture: Callable[..., Path], workers: int
) -> None:
    for index in range(30):
        make_picture(tmp_path / "ab"[index % 2] / f"{index:02d}.jpg", seed=index)
    (tmp_path / "a" / "04.jpg").write_bytes((tmp_path / "a" / "04.jpg").read_bytes()[:200])
    domain = read_tree("photo", tmp_path, ["a", "b"])

    def stream(workers: int) -> DomainStream:
        return DomainStream([domain], ClassSplit(1, 0, 1), input_size=(16, 16), batch_size=8, workers=workers)

    one = stream(workers)
    assert same(list(one.batches()), list(stream(0).batches()))
    assert one.skipped == [str(tmp_path / "a" / "04.jpg")]
    threads, files = set(threading.enumerate()), len(os.listdir("/proc/self/fd")) if os.path.exists("/proc") else 0
    batches = one.batches()
    next(batches)
    batches.close()
    assert set(threading.enumerate()) == threads
    if files:
        assert len(os.listdir("/proc/self/fd")) == files


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"order": "sorted"}, "shuffled, dirichlet"),
        ({"arrangement": "both"}, "mixed, continual"),
        ({"batch_size": 0}, "positive batch size"),
        ({"limit": 0}, "positive batch size"),
        ({"concentration": 0.0}, "positive batch size"),
    ],
)
def test_bad_settings(options: dict[str, object], message: str) -> None:
    with pytest.raises(DriftgateError, match=message):
        streamed(numbered("a", [0]), **options)


def test_nothing_to_stream() -> None:
    with pytest.raises(DriftgateError, match="at least one domain"):
        streamed()
    with pytest.raises(DriftgateError, match="there are none"):
        streamed(numbered("a", [5, 6]), split=ClassSplit(1, 1, 1))


def test_real_pacs(pacs_root: Path) -> None:
    data = open_dataset("pacs", pacs_root)
    split = data.split("OPDA")
    domains = [data.domain(name) for name in data.targets("art_painting")]
    assert all(isinstance(domain, FileDomain) for domain in domains)
    stream = DomainStream(domains, split, input_size=(112, 112), limit=130)
    sizes = [batch.images.shape for batch in stream.batches()]
    assert sizes == [(64, 3, 112, 112), (64, 3, 112, 112), (2, 3, 112, 112)]
    assert DomainStream(domains, split, input_size=(112, 112)).num_samples == 1885 + 1285 + 2505


MEMORY_PROBE = """
import json, sys
from driftgate.lab.data import DomainStream, open_dataset

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

data = open_dataset("folder", sys.argv[1])
split = data.split(custom="5/0/5")
stream = DomainStream([data.domain("day")], split, input_size=(32, 32), batch_size=32)
for number, batch in enumerate(stream.batches()):
    if number == 20:
        break
print(json.dumps({"samples": stream.num_samples, "resident": resident()}))
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="needs /proc")
def test_memory_does_not_grow_with_the_number_of_images(
    tmp_path: Path, make_tree: Callable[[Path, dict[str, int]], Path]
) -> None:
    found = {}
    for lines in (1_000, 100_000):
        root = tmp_path / str(lines)
        make_tree(root / "day", {f"class_with_a_name_{index}": 100 for index in range(10)})
        paths = [f"class_with_a_name_{i % 10}/image_{i // 10 % 100:05d}.jpg {i % 10}\n" for i in range(lines)]
        (root / "day" / "image_unida_list.txt").write_text("".join(paths))
        run = subprocess.run(
            [sys.executable, "-c", MEMORY_PROBE, str(root)], capture_output=True, text=True, check=True, timeout=600
        )
        found[lines] = json.loads(run.stdout)
        assert found[lines]["samples"] == lines
    growth = found[100_000]["resident"] - found[1_000]["resident"]
    assert growth < 24 * 2**20, f"99,000 more images cost {growth / 2**20:.1f} MiB"
