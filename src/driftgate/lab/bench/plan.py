"""What a suite comes to: source models to train and runs to do, each with an id that says what it is.

An id ends in eight digits of a hash over everything that decides the result, so that a changed setting is another run
and the same one is never done twice.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict

from driftgate.lab.bench.ablations import BASELINE, Study, Variant
from driftgate.lab.bench.playing import Playing, playing_words, unusual
from driftgate.lab.bench.suite import MethodEntry, Pair, Suite
from driftgate.lab.data.datasets import DataSet, FileData, open_dataset
from driftgate.lab.data.orders import StreamShare
from driftgate.models import SourceModel
from driftgate.models.backbones import UNTRAINED, check_backbone, check_weights
from driftgate.models.layers import GROUPS, select_parameters
from driftgate.shifts import ClassOrder, ClassSplit, Shift
from driftgate.types import DriftgateError

SHORT_DIGEST = 8
QUICK_PER_CLASS = 40
"""Source images of each class in a quick training, which has one epoch."""

LONGEST_NAME = 150
"""Characters of an id before its hash; file systems take 255 with endings."""


class ModelJob(BaseModel):
    """A source model to train: ``data`` under ``root``, domain ``source``, its first ``num_classes`` classes.

    Shifts with as many source classes share it. ``training`` holds all of ``PretrainSettings``, ``per_class`` the
    number of images of each class to train on at most, ``digest`` the whole hash.
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

    @property
    def label(self) -> str:
        """For people."""
        return f"{self.source} {self.num_classes} classes seed {self.seed}: source training"

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


Job = ModelJob | RunJob


class Plan(NamedTuple):
    """All jobs of a suite; the models come first, each once."""

    suite: Suite
    models: list[ModelJob]
    runs: list[RunJob]

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
) -> Plan:
    """The jobs of ``suite``; methods, settings, pairs, splits and network are checked here, before anything is spent.

    Args:
        suite: what to run.
        root: where the data lies; digits need none.
        limit: batches of each stream at most; the suite's own limit if None.
        quick_training: one epoch on few images, to see that everything works.
        study: an ablation: its method in all its variants, instead of the suite's methods.
    """
    entries = suite.methods if study is None else (_entry(suite, study.method),)
    suite.changed(methods=[entry.model_dump() for entry in entries]).check_methods()
    check_backbone(suite.backbone)
    check_weights(suite.backbone, suite.weights)
    if limit is not None and limit < 1:
        raise DriftgateError(f"Expected a limit of at least one batch but got {limit}.")
    data = open_cached(suite.data, None if root is None else str(root))
    planner = _Planner(suite, data, root, limit or suite.limit, quick_training, study)
    models: dict[str, ModelJob] = {}
    runs: dict[str, RunJob] = {}
    pairs = list(dict.fromkeys(resolve_pair(data, pair) for pair in suite.pairs))
    variants = (BASELINE,) if study is None else study.variants
    # Seeds outermost: a sweep that is stopped early has something of every cell.
    for seed, pair, shift in product(suite.seeds, pairs, suite.shifts):
        model = planner.model_job(pair.source, shift, seed)
        for share, entry, variant in product(planner.shares(shift), entries, variants):
            if entry.runs_under(shift):
                run = planner.run_job(model, pair, entry, shift=shift, seed=seed, variant=variant, share=share)
                models[model.id], runs[run.id] = model, run
    if not runs:
        raise DriftgateError(
            f"Expected at least one run but suite {suite.name} has none of "
            f"{', '.join(entry.name for entry in entries)} under {', '.join(shift.value for shift in suite.shifts)}"
            + ("; unknown shares need ODA or OPDA." if suite.unknown_shares else ".")
        )
    _check_layers(suite, runs.values())
    return Plan(suite, list(models.values()), list(runs.values()))


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
    """Several plans of one suite as one: each model once."""
    models = {job.id: job for plan in plans for job in plan.models}
    runs = {job.id: job for plan in plans for job in plan.runs}
    return Plan(plans[0].suite, list(models.values()), list(runs.values()))


@lru_cache(maxsize=4)
def open_cached(name: str, root: str | None) -> DataSet:
    """A data set, opened once a process: a worker does many runs on the same one."""
    return open_dataset(name, root)


def resolve_pair(data: DataSet, pair: Pair) -> Pair:
    """The pair with the names of the data set, and the usual targets if it has none."""
    source = data.canonical(pair.source)
    targets = tuple(data.canonical(name) for name in pair.targets) or data.targets(source)
    if source in targets:
        raise DriftgateError(f"Expected targets other than the source but got the pair {pair}.")
    return Pair(source=source, targets=targets)


