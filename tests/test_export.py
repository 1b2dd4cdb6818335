"""Exported networks: the answers of a method that has stopped, in files that run without driftgate."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import networks
import pytest
import torch
from support import images_of, settings_for, small_model, state_of
from torch import Tensor

from driftgate import UNKNOWN, DriftgateError, Method, available, create, wrap
from driftgate.export import INFO, SUFFIXES, Format, run_exported

EXACT = ("source-only", "glc", "glc++", "lead", "comet-f", "comet-p", "shot-p")
"""Methods that predict by running statistics, each sample by itself."""


def adapted(name: str, steps: int = 3, **settings: Any) -> Method:
    """A method that has learned from a few batches."""
    model = small_model()
    method = create(name, model, **(settings_for(name, model) | settings))
    for seed in range(steps):
        method.step(images_of(24, seed))
    return method


def close(answer: tuple[Tensor, Tensor, Tensor], method: Method, images: Tensor) -> None:
    """Equal to ``predict`` within 1e-4, and in the label wherever the novelty is not that near to the threshold."""
    expected = method.predict(images)
    label, probabilities, novelty = answer
    assert torch.allclose(probabilities, expected.scores, atol=1e-4)
    assert torch.allclose(novelty, expected.novelty, atol=1e-4)
    clear = (expected.novelty - expected.thresholds.prediction).abs() > 1e-4
    assert torch.equal(label[clear], expected.labels[clear]) and bool(clear.any())


@pytest.mark.parametrize("to", list(SUFFIXES))
@pytest.mark.parametrize("name", ["glc", "gmm"])
def test_every_format_answers_as_predict(name: str, to: Format, tmp_path: Path) -> None:
    # Batches below ``min_batch`` are answered by mixture and gate as they stand, and by running statistics.
    method = adapted(name, **({"min_batch": 16} if name == "gmm" else {}))
    before = state_of(method)
    path = tmp_path / f"network{SUFFIXES[to]}"
    method.export(path, to)
    for count in (1, 7, 15):
        images = images_of(count, 50 + count)
        close(run_exported(path, to, images), method, images)
    assert all(torch.equal(value, before[key]) for key, value in state_of(method).items())
    assert all(parameter.requires_grad for group in method.optimizer.param_groups for parameter in group["params"])


@pytest.mark.parametrize("name", EXACT)
def test_methods_that_predict_by_running_statistics_are_exact(name: str, tmp_path: Path) -> None:
    method, images = adapted(name), images_of(40, 9)
    report = method.export(tmp_path / "network.onnx", sample=images)
    assert report.approximation == "" and report.samples == 40
    assert report.agreement == 1.0 and report.difference < 1e-4
    close(run_exported(tmp_path / "network.onnx", "onnx", images), method, images)


@pytest.mark.parametrize("name", sorted(set(available()) - set(EXACT) - {"gmm-comet"}))
def test_what_is_approximated_is_told_and_measured(name: str, tmp_path: Path) -> None:
    method, images = adapted(name), images_of(40, 9)
    report = method.export(tmp_path / "network.pt", "torchscript", sample=images)
    label, probabilities, _ = run_exported(tmp_path / "network.pt", "torchscript", images)
    expected = method.predict(images)
    assert report.approximation
    assert report.agreement == pytest.approx(float((label == expected.labels).double().mean()))
    assert report.difference == pytest.approx(float((probabilities - expected.scores).abs().max()))


def test_batch_statistics_give_way_to_the_running_ones_that_followed(tmp_path: Path) -> None:
    method, images = adapted("bn-stats"), images_of(40, 9)
    report = method.export(tmp_path / "network.onnx", sample=images)
    assert "running statistics" in report.approximation
    with torch.no_grad():
        running = method.model(images).logits.softmax(dim=1)
    assert torch.allclose(run_exported(tmp_path / "network.onnx", "onnx", images)[1], running, atol=1e-5)


@pytest.mark.parametrize("settings", [{"covariance": "tied"}, {"novelty": "max_likelihood"}, {"tie_rule": "released"}])
def test_the_mixture_in_its_other_forms(settings: dict[str, Any], tmp_path: Path) -> None:
    method, images = adapted("gmm", min_batch=16, **settings), images_of(15, 9)
    method.export(tmp_path / "network.onnx")
    close(run_exported(tmp_path / "network.onnx", "onnx", images), method, images)


def test_a_wrapped_network_can_be_exported(tmp_path: Path) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = networks.Functional()
    names = [f"class {index}" for index in range(networks.CLASSES)]
    model = wrap(network, class_names=names, input_size=(networks.SIZE, networks.SIZE))
    method = create("source-only", model)
    images = torch.rand(5, 3, networks.SIZE, networks.SIZE, generator=torch.Generator().manual_seed(0))
    for to, suffix in SUFFIXES.items():
        method.export(tmp_path / f"network{suffix}", to)  # type: ignore[arg-type]
        close(run_exported(tmp_path / f"network{suffix}", to, images), method, images)  # type: ignore[arg-type]


def test_the_metadata_names_the_classes_and_what_goes_in(tmp_path: Path) -> None:
    import onnx

    method = adapted("gmm", min_batch=16)
    method.export(tmp_path / "network.onnx")
    found = {entry.key: entry.value for entry in onnx.load(tmp_path / "network.onnx").metadata_props}
    assert json.loads(found["class_names"]) == list(method.model.spec.class_names)
    assert found["method"] == "gmm" and json.loads(found["steps"]) == 3 and json.loads(found["unknown"]) == UNKNOWN
    assert json.loads(found["threshold"]) == pytest.approx(method.frozen().threshold) and found["approximation"]
    files = {INFO: ""}
    method.export(tmp_path / "network.pt", "torchscript")
    torch.jit.load(tmp_path / "network.pt", _extra_files=files)
    assert json.loads(files[INFO])["class_names"] == list(method.model.spec.class_names)
    files = {INFO: ""}
    method.export(tmp_path / "network.pt2", "torch")
    torch.export.load(tmp_path / "network.pt2", extra_files=files)
    assert json.loads(files[INFO])["input"] == {"input_size": [8, 8], "channels": 3, "range": [0.0, 1.0]}


def test_what_cannot_be_exported_is_refused_with_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(DriftgateError, match="student and teacher"):
        adapted("gmm-comet", 1).export(tmp_path / "network.onnx")
    with pytest.raises(DriftgateError, match="threshold from each batch"):
        adapted("shot-o", 1).export(tmp_path / "network.onnx")
    with pytest.raises(DriftgateError, match="empty mixture"):
        adapted("gmm", 0).export(tmp_path / "network.onnx")
    with pytest.raises(DriftgateError, match="onnx, torchscript, torch but got 'tflite'"):
        adapted("source-only", 0).export(tmp_path / "network", "tflite")  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())
