"""Jobs: a source model to train, or one method over one stream, each with an id that says what it is.

An id ends in eight digits of a hash over everything that decides the result, so that a changed setting is another run
and the same one is never done twice.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from pydantic import BaseModel, ConfigDict

from driftgate.lab.bench.playing import Playing, playing_words
from driftgate.lab.data.datasets import DataSet, open_dataset
from driftgate.lab.data.named import NamedClasses
from driftgate.lab.data.orders import StreamShare
from driftgate.lab.data.streams import DomainStream
from driftgate.shifts import ClassOrder, ClassSplit, Shift

DIGITS = 8
"""An id ends in so many digits of a hash; whatever stands before them may be named anew."""

LONGEST_NAME = 150
"""Characters of an id before its hash; file systems take 255 with endings."""


class ModelJob(BaseModel):
    """A source model to train: ``data`` under ``root``, domain ``source``, its first ``num_classes`` classes.

    Shifts with as many source classes share it. ``training`` holds all of ``PretrainSettings``, ``per_class`` the
    number of images of each class to train on at most, ``digest`` the whole hash, ``classes`` the classes that stand
    first where the suite names them, ``given`` the file of a model that is trained already.
    """

    model_config = ConfigDict(frozen=True)

    id: str
    digest: str
    data: str
    root: str | None
    source: str
    num_classes: int
    seed: int
    backbone: str
    weights: str | None
    input_size: tuple[int, int] | None
    training: dict[str, Any]
    per_class: int | None
    classes: tuple[str, ...] = ()
    given: str | None = None

    @property
    def label(self) -> str:
        """For people."""
        return f"{self.source} {self.num_classes} classes seed {self.seed}: source training"

    def open_data(self) -> DataSet:
        """The data set, its classes in the order of this model's."""
        return open_cached(self.data, self.root, self.classes)

    @property
    def class_split(self) -> ClassSplit:
        """The source classes alone: what a target shares or adds makes no difference here."""
        return ClassSplit(self.num_classes, 0, 0)


class RunJob(BaseModel):
    """One method over one stream, on the source model of ``model``.

    ``settings`` holds all settings of the method, ``limit`` the number of batches at most, ``unknown_share`` the share
    of unknown samples where it is not that of the data, ``study`` and ``variant`` what an ablation calls it.
    """

    model_config = ConfigDict(frozen=True)

    id: str
    digest: str
    suite: str
    model: ModelJob
    targets: tuple[str, ...]
    shift: Shift
    split: str
    class_order: ClassOrder
    method: str
    preset: str | None
    settings: dict[str, Any]
    seed: int
    batch_size: int
    drop_last: bool
    limit: int | None
    playing: Playing
    unknown_share: str | None
    study: str | None
    variant: str | None

    @property
    def source(self) -> str:
        return self.model.source

    @property
    def target(self) -> str:
        """All targets as one text."""
        return "+".join(self.targets)

    @property
    def label(self) -> str:
        """For people."""
        share = [] if self.unknown_share is None else [f"{self.unknown_share} unknown"]
        words = [*([] if self.variant is None else [self.variant]), *playing_words(self.playing.as_dict()), *share]
        told = f" ({', '.join(words)})" if words else ""
        return f"{self.source} -> {self.target} {self.shift.value} {self.method}{told} seed {self.seed}"

    @property
    def share(self) -> StreamShare | None:
        """The share of unknown samples, if it is not that of the data."""
        return None if self.unknown_share is None else StreamShare.parse(self.unknown_share)

    @property
    def class_split(self) -> ClassSplit:
        """The split that says which classes come and what scores them."""
        split = ClassSplit.parse(self.split, self.class_order)
        return split if self.share is None else self.share.scored(split)

    def open_stream(self, input_size: tuple[int, int]) -> DomainStream:
        """The stream, in an order of the seed's."""
        data = self.model.open_data()
        return DomainStream(
            [data.domain(name, seed=self.seed) for name in self.targets],
            self.class_split,
            input_size=input_size,
            batch_size=self.batch_size,
            seed=self.seed,
            drop_last=self.drop_last,
            workers=0,
            limit=None if self.limit is None else self.limit * self.batch_size,
            unknown_share=self.share,
            **self.playing.model_dump(),
        )


Job = ModelJob | RunJob


@lru_cache(maxsize=8)
def open_cached(name: str, root: str | None, classes: tuple[str, ...] = ()) -> DataSet:
    """A data set, opened once a process: a worker does many runs on the same one. ``classes`` stand first in it."""
    return NamedClasses(open_cached(name, root), classes) if classes else open_dataset(name, root)


def digest_of(facts: Mapping[str, Any]) -> str:
    """SHA-256 of facts ready for JSON, whatever their order."""
    text = json.dumps(facts, sort_keys=True, allow_nan=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def short(digest: str) -> str:
    """The digits of a digest that an id ends in."""
    return digest[:DIGITS]


def make_id(parts: Iterable[str], digest: str) -> str:
    """``art-OPDA-gmm-seed0-1a2b3c4d``: readable, fit for a file's name, and different for different jobs."""
    name = re.sub(r"[^A-Za-z0-9_.+=-]+", "_", "-".join(parts)).lstrip(".")
    return f"{name[:LONGEST_NAME]}-{short(digest)}"
