"""What a suite comes to: source models to train and runs to do."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from driftgate.lab.bench.entries import MethodEntry, Pair
from driftgate.lab.bench.jobs import Job, ModelJob, RunJob, digest_of, make_id, open_cached
from driftgate.lab.bench.playing import unusual
from driftgate.lab.bench.studies import BASELINE, Study, Variant
from driftgate.lab.bench.suite import Suite
from driftgate.lab.data.datasets import DataSet, FileData
from driftgate.lab.files import file_sha256
from driftgate.models import SourceModel
from driftgate.models.backbones import UNTRAINED, check_backbone, check_weights
from driftgate.models.layers import GROUPS, select_parameters
from driftgate.shifts import ClassOrder, ClassSplit, Shift
from driftgate.types import DriftgateError

QUICK_PER_CLASS = 40
"""Source images of each class in a quick training, which has one epoch."""

AS_EVER = {"precision": "float32", "optimizer": "sgd"}
"""Settings that say what every version did before there was a choice: at these values they make no other run."""


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
    entries = suite.methods if study is None else (_entry(suite, study.method),)
    suite.changed(methods=[entry.model_dump() for entry in entries]).check_methods()
    if model is None:
        check_backbone(suite.backbone)
        check_weights(suite.backbone, suite.weights)
    if limit is not None and limit < 1:
        raise DriftgateError(f"Expected a limit of at least one batch but got {limit}; leave it out for all.")
    data = open_cached(suite.data, None if root is None else str(root))
    planner = _Planner(suite, data, root, limit or suite.limit, quick_training, study, model)
    models: dict[str, ModelJob] = {}
    runs: dict[str, RunJob] = {}
    pairs = list(dict.fromkeys(resolve_pair(data, pair) for pair in suite.pairs))
    variants = (BASELINE,) if study is None else study.variants
    # Seeds outermost: a sweep that is stopped early has something of every cell.
    for seed, pair, shift in product(suite.seeds, pairs, suite.shifts):
        source = planner.model_job(pair.source, shift, seed)
        for share, entry, variant in product(planner.shares(shift), entries, variants):
            if entry.runs_under(shift):
                run = planner.run_job(source, pair, entry, shift=shift, seed=seed, variant=variant, share=share)
                models[source.id], runs[run.id] = source, run
    if not runs:
        raise DriftgateError(
            f"Expected at least one run but suite {suite.name} has none of "
            f"{', '.join(entry.name for entry in entries)} under {', '.join(shift.value for shift in suite.shifts)}"
            + ("; unknown shares need ODA or OPDA." if suite.unknown_shares else "; name others of them.")
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


def resolve_pair(data: DataSet, pair: Pair) -> Pair:
    """The pair with the names of the data set, and the usual targets if it has none."""
    source = data.canonical(pair.source)
    targets = tuple(data.canonical(name) for name in pair.targets) or data.targets(source)
    if source in targets:
        raise DriftgateError(f"Expected targets other than the source but got the pair {pair}; name others.")
    return Pair(source=source, targets=targets)


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
    given: Path | None

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
        job = self._trained(source, shift, seed)
        return job if self.given is None else _given_model(job, self.given, shift)

    def _trained(self, source: str, shift: Shift, seed: int) -> ModelJob:
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
        per_class = QUICK_PER_CLASS if self.quick else None
        digest = digest_of(
            {
                "data": suite.data,
                "source": source,
                "images": _images(self.data, (source,)),
                "classes": list(data.class_names[:num_classes]),
                "backbone": suite.backbone,
                "input_size": suite.input_size,
                "weights": _weights_digest(suite.weights),
                "training": _not_as_ever(recipe),
                "per_class": per_class,
            }
        )
        words = [source, f"{num_classes}-classes", *([f"seed{own_seed}"] if suite.source_per_seed else [])]
        return ModelJob(
            id=make_id(words, digest),
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
        batch_size = variant.batch_size or suite.batch_size
        digest = digest_of(
            {
                "model": model.digest,
                "targets": list(pair.targets),
                "images": _images(self.data, pair.targets),
                "split": f"{split} {order}",
                "method": entry.name,
                "settings": _not_as_ever(settings),
                "seed": seed,
                "batch_size": batch_size,
                "drop_last": suite.drop_last,
                "limit": self.limit,
                # Only what is not as usual, so that runs of versions that knew nothing else stay what they are.
                **unusual(suite.playing.as_dict()),
                **({} if share is None else {"unknown_share": share}),
                **({} if not model.classes else {"class_names": list(model.classes)}),
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


def _not_as_ever(settings: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if AS_EVER.get(name) != value}


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
            f"Expected a model for the {len(wanted)} source classes of {shift.value} ({', '.join(wanted[:5])} ...) but "
            f"{path} knows {model.num_classes} ({', '.join(model.spec.class_names[:5])} ...); choose --shifts it fits."
        )
    facts = {"backbone": model.spec.backbone, "input_size": model.spec.image_size, "training": {"epochs": 0}}
    named = {"id": make_id([path.stem], digest), "digest": digest, "given": str(path.absolute()), "seed": 0}
    return job.model_copy(update={**facts, **named, "per_class": None, "weights": None})
