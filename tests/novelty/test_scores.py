from __future__ import annotations

import math
from dataclasses import replace
from decimal import Decimal, localcontext

import numpy as np
import pytest
import torch
from scipy.stats import entropy as scipy_entropy
from torch import Tensor

from driftgate.memory import MixtureEvaluation, StreamingGMM
from driftgate.novelty.scores import (
    NEED_MIXTURE,
    SCORES,
    SCORES_FROM_ZERO,
    MixtureView,
    ScoreInputs,
    entropy,
    get_score,
    posterior,
)
from driftgate.types import DriftgateError

SAMPLES, CLASSES, DIM, REDUCED = 12, 4, 7, 3


def make_inputs(seed: int = 0, num_classes: int = CLASSES, logit_scale: float = 1.0) -> ScoreInputs:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    mixture = StreamingGMM(num_classes, REDUCED)
    reduced, logits = normal(SAMPLES, REDUCED), logit_scale * normal(SAMPLES, num_classes)
    mixture.update(reduced, logits.softmax(dim=1))
    return ScoreInputs(normal(SAMPLES, DIM), logits, view_of(mixture, reduced))


def view_of(mixture: StreamingGMM, reduced: torch.Tensor) -> MixtureView:
    return MixtureView(reduced, mixture.evaluate(reduced), mixture.means, mixture.weights)


def mixture_of(inputs: ScoreInputs) -> MixtureView:
    assert inputs.mixture is not None
    return inputs.mixture


def slow_scores(inputs: ScoreInputs) -> dict[str, np.ndarray]:
    """Every score one sample at a time, from the words of the supplement."""
    mixture = mixture_of(inputs)
    likelihood, squared = (part.numpy() for part in mixture.evaluation)
    logits, reduced = inputs.logits.double().numpy(), mixture.reduced.double().numpy()
    means, classes = mixture.means.double().numpy(), inputs.logits.shape[1]
    found: dict[str, list[float]] = {name: [] for name in SCORES}
    for n in range(len(logits)):
        share = np.exp(likelihood[n]) / np.exp(likelihood[n]).sum()
        prediction = np.exp(logits[n]) / np.exp(logits[n]).sum()
        found["likelihood_entropy"].append(scipy_entropy(share) / math.log(classes))
        found["max_likelihood"].append(1.0 - share.max())
        found["log_density"].append(-likelihood[n].max())
        found["mahalanobis"].append(min(math.sqrt(value) for value in squared[n]))
        found["euclidean"].append(min(np.linalg.norm(reduced[n] - mean) for mean in means))
        found["grad_norm"].append(-autograd_norm(inputs, n))
        found["max_prediction"].append(1.0 - prediction.max())
        found["prediction_entropy"].append(scipy_entropy(prediction) / math.log(classes))
    return {name: np.array(values) for name, values in found.items()}


def autograd_norm(inputs: ScoreInputs, n: int) -> float:
    """L1 norm of the gradient of KL(uniform || softmax) with respect to the classifier's weight, by autograd."""
    features, classes = inputs.features[n].double(), inputs.logits.shape[1]
    weight = torch.zeros(classes, len(features), dtype=torch.float64, requires_grad=True)
    logits = weight @ features + inputs.logits[n].double()  # a bias that gives exactly the logits at weight 0
    uniform = torch.full((classes,), 1.0 / classes, dtype=torch.float64)
    (uniform * (uniform.log() - logits.log_softmax(dim=0))).sum().backward()
    assert weight.grad is not None
    return float(weight.grad.abs().sum())


@pytest.mark.parametrize("name", sorted(SCORES))
@pytest.mark.parametrize("seed", range(3))
def test_score_agrees_with_a_slow_reference(name: str, seed: int) -> None:
    inputs = make_inputs(seed)
    found = get_score(name)(inputs)
    assert found.shape == (SAMPLES,)
    assert found.dtype == torch.float64
    assert not found.requires_grad
    np.testing.assert_allclose(found.numpy(), slow_scores(inputs)[name], rtol=1e-9, atol=1e-12)


def test_there_are_the_seven_scores_of_the_supplement_the_density_and_no_other_name() -> None:
    assert len(SCORES) == 8 and "log_density" in SCORES
    with pytest.raises(DriftgateError, match=r"likelihood_entropy.*'energy'"):
        get_score("energy")


