"""The one-step template: a method is what it makes of the network's outputs, and its loss."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import Generic

from torch import Tensor
from typing_extensions import TypeVar

from driftgate.export import BY_RUNNING
from driftgate.methods.gradient import GradientMethod
from driftgate.models.passes import Passes
from driftgate.models.source_model import ModelOutput
from driftgate.types import Prediction

P = TypeVar("P", bound=Prediction, default=Prediction)


class OneStep(GradientMethod, Generic[P]):
    """Predict a batch from one forward pass, then take one step of the optimiser on a loss of the same pass.

    A subclass fills in ``assess`` and ``loss``. All else is done: the pass, the optimiser and the layers that learn by
    the settings (``GradientSettings``), saving, loading, moving, the checks of inputs and of divergence. One whose loss
    needs more than a ``Prediction`` holds lets ``assess`` return a subclass of it: ``OneStep[MyPrediction]``.
    """

    @abstractmethod
    def assess(self, output: ModelOutput) -> P:
        """Features (N, D) and logits (N, C), without gradient -> the prediction; must not change anything."""

    @abstractmethod
    def loss(self, output: ModelOutput, prediction: P) -> Tensor | Mapping[str, Tensor]:
        """What the step minimises, from the outputs with gradient: a scalar, or terms by name whose sum it is.

        No term, or one without gradient, teaches nothing.
        """

    def remember(self, prediction: P) -> None:
        """Keep what survives the batch; the last thing a step does."""

    def _approximation(self) -> str:
        return BY_RUNNING if self.settings.batch_norm == "batch" else ""

    def _predict(self, images: Tensor) -> Prediction:
        return self.assess(self._forward(self._passes(), images))

    def _step(self, images: Tensor) -> Prediction:
        passes = self._passes()
        output = self._forward(passes, images)
        # Predicted by the pass it learns from, before the weights move.
        prediction = self.assess(ModelOutput(output.features.detach(), output.logits.detach()))
        self._tell(prediction)
        return self._learn_from(prediction, passes, output)

    def _learn_from(self, prediction: P, passes: Passes, output: ModelOutput) -> Prediction:
        """The step itself; the prediction with what was minimised."""
        found = self.loss(output, prediction)
        losses = self._learn(passes, found if isinstance(found, Mapping) else {"loss": found})
        self.remember(prediction)
        return replace(prediction, losses=losses)
