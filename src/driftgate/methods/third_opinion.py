"""A third opinion: what the mixture says of a sample, by the direction in which it lies.

The classifier and the stream's own class means err on different samples, and like the answers by the two statistics of
batch norm (``driftgate.methods.second_opinion``) they are pooled by their logarithms. Where they agree the answer grows
surer, where they do not it stays in doubt: what is known moves away from what is new, so that one fixed level of doubt
serves a stream with any share of new classes, where a quantile rejects its share of each. It costs one factorisation of
R x R numbers.
"""

from __future__ import annotations

from torch import Tensor, nn
from typing_extensions import Self

from driftgate.memory import StreamingGMM
from driftgate.memory.directions import ClassDirections
from driftgate.models.source_model import ModelOutput

WEIGHT = 1.0
"""Of the third opinion by default: as much say as the others together."""

TEMPERATURE = 0.2
"""Of the cosines: the class in whose direction a sample lies has 148 times the odds of one that lies across."""


class ThirdOpinion(nn.Module):
    """What a mixture as it stands has to say, ``weight`` times."""

    def __init__(self, mixture: StreamingGMM, weight: float) -> None:
        super().__init__()
        self.directions, self.weight = ClassDirections(mixture), weight

    @classmethod
    def of(cls, mixture: StreamingGMM, weight: float) -> Self | None:
        """None where it has no weight."""
        return cls(mixture, weight) if weight > 0 else None

    def forward(self, logits: Tensor, reduced: Tensor) -> Tensor:
        """(N, C), (N, R) -> (N, C): logarithms of p q^weight / sum, where q is the softmax of the tempered cosines;
        those of p itself where the mixture has seen nothing."""
        mine = logits.float().log_softmax(dim=1)
        theirs = (self.directions(reduced) / TEMPERATURE).log_softmax(dim=1).to(mine)
        pooled: Tensor = (mine + self.weight * theirs).log_softmax(dim=1)
        return pooled


def pool_third(output: ModelOutput, reduced: Tensor, third: ThirdOpinion | None) -> ModelOutput:
    """The same features, and logits that the third opinion has had a say in, if there is one; without gradient."""
    return output if third is None else ModelOutput(output.features, third(output.logits.detach(), reduced.detach()))
