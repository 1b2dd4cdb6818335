"""The gate: where known ends and unknown begins on the axis of a novelty score.

Every gate answers with three thresholds: samples up to ``known`` learn their class, samples from ``unknown`` on learn
to be unknown, those between are left out, and a sample above ``prediction`` is predicted as unknown.
"""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from typing import ClassVar, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from driftgate.extras import require
from driftgate.memory.queue import RingQueue
from driftgate.state import State, exact
from driftgate.types import UNKNOWN, UNLABELED, DriftgateError, Thresholds

QuantileRule = Literal["interpolated", "released"]
TieRule = Literal["paper", "released", "gmm-comet"]


class Ties(NamedTuple):
    """What happens to a sample whose novelty equals a threshold.

    ``known``: it learns its class at the known threshold. ``unknown``: it learns to be unknown at the unknown one.
    ``prediction``: it is predicted as its class at the threshold of prediction. Where not, the opposite.
    """

    known: bool
    unknown: bool
    prediction: bool


TIES: dict[TieRule, Ties] = {
    "paper": Ties(known=True, unknown=True, prediction=True),
    "released": Ties(known=False, unknown=False, prediction=False),
    "gmm-comet": Ties(known=True, unknown=False, prediction=False),
}
"""The paper's rule (at most, at least, above), and those of the released code of GMM and of GMM-COMET."""


def pseudo_label(classes: Tensor, novelty: Tensor, thresholds: Thresholds, tie_rule: TieRule = "paper") -> Tensor:
    """(N,), (N,) -> (N,): the class, ``UNKNOWN`` or ``UNLABELED`` (the paper's pseudo-labelling rule)."""
    ties = TIES[tie_rule]
    known = novelty <= thresholds.known if ties.known else novelty < thresholds.known
    unknown = novelty >= thresholds.unknown if ties.unknown else novelty > thresholds.unknown
    # Where the two thresholds meet, the sample is known: the paper's first case comes first.
    known, unknown = known.to(classes.device), unknown.to(classes.device)
    return torch.where(known, classes, torch.where(unknown, UNKNOWN, UNLABELED))


def predict_label(classes: Tensor, novelty: Tensor, thresholds: Thresholds, tie_rule: TieRule = "paper") -> Tensor:
    """(N,), (N,) -> (N,): the class or ``UNKNOWN`` (the paper's inference rule)."""
    limit = thresholds.prediction
    accepted = novelty <= limit if TIES[tie_rule].prediction else novelty < limit
    return torch.where(accepted.to(classes.device), classes, UNKNOWN)


def spare_certain(thresholds: Thresholds, level: float) -> Thresholds:
    """The same thresholds, but nobody below ``level`` is unknown, neither for learning nor in prediction."""
    return thresholds._replace(
        unknown=max(thresholds.unknown, level),
        prediction=max(thresholds.prediction, level),
    )


class Gate(State, ABC):
    """State and rule that turn the stream of scores into thresholds; small, saved with the method, counted in bytes."""

    at_least_zero: ClassVar[frozenset[str]] = frozenset({"batches"})
    in_float64: ClassVar[bool] = True

    def __init__(self, p_reject: float = 0.5, init_batches: int = 30) -> None:
        super().__init__()
        if not 0 <= p_reject < 1:
            raise DriftgateError(f"Expected p_reject from 0 to below 1 but got {p_reject}.")
        if init_batches < 1:
            raise DriftgateError(f"Expected at least one initialisation batch but got {init_batches}.")
        self.p_reject, self.init_batches = p_reject, init_batches

    def update(self, novelty: Tensor) -> Thresholds:
        """Take in the scores (N,) of one batch and answer with the thresholds that hold for it."""
        self.take_in(novelty)
        return self.thresholds

    @abstractmethod
    def take_in(self, novelty: Tensor) -> None:
        """Change the state by the scores (N,) of one batch; new tensors, none changed in place."""

    @property
    @abstractmethod
    def cuts(self) -> Tensor:
        """(3,) float64: the thresholds as they stand, where the gate is; meaningless before the first batch."""

    @property
    def thresholds(self) -> Thresholds:
        """The same as numbers, for which the host waits."""
        return Thresholds(*self.cuts.tolist())

    @property
    def unknown_share(self) -> float:
        """Estimate of the share of unknown samples; NaN for a gate that makes none."""
        return math.nan


