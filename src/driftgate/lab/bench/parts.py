"""The parts of a suite: pairs of domains, methods with their settings, classes by name, how streams are played, and
the studies that vary one thing: the supplement's and what the paper leaves open, from ``studies.yaml``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from typing import Any

import yaml
from pydantic import BaseModel, Field, field_validator, model_validator

from driftgate.lab.data.datasets import DataSet
from driftgate.lab.data.orders import Arrangement, Order, StreamShare
from driftgate.methods import get_method, resolve_settings
from driftgate.shifts import ClassOrder, Shift
from driftgate.text import did_you_mean
from driftgate.types import DriftgateError

NO_PRESET = "default"
"""Instead of a preset's name: the method's defaults, even where it has a preset called like the data set."""


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

    @field_validator("settings")
    @classmethod
    def _no_seed(cls, settings: dict[str, Any]) -> dict[str, Any]:
        if "seed" in settings:
            raise ValueError("a method's seed is the run's; name it under seeds")
        return settings

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


AND_SO_ON = "..."


class Playing(BaseModel, frozen=True, extra="forbid"):
    """How the samples of a target are played; see ``DomainStream``. The defaults are the paper's way."""

    order: Order = "shuffled"
    concentration: float = Field(default=0.1, gt=0.0)
    arrangement: Arrangement = "mixed"
    repeat: int = Field(default=1, ge=1)

    def as_dict(self) -> dict[str, Any]:
        """For a record; a concentration counts only where classes come together."""
        return {**self.model_dump(), "concentration": self.concentration if self.order == "dirichlet" else None}


USUAL = Playing().as_dict()


def unusual(facts: Mapping[str, Any]) -> dict[str, Any]:
    """What of a job's or a record's playing is not as usual; records of older versions have none of it."""
    return {name: facts[name] for name in USUAL if facts.get(name) is not None and facts[name] != USUAL[name]}


def playing_words(facts: Mapping[str, Any]) -> list[str]:
    """``dirichlet 0.1``, ``continual``, ``3 passes``: what is not as usual, for people."""
    found = unusual(facts)
    words = [f"{found['order']} {facts['concentration']:g}"] if "order" in found else []
    words += [str(found["arrangement"])] if "arrangement" in found else []
    return words + ([f"{found['repeat']} passes"] if "repeat" in found else [])


def parse_shares(text: str) -> tuple[str, ...]:
    """``0,0.1,...,0.9`` -> 0, 0.1, 0.2 up to 0.9; ``0.5,0->0.8`` -> one that holds and one that changes."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise DriftgateError(f"Expected unknown shares like 0,0.3 or 0,0.1,...,0.9 but got {text!r}; write them so.")
    return check_shares(part for part in _filled(parts, text))


def check_shares(shares: Iterable[Any]) -> tuple[str, ...]:
    """Each share as it is written everywhere, and once."""
    return tuple(dict.fromkeys(str(StreamShare.parse(str(share))) for share in shares))


def _filled(parts: list[str], text: str) -> list[str]:
    """The parts, with what ``...`` stands for: steps as large as the one before it, up to the share after it."""
    filled: list[str] = []
    for place, part in enumerate(parts):
        if part != AND_SO_ON:
            filled.append(part)
            continue
        try:
            first, second, last = (float(parts[near]) for near in (place - 2, place - 1, place + 1) if near >= 0)
        except (ValueError, IndexError) as error:
            raise DriftgateError(
                f"Expected two shares before ... and one after it, as in 0,0.1,...,0.9, but got {text!r}; write it so."
            ) from error
        steps = (last - second) / (second - first) if second != first else 0.0
        if steps < 1 or abs(steps - round(steps)) > 1e-6:
            raise DriftgateError(
                f"Expected equal steps between the shares around ... but got {text!r}; write them out."
            )
        filled += [f"{second + number * (second - first):.6g}" for number in range(1, round(steps))]
    return filled


class Variant(BaseModel, frozen=True, extra="forbid"):
    """One column of a figure: settings of the method, or another batch size or class order of the stream."""

    name: str
    settings: dict[str, Any] = Field(default_factory=dict)
    batch_size: int | None = None
    class_order: ClassOrder | None = None


BASELINE = Variant(name="")
"""No change at all."""


class Study(BaseModel, frozen=True, extra="forbid"):
    """One thing varied, everything else as it is.

    Attributes:
        name: how the command line calls it.
        title: what is varied.
        variants: in the order of the figure's axis.
        paper: what the paper's supplement found on VisDA-C OPDA; None where the paper leaves the choice open.
        method: the method it is about.
    """

    name: str
    title: str
    variants: tuple[Variant, ...]
    paper: str | None = None
    method: str = "gmm"


def _read_studies() -> dict[str, Study]:
    text = resources.files("driftgate.lab.bench").joinpath("studies.yaml").read_text(encoding="utf-8")
    studies = {}
    for name, facts in yaml.safe_load(text).items():
        values, variants = facts.pop("values", ()), facts.pop("variants", {})
        found = [Variant(name=f"{name}={value}", settings={name: value}) for value in values]
        found += [Variant(name=variant, **changes) for variant, changes in variants.items()]
        studies[name] = Study(name=name, variants=tuple(found), **facts)
    return studies


STUDIES = _read_studies()
"""All studies by name, those of the supplement first."""


def get_study(name: str) -> Study:
    """The study of that name."""
    found = STUDIES.get(name.replace("-", "_"))
    if found is None:
        advice = did_you_mean(name, STUDIES, "'driftgate ablate' lists them.")
        raise DriftgateError(f"Expected a study out of {', '.join(STUDIES)} but got {name!r}; {advice}")
    return found
