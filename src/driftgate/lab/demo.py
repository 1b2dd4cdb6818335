"""The demo: the suite ``demo`` and its picture. A model of rendered digits meets a stream of handwritten ones."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import joblib
import pandas as pd
import torch
from torch import Tensor

from driftgate.files import write_text
from driftgate.lab import figures
from driftgate.lab.bench.folder import SweepFolder
from driftgate.lab.bench.names import OWN_METHOD
from driftgate.lab.bench.plan import Plan, RunJob, make_plan
from driftgate.lab.bench.results import METRICS, read_results
from driftgate.lab.bench.suite import read_suite
from driftgate.lab.bench.sweep import single_thread
from driftgate.lab.bench.tables import by_method
from driftgate.lab.data.datasets import open_dataset
from driftgate.lab.figures.demo import Gate
from driftgate.lab.pretrain import PretrainSettings, pretrain
from driftgate.memory import StreamingGMM
from driftgate.methods import create
from driftgate.methods.gmm import GMM
from driftgate.models import SourceModel
from driftgate.models.normalization import batch_statistics, preserved_buffers
from driftgate.shifts import ClassSplit, Shift
from driftgate.stream import run_stream
from driftgate.types import UNKNOWN, Stream

SUITE, DATA, SOURCE, TARGET, BATCH_SIZE = "demo", "digits", "rendered", "mnist", 64
VIEW_SHIFT = Shift.OPDA
"""The shift whose feature space is drawn: it has shared, source-private and unknown classes."""

Views = tuple[figures.FeatureView, figures.FeatureView]


@dataclass(frozen=True)
class DemoResult:
    """The runs of a demo, and means over its seeds: shift -> method -> metric, as a fraction."""

    runs: pd.DataFrame
    summary: dict[str, dict[str, dict[str, float | None]]]


def demo_plan(seeds: int, limit: int | None) -> Plan:
    """The demo's runs; with a limit only so many batches of each stream, after a short training."""
    suite = read_suite(SUITE).select(seeds=str(seeds))
    return make_plan(suite, limit=limit, quick_training=limit is not None)


def finish_demo(plan: Plan, out: Path, workers: int = 1) -> DemoResult:
    """Write ``summary.json`` and the picture of a finished demo into its folder ``out``."""
    frame = read_results([out])[0].frame
    runs = frame[frame.id.isin([job.id for job in plan.runs])]
    summary = summarise(runs)
    drawn = [job for job in plan.runs if job.method == OWN_METHOD and job.seed == plan.runs[0].seed]
    workers = min(workers, len(drawn))
    found = joblib.Parallel(n_jobs=workers)(joblib.delayed(replay)(job, out) for job in drawn)
    gates = {job.shift.value: gate for job, (gate, _) in zip(drawn, found, strict=True)}
    views = next(views for _, views in found if views is not None)
    figures.save_figure(figures.demo(runs, gates, views), out / "demo.png")
    write_text(out / "summary.json", json.dumps(summary, indent=2, allow_nan=False) + "\n")
    return DemoResult(runs, summary)


def replay(job: RunJob, out: Path) -> tuple[Gate, Views | None]:
    """Do a run of gmm once more to look inside: what its gate saw and, for one shift, the feature space."""
    with single_thread():
        source = SourceModel.load(SweepFolder(out).model_file(job.model))
        method = create(job.method, source.clone(), **job.settings)
        assert isinstance(method, GMM)
        stream = job.open_stream(source.spec.image_size)
        log = run_stream(method, stream, job.class_split).log
        known, unknown, tau = log.thresholds[-1].tolist()
        gate = Gate(torch.cat(log.novelty).numpy(), (torch.cat(log.targets) == UNKNOWN).numpy(), (known, tau, unknown))
        if job.shift is not VIEW_SHIFT:
            return gate, None
        # Both networks stand still and show all samples to a mixture that starts empty, so that what differs between
        # the two views is the adaptation alone.
        return gate, (_view(GMM(source, method.settings), stream), _view(method, stream))


@torch.no_grad()
def _view(method: GMM, stream: Stream) -> figures.FeatureView:
    mixture = StreamingGMM(method.model.num_classes, method.reducer.out_features, decay=1.0)
    reduced: list[Tensor] = []
    labels: list[Tensor] = []
    with preserved_buffers(method.model):
        for batch in stream.batches():
            with batch_statistics(method.model, len(batch.images)):
                output = method.model(batch.images)
            reduced.append(method.reducer(output.features))
            labels.append(batch.labels)
            mixture.update(reduced[-1], output.logits.softmax(dim=1))
    return figures.project_mixture(mixture, torch.cat(reduced), torch.cat(labels), method.model.spec.class_names)


def summarise(runs: pd.DataFrame) -> dict[str, dict[str, dict[str, float | None]]]:
    """Shift -> method -> metric -> mean over the seeds, as a fraction; what no run measured is left out."""
    names = {**METRICS, "first_half": "first_half", "second_half": "second_half"}
    summary: dict[str, dict[str, dict[str, Any]]] = {}
    for (shift, method), means in runs.groupby(["shift", "method"], sort=False)[list(names)].mean().iterrows():
        found = {name: means[column] / 100.0 for column, name in names.items() if means[column] == means[column]}
        if shift != Shift.PDA.value:
            found.pop("accuracy")
        summary.setdefault(shift, {})[method] = found
    return {shift: {m: found[m] for m in by_method(runs) if m in found} for shift, found in summary.items()}


def train_source(split: ClassSplit, seed: int) -> SourceModel:
    """A small network that knows the rendered digits of the split's source classes, as the demo trains it."""
    data = open_dataset(DATA)
    model = SourceModel.build("cnn", data.class_names[: split.num_source], seed=seed)
    settings = PretrainSettings.for_dataset(DATA, seed=seed)
    pretrain(model, data.domain(SOURCE, seed=seed), split, settings, workers=0)
    return model
