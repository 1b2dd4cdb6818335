"""What a suite comes to: source models to train and runs to do, each with an id that says what it is.

An id ends in eight digits of a hash over everything that decides the result, so that a changed setting is another run
and the same one is never done twice.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel

from driftgate.lab.bench.studies import BASELINE, Study, Variant
from driftgate.lab.bench.suite import MethodEntry, Pair, Suite
from driftgate.lab.data.datasets import DataSet, FileData, open_cached
from driftgate.lab.data.orders import Playing, StreamShare
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


class ModelJob(BaseModel, frozen=True):
    """A source model to train: ``data`` under ``root``, domain ``source``, its first ``num_classes`` classes.

    Shifts with as many source classes share it. ``training`` holds all of ``PretrainSettings``, ``per_class`` the
    number of images of each class to train on at most, ``digest`` the whole hash, ``classes`` the classes that stand
    first where the suite names them, ``given`` the file of a model that is trained already.
    """

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
        return f"{self.source} {self.num_classes} classes seed {self.seed}: source training"

    def open_data(self) -> DataSet:
        """The data set, its classes in the order of this model's."""
        return open_cached(self.data, self.root, self.classes)

    @property
    def class_split(self) -> ClassSplit:
        """The source classes alone: what a target shares or adds makes no difference here."""
        return ClassSplit(self.num_classes, 0, 0)


class RunJob(BaseModel, frozen=True):
    """One method over one stream, on the source model of ``model``.

    ``settings`` holds all settings of the method, ``limit`` the number of batches at most, ``unknown_share`` the share
    of unknown samples where it is not that of the data, ``study`` and ``variant`` what an ablation calls it.
    """

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
        return "+".join(self.targets)

    @property
    def label(self) -> str:
        share = None if self.unknown_share is None else f"{self.unknown_share} unknown"
        words = list(filter(None, (self.variant, *self.playing.words(), share)))
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

    @property
    def num_batches(self) -> int:
        """Batches of the stream if everything can be read."""
        return len(self.open_stream((1, 1)))


Job = ModelJob | RunJob


def short(digest: str) -> str:
    """The digits of a digest that an id ends in."""
    return digest[:DIGITS]


def make_id(parts: Iterable[str], digest: str) -> str:
    """``art-OPDA-gmm-seed0-1a2b3c4d``: readable, fit for a file's name, and different for different jobs."""
    name = re.sub(r"[^A-Za-z0-9_.+=-]+", "_", "-".join(parts)).lstrip(".")
    return f"{name[:LONGEST_NAME]}-{short(digest)}"


QUICK_PER_CLASS = 40
"""Source images of each class in a quick training, which has one epoch."""

AS_EVER = {"precision": "float32", "optimizer": "sgd"}
"""Settings that say what every version did before there was a choice: at these values they make no other run."""


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
    data = open_cached(suite.data, None if root is None else str(root))
    planner = _Planner(suite, data, root, limit or suite.limit, quick_training, study)
    runs: dict[str, RunJob] = {}
    pairs = list(dict.fromkeys(pair.resolve(data) for pair in suite.pairs))
    variants = (BASELINE,) if study is None else study.variants
    # Seeds outermost: a sweep that is stopped early has something of every cell.
    for seed, pair, shift in product(suite.seeds, pairs, suite.shifts):
        source = planner.model_job(pair.source, shift, seed)
        source = source if model is None else _given_model(source, model, shift)
        for share, entry, variant in product(planner.shares(shift), entries, variants):
            if entry.runs_under(shift):
                run = planner.run_job(source, pair, entry, shift=shift, seed=seed, variant=variant, share=share)
                runs[run.id] = run
    if not runs:
        raise DriftgateError(
            f"Expected at least one run but suite {suite.name} has none of "
            f"{', '.join(entry.name for entry in entries)} under {', '.join(shift.value for shift in suite.shifts)}"
            + ("; unknown shares need ODA or OPDA." if suite.unknown_shares else "; name others of them.")
        )
    _check_layers(suite, runs.values())
    return Plan(suite, list(runs.values()))


def _check_layers(suite: Suite, runs: Iterable[RunJob]) -> None:
    """Refuse layers to adapt that the network does not have."""
    wanted = dict.fromkeys(run.settings.get("adapt_layers", "all") for run in runs)
    # Every network has the groups, so that it must be built only where somebody names layers of his own.
    named = [layers for layers in wanted if not {part.strip() for part in layers.split(",")} <= set(GROUPS)]
    if named:
        model = SourceModel.build(suite.backbone, ["any"], input_size=suite.input_size, weights=UNTRAINED)
        for layers in named:
            select_parameters(model, layers)


def merge_plans(plans: Sequence[Plan]) -> Plan:
    """Several plans of one suite as one."""
    return Plan(plans[0].suite, list({job.id: job for plan in plans for job in plan.runs}.values()))


