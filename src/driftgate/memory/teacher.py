"""A second set of weights for the same network: a mean teacher, or the source model as it was."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.func import functional_call

from driftgate.models.normalization import batch_statistics
from driftgate.models.source_model import ModelOutput, SourceModel


class ModelCopy:
    """The weights and statistics of a model at one moment, run through the model's own layers.

    No second network is built, so that it works around any backbone; the model must be in eval mode when it runs.
    """

    def __init__(self, model: SourceModel) -> None:
        self.model = model
        named = {**dict(model.named_parameters()), **_persistent_buffers(model)}
        # ``clone`` keeps the memory layout: another one is another order of summation.
        self.tensors = {name: tensor.detach().clone() for name, tensor in named.items()}

    @torch.no_grad()
    def forward(self, images: Tensor, *, by_batch: bool = False) -> ModelOutput:
        """Features (N, D) and logits (N, C) of the copy; no gradient.

        ``by_batch`` lets batch norm normalise by the batch. The copy's own statistics, which it then does not look at,
        stay as they are.
        """
        tensors = self.tensors
        if by_batch:
            kept = dict(self.model.named_parameters())
            tensors = {name: tensor if name in kept else tensor.clone() for name, tensor in tensors.items()}
        with batch_statistics(self.model, len(images), enabled=by_batch):
            output: ModelOutput = functional_call(self.model, tensors, (images,))
        return output

    def state_dict(self) -> dict[str, Tensor]:
        """All weights, by their names in the model."""
        return self.tensors

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Put back what ``state_dict`` gave."""
        for name, tensor in self.tensors.items():
            tensor.copy_(state[name])

    @property
    def num_bytes(self) -> int:
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors.values())


class MeanTeacher(ModelCopy):
    """Exponential moving average of the parameters; batch norm statistics stay the source's, as in COMET's code."""

    def __init__(self, model: SourceModel, momentum: float = 0.999) -> None:
        super().__init__(model)
        self.momentum = momentum

    @torch.no_grad()
    def update(self) -> None:
        """teacher <- momentum * teacher + (1 - momentum) * model, for parameters only."""
        for name, parameter in self.model.named_parameters():
            self.tensors[name].lerp_(parameter.detach(), 1.0 - self.momentum)


def _persistent_buffers(model: SourceModel) -> dict[str, Tensor]:
    saved = model.state_dict()
    return {name: buffer for name, buffer in model.named_buffers() if name in saved}
