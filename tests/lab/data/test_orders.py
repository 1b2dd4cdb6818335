"""Streams that are played again, that bring domains back, and that hold a given share of unknown samples."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from driftgate.lab.data.domains import MemoryDomain
from driftgate.lab.data.orders import StreamShare
from driftgate.lab.data.streams import DomainStream
from driftgate.shifts import ClassSplit
from driftgate.types import UNKNOWN, DriftgateError

SPLIT = ClassSplit(2, 1, 2)


def domain(classes: list[int], name: str = "a") -> MemoryDomain:
    return MemoryDomain(name, torch.zeros(len(classes), 3, 1, 1, dtype=torch.uint8), torch.tensor(classes))


def stream(*domains: MemoryDomain, split: ClassSplit = SPLIT, **options: object) -> DomainStream:
    chosen = {"input_size": (1, 1), "batch_size": 10, "workers": 0, **options}
    return DomainStream(domains, split, **chosen)  # type: ignore[arg-type]


def samples(chosen: DomainStream) -> list[list[int]]:
    return [chosen.positions(place).tolist() for place in range(len(chosen))]


def flat(chosen: DomainStream) -> list[int]:
    return [sample for batch in samples(chosen) for sample in batch]


def unknown(chosen: DomainStream) -> torch.Tensor:
    """(n,) 1 where a sample of the stream is unknown."""
    return torch.cat([(batch.labels == UNKNOWN).double() for batch in chosen.batches()])


def test_each_pass_shows_the_same_samples_in_a_new_order() -> None:
    pictures = domain([0, 1, 3, 4] * 12)
    once, thrice = flat(stream(pictures)), flat(stream(pictures, repeat=3))
    passes = [thrice[start : start + 48] for start in (0, 48, 96)]
    assert passes[0] == once, "the first pass is the stream that is played once"
    assert all(sorted(found) == sorted(once) for found in passes) and len({tuple(found) for found in passes}) == 3
    assert len(stream(pictures, repeat=3)) == 15 and len(stream(pictures, repeat=3, drop_last=True)) == 12


def test_domains_come_back_in_turn() -> None:
    chosen = stream(domain([0] * 20), domain([1] * 15, "b"), arrangement="continual", repeat=2)
    owners = [{"a" if sample < 20 else "b" for sample in batch} for batch in samples(chosen)]
    assert owners == [{"a"}, {"a"}, {"b"}, {"b"}] * 2
    assert sorted(flat(chosen)) == sorted(list(range(35)) * 2)


def test_a_limit_is_that_of_a_pass() -> None:
    limited = flat(stream(domain([0, 1, 3, 4] * 12), repeat=2, limit=20))
    assert len(limited) == 40 and sorted(limited[:20]) == sorted(limited[20:])


def test_classes_that_come_together_come_back() -> None:
    pictures = domain([index % 5 for index in range(500)])
    chosen = stream(pictures, split=ClassSplit(5, 0, 0), order="dirichlet", concentration=0.01, repeat=2)
    kinds = [len(set(pictures.classes[torch.tensor(batch)].tolist())) for batch in samples(chosen)]
    assert sum(kinds) / len(kinds) < 3
    assert sorted(flat(chosen)) == sorted(list(range(500)) * 2)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("order", ["shuffled", "dirichlet"])
def test_the_share_of_unknown_samples_is_what_was_asked_for(share: float, order: str) -> None:
    pictures = domain([0, 1] * 300 + [2] * 50 + [3, 4] * 200)
    chosen = stream(pictures, unknown_share=StreamShare(share, share), order=order)
    found = unknown(chosen)
    assert len(found) == len(set(flat(chosen))), "none of them twice"
    assert float(found.mean()) == pytest.approx(share, abs=0.5 / len(found))
    allowed = {0.0: 600, 0.1: 666, 0.5: 800, 0.9: 444, 1.0: 400}
    assert chosen.num_samples == allowed[share], "as long as known and unknown samples last"
    if order == "shuffled" and share == 0.5:
        first, second = found[:400].mean(), found[400:].mean()
        assert abs(float(first - second)) < 0.2 and len({int(batch.sum()) for batch in found.split(10)}) > 3, (
            "at random"
        )


def test_a_share_that_changes_along_the_stream() -> None:
    pictures = domain([0, 1] * 3000 + [3, 4] * 2000)
    found = unknown(stream(pictures, unknown_share=StreamShare.parse("0->0.8"), seed=1))
    assert len(found) == 10_000 and float(found.mean()) == pytest.approx(0.4)
    tenths = torch.stack([part.mean() for part in found.split(1000)])
    assert torch.allclose(tenths, torch.linspace(0.04, 0.76, 10).double(), atol=0.05)
    falling = unknown(stream(pictures, unknown_share=StreamShare.parse("0.8->0")))
    assert float(falling[:1000].mean()) > 0.7 and float(falling[-1000:].mean()) < 0.1


def test_a_share_holds_in_every_domain_and_pass() -> None:
    pictures = [domain([0] * 100 + [3] * 100, name) for name in "ab"]
    chosen = stream(*pictures, arrangement="continual", repeat=2, unknown_share=StreamShare(0.25, 0.25), limit=120)
    found = unknown(chosen)
    assert [float(part.mean()) for part in found.split(60)] == [0.25] * 4
    assert sorted(flat(chosen)[:120]) == sorted(flat(chosen)[120:])


@given(st.integers(0, 40), st.integers(0, 40), st.integers(0, 20), st.integers(0, 20), st.integers(1, 50))
def test_what_there_is_suffices(known: int, unknown_samples: int, start: int, end: int, limit: int) -> None:
    share = StreamShare(start / 20, end / 20)
    total = share.longest(known, unknown_samples)
    many = round(share.mean * total)
    assert many <= unknown_samples and total - many <= known
    if total == 0:
        return
    pictures = domain([0] * known + [3] * unknown_samples)
    chosen = flat(stream(pictures, unknown_share=share, limit=limit))
    assert len(chosen) == len(set(chosen)) == min(total, limit)


def test_shares_are_written_as_they_are_read() -> None:
    for text in ("0", "0.3", "1", "0->0.8", "0.5->0.1"):
        assert str(StreamShare.parse(text)) == text
    assert str(StreamShare.parse("0.30 -> 0.3")) == "0.3"
    for text in ("", "much", "1.5", "-0.1", "0->", "0->2", "nan"):
        with pytest.raises(DriftgateError, match=r"unknown share from 0 to 1 like 0.3, or 0->0.8"):
            StreamShare.parse(text)


def test_without_unknown_samples_accuracy_scores() -> None:
    assert StreamShare(0, 0).scored(SPLIT) == ClassSplit(2, 1, 0)
    assert StreamShare(0, 0.1).scored(SPLIT) is SPLIT


def test_a_share_that_cannot_be_had_is_said() -> None:
    with pytest.raises(DriftgateError, match=r"unknown share of 0.3 but the 20 images of the split 2/1/0"):
        stream(domain([0] * 20), split=ClassSplit(2, 1, 0), unknown_share=StreamShare(0.3, 0.3))
    with pytest.raises(DriftgateError, match="number of passes"):
        stream(domain([0] * 20), repeat=0)
