"""Loggers: hooks that keep the numbers of every step, in a CSV file, for TensorBoard or for MLflow.

Each is called with a step (``driftgate.log.Step``), by ``run_stream(..., on_step=logger)`` or in a loop of your own,
and closed at the end; as a context manager it closes itself.
"""

from __future__ import annotations

import csv
import importlib
from abc import ABC, abstractmethod
from pathlib import Path
from types import TracebackType
from typing import Any

from driftgate.extras import require
from driftgate.files import write_atomically
from driftgate.log import Step
from driftgate.types import DriftgateError

STEP = "step"


class StepLogger(ABC):
    """Keeps ``step.scalars()`` of every step it is called with."""

    def __call__(self, step: Step) -> None:
        self.write(step.number, step.scalars())

    @abstractmethod
    def write(self, number: int, scalars: dict[str, float]) -> None:
        """Keep the numbers of a step."""

    def close(self) -> None:
        """Put everything where it belongs; nothing can be logged afterwards."""

    def __enter__(self) -> StepLogger:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class CSVLogger(StepLogger):
    """A row a step in ``path``, on the disk at once; a number that comes later for the first time gets a new column.

    An existing file is replaced, or continued with ``append``.
    """

    def __init__(self, path: str | Path, *, append: bool = False) -> None:
        self.path = Path(path)
        self.columns = self._columns() if append and self.path.exists() else []
        if not self.columns:
            self._rewrite([STEP], [])

    def write(self, number: int, scalars: dict[str, float]) -> None:
        new = [name for name in scalars if name not in self.columns]
        if new:
            with self.path.open(newline="", encoding="utf-8") as file:
                rows = list(csv.DictReader(file))
            self._rewrite([*self.columns, *new], rows)
        with self.path.open("a", newline="", encoding="utf-8") as file:
            csv.DictWriter(file, self.columns, restval="").writerow({STEP: number, **scalars})

    def _columns(self) -> list[str]:
        with self.path.open(newline="", encoding="utf-8") as file:
            found = next(csv.reader(file), [])
        if found and found[0] != STEP:
            raise DriftgateError(
                f"Expected a log that begins with {STEP!r} in {self.path} but it begins with {found[0]!r}; name "
                "another file."
            )
        return found

    def _rewrite(self, columns: list[str], rows: list[dict[str, Any]]) -> None:
        def fill(temporary: str) -> None:
            with open(temporary, "w", newline="", encoding="utf-8") as file:
                writer = csv.DictWriter(file, columns, restval="")
                writer.writeheader()
                writer.writerows(rows)

        write_atomically(self.path, fill)
        self.columns = columns


class TensorBoardLogger(StepLogger):
    """Curves in the folder ``path``: ``tensorboard --logdir path`` shows them."""

    def __init__(self, path: str | Path) -> None:
        require("tensorboard", "TensorBoardLogger")
        self.writer: Any = importlib.import_module("torch.utils.tensorboard").SummaryWriter(str(path))

    def write(self, number: int, scalars: dict[str, float]) -> None:
        for name, value in scalars.items():
            self.writer.add_scalar(name, value, number)

    def close(self) -> None:
        self.writer.close()


class MLflowLogger(StepLogger):
    """A run of the experiment ``experiment`` at the tracking server or store ``uri``, with ``parameters`` if given.

    A client of its own: what the program itself sends to MLflow is left alone.
    """

    def __init__(
        self, uri: str | None = None, *, experiment: str = "driftgate", parameters: dict[str, Any] | None = None
    ) -> None:
        require("mlflow", "MLflowLogger")
        self.client: Any = importlib.import_module("mlflow").MlflowClient(tracking_uri=uri)
        known = self.client.get_experiment_by_name(experiment)
        self.run_id = self.client.create_run(
            self.client.create_experiment(experiment) if known is None else known.experiment_id
        ).info.run_id
        for name, value in (parameters or {}).items():
            self.client.log_param(self.run_id, name, value)

    def write(self, number: int, scalars: dict[str, float]) -> None:
        for name, value in scalars.items():
            self.client.log_metric(self.run_id, name, value, step=number)

    def close(self) -> None:
        self.client.set_terminated(self.run_id)


KINDS = ("csv:FILE", "tensorboard:DIR", "mlflow:URI")


def make_logger(text: str, *, append: bool = False) -> StepLogger:
    """``csv:steps.csv``, ``tensorboard:runs/one`` or ``mlflow:http://localhost:5000`` -> a logger."""
    kind, _, place = text.partition(":")
    if not place or kind not in {"csv", "tensorboard", "mlflow"}:
        raise DriftgateError(f"Expected a log out of {', '.join(KINDS)} but got {text!r}; write it so.")
    if kind == "csv":
        return CSVLogger(place, append=append)
    return TensorBoardLogger(place) if kind == "tensorboard" else MLflowLogger(place)
