"""The stream's own calm past: what its batches usually look like, so that one that does not may be kept from teaching.

Four numbers describe a batch: how far its mean lies from the stream's, how undecided the mixture is, how many different
classes are predicted, and how far its features spread. Each is compared with its running mean over the batches that
taught. A batch whose samples are copies of each other never teaches.

Doubt that rises by less than that, but stays, is unusual too: a flood of new classes where novelty separates poorly, or
a network that learns to be undecided. Its rises are summed up (the CUSUM of Page, 1954).
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor

from driftgate.memory import StreamingGMM
from driftgate.novelty.scores import entropy, posterior
from driftgate.state import State, exact
from driftgate.types import DriftgateError

SMALLEST_CHANGE = (0.5, 0.1, 0.1, 0.7)
"""Changes of the four numbers that are never unusual: the shift (a logarithm, and only growth counts), mean doubt,
entropy of the mean prediction, and logarithm of the spread."""

TEMPERATURE = 4.0
"""Of the likelihoods: as they are, most entropies of a mixture in many dimensions lie near zero, and a batch of unknown
samples hardly moves their mean."""

DEVIATIONS = 4.0
"""How many of its usual deviations a number may lie away from where it stood."""

LEVEL, PAST = 4, 15
"""Batches that the level of a number and its usual deviation from it look back on. The level is the faster one, for a
network that learns has a trend, which must not pass for spread."""

FIRST = 10
"""Batches that must have taught before anything is called unusual."""

RETURN = 0.5
"""After a batch that was unusual the next must lie nearer by this to teach again: what comes in bursts must not slip in
by its own spread."""

PATIENCE = 500
"""After so many unusual batches in a row they are the stream, and the past begins anew."""

SLOW = 20
"""Batches that the slow level of doubt looks back on. Rises are summed from the lower one of both levels: the fast one
rises with the doubt, the slow one stays behind where a network that learns doubts less and less."""

ALLOWED_RISE, LARGEST_RISE = 1.0, 4.0
"""In deviations of doubt: what a batch may lie above its level without adding to the sum, and the sum from which a
batch is unusual. It goes no higher than one more, so that a calm batch or two end it."""

FEWEST_DIFFERENT = 0.5
"""Share of a batch's samples that must differ from each other."""


def describe_batch(log_likelihood: Tensor, scores: Tensor, features: Tensor, shift: Tensor) -> Tensor:
    """(N, C), (N, C), (N, D), () -> (4,) float64: log of the shift, mean doubt, entropy of the mean prediction, log of
    the spread. Doubt is the entropy of the likelihoods, tempered.

    ``shift`` is the squared distance of the batch's mean from the stream's, in variances. By chance alone it is 1 / N,
    so N times it can be compared between batches of different size.
    """
    values = exact(features.detach())
    spread = values.var(dim=0, correction=0).mean() / values.square().mean().clamp_min(1e-30)
    return torch.stack(
        [
            (len(scores) * exact(shift)).clamp_min(1e-12).log(),
            entropy(posterior(log_likelihood / TEMPERATURE)).mean(),
            entropy(exact(scores.detach()).mean(dim=0, keepdim=True).clamp_min(1e-30).log())[0],
            spread.clamp_min(1e-12).log(),
        ]
    )


def mixture_shift(mixture: StreamingGMM, reduced: Tensor) -> Tensor:
    """Squared distance of the mean of (N, R) from the mixture's, in the mixture's variances; 0 while it is empty."""
    shares = mixture.weights.double() / mixture.weights.double().sum().clamp_min(1e-30)
    mean = shares @ mixture.means.double()
    variance = shares @ (mixture.variances.double() + (mixture.means.double() - mean).square())
    moved = exact(reduced.detach()).mean(dim=0) - mean
    return (moved.square() / variance.clamp_min(1e-30)).mean() * (shares.sum() > 0)


