"""What people say about answers: counted in a running score, never needed, never learned from."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from driftgate.serve.answers import UNKNOWN_NAME, Answer
from driftgate.types import DriftgateError


class Feedback:
    """Remembers the last ``size`` answers by their ids, and counts how many of those that were judged were right.

    A name that is not among the model's classes means that the sample was unknown to it.
    """

    def __init__(self, class_names: Sequence[str], counts: dict[str, Any], size: int = 20_000) -> None:
        self.class_names, self.size = frozenset(class_names), size
        self._answers: OrderedDict[str, str] = OrderedDict()
        self._lock = threading.Lock()
        self.counts = counts
        for name in ("known", "known_right", "unknown", "unknown_right"):
            counts.setdefault(name, 0)

    def remember(self, answers: Sequence[Answer]) -> None:
        """Before they are handed out, for whoever has one may judge it at once."""
        with self._lock:
            self._answers.update((answer.id, answer.name) for answer in answers)
            while len(self._answers) > self.size:
                self._answers.popitem(last=False)

    def give(self, answer_id: str, label: str) -> dict[str, Any]:
        """Count one judgement; each answer can be judged once."""
        with self._lock:
            answered = self._answers.pop(answer_id, None)
            if answered is None:
                raise DriftgateError(
                    f"Expected the id of one of the last {self.size:,} answers, not yet judged, but got {answer_id!r}."
                )
            truth = label if label in self.class_names else UNKNOWN_NAME
            kind = "unknown" if truth == UNKNOWN_NAME else "known"
            self.counts[kind] += 1
            self.counts[f"{kind}_right"] += answered == truth
            return {"right": answered == truth, "answered": answered, **self.score()}

    def score(self) -> dict[str, Any]:
        """Counts, and the share that was right among known, unknown and all; None where nothing was judged."""
        counts = {name: int(self.counts[name]) for name in ("known", "known_right", "unknown", "unknown_right")}
        judged, right = counts["known"] + counts["unknown"], counts["known_right"] + counts["unknown_right"]
        return {
            **counts,
            "known_accuracy": _share(counts["known_right"], counts["known"]),
            "unknown_accuracy": _share(counts["unknown_right"], counts["unknown"]),
            "accuracy": _share(right, judged),
        }


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
