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
from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, ValidationError, model_validator

from driftgate.lab.data.datasets import DATASETS, DataSet
from driftgate.lab.data.orders import Playing, parse_shares
from driftgate.lab.pretrain import PretrainSettings
from driftgate.methods import get_method, resolve_settings
from driftgate.models.backbones import RESNETS
from driftgate.shifts import ClassOrder, ClassSplit, Shift
from driftgate.text import did_you_mean, problems
from driftgate.types import DriftgateError

FOLDER = "suites"
TRAINING = "training"
"""Before the dot of ``--set``, where a method's name would stand: a setting of source training."""

NO_PRESET = "default"
"""Instead of a preset's name: the method's defaults, even where it has a preset called like the data set."""

SMALLEST_SIDE = 8
LARGEST_SEED = 2**63 - 1
MOST_SEEDS = 10_000
"""Of a suite; ``seeds: 9999999999`` would fill all memory."""


class Pair(BaseModel, frozen=True, extra="forbid"):
    """A source domain and the target domains that are mixed; without targets, those that usually go with it."""

    source: str = Field(min_length=1)
    targets: tuple[str, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _read(cls, text: Any) -> Any:
        """``photo -> cartoon+sketch``, or ``photo`` alone for the usual targets."""
        if not isinstance(text, str):
            return text
        source, arrow, rest = text.partition("->")
        targets = tuple(name.strip() for name in rest.split("+")) if arrow else ()
        if not source.strip() or not all(targets) or "->" in rest:
            raise DriftgateError(
                f"Expected a pair like 'photo -> cartoon+sketch' or 'photo' but got {text!r}; write it so."
            )
        if len(set(targets)) < len(targets):
            raise DriftgateError(f"Expected each target of a pair once but got {text!r}; leave out the second.")
        return {"source": source.strip(), "targets": targets}

    def resolve(self, data: DataSet) -> Pair:
        """The pair with the names of the data set, and the usual targets if it has none."""
        source = data.canonical(self.source)
        targets = tuple(data.canonical(name) for name in self.targets) or data.targets(source)
        if source in targets:
            raise DriftgateError(f"Expected targets other than the source but got the pair {self}; name others.")
        return Pair(source=source, targets=targets)

    def __str__(self) -> str:
        return f"{self.source} -> {'+'.join(self.targets)}" if self.targets else self.source


class MethodEntry(BaseModel, frozen=True, extra="forbid"):
    """A method of a suite.

    Attributes:
        name: as ``driftgate methods`` lists it.
        preset: None for the preset called like the data set where the method has one, ``default`` for none.
        settings: on top of the preset.
        shifts: run it under these only (SHOT-P is made for PDA, SHOT-O for the others); None for all.
    """

    name: str = Field(min_length=1)
    preset: str | None = None
    settings: dict[str, Any] = Field(default_factory=dict)
    shifts: tuple[Shift, ...] | None = None

    @model_validator(mode="before")
    @classmethod
    def _read(cls, name: Any) -> Any:
        return {"name": name} if isinstance(name, str) else name

    @model_validator(mode="after")
    def _check(self) -> MethodEntry:
        if "seed" in self.settings:
            raise ValueError("a method's seed is the run's; name it under seeds")
        return self

    def preset_for(self, data: str) -> str | None:
        """The preset that is meant for a data set."""
        if self.preset is None:
            return data if data in get_method(self.name).presets else None
        return None if self.preset == NO_PRESET else self.preset

    def resolve(self, data: str, seed: int, **changes: Any) -> dict[str, Any]:
        """All settings of a run, ready for JSON; refuses a method or a setting that does not exist."""
        chosen = {**self.settings, **changes, "seed": seed}
        return resolve_settings(self.name, self.preset_for(data), chosen).model_dump(mode="json")

    def runs_under(self, shift: Shift) -> bool:
        return self.shifts is None or shift in self.shifts


class ClassNames(BaseModel, frozen=True, extra="forbid"):
    """Classes by name: those that source and target share, those of the source alone, those of the target alone.

    PDA takes the first two, ODA the first and the third, OPDA all. Where no target-private ones are named they are all
    others.
    """

    shared: tuple[str, ...] = Field(min_length=1)
    source_private: tuple[str, ...] = ()
    target_private: tuple[str, ...] = ()

    def parts(self, shift: Shift, class_names: Sequence[str]) -> tuple[tuple[str, ...], ...]:
        """The shared, source-private and target-private classes of a shift."""
        named = {*self.shared, *self.source_private}
        target = self.target_private or tuple(name for name in class_names if name not in named)
        return self.shared, () if shift is Shift.ODA else self.source_private, () if shift is Shift.PDA else target


def parse_seeds(text: str) -> tuple[int, ...]:
    """``3`` -> 0, 1, 2; ``0,4`` -> 0, 4; ``4,`` -> 4."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(part.isascii() and part.isdigit() for part in parts) or text.strip() == "0":
        raise DriftgateError(f"Expected a number of seeds like 3, or seeds like 0,4 but got {text!r}; write them so.")
    if max(map(len, parts)) > 19 or len(parts) > MOST_SEEDS or ("," not in text and int(text) > MOST_SEEDS):
        raise DriftgateError(f"Expected at most {MOST_SEEDS} seeds but got {text[:40]!r}; name fewer.")
    return tuple(int(part) for part in parts) if "," in text else tuple(range(int(text)))


def _several(value: Any) -> Any:
    """A list, also of a single thing that was written without one."""
    if not isinstance(value, list | tuple | str | dict):
        raise ValueError("expected one or a list of them")
    return [value] if isinstance(value, str | dict) else value


def _each_once(items: tuple[Any, ...]) -> tuple[Any, ...]:
    names = [str(getattr(item, "name", item)) for item in items]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"expected each once but {twice} is there twice")
    return items


def _read_seeds(value: Any) -> Any:
    """A number of seeds means the first ones."""
    if isinstance(value, bool) or not isinstance(value, int):
        return value
    if value > MOST_SEEDS:
        raise ValueError(f"expected at most {MOST_SEEDS} seeds")
    return range(value)


def _read_shares(value: Any) -> Any:
    given = [value] if isinstance(value, int | float) else _several(value)
    return parse_shares(",".join(map(str, given))) if given else ()


Several, Once = BeforeValidator(_several), AfterValidator(_each_once)
Seed = Annotated[int, Field(ge=0, le=LARGEST_SEED)]
Side = Annotated[int, Field(ge=SMALLEST_SIDE)]


class Suite(Playing, frozen=True, extra="forbid"):
    """A benchmark; docs/bench.md tells what each key means. None stands for what backbone or data have themselves."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")
    title: str = ""
    data: str
    backbone: str = "lite0"
    weights: str | None = None
    input_size: Annotated[tuple[Side, Side] | None, BeforeValidator(lambda n: (n, n) if isinstance(n, int) else n)] = (
        None
    )
    pairs: Annotated[tuple[Pair, ...], Several, Once] = Field(min_length=1)
    shifts: Annotated[tuple[Shift, ...], Once] = Field(default=tuple(Shift), min_length=1)
    splits: dict[Shift, str] = Field(default_factory=dict)
    classes: ClassNames | None = None
    class_order: ClassOrder = "shared-first"
    methods: Annotated[tuple[MethodEntry, ...], Several, Once] = Field(min_length=1)
    batch_size: int = Field(default=64, ge=1)
    drop_last: bool = False
    limit: int | None = Field(default=None, ge=1)
    unknown_shares: Annotated[tuple[str, ...], BeforeValidator(_read_shares)] = ()
    seeds: Annotated[tuple[Seed, ...], BeforeValidator(_read_seeds), Once] = Field(default=(0, 1, 2), min_length=1)
    source_per_seed: bool = False
    training: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _check_all(self) -> Suite:
        if self.data not in DATASETS:
            raise ValueError(f"data must be one of {', '.join(DATASETS)} but is {self.data!r}")
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

    def with_backbone(self, backbone: str | None, weights: str | None = None, input_size: int | None = None) -> Suite:
        """With another backbone, which then has its own weights and input size unless others are given.

        The two versions of ResNet-50 are networks for the same pictures: the suite's input size stays.
        """
        changes: dict[str, Any] = {}
        if backbone is not None and backbone != self.backbone:
            changes = {"backbone": backbone, "weights": None}
            changes |= {} if {backbone, self.backbone} <= set(RESNETS) else {"input_size": None}
        given = {"weights": weights, "input_size": input_size}
        return self.changed(**changes | {key: value for key, value in given.items() if value is not None})

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
        same = [pair for pair in self.pairs if pair.source == wanted.source]
        return [p for p in same if not wanted.targets or set(p.targets) == set(wanted.targets)] or [wanted]

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


