"""What the engine says: an answer a sample, and a report a batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from torch import Tensor

from driftgate.guard import Health
from driftgate.types import UNKNOWN, UNLABELED, Prediction

UNKNOWN_NAME = "unknown"


@dataclass(frozen=True)
class Answer:
    """What the service says about one sample.

    Attributes:
        id: to give feedback on.
        label, name: the class and its name, or -1 and ``unknown``.
        probability: of the most probable class.
        novelty: larger = more unknown.
        thresholds: on the novelty: up to ``known`` a sample teaches its class, from ``unknown`` on that it is unknown,
            above ``prediction`` it is answered as unknown; None where there is none.
        learned_from: the name it taught, or None where it taught nothing.
        version: of the state that answered.
    """

    id: str
    label: int
    name: str
    probability: float
    novelty: float
    thresholds: dict[str, float | None]
    learned_from: str | None
    version: str


@dataclass(frozen=True)
class BatchReport:
    """One batch, once it was learned from: what listeners see.

    Attributes:
        inputs: (N, ...) as the model takes them.
        prediction: what was answered.
        answers: one a sample; where others gave them, by the state of their version, they may differ from it.
        requests: the name of the request each sample came with.
        features: (N, D) that the prediction was made of, where they were asked for.
        learned: whether the method took a step.
        health: of the method after it, as the guard sees it.
        seconds_to_answer, seconds: from the batch being complete to the answers, and to the end of the learning.
        before, after: versions of the state.
    """

    inputs: Tensor
    prediction: Prediction
    answers: Sequence[Answer]
    requests: Sequence[str]
    features: Tensor | None
    learned: bool
    health: Health
    seconds_to_answer: float
    seconds: float
    before: str
    after: str

    @property
    def taught(self) -> bool:
        """Whether any sample of the batch got a pseudo-label."""
        return self.learned and bool((self.prediction.pseudo_labels != UNLABELED).any())


def answers_of(
    prediction: Prediction, ids: Sequence[str], names: Sequence[str], version: str, learning: bool
) -> list[Answer]:
    """A prediction of N samples -> N answers."""
    thresholds = {name: finite(value) for name, value in prediction.thresholds._asdict().items()}
    rows = zip(
        ids,
        prediction.labels.tolist(),
        prediction.scores.amax(dim=1).tolist(),
        prediction.novelty.tolist(),
        prediction.pseudo_labels.tolist(),
        strict=True,
    )
    return [
        Answer(
            id=answer_id,
            label=label,
            name=class_name(names, label),
            probability=probability,
            novelty=novelty,
            thresholds=thresholds,
            learned_from=class_name(names, taught) if learning and taught != UNLABELED else None,
            version=version,
        )
        for answer_id, label, probability, novelty, taught in rows
    ]


def on_cpu(prediction: Prediction) -> Prediction:
    """The same where listeners look at it, wherever the model lives."""
    found: dict[str, Any] = {field.name: getattr(prediction, field.name) for field in fields(prediction)}
    moved: dict[str, Any] = {name: value.cpu() for name, value in found.items() if isinstance(value, Tensor)}
    return replace(prediction, **moved)


def class_name(names: Sequence[str], label: int) -> str:
    """The name of a class, or ``unknown``."""
    return UNKNOWN_NAME if label == UNKNOWN else names[label]


def finite(value: float) -> float | None:
    """JSON knows neither NaN nor infinity."""
    return value if math.isfinite(value) else None
