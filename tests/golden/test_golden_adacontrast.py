"""AdaContrast against the numbers of its online port.

Known differences: the port writes the new labels into its queue of keys before it makes the mask of negatives
(``_released``; ``_queuefixed`` is the port without that), and the place where its bank writes lags one batch behind
while the bank grows, so that the first row it overwrites is not the oldest.
"""

from __future__ import annotations

import pytest
import torch
from golden_data import Case, augmented_view, case, case_names, distance, moved_apart
from torch import Tensor
from torch.nn import functional as F

import driftgate
from driftgate.losses import class_aware_info_nce, negative_marginal_entropy
from driftgate.memory import mean_over, nearest
from driftgate.methods.adacontrast import AdaContrast, refine_labels
from driftgate.models.source_model import ModelOutput
from driftgate.types import Prediction
from driftgate.views import OwnViews

FIVE_BATCHES = "step_C5_N32"
"""The cases whose bank of three batches is overwritten twice; the others end before."""


@pytest.mark.parametrize("name", case_names("adacontrast", "refine"))
def test_refined_labels(name: str) -> None:
    golden = case("adacontrast", name)
    bank, chances = golden.inputs["bank_features"], golden.inputs["bank_probabilities"]
    features, neighbors = golden.inputs["features"], golden.settings["neighbors"]
    assert torch.equal(refine_labels(features, bank, chances, neighbors), golden.outputs["labels"])
    if "probabilities" in golden.outputs:
        voted = mean_over(chances, nearest(features, bank, neighbors))
        assert distance(voted, golden.outputs["probabilities"]) < 1e-6


@pytest.mark.parametrize("name", case_names("adacontrast", "losses"))
def test_losses_and_their_gradients(name: str) -> None:
    golden = case("adacontrast", name)
    given, expected = golden.inputs, golden.outputs
    queries, logits = (given[part].clone().requires_grad_() for part in ("queries", "logits"))
    past = given["queue"], given["queue_labels"]
    temperature = golden.settings["temperature"]
    instance = class_aware_info_nce(queries, given["keys"], given["labels"], *past, temperature=temperature)
    # Where all keys have the label of the sample there is no negative, and both sides say 0.
    assert distance(instance, expected["instance"], scale=max(float(expected["instance"]), 1e-3)) < 1e-5
    scale = max(float(expected["instance_gradient"].abs().max()), 1e-4)
    assert distance(torch.autograd.grad(instance, queries)[0], expected["instance_gradient"], scale=scale) < 1e-4
    diversity = negative_marginal_entropy(logits)
    assert distance(diversity, expected["diversity"]) < 1e-5
    assert distance(torch.autograd.grad(diversity, logits)[0], expected["diversity_gradient"]) < 1e-4
    assert distance(F.cross_entropy(logits, given["labels"]), expected["classification"]) < 1e-5


# Whole steps


def make(golden: Case) -> AdaContrast:
    """With the port's keys in the queue, and its two views in turn."""
    chosen = {key: golden.settings[key] for key in ("lr", "queue_size", "refine_after")}
    method = driftgate.create("adacontrast", golden.model(), **chosen)
    assert isinstance(method, AdaContrast)
    method.keys.push(features=golden.inputs["queue"], labels=golden.inputs["queue_labels"])
    turn = iter(range(2 * len(golden.batches)))

    def view(images: Tensor, generator: torch.Generator) -> Tensor:
        return (images * 0.7 + 0.05).clamp(0, 1) if next(turn) % 2 else augmented_view(images, generator)

    method.views = OwnViews(view)
    return method


def total(answer: Prediction) -> Tensor:
    """The loss that was minimised."""
    return torch.stack(list(answer.losses.values())).sum()


