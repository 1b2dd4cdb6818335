"""The consent of the classifier as it came: a label that it does not believe teaches nothing.

Without, an unknown class may take over the slot of a class that the network cannot recognise, and a good classifier
whose stream holds nothing new is unlearned by the half that the gate takes for unknown.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from driftgate.models.source_model import ModelOutput
from driftgate.novelty.scores import entropy
from driftgate.state import State
from driftgate.types import UNKNOWN


class Consent(State):
    """A copy of the classifier, where it learns, and what needs its consent.

    ``veto_below``: a class label falls where it gives the class no more than this probability. ``doubt_above``: the
    label "unknown" falls where its normalised entropy is no more than this. 0 for never, in both.

    ``head`` is (C, D + 1), weight and bias; empty where the classifier stays as it is or is no linear layer: then the
    classifier itself is asked.
    """

    head: Tensor

    def __init__(self, classifier: nn.Module, *, veto_below: float, doubt_above: float, learns: bool) -> None:
        super().__init__()
        self.veto_below, self.doubt_above = veto_below, doubt_above
        self.asked = veto_below > 0 or doubt_above > 0
        self.keep(
            head=_copy(classifier) if self.asked and learns and isinstance(classifier, nn.Linear) else torch.zeros(0)
        )

    def logs(self, output: ModelOutput) -> Tensor:
        """(N, C) log-probabilities that the classifier as it came gives the features as they are."""
        logits = output.logits.detach()
        if len(self.head):
            logits = F.linear(output.features.detach(), self.head[:, :-1], self.head[:, -1])
        return logits.log_softmax(dim=1)

    def vetoed(self, output: ModelOutput, labels: Tensor) -> Tensor:
        """(N,) -> (N,): labels against it: a class it does not believe, unknown where it is in no doubt."""
        vetoed = torch.zeros_like(labels, dtype=torch.bool)
        if not self.asked:
            return vetoed
        logs = self.logs(output)
        if self.veto_below > 0:
            believed = logs.gather(1, labels.clamp_min(0)[:, None])[:, 0].exp()
            vetoed = (labels >= 0) & (believed <= self.veto_below)
        if self.doubt_above > 0:
            sure = (entropy(logs) <= self.doubt_above).to(labels.device)
            vetoed = vetoed | ((labels == UNKNOWN) & sure)
        return vetoed


def _copy(classifier: nn.Linear) -> Tensor:
    bias = classifier.weight.new_zeros(classifier.out_features) if classifier.bias is None else classifier.bias
    return torch.cat([classifier.weight, bias[:, None]], dim=1).detach().clone()
