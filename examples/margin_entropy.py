"""A method of your own, in a file of your own: entropy minimisation of the samples with a clear first choice.

    driftgate bench digits --import examples/margin_entropy.py --methods source-only,margin-entropy --workers 2
    python examples/margin_entropy.py    # the same in small: 20 batches, source models of one epoch

Nothing in driftgate is changed. The file is imported by name wherever the method is needed, in every worker process
too; in a package, an entry point of the group ``driftgate.methods`` does that without --import.
"""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

from driftgate.losses import mean_entropy
from driftgate.methods import GradientSettings, Look, OneStep
from driftgate.models.source_model import ModelOutput
from driftgate.novelty import entropy_prediction
from driftgate.types import Prediction


class MarginSettings(GradientSettings):
    """Settings of the method.

    Attributes:
        margin: learn from a sample where the first class leads the second by this much probability.
        threshold: reject where the normalised entropy of the prediction exceeds it.
    """

    margin: float = Field(default=0.3, ge=0.0, le=1.0)
    threshold: float = Field(default=0.5, ge=0.0, le=1.0)
    adapt_layers: str = "norm"


class Margin(OneStep, name="margin-entropy", settings=MarginSettings, look=Look("Margin entropy")):
    """Tent on the samples whose first class leads clearly."""

    summary = "entropy minimisation where the first class leads; an example"
    settings: MarginSettings

    def assess(self, output: ModelOutput) -> Prediction:
        """Argmax or unknown."""
        return entropy_prediction(output.logits, self.settings.threshold)

    def loss(self, output: ModelOutput, prediction: Prediction) -> Tensor | dict[str, Tensor]:
        """Mean entropy of the samples with a clear lead; nothing without any."""
        first, second = torch.topk(prediction.scores, 2, dim=1).values.T
        clear = first - second > self.settings.margin
        return {"entropy": mean_entropy(output.logits[clear])} if bool(clear.any()) else {}


if __name__ == "__main__":
    from driftgate.lab.cli import app

    small = ["--shifts", "OPDA", "--seeds", "1", "--limit", "20", "--quick-training", "--out", "runs/margin-entropy"]
    methods = ["--methods", "source-only,margin-entropy", "--workers", "2"]
    app(["bench", "digits", *methods, *small])
