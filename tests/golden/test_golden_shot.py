"""SHOT-O and SHOT-P against the numbers of SHOT's code.

One known difference: it adds 1e-5 inside the logarithms of the entropies, we do not. That lowers an entropy by at most
C x 1e-5 (over log C where it is normalised).
"""

from __future__ import annotations

import math

import pytest
import torch
from golden_data import case, case_names, distance, moved_apart
from support import loss_of, small_model
from torch import Tensor

import driftgate
from driftgate import UNKNOWN
from driftgate.methods.shot import Shot, centroid_labels
from driftgate.models.source_model import ModelOutput
from driftgate.novelty.scores import entropy
from driftgate.novelty.two_means import two_means_threshold

EPSILON = 1e-5
METHODS = ("shot-o", "shot-p")
LABELS = pytest.mark.parametrize(
    ("method", "name"), [(method, name) for method in METHODS for name in case_names(method, "labels")]
)
STEPS = pytest.mark.parametrize(
    ("method", "name"), [(method, name) for method in METHODS for name in case_names(method, "step")]
)


def make(method: str, model: driftgate.SourceModel, **settings: object) -> Shot:
    made = driftgate.create(method, model, **settings)
    assert isinstance(made, Shot)
    return made


def assert_lowered(theirs: Tensor, ours: Tensor, num_classes: int) -> None:
    """Normalised entropies, or thresholds between them: theirs are lower, by no more than the epsilon explains."""
    lowered = ours.double() - theirs.double()
    assert float(lowered.min()) > -1e-6
    assert float(lowered.max()) < num_classes * EPSILON / math.log(num_classes) + 1e-6


@LABELS
def test_split_and_centroid_labels(method: str, name: str) -> None:
    golden = case(method, name)
    features, logits = golden.inputs["features"], golden.inputs["logits"]
    chances = logits.double().softmax(dim=1)
    num_classes = logits.shape[1]
    novelty = entropy(chances.log())
    assert_lowered(golden.outputs["entropy"], novelty, num_classes)
    guarded = -(chances * (chances + EPSILON).log()).sum(dim=1) / math.log(num_classes)
    assert distance(guarded, golden.outputs["entropy"], scale=1.0) < 1e-6
    known = torch.ones(len(features), dtype=torch.bool)
    if method == "shot-o":
        split = two_means_threshold(novelty)
        assert_lowered(golden.outputs["threshold"], torch.tensor(split), num_classes)
        known = novelty <= split
        assert torch.equal(known, golden.outputs["known"])
    labels = torch.full((len(features),), UNKNOWN)
    labels[known] = centroid_labels(features[known], chances[known].float())
    assert torch.equal(labels, golden.outputs["pseudo_labels"])


@LABELS
def test_loss_and_gradient(method: str, name: str) -> None:
    golden = case(method, name)
    logits = golden.inputs["logits"].clone().requires_grad_()
    output = ModelOutput(golden.inputs["features"], logits)
    loss = loss_of(make(method, small_model()), output, golden.outputs["pseudo_labels"])
    assert abs(loss.item() - golden.outputs["loss"].item()) < logits.shape[1] * EPSILON + 1e-6
    assert distance(torch.autograd.grad(loss, logits)[0], golden.outputs["gradient"]) < 1e-4


@STEPS
def test_whole_steps(method: str, name: str) -> None:
    golden = case(method, name)
    made = make(method, golden.model(), lr=golden.settings["lr"])
    for step, images in enumerate(golden.batches):
        answer = made.step(images)
        expected = {part: values[step] for part, values in golden.outputs.items() if "weights" not in part}
        assert torch.equal(answer.pseudo_labels, expected["pseudo_labels"])
        assert torch.equal(answer.labels, expected["predictions"])
        assert_lowered(expected["entropy"], answer.novelty, golden.num_classes)
        if method == "shot-o":
            assert_lowered(expected["thresholds"], torch.tensor(answer.thresholds.prediction), golden.num_classes)
        assert abs(float(sum(answer.losses.values())) - expected["loss"].item()) < golden.num_classes * EPSILON + 1e-5
        assert moved_apart(golden, made.model, step + 1) < 1e-4
