"""What a suite comes to: source models to train and runs to do, each with an id that says what it is.

An id ends in eight digits of a hash over everything that decides the result, so that a changed setting is another run
and the same one is never done twice.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from driftgate.lab.bench.studies import BASELINE, Study, Variant
from driftgate.lab.bench.suite import MethodEntry, Suite
from driftgate.lab.data.datasets import DataSet, open_cached
from driftgate.lab.data.orders import StreamShare
from driftgate.lab.data.streams import DomainStream
from driftgate.lab.files import digest_of, file_sha256
from driftgate.models import SourceModel
from driftgate.models.backbones import UNTRAINED, check_backbone, check_weights
from driftgate.models.layers import GROUPS, select_parameters
from driftgate.shifts import ClassOrder, ClassSplit, Shift
from driftgate.text import few
from driftgate.types import DriftgateError

DIGITS = 8
"""An id ends in so many digits of a hash; whatever stands before them may be named anew."""

LONGEST_NAME = 150
"""Characters of an id before its hash; file systems take 255 with endings."""

QUICK_PER_CLASS = 40
"""Source images of each class in a quick training, which has one epoch."""

AS_EVER = {"precision": "float32", "optimizer": "sgd", "agreement_weight": 0.0}
"""Settings that say what every version did before there was a choice: at these values they make no other run."""


def short(digest: str) -> str:
    """The digits of a digest that an id ends in."""
    return digest[:DIGITS]


def make_id(parts: Iterable[str], digest: str) -> str:
    """``art-OPDA-gmm-seed0-1a2b3c4d``: readable, fit for a file's name, and different for different jobs."""
    name = re.sub(r"[^A-Za-z0-9_.+=-]+", "_", "-".join(parts)).lstrip(".")
    return f"{name[:LONGEST_NAME]}-{short(digest)}"


@dataclass(frozen=True)
class ModelJob:
    """A source model to train: domain ``source`` of the suite's data under ``root``, the source classes of ``shift``.

    Shifts with as many source classes share it. ``seed`` is 0 where all seeds share it too, ``quick`` means one epoch
    on few images, ``given`` is the file of a model that is trained already.
    """

    suite: Suite
    root: str | None
    source: str
    shift: Shift
    seed: int
    quick: bool = False
    given: str | None = None

    @cached_property
    def classes(self) -> tuple[str, ...]:
        """The classes that stand first, where the suite names them."""
        names = self.suite.classes
        if names is None:
            return ()
        data = open_cached(self.suite.data, self.root)
        return tuple(name for part in names.parts(self.shift, data.class_names) for name in part)

    def open_data(self) -> DataSet:
        """The data set, its classes in the order of this model's."""
        return open_cached(self.suite.data, self.root, self.classes)

    def split(self, order: ClassOrder) -> ClassSplit:
        """The classes of the shift."""
        custom, data = self.suite.splits.get(self.shift), open_cached(self.suite.data, self.root)
        if self.suite.classes is not None:
            parts = self.suite.classes.parts(self.shift, data.class_names)
            custom = "/".join(str(len(part)) for part in parts)
        return data.split(self.shift, order, custom)

    @cached_property
    def num_classes(self) -> int:
        """The same in every class order, so that all orders share a model."""
        return self.split("shared-first").num_source

    @property
    def class_split(self) -> ClassSplit:
        """The source classes alone: what a target shares or adds makes no difference here."""
        return ClassSplit(self.num_classes, 0, 0)

    @property
    def per_class(self) -> int | None:
        """Images of each class to train on at most."""
        return QUICK_PER_CLASS if self.quick else None

    @cached_property
    def training(self) -> dict[str, Any]:
        """All of ``PretrainSettings``."""
        settings = self.suite.training_settings(self.seed).model_dump(mode="json")
        return {**settings, "epochs": 1} if self.quick else settings

    @cached_property
    def digest(self) -> str:
        if self.given is not None:
            return str(_weights_digest(self.given))
        suite = self.suite
        return digest_of(
            {
                **{"data": suite.data, "source": self.source, "backbone": suite.backbone},
                **{"input_size": suite.input_size, "per_class": self.per_class},
                "images": _images(self.open_data(), (self.source,)),
                "classes": list(self.open_data().class_names[: self.num_classes]),
                "weights": _weights_digest(suite.weights),
                "training": _not_as_ever(self.training),
            }
        )

    @cached_property
    def id(self) -> str:
        own = [f"seed{self.seed}"] if self.suite.source_per_seed else []
        words = [Path(self.given).stem] if self.given else [self.source, f"{self.num_classes}-classes", *own]
        return make_id(words, self.digest)

    @property
    def label(self) -> str:
        return f"{self.source} {self.num_classes} classes seed {self.seed}: source training"