def digest_of(facts: Mapping[str, Any]) -> str:
    """SHA-256 of facts ready for JSON, whatever their order."""
    text = json.dumps(facts, sort_keys=True, allow_nan=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def short(digest: str) -> str:
    """The digits of a digest that an id ends in."""
    return digest[:SHORT_DIGEST]


def make_id(parts: Iterable[str], digest: str) -> str:
    """``art-OPDA-gmm-seed0-1a2b3c4d``: readable, fit for a file's name, and different for different jobs."""
    name = re.sub(r"[^A-Za-z0-9_.+=-]+", "_", "-".join(parts)).lstrip(".")
    return f"{name[:LONGEST_NAME]}-{short(digest)}"


def _entry(suite: Suite, method: str) -> MethodEntry:
    return next((entry for entry in suite.methods if entry.name == method), MethodEntry(name=method))


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
        return self.data.split(shift, order, self.suite.splits.get(shift))

    def shares(self, shift: Shift) -> tuple[str | None, ...]:
        """The unknown shares to play; none where nothing is unknown. A study varies its own things alone."""
        if not self.suite.unknown_shares or self.study is not None:
            return (None,)
        return self.suite.unknown_shares if self.split(shift, "shared-first").target_private else ()

    def model_job(self, source: str, shift: Shift, seed: int) -> ModelJob:
        suite = self.suite
        # The source classes are the same in every class order, so that all orders share a model.
        num_classes = self.split(shift, "shared-first").num_source
        own_seed = seed if suite.source_per_seed else 0
        training = suite.training_settings(own_seed)
        if self.quick:
            training = training.model_copy(update={"epochs": 1})
        recipe = training.model_dump(mode="json")
        per_class = QUICK_PER_CLASS if self.quick else None
        digest = digest_of(
            {
                "data": suite.data,
                "source": source,
                "images": _images(self.data, (source,)),
                "classes": list(self.data.class_names[:num_classes]),
                "backbone": suite.backbone,
                "input_size": suite.input_size,
                "weights": _weights_digest(suite.weights),
                "training": recipe,
                "per_class": per_class,
            }
        )
        parts = [source, f"{num_classes}-classes", *([f"seed{own_seed}"] if suite.source_per_seed else [])]
        return ModelJob(
            id=make_id(parts, digest),
            digest=digest,
            data=suite.data,
            root=None if self.root is None else str(self.root),
            source=source,
            num_classes=num_classes,
            seed=own_seed,
            backbone=suite.backbone,
            weights=suite.weights,
            input_size=suite.input_size,
            training=recipe,
            per_class=per_class,
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
        batch_size = variant.batch_size or suite.batch_size
        digest = digest_of(
            {
                "model": model.digest,
                "targets": list(pair.targets),
                "images": _images(self.data, pair.targets),
                "split": f"{split} {order}",
                "method": entry.name,
                "settings": settings,
                "seed": seed,
                "batch_size": batch_size,
                "drop_last": suite.drop_last,
                "limit": self.limit,
                # Only what is not as usual, so that runs of versions that knew nothing else stay what they are.
                **unusual(suite.playing.as_dict()),
                **({} if share is None else {"unknown_share": share}),
            }
        )
        study = None if self.study is None else self.study.name
        named = [] if study is None else [study, variant.name.removeprefix(f"{study}=")]
        named += [] if share is None else [f"unknown{share}"]
        parts = [pair.source, "+".join(pair.targets), shift.value, entry.name, f"seed{seed}", *named]
        return RunJob(
            id=make_id(parts, digest),
            digest=digest,
            suite=suite.name,
            model=model,
            targets=pair.targets,
            shift=shift,
            split=split,
            class_order=order,
            method=entry.name,
            preset=entry.preset_for(suite.data),
            settings=settings,
            seed=seed,
            batch_size=batch_size,
            drop_last=suite.drop_last,
            limit=self.limit,
            playing=suite.playing,
            unknown_share=share,
            study=study,
            variant=None if study is None else variant.name,
        )


def _images(data: DataSet, domains: Iterable[str]) -> list[int] | None:
    """Images of each domain: other pictures are another result. What comes with the package is always the same."""
    return [len(data.domain(name)) for name in domains] if isinstance(data, FileData) else None


@lru_cache(maxsize=4)
def _weights_digest(weights: str | None) -> str | None:
    """What the weights are, not where they lie."""
    if weights is None or weights == UNTRAINED:
        return weights
    digest = hashlib.sha256()
    with Path(weights).open("rb") as file:
        while block := file.read(2**20):
            digest.update(block)
    return digest.hexdigest()
