"""gmm-comet (preset ``released``) and the novelty scores against the public code."""

from __future__ import annotations

import pytest
import torch
from golden_data import assert_same_steps, augmented_view, case, case_names, distance
from scipy.stats import spearmanr

import driftgate
from driftgate import UNKNOWN
from driftgate.memory import StreamingGMM
from driftgate.methods.gmm_comet import GMMCOMET
from driftgate.novelty.gate import FrozenGate, pseudo_label
from driftgate.novelty.scores import SCORES, MixtureView, ScoreInputs, posterior
from driftgate.views import OwnViews

METHOD = "gmm-comet"
GATED = {
    "entropy_likelihood": "likelihood_entropy",
    "entropy_prediction": "prediction_entropy",
    "maximum_likelihood": "max_likelihood",
    "maximum_prediction": "max_prediction",
}
"""The scores in [0, 1], by their name there and here; the file has thresholds and sides of these."""


@pytest.mark.parametrize("name", case_names(METHOD, "scores"))
def test_mixture_with_decay_and_every_score(name: str) -> None:
    golden = case(METHOD, name)
    expected, chosen = golden.outputs, golden.settings
    mixture = StreamingGMM(chosen["C"], chosen["R"], chosen["decay"], floor=1e-6, floor_rule="absolute")
    for features, probabilities in zip(golden.inputs["features"], golden.inputs["probabilities"], strict=True):
        mixture.update(features, probabilities)
    evaluation = mixture.evaluate(features)
    assert distance(mixture.means, expected["means"]) < 1e-6
    with_floor = mixture.covariances.double() + 1e-6 * torch.eye(chosen["R"])
    assert distance(with_floor, expected["covariances"]) < 1e-6
    assert distance(mixture.weights, expected["weights_sum"]) < 1e-6
    assert distance(posterior(evaluation.log_likelihood).exp(), expected["likelihood"]) < 1e-5
    assert torch.equal(evaluation.log_likelihood.argmax(dim=1), expected["labels"])

    logits = probabilities.double().log()
    inputs = ScoreInputs(features, logits, MixtureView(features, evaluation, mixture.means, mixture.weights))
    distances = {score: score for score in ("mahalanobis", "euclidean") if f"score_{score}" in expected}
    for theirs, ours in {**GATED, **distances}.items():
        assert distance(SCORES[ours](inputs), expected[f"score_{theirs}"]) < 1e-5, ours
    # Minus the log density, which had the name of maximum_likelihood here once, is another score altogether.
    assert distance(SCORES["log_density"](inputs), expected["score_maximum_likelihood"]) > 1


@pytest.mark.parametrize("score", GATED)
@pytest.mark.parametrize("name", case_names(METHOD, "scores"))
def test_thresholds_and_sides_of_a_batch(name: str, score: str) -> None:
    golden = case(METHOD, name)
    novelty = golden.outputs[f"score_{score}"].double()
    thresholds = FrozenGate(golden.settings["p_reject"], 1, "released").update(novelty)
    assert distance([*thresholds[:2]], golden.outputs[f"thresholds_{score}"]) < 1e-6
    labels = pseudo_label(torch.zeros(len(novelty), dtype=torch.int64), novelty, thresholds, "gmm-comet")
    sides = torch.where(labels >= 0, 1, torch.where(labels == UNKNOWN, 2, 0))
    assert torch.equal(sides, golden.outputs[f"sides_{score}"])


def test_their_grad_norm_is_another_score() -> None:
    """Ours is GradNorm's product form over all classes; theirs takes the five surest and has no minus sign."""
    golden = case(METHOD, "score_grad_norm_C9_N32")
    with torch.no_grad():
        features, logits = golden.model()(golden.batches[0])
    ours = SCORES["grad_norm"](ScoreInputs(features, logits))
    correlation = float(spearmanr(ours, golden.outputs["score_grad_norm"]).statistic)
    assert abs(correlation) < 0.5


def method_of(name: str) -> GMMCOMET:
    golden = case(METHOD, name)
    chosen = golden.settings
    method = driftgate.create(
        "gmm-comet",
        golden.model(),
        preset="released",
        source_batch_norm={"train": "batch", "eval": "running"}[chosen["source_copy"]],
        lr=chosen["lr"],
        p_reject=chosen["p_reject"],
        reduced_dim=8,
        decay=chosen["alpha_GMM"],
        teacher_momentum=chosen["alpha_MT"],
        consistency_weight=chosen["lam_consistency"],
        source_consistency_weight=chosen["lam_source_consistency"],
    )
    assert isinstance(method, GMMCOMET)
    with torch.no_grad():
        method.reducer.weight.copy_(golden.inputs["reducer_weight"])
        method.reducer.bias.copy_(golden.inputs["reducer_bias"])
    method.views = OwnViews(augmented_view)
    return method


@pytest.mark.parametrize("name", case_names(METHOD, "step"))
def test_released_steps(name: str) -> None:
    """``_srctrain`` is the public code as it is: its source copy is in train mode."""
    golden, method = case(METHOD, name), method_of(name)
    expected = golden.outputs
    assert_same_steps(golden, method)
    if "teacher_last" in expected:
        assert distance(golden.vector(method.teacher.tensors), expected["teacher_last"], scale=1.0) < 1e-6


@pytest.mark.parametrize("name", ["step_opda_C9_N50_srctrain", "step_oda_C5_N32_srctrain"])
def test_the_source_copy_keeps_statistics_that_it_does_not_use(name: str) -> None:
    """The public code's copy moves its running statistics, which train mode never reads; ours leaves them."""
    golden, method = case(METHOD, name), method_of(name)
    for images in golden.batches:
        method.step(images)
    assert method.source is not None
    theirs, parameters = golden.by_name(golden.outputs["source_copy_last"]), dict(method.model.named_parameters())
    start = golden.by_name(golden.inputs["weights"])
    for tensor, value in theirs.items():
        assert torch.equal(method.source.tensors[tensor], start[tensor])
        assert torch.equal(value, start[tensor]) is (tensor in parameters)