@pytest.mark.parametrize("name", sorted(SCORES))
def test_larger_means_more_unknown(name: str) -> None:
    """Sample 0 sits on a class and is predicted surely, sample 1 lies far out between two and is undecided."""
    mixture = StreamingGMM(
        2,
        2,
        prior_means=torch.tensor([[-2.0, 0.0], [2.0, 0.0]]),
        prior_covariances=torch.eye(2).expand(2, 2, 2),
        prior_weights=torch.ones(2),
    )
    reduced = torch.tensor([[2.0, 0.0], [0.0, 6.0]])
    logits = torch.tensor([[-4.0, 4.0], [0.1, 0.0]])
    inputs = ScoreInputs(torch.ones(2, 5), logits, view_of(mixture, reduced))
    known, unknown = get_score(name)(inputs).tolist()
    assert unknown > known


@pytest.mark.parametrize("gap", [1.0, 20.0, 64.0, 300.0, 700.0])
def test_entropy_of_a_sure_posterior_keeps_its_digits(gap: float) -> None:
    """At a gap of 64 nats the entropy is 1e-26, far below the precision of the probabilities themselves."""
    found = float(entropy(posterior(torch.tensor([[-gap, 0.0, -2.0 * gap]], dtype=torch.float64)))[0])
    with localcontext() as context:
        context.prec = 700  # exp(-1400) beside 1
        parts = [(-Decimal(gap)).exp(), Decimal(1), (-2 * Decimal(gap)).exp()]
        shares = [part / sum(parts) for part in parts]
        expected = -sum(share * share.ln() for share in shares) / Decimal(3).ln()
    assert found == pytest.approx(float(expected), rel=1e-9, abs=0.0)
    assert found > 0.0


def test_entropies_near_1e_28_are_correct_and_ordered() -> None:
    gaps = torch.linspace(60.0, 80.0, 41, dtype=torch.float64)
    logs = posterior(torch.stack([torch.zeros_like(gaps), -gaps], dim=1))
    found = entropy(logs)
    # -p log p - q log q with q = exp(-gap), p = 1 - q: q (gap + 1) up to q^2.
    expected = (-gaps).exp() * (gaps + 1.0) / math.log(2.0)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=0.0)
    assert bool((found[1:] < found[:-1]).all())
    assert float(found.min()) < 1e-28


def test_max_prediction_of_sure_samples_keeps_its_digits() -> None:
    gaps = torch.tensor([30.0, 50.0, 90.0])
    inputs = make_inputs(num_classes=2)
    sure = ScoreInputs(inputs.features[:3], torch.stack([gaps, torch.zeros(3)], dim=1))
    expected = (-gaps.double()).exp() / (1.0 + (-gaps.double()).exp())
    torch.testing.assert_close(get_score("max_prediction")(sure), expected, rtol=1e-12, atol=0.0)


def test_max_likelihood_of_sure_samples_keeps_its_digits_and_the_density_its_scale() -> None:
    """The normalised likelihood tells how sure, the density how far: a common offset moves the density alone."""
    gaps = torch.tensor([30.0, 50.0, 90.0], dtype=torch.float64)
    inputs, expected = make_inputs(num_classes=2), (-gaps).exp() / (1.0 + (-gaps).exp())
    for offset in (0.0, -1e4):
        logs = offset + torch.stack([-gaps, torch.zeros(3)], dim=1)
        view = mixture_of(inputs)
        evaluation = MixtureEvaluation(logs, view.evaluation.squared_mahalanobis[:3])
        sure = replace(inputs, mixture=replace(view, evaluation=evaluation))
        torch.testing.assert_close(get_score("max_likelihood")(sure), expected, rtol=1e-9, atol=0.0)
        assert get_score("log_density")(sure).tolist() == [-offset] * 3


def test_entropy_is_1_for_equal_likelihoods_however_small() -> None:
    for level in (0.0, -1e5, 1e5):
        found = entropy(posterior(torch.full((1, 345), level, dtype=torch.float64)))
        assert float(found[0]) == pytest.approx(1.0, abs=1e-12)


def test_a_sample_far_from_every_class_is_compared_on_its_own_scale() -> None:
    """One maximum for the whole batch would turn the second row into 0 / 0."""
    logs = posterior(torch.tensor([[0.0, -5.0], [-5000.0, -5005.0]], dtype=torch.float64))
    torch.testing.assert_close(logs[1], logs[0])


