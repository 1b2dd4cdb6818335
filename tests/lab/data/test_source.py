from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from lab.data.numbered import numbered, who

from driftgate.lab.data.domains import Domain, MemoryDomain, read_tree
from driftgate.lab.data.source import SourceSamples
from driftgate.shifts import ClassSplit
from driftgate.types import Batch, DriftgateError

SPLIT = ClassSplit(2, 1, 1)


def source_batches(domain: Domain, *, epochs: int = 1, start: int = 0, **options: Any) -> Iterator[Batch]:
    return SourceSamples(domain, SPLIT, **options).batches(epochs, start)


def forty() -> MemoryDomain:
    return numbered("a", [index % 4 for index in range(40)])


def test_epochs_are_shuffled_and_hold_the_source_classes() -> None:
    samples = SourceSamples(forty(), SPLIT, input_size=(8, 8), batch_size=10)
    assert samples.steps_per_epoch == 3
    batches = list(samples.batches(epochs=2))
    epochs = [[sample for batch in part for sample in who(batch)] for part in (batches[:3], batches[3:])]
    source = [index for index in range(40) if index % 4 < 3]
    assert sorted(epochs[0]) == sorted(epochs[1]) == source
    assert epochs[0] != epochs[1] and epochs[0] != source
    for batch in batches:
        assert batch.labels.tolist() == [sample % 4 for sample in who(batch)]


def test_incomplete_batch_is_dropped_unless_it_is_the_only_one() -> None:
    few = SourceSamples(forty(), SPLIT, input_size=(8, 8), batch_size=64)
    assert few.steps_per_epoch == 1
    assert [len(batch.labels) for batch in few.batches(2)] == [30, 30]
    assert [len(batch.labels) for batch in source_batches(forty(), input_size=(8, 8), batch_size=20)] == [20]


def test_training_goes_on_at_any_step(tmp_path: Path, make_picture: Callable[..., Path]) -> None:
    for index in range(24):
        make_picture(tmp_path / "abc"[index % 3] / f"{index:02d}.jpg", seed=index, size=(30, 20))
    domain = read_tree("photo", tmp_path, ["a", "b", "c"])
    options: dict[str, Any] = {"input_size": (14, 14), "batch_size": 5, "seed": 2, "epochs": 3}
    whole = list(source_batches(domain, **options))
    assert len(whole) == 12
    for start in (0, 3, 4, 11, 12):
        rest = list(source_batches(domain, start=start, workers=2, **options))
        assert len(rest) == 12 - start
        for one, other in zip(rest, whole[start:], strict=True):
            assert torch.equal(one.images, other.images) and torch.equal(one.labels, other.labels)


def test_crops_differ_between_epochs(tmp_path: Path, make_picture: Callable[..., Path]) -> None:
    for name in "abc":
        make_picture(tmp_path / name / "0.jpg", size=(40, 40))
    domain = read_tree("photo", tmp_path, ["a", "b", "c"])
    samples = SourceSamples(domain, SPLIT, input_size=(28, 28))
    first, second = samples.batches(2)
    pictures = [batch.images[batch.labels.argsort()] for batch in (first, second)]
    assert not torch.equal(pictures[0], pictures[1])
    clean = next(samples.clean_batches())
    assert torch.equal(clean.images, next(samples.clean_batches()).images)
    assert clean.labels.tolist() == [0, 1, 2]


def test_no_mirrored_digits() -> None:
    ramp = torch.arange(8, dtype=torch.uint8).expand(30, 3, 8, 8).contiguous()
    domain = MemoryDomain("a", ramp, torch.arange(30) % 3)
    for flip, expected in ((False, {0}), (True, {0, 7})):
        batches = source_batches(domain, input_size=(8, 8), batch_size=10, flip=flip)
        assert {sample for batch in batches for sample in who(batch)} == expected


@pytest.mark.parametrize("share", [0.0, 0.2, 0.99])
def test_held_out_share_of_each_class(share: float) -> None:
    samples = SourceSamples(forty(), SPLIT, input_size=(8, 8), batch_size=4, held_out=share)
    train = [sample for batch in samples.clean_batches() for sample in who(batch)]
    held = [sample for batch in samples.held_out_batches() for sample in who(batch)]
    assert sorted(train + held) == [index for index in range(40) if index % 4 < 3]
    per_class = min(round(share * 10), 9)
    assert [sum(sample % 4 == label for sample in held) for label in range(3)] == [per_class] * 3
    trained = {sample for batch in islice(samples.batches(5), 50) for sample in who(batch)}
    assert trained <= set(train)


def test_broken_images_are_skipped_and_named(tmp_path: Path, make_picture: Callable[..., Path]) -> None:
    for index in range(9):
        make_picture(tmp_path / "abc"[index % 3] / f"{index}.jpg")
    (tmp_path / "a" / "3.jpg").write_bytes(b"broken")
    domain = read_tree("photo", tmp_path, ["a", "b", "c"])
    samples = SourceSamples(domain, SPLIT, input_size=(8, 8), batch_size=9)
    assert [len(batch.labels) for batch in samples.batches(2)] == [8, 8]
    assert samples.skipped == [str(tmp_path / "a" / "3.jpg")]
    with pytest.raises(DriftgateError, match=r"3\.jpg"):
        list(SourceSamples(domain, SPLIT, input_size=(8, 8), strict=True).batches(1))


def test_bad_input() -> None:
    with pytest.raises(DriftgateError, match="class 2 has none"):
        SourceSamples(
            MemoryDomain("a", torch.zeros(4, 3, 8, 8).byte(), torch.tensor([0, 1, 0, 3])), SPLIT, input_size=(8, 8)
        )
    with pytest.raises(DriftgateError, match="held-out share"):
        SourceSamples(forty(), SPLIT, input_size=(8, 8), held_out=1.0)
