"""The audit log: one JSON line a batch or event, rotated; who was answered what, by which state."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Sequence
from dataclasses import asdict
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any

from driftgate.guard import Event
from driftgate.serve.answers import Answer, BatchReport
from driftgate.serve.clock import timestamp


class _Handler(RotatingFileHandler):
    """Raises what goes wrong instead of printing it, so that the engine can count and log it."""

    def handleError(self, record: logging.LogRecord) -> None:  # logging's name
        error = sys.exc_info()[1]
        if error is not None:
            raise error


class AuditLog:
    """``audit.jsonl`` in ``folder``, at most ``files`` of ``max_bytes`` each."""

    def __init__(self, folder: Path, *, max_bytes: int = 50_000_000, files: int = 5) -> None:
        self.path = folder / "audit.jsonl"
        self._handler = _Handler(self.path, maxBytes=max_bytes, backupCount=files - 1, encoding="utf-8", delay=True)

    def __call__(self, report: BatchReport) -> None:
        """Listens to the engine."""
        self.answers(report.answers, report.requests, before=report.before, after=report.after, learned=report.learned)

    def answers(
        self, answers: Sequence[Answer], requests: Sequence[str], *, before: str, after: str, learned: bool
    ) -> None:
        """Answers with the names of their requests, and the state's version around what was learned from them."""
        rows = [
            {
                "id": answer.id,
                "request": request,
                "label": answer.label,
                "name": answer.name,
                "probability": round(answer.probability, 6),
                "novelty": answer.novelty,
                "learned_from": answer.learned_from,
                "version": answer.version,
            }
            for answer, request in zip(answers, requests, strict=True)
        ]
        self.write("batch", before=before, after=after, learned=learned, answers=rows)

    def event(self, event: Event) -> None:
        """Something the guard did."""
        self.write("event", **asdict(event))

    def write(self, what: str, **facts: Any) -> None:
        line = json.dumps({"time": timestamp(), "what": what, **facts})
        self._handler.handle(logging.LogRecord("audit", logging.INFO, "", 0, line, None, None))

    def close(self) -> None:
        self._handler.close()
