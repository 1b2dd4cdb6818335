"""OWTTT against the public code."""

from __future__ import annotations

import pytest
import torch
from golden_data import Case, case, case_names, distance, moved_apart
from torch import Tensor

import driftgate
from driftgate.memory import RingQueue, cosine_similarity
from driftgate.methods.owttt import OWTTT, Assessment, OWTTTMemory, _novelty, _oldest_first, grow_pool, surer_halves
from driftgate.models.passes import Passes
from driftgate.novelty.otsu import otsu_threshold

METHOD = "owttt"


@pytest.mark.parametrize("name", case_names(METHOD, "otsu"))
def test_threshold(name: str) -> None:
    golden = case(METHOD, name)
    found = [otsu_threshold(values, one_group=0.0) for values in golden.inputs["values"]]
    assert found == pytest.approx(golden.outputs["thresholds"].tolist(), abs=1e-9)


@pytest.mark.parametrize("name", case_names(METHOD, "halving"))
def test_who_learns_a_label(name: str) -> None:
    golden = case(METHOD, name)
    novelty = golden.inputs["scores"].double()
    known, unknown = surer_halves(novelty, novelty < golden.settings["threshold"])
    assert torch.equal(known, golden.outputs["kept_seen"])
    assert torch.equal(unknown, golden.outputs["kept_unseen"])


@pytest.mark.parametrize("name", case_names(METHOD, "pool"))
def test_growth_of_the_pool(name: str) -> None:
    golden = case(METHOD, name)
    pool = RingQueue(golden.settings["pool_size"], feature=16)
    if len(golden.inputs["pool"]) > 0:
        pool.push(feature=golden.inputs["pool"])
    novelty = _novelty(cosine_similarity(golden.inputs["features"], golden.inputs["prototypes"]))
    threshold = otsu_threshold(novelty, one_group=1.0)
    grow_pool(pool, golden.inputs["features"], novelty, threshold)
    assert distance(novelty, golden.outputs["scores"], scale=1.0) < 1e-6
    assert threshold == pytest.approx(float(golden.outputs["threshold"]), abs=1e-9)
    assert distance(_oldest_first(pool), golden.outputs["pool"]) < 1e-5


class OneBackwardPass(OWTTT):
    """In the order of the public code: one backward pass after both forward passes.

    The second forward pass has moved the running statistics by then, and batch norm's backward pass of the first, in
    eval mode, reads them.
    """

    def _adapt(
        self, images: Tensor, passes: Passes, prototype_loss: Tensor, assessment: Assessment, memory: OWTTTMemory
    ) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        total = prototype_loss
        if bool(assessment.seen.any()):
            features = self._forward(self._passes(), images[assessment.seen]).features
            scale = self.settings.alignment_weight * self.settings.alignment_scale
            total = total + scale * self._alignment(*memory.gaussian.update(features))
        total.backward()
        self._apply_gradients(total.detach())


def follow(golden: Case, kind: type[OWTTT], tolerance: float) -> float:
    """All steps; labels and thresholds must be equal, numbers to ``tolerance``. How far the weights are apart."""
    chosen, expected = golden.settings, golden.outputs
    weights = {"alignment_weight": chosen["alignment_weight"], "prototype_weight": chosen["prototype_weight"]}
    settings = driftgate.create(METHOD, golden.model(), lr=chosen["lr"], **weights).settings
    method, apart = kind(golden.model(), settings), []
    for batch, images in enumerate(golden.batches):
        found = method.step(images)
        assert torch.equal(found.pseudo_labels, expected["pseudo_labels"][batch])
        assert torch.equal(found.labels, expected["predictions"][batch])
        thresholds = expected["thresholds"][batch].tolist()
        assert [found.thresholds.known, found.thresholds.prediction] == pytest.approx(thresholds, abs=1e-9)
        apart.append(moved_apart(golden, method.model, batch + 1))
    assert max(apart) < tolerance
    gaussian = method.memory.gaussian
    assert distance(_oldest_first(method.memory.pool), expected["pool"]) < tolerance
    assert distance(gaussian.mean, expected["gaussian_mean"]) < tolerance
    assert distance(gaussian.covariance, expected["gaussian_covariance"]) < tolerance
    return max(apart)


@pytest.mark.parametrize("name", case_names(METHOD, "step"))
def test_steps(name: str) -> None:
    """Ours takes the gradient of the eval-mode pass at the statistics it ran with: 2e-3 of the change at most."""
    golden = case(METHOD, name)
    follow(golden, OneBackwardPass, 1e-4)
    follow(golden, OWTTT, 2e-3)


def test_the_order_of_the_backward_passes_is_all_that_differs() -> None:
    golden = case(METHOD, "step_oda_C5_N32")
    assert follow(golden, OWTTT, 2e-3) > 20 * follow(golden, OneBackwardPass, 1e-4)