@dataclass(frozen=True)
class RunJob:
    """One method over one stream, on the source model of ``model``.

    ``limit`` is the number of batches at most, ``unknown_share`` the share of unknown samples where it is not that of
    the data, ``study`` and ``change`` what an ablation varies.
    """

    model: ModelJob
    targets: tuple[str, ...]
    shift: Shift
    entry: MethodEntry
    seed: int
    limit: int | None = None
    unknown_share: str | None = None
    study: str | None = None
    change: Variant = BASELINE

    @property
    def suite(self) -> Suite:
        return self.model.suite

    @property
    def method(self) -> str:
        return self.entry.name

    @cached_property
    def settings(self) -> dict[str, Any]:
        """All settings of the method."""
        return self.entry.resolve(self.suite.data, self.seed, **self.change.settings)

    @property
    def variant(self) -> str | None:
        return None if self.study is None else self.change.name

    @property
    def batch_size(self) -> int:
        return self.change.batch_size or self.suite.batch_size

    @cached_property
    def data_split(self) -> ClassSplit:
        """The classes that source and target have."""
        return self.model.split(self.change.class_order or self.suite.class_order)

    @property
    def share(self) -> StreamShare | None:
        """The share of unknown samples, if it is not that of the data."""
        return None if self.unknown_share is None else StreamShare.parse(self.unknown_share)

    @property
    def class_split(self) -> ClassSplit:
        """The split that says which classes come and what scores them."""
        return self.data_split if self.share is None else self.share.scored(self.data_split)

    @cached_property
    def digest(self) -> str:
        suite, model = self.suite, self.model
        return digest_of(
            {
                **{"targets": self.targets, "method": self.method, "seed": self.seed, "drop_last": suite.drop_last},
                **{"batch_size": self.batch_size, "limit": self.limit, "model": model.digest},
                "images": _images(model.open_data(), self.targets),
                "split": f"{self.data_split} {self.data_split.order}",
                "settings": _not_as_ever(self.settings),
                # Only what is not as usual, so that runs of versions that knew nothing else stay what they are.
                **suite.playing.unusual(),
                **({} if self.unknown_share is None else {"unknown_share": self.unknown_share}),
                **({} if not model.classes else {"class_names": list(model.classes)}),
            }
        )

    @cached_property
    def id(self) -> str:
        named = [] if self.study is None else [self.study, self.change.name.removeprefix(f"{self.study}=")]
        named += [] if self.unknown_share is None else [f"unknown{self.unknown_share}"]
        return make_id(
            [self.model.source, self.target, self.shift.value, self.method, f"seed{self.seed}", *named], self.digest
        )

    @property
    def target(self) -> str:
        return "+".join(self.targets)

    @property
    def named(self) -> dict[str, Any]:
        """What stands on top of a record of a sweep."""
        found = {"id": self.id, "suite": self.suite.name, "seed": self.seed, "study": self.study}
        return {
            **{**found, "variant": self.variant},
            **{"source": self.model.source, "target": self.target, "shift": self.shift.value},
        }

    @property
    def label(self) -> str:
        share = None if self.unknown_share is None else f"{self.unknown_share} unknown"
        words = list(filter(None, (self.variant, *self.suite.playing.words(), share)))
        told = f" ({', '.join(words)})" if words else ""
        return f"{self.model.source} -> {self.target} {self.shift.value} {self.method}{told} seed {self.seed}"

    def open_stream(self, input_size: tuple[int, int]) -> DomainStream:
        """The stream, in an order of the seed's."""
        data = self.model.open_data()
        return DomainStream(
            [data.domain(name, seed=self.seed) for name in self.targets],
            self.class_split,
            input_size=input_size,
            batch_size=self.batch_size,
            seed=self.seed,
            drop_last=self.suite.drop_last,
            workers=0,
            limit=None if self.limit is None else self.limit * self.batch_size,
            unknown_share=self.share,
            **self.suite.playing.model_dump(),
        )

    @property
    def num_batches(self) -> int:
        """Batches of the stream if everything can be read."""
        return len(self.open_stream((1, 1)))


Job = ModelJob | RunJob


class Plan(NamedTuple):
    """All jobs of a suite; the models come first, each once."""

    suite: Suite
    runs: list[RunJob]

    @property
    def models(self) -> list[ModelJob]:
        return list({run.model.id: run.model for run in self.runs}.values())

    @property
    def jobs(self) -> list[Job]:
        return [*self.models, *self.runs]


