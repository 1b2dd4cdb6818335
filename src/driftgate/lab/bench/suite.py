"""Suites: a benchmark as a small YAML file that says which data, pairs, shifts, methods and seeds it runs.

``read_suite`` finds a built-in one by name or reads the user's own file; ``Suite.select`` narrows it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, BeforeValidator, Field, ValidationError, model_validator

from driftgate.lab.bench.parts import ClassNames, MethodEntry, Pair, Playing, check_shares, parse_shares
from driftgate.lab.data.datasets import DATASETS
from driftgate.lab.data.orders import Arrangement, Order
from driftgate.lab.pretrain import PretrainSettings
from driftgate.methods import available
from driftgate.models.backbones import RESNETS
from driftgate.shifts import ClassOrder, ClassSplit, Shift
from driftgate.text import did_you_mean, problems
from driftgate.types import DriftgateError

FOLDER = "suites"
TRAINING = "training"
"""Before the dot of ``--set``, where a method's name would stand: a setting of source training."""

SMALLEST_SIDE = 8
LARGEST_SEED = 2**63 - 1
MOST_SEEDS, LONGEST_SEEDS = 10_000, 100_000
"""Seeds of a suite, and letters that name them; ``seeds: 9999999999`` would fill all memory."""


def _several(value: Any) -> Any:
    """A list, also of a single thing that was written without one."""
    if not isinstance(value, list | tuple | str | dict):
        raise ValueError("expected one or a list of them")
    return [value] if isinstance(value, str | dict) else value


def _read_seeds(value: Any) -> Any:
    """A number of seeds means the first ones."""
    if isinstance(value, bool) or not isinstance(value, int):
        return value
    if value > MOST_SEEDS:
        raise ValueError(f"expected at most {MOST_SEEDS} seeds")
    return range(value)


def _read_shares(value: Any) -> Any:
    return parse_shares(str(value)) if isinstance(value, str | int | float) else check_shares(_several(value))


Several = BeforeValidator(_several)


