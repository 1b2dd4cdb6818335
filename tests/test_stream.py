"""The loop: what is scored, what the record holds, and that a stopped run goes on as if it had not stopped."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from support import NUM_CLASSES, SIZE, images_of, small_model
from torch.utils.data import DataLoader, TensorDataset

import driftgate
from driftgate import UNKNOWN, UNLABELED, DriftgateError
from driftgate.lab.data.streams import TensorStream
from driftgate.log import Step, StreamLog
from driftgate.shifts import ClassSplit
from driftgate.stream import RunResult, evaluate, part_scores, run_stream, stream_steps
from driftgate.types import Batch

SPLIT = ClassSplit(3, 2, 2)


def stream(split: ClassSplit = SPLIT, count: int = 70, batch_size: int = 8) -> TensorStream:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (count, 3, SIZE, SIZE), generator=generator, dtype=torch.uint8)
    classes = torch.tensor(split.target_classes)[
        torch.randint(len(split.target_classes), (count,), generator=generator)
    ]
    return TensorStream(images, split.target_labels(classes), batch_size=batch_size, seed=1)


class StopsAfter(TensorStream):
    """A stream whose process dies after some batches."""

    stop = 5

    def batches(self, start: int = 0) -> Iterator[Batch]:
        for number, batch in enumerate(super().batches(start)):
            if number == self.stop:
                raise KeyboardInterrupt
            yield batch


def run(name: str = "gmm", split: ClassSplit = SPLIT, **options: object) -> RunResult:
    method = driftgate.create(name, small_model(), seed=2)
    return run_stream(method, stream(split), split, **options)  # type: ignore[arg-type]


def interrupt(path: Path) -> None:
    """Start the run of ``run`` and let it die after some batches, with its progress in ``path``."""
    full = stream()
    dying = StopsAfter(full.images, full.labels, batch_size=8, seed=1)
    method = driftgate.create("gmm", small_model(), seed=2)
    with pytest.raises(KeyboardInterrupt):
        run_stream(method, dying, SPLIT, checkpoint=path, checkpoint_every=0)


def test_metrics_are_those_of_the_predictions() -> None:
    result = run()
    predictions = torch.cat(result.log.predictions).numpy()
    targets = torch.cat(result.log.targets).numpy()
    shared = [np.mean(predictions[targets == label] == label) for label in SPLIT.shared_classes]
    known, unknown = np.mean(shared), np.mean(predictions[targets == UNKNOWN] == UNKNOWN)
    metrics = result.record["metrics"]
    assert metrics["known_accuracy"] == pytest.approx(known)
    assert metrics["unknown_accuracy"] == pytest.approx(unknown)
    assert metrics["h_score"] == pytest.approx(2 * known * unknown / (known + unknown))
    assert result.score == metrics["h_score"]
    novelty = torch.cat(result.log.novelty).numpy()
    assert metrics["auroc"] == pytest.approx(roc_auc_score(targets == UNKNOWN, novelty))
    assert metrics["best_threshold_score"] >= metrics["h_score"] - 1e-12
    assert result.record["series"]["running_score"][-1] == pytest.approx(metrics["h_score"])


def test_pda_reports_accuracy_and_counts_rejected_as_wrong() -> None:
    split = ClassSplit(3, 2, 0)
    result = run("source-only", split)
    predictions, targets = torch.cat(result.log.predictions), torch.cat(result.log.targets)
    assert result.record["score"] == "accuracy"
    assert result.score == pytest.approx(float((predictions == targets).double().mean()))
    assert "h_score" not in result.record["metrics"]


def test_a_record_that_no_reader_of_json_takes_is_not_written(tmp_path: Path) -> None:
    result = run()
    result.record["metrics"]["h_score"] = math.nan
    with pytest.raises(ValueError, match="JSON compliant"):
        result.save(tmp_path / "record.json")
    assert list(tmp_path.iterdir()) == []


def test_record_tells_what_a_reader_needs(tmp_path: Path) -> None:
    result = run(protocol={"data": "noise", "seed": 2})
    result.save(tmp_path / "record.json")
    record = json.loads((tmp_path / "record.json").read_text())
    assert record["protocol"]["data"] == "noise"
    assert (record["protocol"]["shift"], record["protocol"]["split"]) == ("OPDA", "3/2/2")
    assert (record["protocol"]["batches"], record["protocol"]["samples"]) == (9, 70)
    assert record["settings"]["seed"] == 2 and record["settings"]["decay"] == 0.999
    assert set(record["definitions"]) == set(record["metrics"])
    assert record["versions"]["torch"] == torch.__version__
    assert record["state_bytes"] > 0 and 0 <= record["peak_memory_bytes"] < 500_000_000
    assert record["seconds"]["total"] > 0
    assert all(len(values) == 9 for values in record["series"].values())


def test_parts_are_scored_on_their_own_batches() -> None:
    result = run()  # 9 batches
    halves, tenths = result.record["halves"], result.record["tenths"]
    assert halves[0] == pytest.approx(evaluate(result.log, SPLIT, 0, 4)["h_score"])
    assert halves[1] == pytest.approx(evaluate(result.log, SPLIT, 4, 9)["h_score"])
    assert len(tenths) == 10 and tenths[0] is None, "nine batches leave a tenth without one"
    assert part_scores(result.log, SPLIT, 9)[3] == pytest.approx(
        evaluate(result.log, SPLIT, 3, 4)["h_score"], nan_ok=True
    )
    assert part_scores(result.log, SPLIT, 1) == [pytest.approx(result.score)]


def test_used_share_is_the_share_with_a_pseudo_label() -> None:
    result = run()
    for labels, share in zip(result.log.pseudo_labels, result.record["series"]["used_share"], strict=True):
        assert share == pytest.approx(sum(label != UNLABELED for label in labels.tolist()) / len(labels))


def test_shares_are_those_of_labels_and_predictions() -> None:
    result = run()
    predictions, targets = torch.cat(result.log.predictions), torch.cat(result.log.targets)
    record = result.record
    assert record["shares"] == {
        "true": pytest.approx(float((targets == UNKNOWN).double().mean())),
        "rejected": pytest.approx(float((predictions == UNKNOWN).double().mean())),
    }, "the default gate estimates no share"
    assert "estimated_share" not in record["series"]
    last = result.log.targets[-1]
    assert record["series"]["true_share"][-1] == pytest.approx(sum(last == UNKNOWN).item() / len(last))


def test_an_estimated_share_is_recorded() -> None:
    method = driftgate.create("gmm", small_model(), seed=2, gate="mixture", min_batch=1)
    result = run_stream(method, stream(), SPLIT)
    series = result.record["series"]["estimated_share"]
    assert len(series) == 9 and all(0 <= share <= 1 for share in series)
    assert series == [float(share) for share in result.log.unknown_share]
    sizes = [len(batch) for batch in result.log.targets]
    mean = sum(size * share for size, share in zip(sizes, series, strict=True)) / sum(sizes)
    assert result.record["shares"]["estimated"] == pytest.approx(mean)


def test_stopped_run_goes_on_as_if_it_had_not_stopped(tmp_path: Path) -> None:
    whole = run()
    path = tmp_path / "progress.safetensors"
    interrupt(path)
    assert path.exists()
    resumed = run(checkpoint=path, checkpoint_every=0)
    for name in ("predictions", "targets", "classes", "novelty", "pseudo_labels", "thresholds"):
        assert torch.equal(torch.cat([*getattr(whole.log, name)]), torch.cat([*getattr(resumed.log, name)])), name
    assert whole.record["metrics"] == resumed.record["metrics"]


def test_progress_of_another_run_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "progress.safetensors"
    interrupt(path)
    other = driftgate.create("gmm", small_model(), seed=3)
    with pytest.raises(DriftgateError, match="remove the file to start anew"):
        run_stream(other, stream(), SPLIT, checkpoint=path)
    same = driftgate.create("gmm", small_model(), seed=2)
    for changed, message in (
        ({"protocol": {"target": "elsewhere"}}, "protocol"),
        ({"split": ClassSplit(3, 2, 2, "paper")}, "split"),
        ({"stream": stream(batch_size=4)}, "batches"),
    ):
        arguments = {"stream": stream(), "split": SPLIT, **changed}
        with pytest.raises(DriftgateError, match=f"Expected to resume a run with {message}"):
            run_stream(same, arguments.pop("stream"), arguments.pop("split"), checkpoint=path, **arguments)  # type: ignore[arg-type]


def test_split_must_fit_the_model_and_stream_must_not_be_empty() -> None:
    method = driftgate.create("source-only", small_model())
    with pytest.raises(DriftgateError, match=f"Expected a split with {NUM_CLASSES} source classes"):
        run_stream(method, stream(), ClassSplit(3, 1, 2))
    empty = TensorStream(torch.zeros(0, 3, SIZE, SIZE, dtype=torch.uint8), torch.zeros(0, dtype=torch.int64))
    with pytest.raises(DriftgateError, match="at least one batch"):
        run_stream(method, empty, SPLIT)


def test_on_batch_sees_the_log_grow() -> None:
    seen: list[int] = []
    run("source-only", on_batch=lambda log: seen.append(len(log)))
    assert seen == list(range(1, 10))


def test_log_goes_round() -> None:
    log = run("bn-stats").log
    again = StreamLog.from_tensors(log.tensors())
    assert len(again) == len(log)
    assert all(torch.equal(one, two) for one, two in zip(log.novelty, again.novelty, strict=True))


def labelled() -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(batch.images, batch.labels) for batch in stream().batches()]


def loops() -> dict[str, Any]:
    """The same batches, as people have them."""
    full = stream()
    order = full.order
    pixels = full.images[order]
    return {
        "pairs": labelled(),
        "generator": iter(labelled()),
        "dictionaries": [{"pixel_values": images, "labels": labels.numpy()} for images, labels in labelled()],
        "DataLoader": DataLoader(TensorDataset(pixels, full.labels[order]), batch_size=8),
        "lists of labels": [[images, labels.tolist()] for images, labels in labelled()],
    }


@pytest.mark.parametrize("kind", loops())
def test_any_iterable_is_run_and_scored_like_a_stream(kind: str) -> None:
    expected = run()
    method = driftgate.create("gmm", small_model(), seed=2)
    found = run_stream(method, loops()[kind], SPLIT)
    assert found.record["metrics"] == expected.record["metrics"]
    assert found.record["protocol"]["batches"] == 9


def test_without_a_split_the_labels_tell_what_is_scored() -> None:
    method = driftgate.create("gmm", small_model(), seed=2)
    found, expected = run_stream(method, labelled()), run()
    assert (found.record["score"], found.record["protocol"]["shift"]) == ("h_score", "OPDA")
    assert found.record["metrics"] == expected.record["metrics"], "all shared classes of the split are seen"
    known = [(images[labels >= 0], labels[labels >= 0]) for images, labels in labelled()]
    closed = run_stream(driftgate.create("source-only", small_model()), known)
    assert closed.record["score"] == "accuracy" and closed.record["protocol"]["shift"] == "PDA"
    hits = torch.cat(closed.log.predictions) == torch.cat([labels for _, labels in known])
    assert closed.score == pytest.approx(float(hits.double().mean()))
    nobody = run_stream(driftgate.create("source-only", small_model()), [(images_of(4, 0), torch.full((4,), UNKNOWN))])
    assert nobody.record["metrics"]["h_score"] is None, "there is no known class to be accurate on"


def test_without_labels_the_record_tells_what_can_be_known() -> None:
    method = driftgate.create("gmm", small_model(), seed=2)
    result = run_stream(method, [images for images, _ in labelled()])
    record, expected = result.record, run()
    assert record["score"] is None and record["metrics"] == {} and math.isnan(result.score)
    predictions = torch.cat(expected.log.predictions)
    assert torch.equal(torch.cat(result.log.predictions), predictions), "labels decide nothing"
    told = record["without_labels"]
    assert told == expected.record["without_labels"]
    assert told["rejected_share"] == pytest.approx(float((predictions == UNKNOWN).double().mean()))
    assert told["class_shares"]["class 1"] == pytest.approx(float((predictions == 1).double().mean()))
    assert told["rejected_share"] + sum(told["class_shares"].values()) == pytest.approx(1.0)
    assert told["mean_novelty"] == pytest.approx(float(torch.cat(result.log.novelty).mean()))
    assert "true" not in record["shares"] and "running_score" not in record["series"]
    assert all(len(values) == 9 for values in record["series"].values())
    json.dumps(record, allow_nan=False)


def test_samples_without_a_label_are_not_scored() -> None:
    half = [
        (images, torch.where(torch.arange(len(labels)) < 4, labels, UNLABELED)) if number % 2 else images
        for number, (images, labels) in enumerate(labelled())
    ]
    result = run_stream(driftgate.create("source-only", small_model()), half, SPLIT)
    targets, predictions = torch.cat(result.log.targets), torch.cat(result.log.predictions)
    known = targets != UNLABELED
    assert int(known.sum()) == 16
    hits = (predictions == targets)[known].double().mean()
    assert result.record["metrics"]["accuracy"] == pytest.approx(float(hits))
    assert result.record["shares"]["true"] == pytest.approx(float((targets == UNKNOWN)[known].double().mean()))


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (torch.tensor([0, 1, 5]), "map classes the model does not have to UNKNOWN"),
        (torch.tensor([0, 1, -3]), "got -3"),
        (torch.tensor([0, 1]), "Expected 3 labels as integers"),
        (torch.tensor([0.0, 1.0, 2.0]), "torch.float32"),
        (["ape", "bee", "cat"], "Expected labels .* as integers but got list"),
    ],
)
def test_bad_labels_are_refused_before_anything_is_learned(labels: object, message: str) -> None:
    method = driftgate.create("gmm", small_model())
    with pytest.raises(DriftgateError, match=message):
        run_stream(method, [(images_of(3, 0), labels)])
    assert method.steps == 0


def test_steps_one_by_one_and_hooks_see_the_same() -> None:
    seen: list[Step] = []
    numbers: list[int] = []
    method = driftgate.create("source-only", small_model())
    run_stream(method, labelled(), on_step=[seen.append, lambda step: numbers.append(step.number)])
    assert numbers == list(range(1, 10))
    alone: list[Step] = []
    run_stream(driftgate.create("source-only", small_model()), labelled(), on_step=alone.append)
    started = time.perf_counter()
    own = list(stream_steps(driftgate.create("source-only", small_model()), labelled()))
    assert 0.0 < sum(step.seconds for step in own) < time.perf_counter() - started
    for one, two, three in zip(seen, alone, own, strict=True):
        assert torch.equal(one.prediction.labels, two.prediction.labels)
        assert torch.equal(one.prediction.labels, three.prediction.labels)
        assert three.targets is not None and torch.equal(three.batch[1], three.targets)


def test_a_stopped_loop_over_an_iterable_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "progress.safetensors"

    def dying() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        yield from labelled()[:5]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_stream(driftgate.create("gmm", small_model(), seed=2), dying(), checkpoint=path, checkpoint_every=0)
    again = driftgate.create("gmm", small_model(), seed=2)
    resumed = run_stream(again, iter(labelled()), checkpoint=path)
    assert again.steps == 9 and resumed.record["metrics"] == run().record["metrics"]