@dataclass(frozen=True)
class _Planner:
    """What all jobs of a plan share."""

    suite: Suite
    data: DataSet
    root: Path | None
    limit: int | None
    quick: bool
    study: Study | None

    def split(self, shift: Shift, order: ClassOrder) -> ClassSplit:
        custom = self.suite.splits.get(shift)
        if self.suite.classes is not None:
            custom = "/".join(str(len(part)) for part in self.suite.classes.parts(shift, self.data.class_names))
        return self.data.split(shift, order, custom)

    def shares(self, shift: Shift) -> tuple[str | None, ...]:
        """The unknown shares to play; none where nothing is unknown. A study varies its own things alone."""
        if not self.suite.unknown_shares or self.study is not None:
            return (None,)
        return self.suite.unknown_shares if self.split(shift, "shared-first").target_private else ()

    def model_job(self, source: str, shift: Shift, seed: int) -> ModelJob:
        """The source model to train; the one that is given instead has a job of its own."""
        suite = self.suite
        parts = () if suite.classes is None else suite.classes.parts(shift, self.data.class_names)
        classes = tuple(name for part in parts for name in part)
        data = open_cached(suite.data, None if self.root is None else str(self.root), classes)
        # The source classes are the same in every class order, so that all orders share a model.
        num_classes = self.split(shift, "shared-first").num_source
        own_seed = seed if suite.source_per_seed else 0
        training = suite.training_settings(own_seed)
        if self.quick:
            training = training.model_copy(update={"epochs": 1})
        recipe = training.model_dump(mode="json")
        facts: dict[str, Any] = {
            **{"data": suite.data, "source": source, "backbone": suite.backbone, "input_size": suite.input_size},
            "per_class": QUICK_PER_CLASS if self.quick else None,
        }
        decides = {
            "images": _images(self.data, (source,)),
            "classes": list(data.class_names[:num_classes]),
            "weights": _weights_digest(suite.weights),
            "training": _not_as_ever(recipe),
        }
        digest = digest_of({**facts, **decides})
        words = [source, f"{num_classes}-classes", *([f"seed{own_seed}"] if suite.source_per_seed else [])]
        return ModelJob(
            **facts,
            id=make_id(words, digest),
            digest=digest,
            root=None if self.root is None else str(self.root),
            num_classes=num_classes,
            seed=own_seed,
            weights=suite.weights,
            training=recipe,
            classes=classes,
        )

    def run_job(
        self,
        model: ModelJob,
        pair: Pair,
        entry: MethodEntry,
        *,
        shift: Shift,
        seed: int,
        variant: Variant,
        share: str | None,
    ) -> RunJob:
        suite = self.suite
        order = variant.class_order or suite.class_order
        split = str(self.split(shift, order))
        settings = entry.resolve(suite.data, seed, **variant.settings)
        facts: dict[str, Any] = {
            **{"targets": pair.targets, "method": entry.name, "seed": seed, "drop_last": suite.drop_last},
            **{"batch_size": variant.batch_size or suite.batch_size, "limit": self.limit},
        }
        decides = {
            "model": model.digest,
            "images": _images(self.data, pair.targets),
            "split": f"{split} {order}",
            "settings": _not_as_ever(settings),
            # Only what is not as usual, so that runs of versions that knew nothing else stay what they are.
            **suite.playing.unusual(),
            **({} if share is None else {"unknown_share": share}),
            **({} if not model.classes else {"class_names": list(model.classes)}),
        }
        digest = digest_of({**facts, **decides})
        study = None if self.study is None else self.study.name
        named = [] if study is None else [study, variant.name.removeprefix(f"{study}=")]
        named += [] if share is None else [f"unknown{share}"]
        parts = [pair.source, "+".join(pair.targets), shift.value, entry.name, f"seed{seed}", *named]
        return RunJob(
            **facts,
            id=make_id(parts, digest),
            digest=digest,
            suite=suite.name,
            model=model,
            shift=shift,
            split=split,
            class_order=order,
            preset=entry.preset_for(suite.data),
            settings=settings,
            playing=suite.playing,
            unknown_share=share,
            study=study,
            variant=None if study is None else variant.name,
        )


def _not_as_ever(settings: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if (name, value) not in AS_EVER.items()}


def _images(data: DataSet, domains: Iterable[str]) -> list[int] | None:
    """Images of each domain: other pictures are another result. What comes with the package is always the same."""
    return [len(data.domain(name)) for name in domains] if isinstance(data, FileData) else None


@lru_cache(maxsize=4)
def _weights_digest(weights: str | None) -> str | None:
    """What the weights are, not where they lie."""
    return weights if weights is None or weights == UNTRAINED else file_sha256(Path(weights))


@lru_cache(maxsize=64)
def _read_model(path: Path) -> tuple[str, SourceModel]:
    return file_sha256(path), SourceModel.load(path)


def _given_model(job: ModelJob, path: Path, shift: Shift) -> ModelJob:
    """The job with a model that is trained already instead of one to train."""
    digest, model = _read_model(path.absolute())
    wanted = job.open_data().class_names[: job.num_classes]
    if tuple(model.spec.class_names) != tuple(wanted):
        raise DriftgateError(
            f"Expected a model for the {len(wanted)} source classes of {shift.value} ({few(wanted, 5)}) but "
            f"{path} knows {model.num_classes} ({few(model.spec.class_names, 5)}); choose --shifts it fits."
        )
    facts = {"backbone": model.spec.backbone, "input_size": model.spec.image_size, "training": {"epochs": 0}}
    named = {"id": make_id([path.stem], digest), "digest": digest, "given": str(path.absolute()), "seed": 0}
    return job.model_copy(update={**facts, **named, "per_class": None, "weights": None})