def batch_quantiles(novelty: Tensor, p_reject: float, rule: QuantileRule = "interpolated") -> Tensor:
    """(N,) -> (2,): the scores that cut off the lowest and the highest (1 - p_reject) / 2 of a batch.

    ``released`` takes the sorted entries the released code takes: the index rounded up for the lower, down for the
    upper one.
    """
    scores = exact(novelty.detach())
    if rule == "released":
        ordered, count = scores.sort().values, len(scores)
        low, high = math.ceil(count * (0.5 - p_reject / 2.0)), math.floor(count * (0.5 + p_reject / 2.0))
        return torch.stack([ordered[min(low, count - 1)], ordered[min(high, count - 1)]])
    share = (1.0 - p_reject) / 2.0
    return ordered_quantiles(scores, [share, 1.0 - share])


def ordered_quantiles(values: Tensor, levels: list[float]) -> Tensor:
    """Quantiles at ascending levels; the rounding of the interpolation cannot turn two of them round."""
    return torch.quantile(values, torch.tensor(levels, dtype=torch.float64, device=values.device)).cummax(dim=0).values


def with_middle(quantiles: Tensor) -> Tensor:
    """(2,) -> (3,): known, unknown, and prediction half-way between them."""
    return torch.cat([quantiles, (quantiles[:1] + quantiles[1:]) / 2.0])


class FrozenGate(Gate):
    """The paper's gate: the mean over the first ``init_batches`` batches of each batch's quantiles, then fixed.

    State: two sums and a counter.
    """

    sums: Tensor
    batches: Tensor

    def __init__(
        self, p_reject: float = 0.5, init_batches: int = 30, quantile_rule: QuantileRule = "interpolated"
    ) -> None:
        super().__init__(p_reject, init_batches)
        self.quantile_rule: QuantileRule = quantile_rule
        self.keep(sums=torch.zeros(2, dtype=torch.float64), batches=torch.zeros((), dtype=torch.int64))

    def take_in(self, novelty: Tensor) -> None:
        still = self.batches < self.init_batches
        self.sums = self.sums + torch.where(still, batch_quantiles(novelty, self.p_reject, self.quantile_rule), 0.0)
        self.batches = self.batches + still

    @property
    def cuts(self) -> Tensor:
        return with_middle(self.sums / self.batches)


class TrackingGate(Gate):
    """Thresholds that keep following the stream: a running mean of the batch quantiles with a window.

    Like the paper's gate for the first ``init_batches`` batches; after that each batch weighs 1 / ``init_batches``.
    """

    quantiles: Tensor
    batches: Tensor

    def __init__(self, p_reject: float = 0.5, init_batches: int = 30) -> None:
        super().__init__(p_reject, init_batches)
        self.keep(quantiles=torch.zeros(2, dtype=torch.float64), batches=torch.zeros((), dtype=torch.int64))

    def take_in(self, novelty: Tensor) -> None:
        self.batches = self.batches + 1
        rate = 1.0 / self.batches.clamp(max=self.init_batches).double()
        self.quantiles = self.quantiles + rate * (batch_quantiles(novelty, self.p_reject) - self.quantiles)

    @property
    def cuts(self) -> Tensor:
        return with_middle(self.quantiles)


class LevelGate(TrackingGate):
    """A fixed level of a score that is no matter of ranks: who lies above is predicted as unknown, be it nobody or all.

    Who teaches follows the quantiles as before, but nobody above the level is taught a class and nobody below it to be
    unknown.
    """

    @property
    def cuts(self) -> Tensor:
        known, unknown = self.quantiles.clamp(max=LEVEL)[0], self.quantiles.clamp(min=LEVEL)[1]
        return torch.stack([known, unknown, torch.full_like(known, LEVEL)])


LEVEL = 0.5
"""Of a normalised entropy: above it source-only rejects."""


