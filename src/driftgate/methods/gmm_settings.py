"""Settings of the paper's method and the presets that undo what the default changed."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field

from driftgate.losses import KLForm, MeanTerm, Reduction
from driftgate.memory import CovarianceForm, StreamingGMM
from driftgate.memory.gmm import FloorRule
from driftgate.methods.effort import Answer, SecondView
from driftgate.methods.gradient import GradientSettings
from driftgate.methods.neighbor_opinion import SHARE
from driftgate.methods.third_opinion import WEIGHT
from driftgate.novelty.gate import LEVEL, Gate, GateKind, QuantileRule, TieRule, make_gate
from driftgate.novelty.scores import SCORES_FROM_ZERO
from driftgate.novelty.share import ShareGate, UnknownShare, share_bounds

EFFORTS: dict[str, dict[str, Any]] = {
    "full": {},
    # Every second batch teaches, twice as much.
    "light": {"lr": 0.002, "backward": "apart", "second_view": "none", "second_opinion": 0.0},
    # Without learning nothing pulls the stream's statistics back to what the classifier knows.
    "frozen": {"teach_share": 0.0, "batch_norm": "running", "answer": "both", "second_opinion": 0.0},
}
"""What each effort sets; docs/performance.md has what they cost and what they gain."""

CERTAIN_LIKELIHOOD = 0.01
"""Of the other scores in [0, 1]: below it no sample is unknown."""


class GMMSettings(GradientSettings):
    """Settings of the method; the paper's symbol in brackets. docs/gmm.md tells how the defaults were chosen.

    Attributes:
        reduced_dim: size of the reduced feature space (FD_r); at most the size of the features, for more dimensions
            than that would leave every covariance singular.
        decay: how much of the mixture's past survives a batch (alpha).
        covariance: ``full`` keeps a covariance a class (the paper), ``tied`` one for all: a few percent of the memory
            and of the mixture's time, and no shrinkage, for which there is nothing left to mix.
        covariance_floor, floor_rule, covariance_shrinkage, mean_shift: see ``StreamingGMM``.
        class_prior: how much the weights of the classes count beside the likelihoods: 0 not at all (the paper), 1 as
            in Bayes' rule. Without, a class that never appears gets its mean and covariance from the tails of the
            predictions, lies over a class that does, and makes its samples look unknown.
        likelihood_temperature: the logarithms of the likelihoods are divided by it; 1 in the paper. Gaussians of many
            dimensions are too sure of themselves, and the entropies of 64 of them lie near zero whatever the sample.
        novelty: name of the novelty score. ``auto`` is the paper's ``likelihood_entropy`` where the classifier learns,
            and ``prediction_entropy`` where it stays as it came: one that is not taught by its own labels judges them
            better than a mixture of few samples a class.
        gate: ``frozen`` (the paper's), ``tracking``, ``level`` or ``mixture``; see ``driftgate.novelty.gate``. ``auto``
            is ``level`` where the classifier's doubt is what is new and a third opinion has made it worth one, else
            ``tracking``.
        unknown_share: ``auto``; the share of the stream that is unknown, where it is known (0: nothing is rejected and
            nobody is taught to be unknown); or bounds (low, high) of it. Anything but ``auto`` takes the place of the
            gate; see ``driftgate.novelty.share``.
        p_reject: share of the samples that get no pseudo-label.
        init_batches: batches that set the thresholds of the frozen gate (N_init), window of the tracking one.
        certain_below: a sample whose novelty lies below is never unknown, whatever the gate says; quantiles would
            reject a share of any stream, however easy. For the scores in [0, 1] only, 0 in the paper. By default 0.01;
            where ``auto`` has the classifier that stays say what is new, 0.5: it rejects nobody whom source-only,
            asked in the same way, would not reject.
        quantile_rule: which scores of a batch the thresholds are read off.
        tie_rule: on which side of a threshold a novelty equal to it lies; see ``driftgate.novelty.gate.Ties``.
        gate_window, refit_every: scores the mixture gate looks at, and batches between two of its fits.
        contrastive_weight: weight of the contrastive loss (1 in the paper).
        temperature: of the contrastive loss (tau).
        reduction: ``sum`` as the equations say, or ``mean``; of both losses.
        self_pairs, mean_term: see ``contrastive_loss``.
        kl_weight: weight of the KL divergence loss (lambda).
        kl_form, kl_temperature: see ``kl_loss``.
        agreement_weight: weight of the agreement loss, by which the second view is taught what was answered for the
            batch, as sure in the mean as the network was by itself; not in the paper. docs/gmm.md tells where 10
            gains and where it loses.
        adapt_layers, backbone_lr_scale: by default what the model knows of itself decides: a pretrained backbone learns
            (if asked to, see ``teach_share``) at a tenth of the rate under a head that stays, a network trained from
            scratch as a whole.
        teach_share: at most this share of the batches teaches, 0 for none. By default all (``light``: half), but none
            where the network is pretrained, unless ``adapt_layers`` names what shall learn: on long streams what it
            learned made every one that we looked at worse. Mixture, gate and statistics follow the stream all the same.
        batch_norm: ``auto`` normalises as the backbone was trained; where that is not known, by the batch if a network
            trained from scratch, else by those that keep the answers of the first batch steadier between two views.
        second_opinion: share that the other statistics of batch norm have in the answer to a batch, and in who teaches
            what; see ``driftgate.methods.second_opinion``. By default a quarter for a pretrained network with batch
            norm, nothing for others. It costs a forward pass.
        neighbor_opinion: share that the answers for the samples of the batch most like it have in the answer for one;
            see ``driftgate.methods.neighbor_opinion``. By default 0.3 for a pretrained network whose classifier stays
            as it came, nothing for others. It costs next to nothing.
        third_opinion: weight of what the mixture says by directions, in the logarithms of the answer; see
            ``driftgate.methods.third_opinion``. By default 1 for a pretrained network whose classifier stays as it
            came, nothing for others. It costs next to nothing, too.
        veto_below: a class label is dropped where the classifier as it came gives the class no more than this
            probability, or an unknown class may take over the slot of one the network cannot recognise; 0 for never.
        doubt_above: a sample is taught to be unknown only where the classifier as it came is in doubt too, the
            normalised entropy of its prediction above this (what source-only rejects); or a good classifier whose
            stream holds nothing new is unlearned by the half that the gate takes for unknown. 0 for always.
            The less of the stream it doubts, below a quarter, the weaker that teaches; see ``driftgate.novelty.need``.
        skip_unusual: predict batches that look like none before, but do not learn from them; see ``CalmPast``.
        second_view: ``full``; at ``half`` the height and width; ``none`` compares the images with each other alone.
        min_sure: a batch teaches only where at least this share of it has a label, class or unknown.
        answer: who names the class of a sample that is not rejected: the ``classifier``, the ``mixture``, or ``both``,
            the product of their probabilities.
        min_batch: smaller batches are predicted at once by what is known, and wait until so many samples are together.
    """

    efforts: ClassVar[dict[str, dict[str, Any]]] = EFFORTS
    second_view: SecondView = "full"
    min_sure: float = Field(default=0.0, ge=0.0, le=1.0)
    answer: Answer = "classifier"
    adapt_layers: str = "auto"
    batch_norm: Literal["auto", "batch", "running"] = "auto"  # type: ignore[assignment]
    second_opinion: float | None = Field(default=None, ge=0.0, le=1.0)
    neighbor_opinion: float | None = Field(default=None, ge=0.0, le=1.0)
    third_opinion: float | None = Field(default=None, ge=0.0, le=10.0)
    veto_below: float = Field(default=0.2, ge=0.0, lt=1.0)
    doubt_above: float = Field(default=0.5, ge=0.0, lt=1.0)
    skip_unusual: bool = True
    min_batch: int = Field(default=32, ge=1)
    backbone_lr_scale: float | None = Field(default=None, ge=0.0)
    reduced_dim: int = Field(default=64, ge=1)
    decay: float = Field(default=0.999, ge=0.0, le=1.0)
    covariance: CovarianceForm = "full"
    covariance_floor: float = Field(default=1e-6, ge=0.0)
    floor_rule: FloorRule = "relative"
    covariance_shrinkage: float = Field(default=300.0, ge=0.0)
    mean_shift: bool = False
    class_prior: float = Field(default=1.0, ge=0.0, le=1.0)
    likelihood_temperature: float = Field(default=1.0, gt=0.0)
    novelty: str = "auto"
    gate: Literal["auto"] | GateKind = "auto"
    unknown_share: UnknownShare = "auto"
    p_reject: float = Field(default=0.25, ge=0.0, lt=1.0)
    init_batches: int = Field(default=30, ge=1)
    certain_below: float | None = Field(default=None, ge=0.0, le=1.0)
    quantile_rule: QuantileRule = "interpolated"
    tie_rule: TieRule = "paper"
    gate_window: int = Field(default=1024, ge=32)
    refit_every: int = Field(default=5, ge=1)
    contrastive_weight: float = Field(default=1.0, ge=0.0)
    temperature: float = Field(default=0.1, gt=0.0)
    reduction: Reduction = "mean"
    self_pairs: bool = False
    mean_term: MeanTerm = "samples"
    kl_weight: float = Field(default=1.0, ge=0.0)
    kl_form: KLForm = "cross_entropy"
    kl_temperature: float = Field(default=0.1, gt=0.0)
    agreement_weight: float = Field(default=0.0, ge=0.0)

    def novelty_score(self, *, head_learns: bool) -> tuple[str, float]:
        """The name of the novelty score, and where on it nobody is unknown: what was asked for, or else what the
        defaults stand for."""
        by_training = "likelihood_entropy" if head_learns else "prediction_entropy"
        name = by_training if self.novelty == "auto" else self.novelty
        certain = LEVEL if name == "prediction_entropy" and not head_learns else CERTAIN_LIKELIHOOD
        return name, certain if self.certain_below is None else self.certain_below

    def further_opinions(self, *, classifier_stays: bool) -> tuple[float, float]:
        """Share of the neighbours and weight of the third opinion: what was asked for, or else the defaults."""
        neighbors, third = (SHARE, WEIGHT) if classifier_stays else (0.0, 0.0)
        return (
            neighbors if self.neighbor_opinion is None else self.neighbor_opinion,
            third if self.third_opinion is None else self.third_opinion,
        )

    def share_that_teaches(self, *, pretrained: bool) -> float:
        """Of the batches: what was asked for, or else none where nobody named what shall learn of a pretrained network,
        and else all or, for ``light``, half."""
        if self.teach_share is None and pretrained and self.adapt_layers == "auto":
            return 0.0
        if self.teach_share is None and self.effort == "light":
            return 0.5
        return super().share_that_teaches(pretrained=pretrained)

    def make_mixture(self, num_classes: int, dim: int) -> StreamingGMM:
        return StreamingGMM(
            num_classes,
            dim,
            self.decay,
            covariance=self.covariance,
            mean_shift=self.mean_shift,
            floor=self.covariance_floor,
            floor_rule=self.floor_rule,
            shrinkage=self.covariance_shrinkage,
        )

    def make_gate(self, novelty: str, *, third_opinion: bool) -> Gate:
        """The gate that was asked for, or else what the defaults stand for, on the axis of a novelty score."""
        if self.unknown_share != "auto":
            return ShareGate(share_bounds(self.unknown_share), self.p_reject, window=self.gate_window)
        by_default: GateKind = "level" if third_opinion and novelty == "prediction_entropy" else "tracking"
        return make_gate(
            by_default if self.gate == "auto" else self.gate,
            self.p_reject,
            self.init_batches,
            quantile_rule=self.quantile_rule,
            window=self.gate_window,
            refit_every=self.refit_every,
            log_scale=novelty in SCORES_FROM_ZERO,
        )


PAPER: dict[str, Any] = {
    "lr": 0.01,
    "adapt_layers": "all",
    "batch_norm": "batch",
    "second_opinion": 0.0,
    "neighbor_opinion": 0.0,
    "third_opinion": 0.0,
    "veto_below": 0.0,
    "doubt_above": 0.0,
    "skip_unusual": False,
    "min_batch": 1,
    "backbone_lr_scale": 0.1,
    "covariance_shrinkage": 0.0,
    "class_prior": 0.0,
    "novelty": "likelihood_entropy",
    "gate": "frozen",
    "p_reject": 0.5,
    "certain_below": 0.0,
    "reduction": "sum",
    "self_pairs": True,
    "kl_form": "paper",
}
"""The equations as written, with the learning rate of VisDA-C."""

RELEASED: dict[str, Any] = {
    **PAPER,
    "decay": 1.0,
    "floor_rule": "absolute",
    "quantile_rule": "released",
    "tie_rule": "released",
    "contrastive_weight": 0.0,
    "kl_form": "bounded",
    "kl_weight": 1e-3,
}
"""What the released code does in effect: no decay, no gradient from the contrastive loss, the bounded KL loss, and its
own floor, quantiles and inequalities."""