def mask_as_the_port(method: AdaContrast, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the loss see the labels of the rows about to be overwritten as the new ones, while their keys are old."""
    losses = method._losses

    def with_new_labels(query: ModelOutput, keys: Tensor, labels: Tensor) -> dict[str, Tensor]:
        queue = method.keys
        column = queue.columns["labels"]
        rows = (int(queue.pushed) + torch.arange(len(labels))) % queue.capacity
        before = column[rows].clone()
        column[rows] = labels.to(column.dtype)
        answer = losses(query, keys, labels)
        column[rows] = before
        return answer

    monkeypatch.setattr(method, "_losses", with_new_labels)


def lag_as_the_port(method: AdaContrast, size: int) -> None:
    """Put the place where the full bank writes next one batch back."""
    if int(method.bank.pushed) == method.bank.capacity:
        method.bank.pushed += method.bank.capacity - size


@pytest.mark.parametrize("name", case_names("adacontrast", "step"))
def test_whole_steps_with_the_ports_two_quirks(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    golden = case("adacontrast", name)
    method = make(golden)
    if name.endswith("_released"):
        mask_as_the_port(method, monkeypatch)
    for step, images in enumerate(golden.batches):
        answer = method.step(images)
        assert_same_answer(golden, step, answer)
        assert distance(total(answer), golden.outputs["losses"][step].sum()) < 1e-5
        assert moved_apart(golden, method.model, step + 1) < 1e-4
        lag_as_the_port(method, len(images))
    assert_same_memory(golden, method)


def assert_same_answer(golden: Case, step: int, answer: driftgate.Prediction) -> None:
    assert torch.equal(answer.pseudo_labels, golden.outputs["pseudo_labels"][step])
    assert torch.equal(answer.labels, golden.outputs["predictions"][step])
    assert distance(answer.scores, golden.outputs["logits"][step].softmax(dim=1)) < 1e-5


def assert_same_memory(golden: Case, method: AdaContrast) -> None:
    for column, theirs in (("features", "bank_features"), ("probabilities", "bank_probabilities")):
        assert distance(method.bank[column], golden.outputs[theirs]) < 1e-5
    assert distance(method.keys["features"], golden.outputs["queue"]) < 1e-5
    assert torch.equal(method.keys["labels"].long(), golden.outputs["queue_labels"])
    if "momentum_last" in golden.outputs:
        # The port moves its momentum encoder at the start of the next step, we at the end of this one.
        encoder, now = golden.by_name(golden.outputs["momentum_last"]), method.model.state_dict()
        moved = {part: v if "running" in part else 0.999 * v + 0.001 * now[part] for part, v in encoder.items()}
        assert distance(golden.vector(method.teacher.tensors), golden.vector(moved), scale=1.0) < 1e-5


@pytest.mark.parametrize("name", ["step_C9_N50_queuefixed", "step_oneclass_C5_N32_queuefixed"])
def test_whole_steps_as_we_take_them(name: str) -> None:
    """With the mask made before the labels are written, and a bank that is not yet full."""
    golden = case("adacontrast", name)
    method = make(golden)
    for step, images in enumerate(golden.batches):
        assert_same_answer(golden, step, method.step(images))
        assert moved_apart(golden, method.model, step + 1) < 1e-4
    assert_same_memory(golden, method)


@pytest.mark.parametrize("size", ["C5_N32", "C9_N50"])
def test_the_ports_mask_is_another(size: str) -> None:
    """Some negatives are masked by labels that are not theirs: the loss of the very first step differs."""
    golden, fixed = (case("adacontrast", f"step_{size}_{way}") for way in ("released", "queuefixed"))
    method = make(golden)
    loss = total(method.step(golden.batches[0]))
    assert distance(loss, fixed.outputs["losses"][0].sum()) < 1e-5
    assert 1e-4 < distance(loss, golden.outputs["losses"][0].sum()) < 0.1


def test_the_ports_bank_loses_its_newest_batch_first() -> None:
    """Three batches fill it. Of five, ours keeps 3, 4 and 5; the port wrote the fourth over the third, and keeps 2."""
    golden = case("adacontrast", f"{FIVE_BATCHES}_queuefixed")
    method = make(golden)
    theirs = golden.outputs["bank_features"].split(32)
    rows = []
    for step, images in enumerate(golden.batches):
        answer = method.step(images)
        rows.append(method.bank["features"].split(32)[step % 3].clone())
        if step < 4:  # up to here both asked a bank of the same three batches
            assert_same_answer(golden, step, answer)
    assert distance(theirs[1], rows[1]) < 1e-5
    assert distance(theirs[2], rows[3]) < 1e-5
    assert distance(theirs[2], rows[2]) > 0.1
    # The fifth batch meets another bank: two labels of 32 turn out otherwise.
    assert 0 < int((answer.pseudo_labels != golden.outputs["pseudo_labels"][4]).sum()) <= 3
