"""Studies that vary one thing: the supplement's and what the paper leaves open, from ``studies.yaml``."""

from __future__ import annotations

from importlib import resources
from typing import Any

import yaml
from pydantic import BaseModel

from driftgate.shifts import ClassOrder
from driftgate.text import did_you_mean
from driftgate.types import DriftgateError


class Variant(BaseModel, frozen=True, extra="forbid"):
    """One column of a figure: settings of the method, or another batch size or class order of the stream."""

    name: str
    settings: dict[str, Any] = {}
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
