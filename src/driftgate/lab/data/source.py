"""The source domain for training: shuffled epochs with random crops, a held-out part, and clean batches."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from functools import partial

import torch
from torch import Tensor

from driftgate.lab.data.domains import Domain
from driftgate.lab.data.loading import BatchLoader, Loaded, Transform, load_each, to_floats, train_transform
from driftgate.lab.data.streams import Samples
from driftgate.rng import seeded
from driftgate.shifts import ClassSplit
from driftgate.types import Batch, DriftgateError


class SourceSamples(BatchLoader):
    """The source classes of one or several domains, with labels 0 to C-1.

    Every epoch, and every crop in it, is drawn from (seed, epoch, sample) alone: training can go on at any step.

    Args:
        domains: a domain or several that are used as one.
        split: says which classes are the source's.
        input_size: height and width of an image.
        batch_size: samples in a batch; an incomplete last batch is dropped unless it is the only one.
        seed: of shuffling, crops and the held-out part.
        flip: whether a mirrored image still shows its class.
        held_out: share of each class that is kept out of training, for ``held_out_batches``.
        strict: fail at a broken image instead of skipping it.
        workers: threads that decode.
    """

    def __init__(
        self,
        domains: Domain | Sequence[Domain],
        split: ClassSplit,
        *,
        input_size: tuple[int, int],
        batch_size: int = 64,
        seed: int = 0,
        flip: bool = True,
        held_out: float = 0.0,
        strict: bool = False,
        workers: int = 1,
    ) -> None:
        if batch_size < 1 or not 0.0 <= held_out < 1.0:
            raise DriftgateError(
                f"Expected a positive batch size and a held-out share in [0, 1) but got {batch_size} and {held_out}; "
                "change them."
            )
        super().__init__(strict, workers)
        self.samples = Samples(domains if isinstance(domains, Sequence) else [domains], split.source_classes)
        self.input_size, self.batch_size, self.seed, self.flip = input_size, batch_size, seed, flip
        self.train_indices, self.held_out_indices = _hold_out(self.samples, held_out, seed)
        absent = sorted(set(split.source_classes) - set(self.samples.classes[self.train_indices].tolist()))
        if absent:
            raise DriftgateError(
                f"Expected images of all {split.num_source} source classes but class {absent[0]} has none to train on"
                f"{f' ({len(absent)} classes in all)' if len(absent) > 1 else ''}; check the source domain's folders."
            )

    @property
    def steps_per_epoch(self) -> int:
        return max(1, len(self.train_indices) // self.batch_size)

    def batches(self, epochs: int, start: int = 0) -> Generator[Batch, None, None]:
        """Training batches number ``start`` to ``epochs * steps_per_epoch``, counted over all epochs."""

        def load(step: int) -> Loaded:
            epoch, place = divmod(step, self.steps_per_epoch)
            chosen = self._epoch_order(epoch)[place * self.batch_size : (place + 1) * self.batch_size].tolist()
            return self._load(chosen, partial(train_transform, self.input_size, self.flip, self.seed, epoch))

        yield from self.loaded(load, range(start, epochs * self.steps_per_epoch))

    def clean_batches(self) -> Generator[Batch, None, None]:
        """The training part once, in data set order, with the test transform: for prototypes and statistics."""
        yield from self._in_order(self.train_indices)

    def held_out_batches(self) -> Generator[Batch, None, None]:
        """The held-out part once, in data set order, with the test transform."""
        yield from self._in_order(self.held_out_indices)

    def _in_order(self, indices: Tensor) -> Generator[Batch, None, None]:
        def load(start: int) -> Loaded:
            chosen = indices[start : start + self.batch_size].tolist()
            return self._load(chosen, lambda _: Transform(self.input_size))

        yield from self.loaded(load, range(0, len(indices), self.batch_size))

    def _epoch_order(self, epoch: int) -> Tensor:
        # A few milliseconds for the largest data set, so it is not kept: nothing to save, nothing to go stale.
        generator = seeded((self.seed * 1_000_003 + epoch) % 2**63)
        return self.train_indices[torch.randperm(len(self.train_indices), generator=generator)]

    def _load(self, indices: list[int], transform_of: Callable[[int], Transform]) -> Loaded:
        images, kept, broken = load_each(lambda index: self.samples.load(index, transform_of(index)), indices)
        return (Batch(to_floats(images), self.samples.classes[kept]) if kept else None), broken


def _hold_out(samples: Samples, share: float, seed: int) -> tuple[Tensor, Tensor]:
    """Indices to train on and indices held out: ``share`` of each class, at least one of it to train on."""
    classes = samples.classes[samples.chosen]
    keep = torch.ones(len(classes), dtype=torch.bool)
    generator = seeded(seed)
    for label in sorted(set(classes.tolist())):
        members = (classes == label).nonzero().flatten()
        count = min(round(share * len(members)), len(members) - 1)
        keep[members[torch.randperm(len(members), generator=generator)[:count]]] = False
    return samples.chosen[keep], samples.chosen[~keep]