class Suite(BaseModel, frozen=True, extra="forbid"):
    """A benchmark; see docs/bench.md.

    Attributes:
        name: names the output folder and every record.
        title: for people.
        data: data set, as ``driftgate data check`` knows it.
        backbone, weights, input_size: of the source models; None for the backbone's own weights and size.
        pairs: sources and targets.
        shifts: category shifts.
        splits: classes of each shift as ``10/5/50``, for a data set without built-in splits or instead of them.
        classes: the classes by name, instead of ``splits``; see ``ClassNames``.
        class_order: of the class axis; see ``ClassSplit``.
        methods: what runs on every stream.
        batch_size, drop_last: of the streams.
        limit: batches of each stream at most; None for all.
        order, concentration, arrangement, repeat: how the streams are played; see ``Playing``.
        unknown_shares: play every stream once for each, with that share of unknown samples (``0.3``, ``0->0.8``),
            instead of once with as many as there are.
        seeds: each decides the order of the streams and what methods draw.
        source_per_seed: train a source model of its own for each seed, instead of one that all seeds share.
        training: settings of source training on top of the data set's own; see ``PretrainSettings``.
    """

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")
    title: str = ""
    data: str
    backbone: str = "lite0"
    weights: str | None = None
    input_size: Annotated[tuple[int, int] | None, BeforeValidator(lambda n: (n, n) if isinstance(n, int) else n)] = None
    pairs: Annotated[tuple[Pair, ...], Several] = Field(min_length=1)
    shifts: tuple[Shift, ...] = Field(default=tuple(Shift), min_length=1)
    splits: dict[Shift, str] = Field(default_factory=dict)
    classes: ClassNames | None = None
    class_order: ClassOrder = "shared-first"
    methods: Annotated[tuple[MethodEntry, ...], Several] = Field(min_length=1)
    batch_size: int = Field(default=64, ge=1)
    drop_last: bool = False
    limit: int | None = Field(default=None, ge=1)
    order: Order = "shuffled"
    concentration: float = Field(default=0.1, gt=0.0)
    arrangement: Arrangement = "mixed"
    repeat: int = Field(default=1, ge=1)
    unknown_shares: Annotated[tuple[str, ...], BeforeValidator(_read_shares)] = ()
    seeds: Annotated[tuple[int, ...], BeforeValidator(_read_seeds)] = Field(default=(0, 1, 2), min_length=1)
    source_per_seed: bool = False
    training: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _check(self) -> Suite:
        if self.data not in DATASETS:
            raise ValueError(f"data must be one of {', '.join(DATASETS)} but is {self.data!r}")
        for what, items in (
            ("pair", [str(pair) for pair in self.pairs]),
            ("method", [entry.name for entry in self.methods]),
            ("seed", [str(seed) for seed in self.seeds]),
            ("shift", [shift.value for shift in self.shifts]),
        ):
            twice = next((item for item in items if items.count(item) > 1), None)
            if twice is not None:
                raise ValueError(f"expected each {what} once but {twice} is there twice")
        if any(not 0 <= seed <= LARGEST_SEED for seed in self.seeds):
            raise ValueError(f"expected seeds from 0 on but got {self.seeds}")
        if self.input_size is not None and min(self.input_size) < SMALLEST_SIDE:
            raise ValueError(f"expected an input size of at least {SMALLEST_SIDE} pixels but got {self.input_size}")
        if "seed" in self.training:
            raise ValueError("the seed of source training is the run's (source_per_seed) or 0; leave it out")
        self.training_settings(0)
        if self.classes and (self.splits or self.class_order != "shared-first"):
            raise ValueError("expected either classes by name, or splits and a class order; leave one of them out")
        if self.classes and not self.classes.source_private and set(self.shifts) != {Shift.ODA}:
            raise ValueError("PDA and OPDA need source-private classes; name them, or choose the shift ODA alone")
        for shift, text in self.splits.items():
            split = ClassSplit.parse(text, self.class_order)
            if split.shift is not shift:
                raise ValueError(f"the split {text} makes {split.shift.value}, not {shift.value}")
        return self

    @property
    def playing(self) -> Playing:
        return Playing(**self.model_dump(include=set(Playing.model_fields)))

    def training_settings(self, seed: int) -> PretrainSettings:
        return PretrainSettings.for_dataset(self.data, **self.training, seed=seed)

    def entry(self, method: str) -> MethodEntry:
        """How the suite has a method; as it is where the suite has it not."""
        return next((entry for entry in self.methods if entry.name == method), MethodEntry(name=method))

    def check_methods(self) -> None:
        """Refuse methods, presets and settings that do not exist; the suite was read without looking at them."""
        missing = [entry.name for entry in self.methods if entry.name not in available()]
        if missing:
            own = "choose with --methods, or make one of your own known with --import my_module."
            raise DriftgateError(
                f"Expected methods out of {', '.join(available())} but suite {self.name} has {', '.join(missing)}; "
                f"{did_you_mean(missing[0], available(), own)}"
            )
        for entry in self.methods:
            entry.resolve(self.data, 0)

    def with_backbone(
        self, backbone: str | None = None, weights: str | None = None, input_size: int | None = None
    ) -> Suite:
        """With another backbone, which then has its own weights and input size unless others are given.

        The two versions of ResNet-50 are networks for the same pictures: the suite's input size stays.
        """
        changes: dict[str, Any] = {}
        if backbone is not None and backbone != self.backbone:
            changes = {"backbone": backbone, "weights": None}
            if not {backbone, self.backbone} <= set(RESNETS):
                changes["input_size"] = None
        if weights is not None:
            changes["weights"] = weights
        if input_size is not None:
            changes["input_size"] = input_size
        return self.changed(**changes)

    def select(
        self,
        *,
        methods: Sequence[str] = (),
        shifts: Sequence[str] = (),
        pairs: Sequence[str] = (),
        seeds: str | None = None,
    ) -> Suite:
        """A part of the suite, or more than it: methods and pairs it does not have are added with no settings.

        Args:
            methods: names; all if empty.
            shifts: PDA, ODA, OPDA; all if empty.
            pairs: ``photo->cartoon+sketch``, or ``photo`` for all pairs with that source; all if empty.
            seeds: a number of seeds as ``3``, or the seeds themselves as ``0,4`` (one of them as ``4,``).
        """
        changes: dict[str, Any] = {}
        if methods:
            changes["methods"] = [self.entry(name).model_dump() for name in methods]
        if shifts:
            changes["shifts"] = [shift.upper() for shift in shifts]
        if pairs:
            chosen = [pair for text in pairs for pair in self._pairs_like(Pair.model_validate(text))]
            changes["pairs"] = [pair.model_dump() for pair in dict.fromkeys(chosen)]
        if seeds is not None:
            changes["seeds"] = parse_seeds(seeds)
        return self.changed(**changes)

    def _pairs_like(self, wanted: Pair) -> list[Pair]:
        if not wanted.targets:
            return [pair for pair in self.pairs if pair.source == wanted.source] or [wanted]
        same = [p for p in self.pairs if p.source == wanted.source and set(p.targets) == set(wanted.targets)]
        return same or [wanted]

    def with_settings(self, pairs: Sequence[str]) -> Suite:
        """With ``gmm.lr=0.01``, ``gmm.preset=paper`` or ``training.epochs=8`` changed; a value is YAML."""
        entries = {entry.name: entry.model_dump() for entry in self.methods}
        training = dict(self.training)
        for text in pairs:
            key, equals, value = text.partition("=")
            method, dot, setting = key.strip().rpartition(".")
            if not equals or not dot or not setting:
                raise DriftgateError(
                    f"Expected --set METHOD.SETTING=VALUE like gmm.lr=0.01 but got {text!r}; write it so."
                )
            if method == TRAINING:
                training[setting] = _yaml(value, text)
            elif method not in entries:
                raise DriftgateError(
                    f"Expected a method of suite {self.name} ({', '.join(entries)}) or {TRAINING} before the dot but "
                    f"got {text!r}; add it to the suite's own methods, or to those of bench with --methods."
                )
            elif setting == "preset":
                entries[method]["preset"] = value
            else:
                entries[method]["settings"] = {**entries[method]["settings"], setting: _yaml(value, text)}
        return self.changed(methods=list(entries.values()), training=training)

    def changed(self, **changes: Any) -> Suite:
        """The same suite with other values, checked again."""
        return parse_suite({**self.model_dump(), **changes}, f"suite {self.name}")


