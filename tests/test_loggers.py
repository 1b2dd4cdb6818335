"""What the loggers keep of a step, read back by the tools they write for."""

from __future__ import annotations

import csv
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from support import images_of, small_model
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import driftgate
from driftgate import UNKNOWN, UNLABELED, DriftgateError, Prediction
from driftgate.log import Step
from driftgate.loggers import CSVLogger, MLflowLogger, TensorBoardLogger, make_logger
from driftgate.types import Thresholds


def step(number: int, **losses: float) -> Step:
    """Four samples: two rejected, one of them rightly; one learned from; the label of the last is not known."""
    labels = torch.tensor([0, UNKNOWN, UNKNOWN, 1])
    prediction = Prediction(
        labels,
        torch.full((4, 2), 0.5),
        torch.tensor([0.0, 0.5, 1.0, 0.5]),
        torch.tensor([UNLABELED, UNLABELED, UNLABELED, 1]),
        Thresholds(0.25, math.inf, 0.4),
        losses={name: torch.tensor(value) for name, value in losses.items()},
    )
    return Step(number, prediction, torch.tensor([0, UNKNOWN, 1, UNLABELED]), 0.125)


SCALARS = {
    "share/rejected": 0.5,
    "share/learned": 0.25,
    "share/true": pytest.approx(1 / 3),
    "novelty/mean": 0.5,
    "threshold/known": 0.25,
    "threshold/prediction": pytest.approx(0.4),
    "seconds": 0.125,
    "accuracy": pytest.approx(2 / 3),
}
"""Of the step above, without its losses; what is not finite has no curve."""


def test_scalars_of_a_step() -> None:
    assert step(1, kl=2.0).scalars() == {**SCALARS, "loss/kl": 2.0}
    without = Step(1, step(1).prediction)
    assert without.scalars().keys() == SCALARS.keys() - {"share/true", "accuracy", "seconds"}


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_csv_has_a_row_a_step_at_once_and_new_columns_when_they_come(tmp_path: Path) -> None:
    path = tmp_path / "steps.csv"
    with CSVLogger(path) as logger:
        logger(step(1))
        assert float(rows(path)[0]["accuracy"]) == pytest.approx(2 / 3), "written before it is closed"
        logger(step(2, kl=0.5))
        logger(step(3))
    found = rows(path)
    assert [row["step"] for row in found] == ["1", "2", "3"]
    assert [row["loss/kl"] for row in found] == ["", "0.5", ""]
    with CSVLogger(path, append=True) as logger:
        logger(step(4, kl=0.25))
    assert [row["loss/kl"] for row in rows(path)] == ["", "0.5", "", "0.25"]
    CSVLogger(path)
    assert rows(path) == [], "without append a log starts anew"
    (tmp_path / "other.csv").write_text("file,label\n")
    with pytest.raises(DriftgateError, match="begins with 'file'"):
        CSVLogger(tmp_path / "other.csv", append=True)


def test_tensorboard_reads_what_was_logged(tmp_path: Path) -> None:
    with TensorBoardLogger(tmp_path) as logger:
        for number in (1, 2):
            logger(step(number, kl=float(number)))
    curves = EventAccumulator(str(tmp_path)).Reload()
    assert set(curves.Tags()["scalars"]) == {*SCALARS, "loss/kl"}
    assert [(event.step, event.value) for event in curves.Scalars("loss/kl")] == [(1, 1.0), (2, 2.0)]


class StandIn:
    """MLflow's client as far as the logger uses it; MLflow itself is too large for this environment."""

    experiments: dict[str, str] = {}  # noqa: RUF012

    def __init__(self, tracking_uri: str | None = None) -> None:
        self.uri, self.metrics, self.params, self.ended = tracking_uri, [], {}, None  # type: ignore[var-annotated]

    def get_experiment_by_name(self, name: str) -> Any:
        found = self.experiments.get(name)
        return None if found is None else SimpleNamespace(experiment_id=found)

    def create_experiment(self, name: str) -> str:
        assert name not in self.experiments, "MLflow refuses a second one of the same name"
        self.experiments[name] = "7"
        return "7"

    def create_run(self, experiment_id: str) -> Any:
        assert experiment_id == "7"
        return SimpleNamespace(info=SimpleNamespace(run_id="run"))

    def log_param(self, run_id: str, key: str, value: Any) -> None:
        self.params[key] = value

    def log_metric(self, run_id: str, key: str, value: float, *, step: int) -> None:
        self.metrics.append((run_id, key, value, step))

    def set_terminated(self, run_id: str) -> None:
        self.ended = run_id


@pytest.fixture
def mlflow(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    module = ModuleType("mlflow")
    module.MlflowClient = StandIn  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "mlflow", module)
    monkeypatch.setattr("driftgate.extras.find_spec", lambda name: name)
    monkeypatch.setattr(StandIn, "experiments", {})
    yield


@pytest.mark.usefixtures("mlflow")
def test_mlflow_gets_a_run_with_a_metric_a_step() -> None:
    with MLflowLogger("file:///store", parameters={"method": "gmm"}) as logger:
        logger(step(3, kl=0.5))
    client = logger.client
    assert (client.uri, client.params, client.ended) == ("file:///store", {"method": "gmm"}, "run")
    assert ("run", "loss/kl", 0.5, 3) in client.metrics
    assert {key for _, key, _, _ in client.metrics} == {*SCALARS, "loss/kl"}
    make_logger("mlflow:file:///store").close()  # the experiment is there already


def test_a_missing_extra_and_an_unknown_log_say_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for wrong in ("wandb:x", "csv", "csv:"):
        with pytest.raises(DriftgateError, match="Expected a log out of csv:FILE"):
            make_logger(wrong)
    monkeypatch.setattr("driftgate.extras.find_spec", lambda name: None)
    for text, extra in (("tensorboard:x", "tensorboard"), ("mlflow:x", "mlflow")):
        with pytest.raises(DriftgateError, match=rf"pip install 'driftgate\[{extra}\]'"):
            make_logger(text)


def test_a_logger_is_a_hook(tmp_path: Path) -> None:
    method = driftgate.create("source-only", small_model())
    with make_logger(f"csv:{tmp_path / 'steps.csv'}") as logger:
        driftgate.run_stream(method, [images_of(4, seed) for seed in range(3)], on_step=logger)
    assert [row["step"] for row in rows(tmp_path / "steps.csv")] == ["1", "2", "3"]
