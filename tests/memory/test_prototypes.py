"""Class means, surest samples and running prototypes against plain loops."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from driftgate.memory.prototypes import RunningPrototypes, class_means, one_hot_weights, surest_samples
from driftgate.types import UNKNOWN, UNLABELED


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_class_means_are_weighted_means() -> None:
    features, weights = random(9, 5), random(9, 3, seed=1).abs()
    means = class_means(features, weights)
    for label in range(3):
        total = sum(float(weights[row, label]) for row in range(9))
        expected = sum(float(weights[row, label]) * features[row].double() for row in range(9)) / total
        assert torch.allclose(means[label].double(), expected, atol=1e-5)


def test_a_class_without_weight_has_the_mean_zero_and_tiny_weights_still_count() -> None:
    features = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    means = class_means(features, torch.tensor([[0.0, 1e-30, 1.0], [0.0, 1e-30, 0.0]]))
    assert torch.equal(means[0], torch.zeros(2))
    assert torch.allclose(means[1], torch.tensor([2.0, 3.0]))
    assert torch.equal(means[2], features[0])
    assert torch.equal(class_means(torch.zeros(0, 2), torch.zeros(0, 3)), torch.zeros(3, 2))


def test_one_hot_weights_pass_over_negative_labels() -> None:
    weights = one_hot_weights(torch.tensor([1, UNKNOWN, 0, UNLABELED]), 3)
    assert weights.tolist() == [[0, 1, 0], [0, 0, 0], [1, 0, 0], [0, 0, 0]]
    assert weights.dtype == torch.float32


@pytest.mark.parametrize("count", [1, 3, 6, 50])
def test_surest_samples_are_the_first_of_each_sorted_column(count: int) -> None:
    probabilities = random(6, 4).softmax(dim=1)
    chosen = surest_samples(probabilities, count)
    for label in range(4):
        order = sorted(range(6), key=lambda row: -float(probabilities[row, label]))
        assert chosen[:, label].tolist() == order[:count]


def test_running_prototypes_are_the_means_of_all_that_was_labelled() -> None:
    prototypes = RunningPrototypes(3, 4)
    seen: list[tuple[Tensor, int]] = []
    for batch in range(4):
        features = random(5, 4, seed=batch)
        labels = torch.tensor([0, UNKNOWN, 1, 0, UNLABELED])
        prototypes.update(features, labels)
        seen += list(zip(features, labels.tolist(), strict=True))
    for label in range(2):
        expected = torch.stack([row for row, given in seen if given == label]).mean(dim=0)
        assert torch.allclose(prototypes.means[label], expected, atol=1e-6)
    assert torch.equal(prototypes.means[2], torch.zeros(4))
    assert prototypes.counts.tolist() == [8, 4, 0]


def test_last_only_adds_the_last_sample_of_each_class_and_counts_all() -> None:
    prototypes, expected = RunningPrototypes(3, 4, last_only=True), torch.zeros(2, 4)
    labels = torch.tensor([0, 1, 0, UNKNOWN, 0, 1, UNLABELED])
    for seed in range(2):
        features = random(7, 4, seed=seed)
        prototypes.update(features, labels)
        expected += features[[4, 5]]
    assert torch.allclose(prototypes.sums[:2], expected)
    assert torch.equal(prototypes.means[2], torch.zeros(4))
    assert prototypes.counts.tolist() == [6, 4, 0]
    assert prototypes.clone().last_only


def test_an_update_of_a_clone_and_a_saved_state_leave_the_original_alone() -> None:
    prototypes = RunningPrototypes(2, 3)
    prototypes.update(random(4, 3), torch.tensor([0, 1, 1, 0]))
    before = {name: tensor.clone() for name, tensor in prototypes.state_dict().items()}
    clone, loaded = prototypes.clone(), RunningPrototypes(2, 3)
    loaded.load_state_dict(prototypes.state_dict())
    assert torch.equal(loaded.means, prototypes.means)
    for copy in (clone, loaded):
        copy.update(random(2, 3, seed=5), torch.tensor([0, 1]))
        assert not torch.equal(copy.sums, before["sums"])
    assert all(torch.equal(before[name], tensor) for name, tensor in prototypes.state_dict().items())
    assert prototypes.num_bytes == 4 * (2 * 3 + 2)


def test_the_memory_holds_no_graph() -> None:
    prototypes = RunningPrototypes(2, 3)
    prototypes.update(random(4, 3).requires_grad_(), torch.tensor([0, 1, 1, 0]))
    assert not prototypes.sums.requires_grad