class MixtureGate(Gate):
    """A two-component Gaussian mixture over the recent scores; the component of higher novelty is the unknown one.

    The paper's gate takes half of the stream for unknown and freezes where that half begins. This gate asks the scores
    themselves: the threshold of prediction is where both components are equally likely. Around it, ``p_reject`` of the
    samples on each side stay without a pseudo-label, those nearest to the threshold; for equal halves these are the
    paper's quantiles.

    State: the last ``window`` scores, the thresholds and two counters. With fewer than ``FEWEST`` scores half of them
    count as unknown. ``log_scale`` fits the logarithm of the scores, for scores that crowd at zero (entropies).
    """

    fitted: Tensor
    batches: Tensor

    def __init__(
        self,
        p_reject: float = 0.5,
        *,
        window: int = 1024,
        refit_every: int = 5,
        log_scale: bool = True,
    ) -> None:
        require("sklearn", "The gate 'mixture'")
        super().__init__(p_reject)
        if window < MixtureGate.FEWEST or refit_every < 1:
            raise DriftgateError(
                f"Expected a window of at least {MixtureGate.FEWEST} scores and a refit every batch or more seldom but "
                f"got {window} and {refit_every}."
            )
        self.refit_every, self.log_scale = refit_every, log_scale
        self.recent = RingQueue(window, score=None)
        self.keep(fitted=torch.zeros(3, dtype=torch.float64), batches=torch.zeros((), dtype=torch.int64))

    FEWEST = 32
    """Scores needed for a fit; with fewer the batch quantiles serve."""

    def take_in(self, novelty: Tensor) -> None:
        recent = self.recent.clone()
        recent.push(score=self._to_axis(exact(novelty.detach())))
        self.recent = recent
        self.batches = self.batches + 1
        if self.batches <= self.refit_every or self.batches % self.refit_every == 0:
            self.fitted = self._fit()

    @property
    def cuts(self) -> Tensor:
        return self.fitted

    @property
    def unknown_share(self) -> float:
        """Share of the recent scores above the threshold of prediction."""
        if self.batches == 0:
            return math.nan
        return float((exact(self.recent["score"]) > self._to_axis(self.fitted[2])).double().mean())

    def _fit(self) -> Tensor:
        recent = exact(self.recent["score"])
        # Scores at the floor are known beyond doubt; left in, they would be a component of their own.
        certain = recent <= math.log(SMALLEST_SCORE) + 1e-3 if self.log_scale else torch.zeros_like(recent).bool()
        doubtful = recent[~certain]
        above = crossing_share(doubtful.cpu().numpy()) if len(doubtful) >= MixtureGate.FEWEST else 0.5
        share = (float(certain.sum()) + above * len(doubtful)) / len(recent)
        keep = 1.0 - self.p_reject
        known, prediction, unknown = ordered_quantiles(recent, [share * keep, share, 1.0 - (1.0 - share) * keep])
        return self._from_axis(torch.stack([known, unknown, prediction]))

    def _to_axis(self, novelty: Tensor) -> Tensor:
        if self.log_scale:
            return novelty.clamp_min(SMALLEST_SCORE).log()
        return novelty.clamp(-LARGEST_SCORE, LARGEST_SCORE)

    def _from_axis(self, values: Tensor) -> Tensor:
        return values.exp() if self.log_scale else values


SMALLEST_SCORE = 1e-30
"""Scores below are known beyond doubt: the logarithm would spread them without need."""

LARGEST_SCORE = 1e30
"""Keeps a score of a class never seen within float32."""


def crossing_share(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float:
    """Share of ``values`` below the point between the two components of a Gaussian mixture where both are equally
    likely; one half where the values show no two components."""
    from sklearn.exceptions import ConvergenceWarning  # here, because no other gate needs scikit-learn
    from sklearn.mixture import GaussianMixture

    spread = float(values.std())
    if spread < 1e-9 * max(1.0, float(np.abs(values).max())):
        return 0.5
    # Standardised, so that the floor of the variances means the same for every score.
    axis = (values - values.mean()) / spread
    start = np.quantile(axis, [0.25, 0.75])
    mixture = GaussianMixture(
        2,
        weights_init=[0.5, 0.5],
        means_init=start[:, None],
        precisions_init=np.full((2, 1, 1), 4.0),
        init_params="random",
        random_state=0,
        reg_covar=1e-4,
        max_iter=200,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        mixture.fit(axis[:, None])
    low, high = sorted((0, 1), key=lambda component: float(mixture.means_[component, 0]))
    between = np.linspace(mixture.means_[low, 0], mixture.means_[high, 0], 512)
    unknown = mixture.predict_proba(between[:, None])[:, high] >= 0.5
    if not unknown.any() or unknown.all():
        return 0.5
    return float((axis < between[int(unknown.argmax())]).mean())


GateKind = Literal["frozen", "tracking", "level", "mixture"]


def make_gate(
    kind: GateKind,
    p_reject: float,
    init_batches: int,
    *,
    quantile_rule: QuantileRule = "interpolated",
    window: int = 1024,
    refit_every: int = 5,
    log_scale: bool = True,
) -> Gate:
    """The gate of that kind; settings that another kind uses are passed over."""
    if kind == "frozen":
        return FrozenGate(p_reject, init_batches, quantile_rule)
    if kind == "tracking":
        return TrackingGate(p_reject, init_batches)
    if kind == "level":
        return LevelGate(p_reject, init_batches)
    return MixtureGate(p_reject, window=window, refit_every=refit_every, log_scale=log_scale)
