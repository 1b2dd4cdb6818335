"""Ablations: the supplement's studies of the method, and what the paper leaves open. A study is a list of variants."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from driftgate.novelty.scores import SCORES
from driftgate.shifts import ClassOrder
from driftgate.types import DriftgateError


class Variant(BaseModel):
    """One column of a figure: settings of the method, or another batch size or class order of the stream."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    settings: dict[str, Any] = Field(default_factory=dict)
    batch_size: int | None = None
    class_order: ClassOrder | None = None


BASELINE = Variant(name="")
"""No change at all."""


class Study(BaseModel):
    """One thing varied, everything else as it is.

    Attributes:
        name: how the command line calls it.
        title: what is varied.
        variants: in the order of the figure's axis.
        paper: what the paper's supplement found on VisDA-C OPDA; None where the paper leaves the choice open.
        method: the method it is about.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    title: str
    variants: tuple[Variant, ...]
    paper: str | None = None
    method: str = "gmm"


def _values(setting: str, values: Iterable[Any]) -> tuple[Variant, ...]:
    """A variant for each value of a setting, called ``decay=0.99``."""
    return tuple(Variant(name=f"{setting}={value}", settings={setting: value}) for value in values)


STUDIES = {
    study.name: study
    for study in (
        Study(
            name="losses",
            title="Which losses adapt the network",
            variants=(
                Variant(name="C only", settings={"kl_weight": 0.0}),
                Variant(name="KLD only", settings={"contrastive_weight": 0.0}),
                Variant(name="C and KLD"),
                Variant(name="C and COMET's entropy loss", settings={"kl_form": "comet"}),
            ),
            paper="Each helps alone, KLD more than C; both together are best; COMET's entropy loss is much worse.",
        ),
        Study(
            name="reduced_dim",
            title="Dimensions of the reduced feature space",
            variants=_values("reduced_dim", (16, 32, 48, 64, 80, 96, 112, 128)),
            paper="Stable above 48, a little worse at 48 and 32, much worse at 16.",
        ),
        Study(
            name="p_reject",
            title="Share of samples without a pseudo-label",
            variants=_values("p_reject", (0.1, 0.25, 0.4, 0.5, 0.6, 0.75, 0.9)),
            paper="Nearly constant from 0.25 to 0.75, slightly rising.",
        ),
        Study(
            name="init_batches",
            title="Batches that set the thresholds",
            variants=_values("init_batches", (5, 10, 20, 30, 40, 50)),
            paper="Nearly constant from 20 on, worse below.",
        ),
        Study(
            name="batch_size",
            title="Samples in a batch",
            variants=tuple(Variant(name=f"batch_size={size}", batch_size=size) for size in (8, 16, 32, 64, 128)),
            paper="Falls slightly from 128 to 16, much at 8.",
        ),
        Study(
            name="decay",
            title="How much of the mixture's past survives a batch",
            variants=_values("decay", (0.9, 0.95, 0.99, 0.995, 0.999, 1.0)),
            paper="Slightly better from 1 down to 0.99, sharply worse from 0.95 on.",
        ),
        Study(
            name="novelty",
            title="Novelty score",
            variants=_values("novelty", SCORES),
            paper="likelihood_entropy is best, max_likelihood slightly worse, all others much worse.",
        ),
        Study(
            name="kl_form",
            title="Form of the KL divergence loss",
            variants=_values("kl_form", ("paper", "bounded", "cross_entropy", "comet")),
        ),
        Study(name="reduction", title="Losses summed or averaged", variants=_values("reduction", ("sum", "mean"))),
        Study(
            name="covariance",
            title="Form, floor and shrinkage of the covariances",
            variants=(
                *(
                    Variant(
                        name=f"covariance_floor={floor:g}",
                        settings={"covariance_floor": floor, "covariance_shrinkage": 0.0},
                    )
                    for floor in (1e-6, 1e-4, 1e-2, 1e-1)
                ),
                *_values("covariance_shrinkage", (10, 30, 100, 300, 1000)),
                *_values("covariance", ("tied",)),
            ),
        ),
        Study(name="gate", title="Kind of gate", variants=_values("gate", ("frozen", "tracking", "mixture"))),
        Study(
            name="class_order",
            title="Which classes are shared",
            variants=(
                Variant(name="class_order=shared-first", class_order="shared-first"),
                Variant(name="class_order=paper", class_order="paper"),
            ),
        ),
        Study(
            name="batch_norm",
            title="Statistics that batch norm uses",
            variants=_values("batch_norm", ("auto", "batch", "running")),
        ),
    )
}
"""All studies by name, those of the supplement first."""


def get_study(name: str) -> Study:
    """The study of that name."""
    found = STUDIES.get(name.replace("-", "_"))
    if found is None:
        near = difflib.get_close_matches(name, STUDIES, n=1)
        raise DriftgateError(
            f"Expected a study out of {', '.join(STUDIES)} but got {name!r}"
            + (f"; did you mean {near[0]}?" if near else ".")
        )
    return found
