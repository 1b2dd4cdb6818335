"""The seven novelty scores of the supplement, and the density beside them. One sign rule: larger = more unknown.

Each maps a ``ScoreInputs`` of N samples and C classes to (N,) float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from driftgate.memory import MixtureEvaluation
from driftgate.state import exact
from driftgate.types import DriftgateError


@dataclass(frozen=True)
class MixtureView:
    """A batch as a mixture sees it.

    Attributes:
        reduced: (N, R) reduced features r(g(x)).
        evaluation: log-likelihoods and squared Mahalanobis distances, both (N, C).
        means: (C, R) means of the classes.
        weights: (C,) weights of the classes; one of weight 0 was never seen.
    """

    reduced: Tensor
    evaluation: MixtureEvaluation
    means: Tensor
    weights: Tensor


@dataclass(frozen=True)
class ScoreInputs:
    """What a score may look at; a method without a mixture has the first two.

    Attributes:
        features: (N, D) features g(x).
        logits: (N, C) classifier outputs before the softmax.
        mixture: what a mixture says of the samples.
    """

    features: Tensor
    logits: Tensor
    mixture: MixtureView | None = None

    def of_mixture(self, score: str) -> MixtureView:
        """The mixture's view, or a refusal in the name of the score that needs one."""
        if self.mixture is None:
            raise DriftgateError(
                f"Expected a mixture for the novelty score {score!r} but the method has none; take one of "
                f"{', '.join(sorted(set(SCORES) - NEED_MIXTURE))}."
            )
        return self.mixture


Score = Callable[[ScoreInputs], Tensor]


def entropy(log_probabilities: Tensor) -> Tensor:
    """(N, C) -> (N,): Shannon entropy divided by log C, so in [0, 1] (Eq. 4); float64.

    Works on logarithms, because most entropies of a well-separated mixture lie far below the precision of 1.
    """
    logs = exact(log_probabilities.detach())
    num_classes = logs.shape[1]
    if num_classes == 1:
        return logs.new_zeros(len(logs))
    # The likeliest class has probability 1 - rest; where rest is below 1e-16, only log1p still sees it.
    others = logs.scatter(1, logs.argmax(dim=1, keepdim=True), -math.inf)
    rest = others.exp().sum(dim=1)
    terms = torch.where(others > -math.inf, -others.exp() * others, 0.0)
    total = terms.sum(dim=1) - (1.0 - rest) * torch.log1p(-rest)
    return total.clamp(min=0.0) / math.log(num_classes)


def posterior(log_likelihood: Tensor) -> Tensor:
    """(N, C) -> (N, C): log-probabilities of the classes at equal priors; uniform where no class was ever seen."""
    logs = exact(log_likelihood.detach()).log_softmax(dim=1)
    return torch.where(logs.isnan(), -math.log(logs.shape[1]), logs)


def likelihood_entropy(inputs: ScoreInputs) -> Tensor:
    """Entropy of the likelihoods over the classes, I(p) of Eq. 4: the paper's choice."""
    return entropy(posterior(inputs.of_mixture("likelihood_entropy").evaluation.log_likelihood))


def max_likelihood(inputs: ScoreInputs) -> Tensor:
    """One minus the largest likelihood, normalised over the classes: in [0, 1], as in the authors' code."""
    return beside_the_largest(posterior(inputs.of_mixture("max_likelihood").evaluation.log_likelihood).exp())


def log_density(inputs: ScoreInputs) -> Tensor:
    """Minus the largest log-likelihood, not normalised: far from every class it grows without bound."""
    return _finite(-inputs.of_mixture("log_density").evaluation.log_likelihood.amax(dim=1))


def mahalanobis(inputs: ScoreInputs) -> Tensor:
    """Smallest Mahalanobis distance to a class."""
    return _finite(inputs.of_mixture("mahalanobis").evaluation.squared_mahalanobis.amin(dim=1).sqrt())


def euclidean(inputs: ScoreInputs) -> Tensor:
    """Smallest Euclidean distance to the mean of a class."""
    mixture = inputs.of_mixture("euclidean")
    distances = torch.cdist(exact(mixture.reduced.detach()), exact(mixture.means))
    return _finite(distances.masked_fill((mixture.weights == 0).to(distances.device), math.inf).amin(dim=1))


def grad_norm(inputs: ScoreInputs) -> Tensor:
    """Minus the L1 norm of the gradient of KL(uniform || softmax) with respect to the classifier's weight.

    The gradient is the outer product of (softmax - uniform) and the features, so its norm is a product of norms.
    """
    probabilities = exact(inputs.logits.detach()).softmax(dim=1)
    away_from_uniform = (probabilities - 1.0 / probabilities.shape[1]).abs().sum(dim=1)
    return -away_from_uniform * exact(inputs.features.detach()).abs().sum(dim=1)


def max_prediction(inputs: ScoreInputs) -> Tensor:
    """One minus the largest class probability of the classifier."""
    return beside_the_largest(exact(inputs.logits.detach()).softmax(dim=1))


def prediction_entropy(inputs: ScoreInputs) -> Tensor:
    """Entropy of the classifier's probabilities, I(f(x))."""
    return entropy(exact(inputs.logits.detach()).log_softmax(dim=1))


def beside_the_largest(probabilities: Tensor) -> Tensor:
    """(N, C) -> (N,): one minus the largest, as the sum of the others: exact where that is tiny."""
    return probabilities.scatter(1, probabilities.argmax(dim=1, keepdim=True), 0.0).sum(dim=1)


def _finite(values: Tensor) -> Tensor:
    """Before any class was seen everything is equally unknown: a large number instead of infinity."""
    return values.nan_to_num(nan=1e300, posinf=1e300, neginf=-1e300)


SCORES: dict[str, Score] = {
    "likelihood_entropy": likelihood_entropy,
    "max_likelihood": max_likelihood,
    "mahalanobis": mahalanobis,
    "euclidean": euclidean,
    "grad_norm": grad_norm,
    "max_prediction": max_prediction,
    "prediction_entropy": prediction_entropy,
    "log_density": log_density,
}

NEED_MIXTURE = frozenset({"likelihood_entropy", "max_likelihood", "mahalanobis", "euclidean", "log_density"})
"""Scores that only a method with a mixture can use."""

SCORES_FROM_ZERO = frozenset({"likelihood_entropy", "max_likelihood", "max_prediction", "prediction_entropy"})
"""Scores in [0, 1] that crowd at zero for known samples; their logarithm is easier to tell apart."""


def get_score(name: str) -> Score:
    """The novelty score called ``name``."""
    if name not in SCORES:
        raise DriftgateError(f"Expected a novelty score out of {', '.join(SCORES)} but got {name!r}; name one of them.")
    return SCORES[name]
