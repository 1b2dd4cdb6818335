"""A second set of weights for the same network: a mean teacher, or the source model as it was."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.func import functional_call

from driftgate.models.normalization import batch_statistics
from driftgate.models.source_model import ModelOutput, SourceModel
from driftgate.state import State


class ModelCopy(State):
    """The weights and statistics of a model at one moment, run through the model's own layers.

    No second network is built, so that it works around any backbone; the model must be in eval mode when it runs.
    """

    model: SourceModel

    def __init__(self, model: SourceModel) -> None:
        super().__init__()
        self.__dict__["model"] = model  # not as a part: it is not the copy's to move and to save
        named = {**dict(model.named_parameters()), **_persistent_buffers(model)}
        # ``clone`` keeps the memory layout: another one is another order of summation.
        self.weights = tensor_tree({name: tensor.detach().clone() for name, tensor in named.items()})

    @property
    def tensors(self) -> dict[str, Tensor]:
        """All weights and statistics, by their names in the model."""
        return dict(self.weights.named_buffers())

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


class MeanTeacher(ModelCopy):
    """Exponential moving average of the parameters; batch norm statistics stay the source's, as in COMET's code."""

    def __init__(self, model: SourceModel, momentum: float = 0.999) -> None:
        super().__init__(model)
        self.momentum = momentum

    @torch.no_grad()
    def update(self) -> None:
        """teacher <- momentum * teacher + (1 - momentum) * model, for parameters only; in place."""
        tensors = self.tensors
        for name, parameter in self.model.named_parameters():
            tensors[name].lerp_(parameter.detach(), 1.0 - self.momentum)


def tensor_tree(tensors: dict[str, Tensor]) -> nn.Module:
    """Empty modules with the tensors as buffers, so that they keep their names with the dots in them."""
    root = nn.Module()
    for path, tensor in tensors.items():
        *folders, name = path.split(".")
        node = root
        for folder in folders:
            # Not ``add_module``, which refuses names that a network may well have, such as "type".
            child = node._modules.setdefault(folder, nn.Module())
            assert child is not None
            node = child
        node._buffers[name] = tensor
    return root


def _persistent_buffers(model: SourceModel) -> dict[str, Tensor]:
    saved = model.state_dict()
    return {name: buffer for name, buffer in model.named_buffers() if name in saved}