def test_a_class_never_seen_has_no_part_in_the_posterior() -> None:
    with_unseen = posterior(torch.tensor([[-1.0, -math.inf, -2.0]], dtype=torch.float64))
    without = posterior(torch.tensor([[-1.0, -2.0]], dtype=torch.float64))
    assert float(with_unseen[0, 1]) == -math.inf
    torch.testing.assert_close(with_unseen[:, [0, 2]], without)
    assert float(entropy(with_unseen)[0]) == pytest.approx(float(entropy(without)[0]) * math.log(2) / math.log(3))


@pytest.mark.parametrize("name", sorted(SCORES))
def test_before_any_class_was_seen_every_score_is_finite(name: str) -> None:
    mixture = StreamingGMM(CLASSES, REDUCED)
    reduced = torch.randn(5, REDUCED)
    evaluation = mixture.evaluate(reduced)
    assert bool((evaluation.log_likelihood == -math.inf).all())
    inputs = ScoreInputs(torch.randn(5, DIM), torch.randn(5, CLASSES), view_of(mixture, reduced))
    found = get_score(name)(inputs)
    assert bool(found.isfinite().all())
    if name in ("likelihood_entropy", "max_likelihood", "log_density", "mahalanobis", "euclidean"):
        assert float(found.min()) == float(found.max()) > 0.0  # all equally, and very, unknown


@pytest.mark.parametrize("name", sorted(SCORES))
def test_one_class_works(name: str) -> None:
    inputs = make_inputs(num_classes=1)
    found = get_score(name)(inputs)
    assert found.shape == (SAMPLES,)
    assert bool(found.isfinite().all())
    if name in ("likelihood_entropy", "max_likelihood", "prediction_entropy", "max_prediction", "grad_norm"):
        assert bool((found == 0.0).all())  # nothing to be undecided about
    else:
        assert float(found.std()) > 0.0


@pytest.mark.parametrize("name", sorted(SCORES))
def test_scores_are_finite_at_huge_logits(name: str) -> None:
    assert bool(get_score(name)(make_inputs(logit_scale=1e4)).isfinite().all())


def test_scores_in_the_unit_interval_stay_there() -> None:
    assert {"likelihood_entropy", "max_likelihood", "prediction_entropy", "max_prediction"} == SCORES_FROM_ZERO
    inputs = make_inputs(logit_scale=30.0)
    for name in SCORES_FROM_ZERO:
        found = get_score(name)(inputs)
        assert bool(((found >= 0.0) & (found <= 1.0)).all())


def test_a_nan_evaluation_never_looks_known() -> None:
    broken = MixtureEvaluation(torch.full((1, 2), math.nan), torch.full((1, 2), math.nan))
    view = MixtureView(torch.ones(1, 2), broken, torch.ones(2, 2), torch.ones(2))
    inputs = ScoreInputs(torch.ones(1, 2), torch.ones(1, 2), view)
    assert float(get_score("log_density")(inputs)[0]) > 1e200
    assert float(get_score("max_likelihood")(inputs)[0]) == 0.5
    assert float(get_score("mahalanobis")(inputs)[0]) > 1e200
    assert float(get_score("likelihood_entropy")(inputs)[0]) == pytest.approx(1.0)


@pytest.mark.parametrize("name", SCORES)
def test_without_a_mixture_the_scores_that_need_none_are_the_same(name: str) -> None:
    whole = make_inputs()
    without = ScoreInputs(whole.features, whole.logits)
    if name in NEED_MIXTURE:
        with pytest.raises(DriftgateError, match=f"{name!r} but the method has none; take one of grad_norm, max_pred"):
            get_score(name)(without)
    else:
        assert torch.equal(get_score(name)(without), get_score(name)(whole))


@pytest.mark.parametrize("name", SCORES)
def test_no_score_holds_a_graph(name: str) -> None:
    inputs = make_inputs()
    learning = [part.clone().requires_grad_() for part in (inputs.features, inputs.logits, mixture_of(inputs).reduced)]
    view = replace(mixture_of(inputs), reduced=learning[2])
    assert not get_score(name)(ScoreInputs(learning[0], learning[1], view)).requires_grad


def test_before_any_class_was_seen_distances_are_large_but_can_be_added() -> None:
    mixture, reduced = StreamingGMM(CLASSES, REDUCED), torch.randn(SAMPLES, REDUCED)
    inputs = ScoreInputs(torch.randn(SAMPLES, DIM), torch.randn(SAMPLES, CLASSES), view_of(mixture, reduced))
    for name in ("euclidean", "mahalanobis"):
        novelty = get_score(name)(inputs)
        assert (novelty == 1e300).all() and novelty.sum().isfinite()
