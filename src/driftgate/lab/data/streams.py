"""Streams: a seeded order over samples, cut into batches that are seen once."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from typing import get_args

import numpy as np
import torch
from torch import Tensor

from driftgate.lab.data.domains import Domain
from driftgate.lab.data.loading import BatchLoader, Loaded, Transform, load_each, to_floats
from driftgate.lab.data.orders import Arrangement, Order, Ordering, StreamShare, play
from driftgate.rng import seeded
from driftgate.shifts import ClassSplit
from driftgate.types import Batch, DriftgateError, Stream


class TensorStream(Stream):
    """A stream over images held in memory: ``images`` (N, 3, H, W) uint8, ``labels`` (N,)."""

    def __init__(
        self, images: Tensor, labels: Tensor, *, batch_size: int = 64, seed: int = 0, drop_last: bool = False
    ) -> None:
        self.images, self.labels, self.batch_size, self.drop_last = images, labels, batch_size, drop_last
        self.order = torch.randperm(len(labels), generator=seeded(seed))

    def __len__(self) -> int:
        return _num_batches(len(self.order), self.batch_size, self.drop_last)

    def batches(self, start: int = 0) -> Iterator[Batch]:
        for index in range(start, len(self)):
            chosen = self.order[index * self.batch_size : (index + 1) * self.batch_size]
            yield Batch(self.images[chosen].float() / 255.0, self.labels[chosen])


class DomainStream(BatchLoader, Stream):
    """A stream over the target classes of one or several domains, decoded while the network works.

    Batches are cut by position in the order before anything is read: a broken image makes its batch smaller and moves
    no other sample. A batch without a single readable image is left out. ``start`` of ``batches`` counts the batches
    that were given out, so a run resumed at k sees what the uninterrupted one saw from k on. ``len`` counts positions:
    it is the number of batches as long as no whole batch is broken.

    Args:
        domains: where the samples come from.
        split: says which classes the target shows and which of them are known.
        input_size: height and width of an image, as the model expects it.
        batch_size: samples in a batch.
        seed: fixes the order.
        drop_last: leave out an incomplete last batch (of each pass; of each domain, if they come one after another).
        order: ``shuffled``, or ``dirichlet`` for an order in which the same classes come together.
        concentration: of the Dirichlet distribution; small = each class in one stretch, large = shuffled.
        arrangement: ``mixed`` for all domains in one, ``continual`` for one after another (no batch holds two).
        repeat: play it so many times, each time in a new order; continual domains come back in turn.
        unknown_share: compose the stream so that this share of the samples belongs to target-private classes, drawn
            without replacement; as long as known and unknown samples last. One that changes does so along each domain
            that comes by itself, and along each pass. None: as many as there are.
        strict: fail at a broken image instead of skipping it.
        workers: threads that decode; 0 decodes in the caller's thread.
        limit: use at most so many samples in a pass, the first of the order; continual domains get equal shares of it.
        pin: load into memory from which a CUDA device copies while the host goes on.
    """

    def __init__(
        self,
        domains: Sequence[Domain],
        split: ClassSplit,
        *,
        input_size: tuple[int, int],
        batch_size: int = 64,
        seed: int = 0,
        drop_last: bool = False,
        order: Order = "shuffled",
        concentration: float = 0.1,
        arrangement: Arrangement = "mixed",
        repeat: int = 1,
        unknown_share: StreamShare | None = None,
        strict: bool = False,
        workers: int = 1,
        limit: int | None = None,
        pin: bool = False,
    ) -> None:
        if not domains:
            raise DriftgateError("Expected at least one domain but got none; name a target.")
        _check_choice("order", order, get_args(Order))
        _check_choice("arrangement", arrangement, get_args(Arrangement))
        if batch_size < 1 or (limit is not None and limit < 1) or not concentration > 0 or repeat < 1:
            raise DriftgateError(
                "Expected a positive batch size, limit, concentration and number of passes but got "
                f"{batch_size}, {limit}, {concentration} and {repeat}; change them."
            )
        super().__init__(strict, workers)
        self.domains, self.split, self.arrangement = tuple(domains), split, arrangement
        self.batch_size, self.drop_last, self.pin = batch_size, drop_last, pin
        self.transform = Transform(input_size)
        self.samples = Samples(domains, split.target_classes)
        segments = self.samples.per_domain() if arrangement == "continual" else [self.samples.chosen]
        ordering = Ordering(
            self.samples.classes,
            self.samples.classes >= split.num_source,
            order=order,
            concentration=concentration,
            share=unknown_share,
            seed=seed,
        )
        self.segments = play(segments, ordering, limit=limit, repeat=repeat)
        if not self.segments:
            raise DriftgateError(
                f"Expected images of shared and of target-private classes for an unknown share of {unknown_share} but "
                f"the {len(self.samples.chosen)} images of the split {split} are all of one kind; take another share "
                "or shift."
            )
        self._counts = [_num_batches(len(segment), batch_size, drop_last) for segment in self.segments]

    def __len__(self) -> int:
        return sum(self._counts)

    @property
    def num_samples(self) -> int:
        """Samples the stream would show if all can be read."""
        sizes = zip(self.segments, self._counts, strict=True)
        return sum(min(len(segment), count * self.batch_size) for segment, count in sizes)

    def restore_skipped(self, names: Iterable[str]) -> None:
        self._skipped = dict.fromkeys(names)

    def positions(self, position: int) -> Tensor:
        """The samples of the batch at ``position`` of the order."""
        for segment, count in zip(self.segments, self._counts, strict=True):
            if position < count:
                return segment[position * self.batch_size : (position + 1) * self.batch_size]
            position -= count
        raise IndexError(position)

    def batches(self, start: int = 0) -> Generator[Batch, None, None]:
        given = start
        places = range(self._position_of(start), len(self))
        with closing(self.loaded(self._load, places, warn=True)) as batches:
            for batch in batches:
                given += 1
                yield batch
        if given == 0 and len(self) == 0:
            raise DriftgateError(
                f"Expected a full batch of {self.batch_size} images but the stream has only "
                f"{', '.join(str(len(segment)) for segment in self.segments)} and drop_last leaves out the incomplete "
                "one, so no batch is left; keep it (no --drop-last), or take a smaller batch size or a larger limit."
            )
        if given == 0:
            raise DriftgateError(
                f"Expected readable images but none of the {self.num_samples} can be read; the first is "
                f"{next(iter(self._skipped), 'missing')}."
            )

    def _position_of(self, start: int) -> int:
        """Position of the batch with ``start`` batches given out before it: one readable image each is enough."""
        position = given = 0
        while given < start and position < len(self):
            given += any(load_each(self._image, [index])[1] for index in self.positions(position).tolist())
            position += 1
        return position

    def _image(self, index: int) -> Tensor:
        return self.samples.load(index, self.transform)

    def _load(self, position: int) -> Loaded:
        images, kept, broken = load_each(self._image, self.positions(position).tolist())
        if not kept:
            return None, broken
        floats = to_floats(images)
        labels = self.split.target_labels(self.samples.classes[kept])
        return Batch(floats.pin_memory() if self.pin else floats, labels), broken


class Samples:
    """The samples of some classes in several domains, numbered through: domain after domain in data set order."""

    def __init__(self, domains: Sequence[Domain], class_indices: Iterable[int]) -> None:
        self.domains = tuple(domains)
        self.starts = np.cumsum([0, *(len(domain) for domain in domains)])
        self.classes = domains[0].classes if len(domains) == 1 else torch.cat([domain.classes for domain in domains])
        wanted = torch.tensor(sorted(class_indices))
        self.chosen = torch.isin(self.classes, wanted).nonzero().flatten()
        if len(self.chosen) == 0:
            names = ", ".join(domain.name for domain in domains)
            raise DriftgateError(
                f"Expected images of the classes {wanted[0]} to {wanted[-1]} in {names} but there are none; "
                "check the split and the folders with 'driftgate data check'."
            )

    def per_domain(self) -> list[Tensor]:
        """The chosen samples of each domain that has any."""
        owner = torch.from_numpy(np.searchsorted(self.starts, self.chosen.numpy(), side="right") - 1)
        parts = [self.chosen[owner == number] for number in range(len(self.domains))]
        return [part for part in parts if len(part)]

    def load(self, index: int, transform: Transform) -> Tensor:
        number = int(np.searchsorted(self.starts, index, side="right")) - 1
        return self.domains[number].load(index - int(self.starts[number]), transform)


def _num_batches(samples: int, batch_size: int, drop_last: bool) -> int:
    return samples // batch_size if drop_last else -(-samples // batch_size)


def _check_choice(what: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise DriftgateError(f"Expected an {what} out of {', '.join(choices)} but got {value!r}; name one of them.")