def parse_seeds(text: str) -> tuple[int, ...]:
    """``3`` -> 0, 1, 2; ``0,4`` -> 0, 4; ``4,`` -> 4."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(part.isascii() and part.isdigit() for part in parts) or text.strip() == "0":
        raise DriftgateError(f"Expected a number of seeds like 3, or seeds like 0,4 but got {text!r}; write them so.")
    if len(text) > LONGEST_SEEDS or ("," not in text and int(parts[0]) > MOST_SEEDS):
        raise DriftgateError(f"Expected at most {MOST_SEEDS} seeds but got {text[:40]!r}; name fewer.")
    return tuple(int(part) for part in parts) if "," in text else tuple(range(int(parts[0])))


def builtin_suites() -> dict[str, str]:
    """Names of the suites that come with the package, and their YAML."""
    folder = resources.files("driftgate.lab.bench") / FOLDER
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".yaml")), key=lambda file: file.name)
    return {file.name.removesuffix(".yaml"): file.read_text(encoding="utf-8") for file in files}


def read_suite(name: str | Path) -> Suite:
    """The built-in suite of that name, or the suite in that file."""
    known = builtin_suites()
    if str(name) in known:
        return parse_suite(_yaml(known[str(name)], f"suite {name}"), f"suite {name}")
    path = Path(name)
    if not path.is_file():
        advice = did_you_mean(str(name), known, "'driftgate bench' lists them.")
        raise DriftgateError(
            f"Expected a suite out of {', '.join(known)} or the path of a YAML file but got {str(name)!r}; {advice}"
        )
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DriftgateError(
            f"Expected a suite as a YAML text in {path} but it cannot be read: {error}; look at the file."
        ) from error
    return parse_suite(_yaml(text, str(path)), str(path))


def parse_suite(document: Any, origin: str) -> Suite:
    """A suite out of what YAML gave; ``origin`` is named in errors."""
    if not isinstance(document, dict):
        raise DriftgateError(
            f"Expected a suite in {origin} (name, data, pairs, methods ...) but got {type(document).__name__}; "
            "docs/bench.md has one."
        )
    try:
        return Suite(**document)
    except ValidationError as error:
        raise DriftgateError(f"Expected a suite in {origin} but {problems(error, _known)}; mend it there.") from error
    except (DriftgateError, TypeError, RecursionError) as error:
        raise DriftgateError(f"Expected a suite in {origin} but: {error}; mend it there.") from error


def _yaml(text: str, origin: str) -> Any:
    try:
        value = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # days that are none, numbers and nests without end
        raise DriftgateError(f"Expected YAML in {origin} but {' '.join(str(error).split())}; mend it.") from error
    # YAML 1.1 takes 1e-3 for a word, which nobody means.
    return float(value) if isinstance(value, str) and re.fullmatch(r"[+-]?\d+(\.\d*)?[eE][+-]?\d+", value) else value


def _known(place: str) -> Iterable[str]:
    """Which keys there are at a place of a suite."""
    return (MethodEntry if place.startswith("methods") else Pair if place.startswith("pairs") else Suite).model_fields