def builtin_suites() -> dict[str, str]:
    """Names of the suites that come with the package, and their YAML."""
    folder = resources.files("driftgate.lab.bench") / FOLDER
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".yaml")), key=lambda file: file.name)
    return {file.name.removesuffix(".yaml"): file.read_text(encoding="utf-8") for file in files}


def read_suite(name: str | Path) -> Suite:
    """The built-in suite of that name, or the suite in that file."""
    known, path = builtin_suites(), Path(name)
    if str(name) in known:
        return parse_suite(_yaml(known[str(name)], f"suite {name}"), f"suite {name}")
    if not path.is_file():
        advice = did_you_mean(str(name), known, "'driftgate bench' lists them.")
        raise DriftgateError(
            f"Expected a suite out of {', '.join(known)} or the path of a YAML file but got {str(name)!r}; {advice}"
        )
    return parse_suite(_yaml(path.read_bytes(), str(path)), str(path))


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


def _yaml(text: str | bytes, origin: str) -> Any:
    try:
        value = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # days that are none, numbers and nests without end
        raise DriftgateError(f"Expected YAML in {origin} but {' '.join(str(error).split())}; mend it.") from error
    # YAML 1.1 takes 1e-3 for a word, which nobody means.
    return float(value) if isinstance(value, str) and re.fullmatch(r"[+-]?\d+(\.\d*)?[eE][+-]?\d+", value) else value


def _known(place: str) -> Iterable[str]:
    """Which keys there are at a place of a suite."""
    return (MethodEntry if place.startswith("methods") else Pair if place.startswith("pairs") else Suite).model_fields
