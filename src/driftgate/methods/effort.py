"""How much of the gain to buy for how much: one setting, ``effort``, for a bundle of others.

Every part can also be set alone, and what is set wins over the bundle: which layers learn (``adapt_layers``), which
batches teach (``teach_share``, ``min_sure``), which samples go backward and how (``backward``, ``backward_share``),
and for the mixture's methods the second view (``second_view``) and who names the class (``answer``).
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, Literal, NamedTuple

from pydantic import Field, model_validator
from torch import Tensor
from torch.nn import functional as F

from driftgate.export import BEFORE_BATCH, BY_RUNNING
from driftgate.methods.base import MethodSettings
from driftgate.models.spec import ModelSpec
from driftgate.novelty.scores import posterior
from driftgate.types import UNLABELED, DriftgateError

Effort = Literal["full", "light", "frozen"]
Backward = Literal["together", "apart"]
Answer = Literal["classifier", "mixture", "both"]
SecondView = Literal["full", "half", "none"]


def is_due(steps: int, share: float) -> bool:
    """Whether batch number ``steps``, from 0, is one of those that teach if at most this share may: the first, and
    then evenly."""
    return math.ceil(round((steps + 1) * share, 9)) > math.ceil(round(steps * share, 9))


class LabelledView(NamedTuple):
    """Another view of M samples: its reduced features (M, R) and logits (M, C), and of the samples themselves the
    pseudo-labels (M,) and the class probabilities that the view is held against, (M, C)."""

    reduced: Tensor
    logits: Tensor
    labels: Tensor
    answers: Tensor


def sure_enough(pseudo_labels: Tensor, share: float) -> bool:
    """Whether at least ``share`` of the samples (N,) have a label; the host waits only where anything is asked for."""
    return share == 0 or float((pseudo_labels != UNLABELED).double().mean()) >= share


def check_second_view(view: SecondView, spec: ModelSpec) -> None:
    """Refuse half of what has no height and width."""
    if view == "half" and spec.kind != "images":
        raise DriftgateError(
            f"Expected second_view out of full, none for a model that takes {spec.kind} but got half; name one of them."
        )


def at_half(images: Tensor) -> Tensor:
    """(N, C, H, W) -> the same at half the height and width."""
    return F.interpolate(images, scale_factor=0.5, mode="bilinear", antialias=True)


def answer_scores(answer: Answer, logits: Tensor, log_likelihood: Tensor) -> Tensor:
    """(N, C), (N, C) -> (N, C): the class probabilities of the classifier, of the mixture, or the mean of both."""
    scores = logits.softmax(dim=1)
    if answer == "classifier":
        return scores
    mixture = posterior(log_likelihood).exp().to(scores)
    return mixture if answer == "mixture" else (scores + mixture) / 2.0


def differences(*, by_batch: bool, answer: Answer, second: bool, neighbors: bool) -> str:
    """What an exported file does otherwise than the mixture's methods."""
    said = [BEFORE_BATCH]
    said += [BY_RUNNING] if by_batch else []
    said += ["without a second opinion by the other statistics of batch norm"] if second else []
    said += ["without the answers for a sample's neighbours in its batch"] if neighbors else []
    said += [] if answer == "classifier" else ["it takes the class of the classifier alone"]
    return "; ".join(said)


class EffortSettings(MethodSettings):
    """What a step may cost.

    Attributes:
        effort: ``full``; ``light``, most of the gain for about twice an inference; ``frozen``, no gradient at all: one
            forward pass. A bundle of the settings below; what is set by itself wins over it.
        teach_share: at most this share of the batches teaches, evenly spread; the others are predicted. 0 for none. By
            default all; ``gmm`` has a rule of its own.
        backward: ``together`` keeps the activations of the whole batch; ``apart`` predicts without and lets only the
            samples that the loss moves go forward again, in pieces, and backward; see ``driftgate.models.apart``.
        backward_share: at most this share of a batch's samples goes backward, those the loss moves most (``apart``).
    """

    efforts: ClassVar[dict[str, dict[str, Any]]] = {
        "full": {},
        "light": {"teach_share": 0.5, "backward": "apart"},
        "frozen": {"teach_share": 0.0},
    }
    effort: Effort = "full"
    teach_share: float | None = Field(default=None, ge=0.0, le=1.0)
    backward: Backward = "together"
    backward_share: float = Field(default=1.0, gt=0.0, le=1.0)

    def share_that_teaches(self, *, pretrained: bool) -> float:
        """Of the batches: what was asked for, or else all."""
        return 1.0 if self.teach_share is None else self.teach_share

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, given: Any) -> Any:
        """The bundle under what was given."""
        return {**cls.efforts.get(given.get("effort", "full"), {}), **given} if isinstance(given, dict) else given