def make_plan(
    suite: Suite,
    *,
    root: Path | None = None,
    limit: int | None = None,
    quick_training: bool = False,
    study: Study | None = None,
    model: Path | None = None,
) -> Plan:
    """The jobs of ``suite``; methods, settings, pairs, splits and network are checked here, before anything is spent.

    Args:
        suite: what to run.
        root: where the data lies; digits need none.
        limit: batches of each stream at most; the suite's own limit if None.
        quick_training: one epoch on few images, to see that everything works.
        study: an ablation: its method in all its variants, instead of the suite's methods.
        model: a source model that is trained already; it must know the source classes of every shift.
    """
    entries = suite.methods if study is None else (suite.entry(study.method),)
    if model is None:
        check_backbone(suite.backbone)
        check_weights(suite.backbone, suite.weights)
    if limit is not None and limit < 1:
        raise DriftgateError(f"Expected a limit of at least one batch but got {limit}; leave it out for all.")
    place, given = None if root is None else str(root), None if model is None else str(model.absolute())
    data = open_cached(suite.data, place)
    runs: dict[str, RunJob] = {}
    pairs = list(dict.fromkeys(pair.resolve(data) for pair in suite.pairs))
    shares = suite.unknown_shares if study is None else ()  # a study varies its own things alone
    variants = (BASELINE,) if study is None else study.variants
    # Seeds outermost: a sweep that is stopped early has something of every cell.
    for seed, pair, shift in product(suite.seeds, pairs, suite.shifts):
        source = ModelJob(suite, place, pair.source, shift, seed * suite.source_per_seed, quick_training, given)
        _check_given(source)
        unknown = source.split("shared-first").target_private > 0
        for share, entry, variant in product((shares if unknown else ()) if shares else (None,), entries, variants):
            if entry.runs_under(shift):
                named = None if study is None else study.name
                run = RunJob(source, pair.targets, shift, entry, seed, limit or suite.limit, share, named, variant)
                runs[run.id] = run
    if not runs:
        raise DriftgateError(
            f"Expected at least one run but suite {suite.name} has none of "
            f"{', '.join(entry.name for entry in entries)} under {', '.join(shift.value for shift in suite.shifts)}"
            + ("; unknown shares need ODA or OPDA." if suite.unknown_shares else "; name others of them.")
        )
    _check_layers(suite, runs.values())
    return Plan(suite, list(runs.values()))


def merge_plans(plans: Sequence[Plan]) -> Plan:
    """Several plans of one suite as one."""
    return Plan(plans[0].suite, list({job.id: job for plan in plans for job in plan.runs}.values()))


def _check_layers(suite: Suite, runs: Iterable[RunJob]) -> None:
    """Refuse layers to adapt that the network does not have."""
    wanted = dict.fromkeys(run.settings.get("adapt_layers", "all") for run in runs)
    # Every network has the groups, so that it must be built only where somebody names layers of his own.
    named = [layers for layers in wanted if not {part.strip() for part in layers.split(",")} <= set(GROUPS)]
    if named:
        model = SourceModel.build(suite.backbone, ["any"], input_size=suite.input_size, weights=UNTRAINED)
        for layers in named:
            select_parameters(model, layers)


def _check_given(job: ModelJob) -> None:
    """Refuse a model that is trained already, but for other classes."""
    if job.given is None:
        return
    known, wanted = _class_names(job.given), job.open_data().class_names[: job.num_classes]
    if known != tuple(wanted):
        raise DriftgateError(
            f"Expected a model for the {len(wanted)} source classes of {job.shift.value} ({few(wanted, 5)}) but "
            f"{job.given} knows {len(known)} ({few(known, 5)}); choose --shifts it fits."
        )


@lru_cache(maxsize=64)
def _class_names(model_file: str) -> tuple[str, ...]:
    return tuple(SourceModel.load(model_file).spec.class_names)


def _not_as_ever(settings: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if (name, value) not in AS_EVER.items()}


def _images(data: DataSet, domains: Iterable[str]) -> list[int] | None:
    """Images of each domain: other pictures are another result. What comes with the package is always the same."""
    return None if data.name == "digits" else [len(data.domain(name)) for name in domains]


@lru_cache(maxsize=4)
def _weights_digest(weights: str | None) -> str | None:
    """What the weights are, not where they lie."""
    return weights if weights is None or weights == UNTRAINED else file_sha256(Path(weights))
