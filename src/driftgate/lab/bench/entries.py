"""The parts of a suite: pairs of domains, methods with their settings, classes by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

from driftgate.methods import get_method, resolve_settings
from driftgate.shifts import Shift
from driftgate.types import DriftgateError

NO_PRESET = "default"
"""Instead of a preset's name: the method's defaults, even where it has a preset called like the data set."""


class Pair(BaseModel):
    """A source domain and the target domains that are mixed; without targets, those that usually go with it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: str = Field(min_length=1)
    targets: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Pair:
        """``photo -> cartoon+sketch``, or ``photo`` alone for the usual targets."""
        source, arrow, rest = text.partition("->")
        targets = tuple(name.strip() for name in rest.split("+")) if arrow else ()
        if not source.strip() or not all(targets) or "->" in rest:
            raise DriftgateError(
                f"Expected a pair like 'photo -> cartoon+sketch' or 'photo' but got {text!r}; write it so."
            )
        if len(set(targets)) < len(targets):
            raise DriftgateError(f"Expected each target of a pair once but got {text!r}; leave out the second.")
        return cls(source=source.strip(), targets=targets)

    def __str__(self) -> str:
        return f"{self.source} -> {'+'.join(self.targets)}" if self.targets else self.source


class MethodEntry(BaseModel):
    """A method of a suite.

    Attributes:
        name: as ``driftgate methods`` lists it.
        preset: None for the preset called like the data set where the method has one, ``default`` for none.
        settings: on top of the preset.
        shifts: run it under these only (SHOT-P is made for PDA, SHOT-O for the others); None for all.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(min_length=1)
    preset: str | None = None
    settings: dict[str, Any] = Field(default_factory=dict)
    shifts: tuple[Shift, ...] | None = None

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


class ClassNames(BaseModel):
    """Classes by name: those that source and target share, those of the source alone, those of the target alone.

    PDA takes the first two, ODA the first and the third, OPDA all. Where no target-private ones are named they are all
    others.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    shared: tuple[str, ...] = Field(min_length=1)
    source_private: tuple[str, ...] = ()
    target_private: tuple[str, ...] = ()

    def parts(self, shift: Shift, class_names: Sequence[str]) -> tuple[tuple[str, ...], ...]:
        """The shared, source-private and target-private classes of a shift."""
        named = {*self.shared, *self.source_private}
        target = self.target_private or tuple(name for name in class_names if name not in named)
        return self.shared, () if shift is Shift.ODA else self.source_private, () if shift is Shift.PDA else target