def different_share(features: Tensor) -> Tensor:
    """(N, D) -> () float64: share of the samples that no earlier one of the batch is equal to, up to rounding."""
    values = exact(features.detach())
    scale = values.abs().max().clamp_min(1e-30)
    distance = torch.cdist(values / scale, values / scale, compute_mode="donot_use_mm_for_euclid_dist")
    repeated = (distance < 1e-5 * math.sqrt(values.shape[1])).tril(-1).any(dim=1)
    return 1.0 - repeated.double().mean()


class CalmPast(State):
    """The level of what batches look like, and the usual squared deviation from it.

    ``accept`` says whether a batch may teach; only those that may are taken in. State: 4 means, 4 variances, the slow
    level of doubt, the sum of its rises, and two counters.
    """

    at_least_zero: ClassVar[frozenset[str]] = frozenset({"variance", "rise", "taught", "refused"})
    in_float64: ClassVar[bool] = True
    mean: Tensor
    variance: Tensor
    usual_doubt: Tensor
    rise: Tensor
    taught: Tensor
    refused: Tensor

    def __init__(self, deviations: float = DEVIATIONS) -> None:
        super().__init__()
        if not deviations > 0:
            raise DriftgateError(f"Expected a positive number of standard deviations but got {deviations}.")
        self.deviations = deviations
        self.keep(
            mean=torch.zeros(4, dtype=torch.float64),
            variance=torch.zeros(4, dtype=torch.float64),
            usual_doubt=torch.zeros((), dtype=torch.float64),
            rise=torch.zeros((), dtype=torch.float64),
            taught=torch.zeros((), dtype=torch.int64),
            refused=torch.zeros((), dtype=torch.int64),
        )

    def accept(self, log_likelihood: Tensor, scores: Tensor, features: Tensor, shift: Tensor) -> bool:
        """Whether a batch of N samples looks like the past; see ``describe_batch``."""
        return bool(self.take_in(log_likelihood, scores, features, shift))

    def take_in(self, log_likelihood: Tensor, scores: Tensor, features: Tensor, shift: Tensor) -> Tensor:
        """() bool: the same without a look at the values, for which a device would have to be waited for."""
        facts = describe_batch(log_likelihood, scores, features, shift)
        allowed = torch.maximum(self.deviations * self.variance.sqrt(), facts.new_tensor(SMALLEST_CHANGE))
        allowed = torch.where(self.refused > 0, RETURN * allowed, allowed)
        away = facts - self.mean
        distance = torch.cat([away[:1], away[1:].abs()])  # nearer to the stream's mean is no reason for doubt
        has_past = (self.taught >= FIRST) & (self.refused < PATIENCE)
        rise = torch.where(has_past, self._summed_rise(facts[1]), 0.0)
        far = (distance > allowed).any() | (rise > LARGEST_RISE)
        usual = (different_share(features) >= FEWEST_DIFFERENT) & ~(has_past & far)

        taught = torch.where(self.refused >= PATIENCE, 0, self.taught)
        # The first batch has nothing to deviate from.
        moved = torch.where(taught > 0, (away.square() - self.variance) / taught.clamp(1, PAST), 0.0)
        self.variance = torch.where(usual, self.variance + moved, self.variance)
        self.mean = torch.where(usual, self.mean + away / (taught + 1).clamp(max=LEVEL), self.mean)
        slower = self.usual_doubt + (facts[1] - self.usual_doubt) / (taught + 1).clamp(max=SLOW)
        self.usual_doubt, self.rise = torch.where(usual, slower, self.usual_doubt), rise
        self.taught = torch.where(usual, taught + 1, self.taught)
        self.refused = torch.where(usual, 0, self.refused + 1)
        return usual

    def _summed_rise(self, doubt: Tensor) -> Tensor:
        """(): the sum of the rises of doubt over its level, with this batch; in deviations, less the allowed."""
        deviation = self.variance[1].sqrt().clamp_min(SMALLEST_CHANGE[1] / DEVIATIONS)
        rise = self.rise + (doubt - torch.minimum(self.usual_doubt, self.mean[1])) / deviation - ALLOWED_RISE
        return rise.clamp(0.0, LARGEST_RISE + 1.0)
