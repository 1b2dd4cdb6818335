"""The classifier that is adapted: f = h o g, a backbone and bottleneck g under a weight-normed classifier h."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NamedTuple

import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from driftgate.checkpoint import read_checkpoint, write_checkpoint
from driftgate.models.backbones import build_backbone
from driftgate.rng import private_rng, seeded
from driftgate.types import DriftgateError

KIND = "source-model"
CUSTOM_BACKBONE = "custom"


class ModelSpec(BaseModel):
    """All that is needed to feed the network rightly; it travels in the checkpoint.

    Attributes:
        backbone: name by which the backbone can be built again, or ``custom`` for the user's own module.
        class_names: names of the C source classes, in the order of the classifier's outputs.
        input_size: height and width of an image.
        mean, std: normalisation of the three channels, applied inside the model to pixels in [0, 1].
        backbone_dim: size of the backbone's output.
        feature_dim: size D of the features between g and h.
        flip: whether a mirrored image still shows the same class; augmentation follows it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    backbone: str = CUSTOM_BACKBONE
    class_names: tuple[str, ...] = Field(min_length=1)
    input_size: tuple[int, int]
    mean: tuple[float, float, float] = (0.0, 0.0, 0.0)
    std: tuple[float, float, float] = (1.0, 1.0, 1.0)
    backbone_dim: int = Field(ge=1)
    feature_dim: int = Field(default=256, ge=1)
    flip: bool = True

    @model_validator(mode="after")
    def _check(self) -> ModelSpec:
        if len(set(self.class_names)) != len(self.class_names):
            raise ValueError("class names must differ from each other")
        if min(self.std) <= 0 or min(self.input_size) < 1:
            raise ValueError("std and input_size must be positive")
        return self

    @property
    def num_classes(self) -> int:
        return len(self.class_names)


class ModelOutput(NamedTuple):
    """Features g(x) of shape (N, D) and logits h(g(x)) of shape (N, C)."""

    features: Tensor
    logits: Tensor


class Bottleneck(nn.Sequential):
    """Linear layer and batch norm, no activation, as SHOT, GLC, LEAD, COMET and the paper share it."""

    def __init__(self, backbone_dim: int, feature_dim: int) -> None:
        linear, norm = nn.Linear(backbone_dim, feature_dim), nn.BatchNorm1d(feature_dim)
        nn.init.xavier_normal_(linear.weight)
        nn.init.zeros_(linear.bias)
        super().__init__(linear, norm)


def weight_normed_classifier(feature_dim: int, num_classes: int) -> nn.Linear:
    """Linear layer with a norm g and a direction v a class; a parametrization, so that it copies and saves."""
    layer = nn.Linear(feature_dim, num_classes)
    nn.init.xavier_normal_(layer.weight)
    nn.init.zeros_(layer.bias)
    return weight_norm(layer)


class SourceModel(nn.Module):
    """A trained classifier and all that is needed to feed it: f = h o g.

    Around the user's own network::

        model = SourceModel(backbone, classifier, class_names=["cat", "dog"], input_size=(32, 32))

    where ``backbone`` maps images (N, 3, H, W) to (N, D) and ``classifier`` maps (N, D) to (N, C). Without a
    ``classifier`` a fresh bottleneck and weight-normed classifier are built, to be trained by ``driftgate.pretrain``.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        backbone: nn.Module,
        classifier: nn.Module | None = None,
        *,
        class_names: list[str] | tuple[str, ...],
        input_size: tuple[int, int],
        bottleneck: nn.Module | None = None,
        mean: tuple[float, float, float] = (0.0, 0.0, 0.0),
        std: tuple[float, float, float] = (1.0, 1.0, 1.0),
        feature_dim: int = 256,
        flip: bool = True,
        backbone_name: str = CUSTOM_BACKBONE,
    ) -> None:
        super().__init__()
        backbone_dim = _output_size(backbone, (3, *input_size), "backbone")
        if classifier is None:
            bottleneck = bottleneck or Bottleneck(backbone_dim, feature_dim)
            classifier = weight_normed_classifier(feature_dim, len(class_names))
        bottleneck = bottleneck or nn.Identity()
        feature_dim = _output_size(bottleneck, (backbone_dim,), "bottleneck")
        outputs = _output_size(classifier, (feature_dim,), "classifier")
        if outputs != len(class_names):
            raise DriftgateError(
                f"Expected a classifier with one output for each of {len(class_names)} class names but it has {outputs}."
            )
        self.spec = ModelSpec(
            backbone=backbone_name,
            class_names=tuple(class_names),
            input_size=input_size,
            mean=mean,
            std=std,
            backbone_dim=backbone_dim,
            feature_dim=feature_dim,
            flip=flip,
        )
        self.backbone = backbone
        self.bottleneck = bottleneck
        self.classifier = classifier
        self.register_buffer("mean", torch.tensor(mean).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(1, 3, 1, 1), persistent=False)
        self.to(memory_format=torch.channels_last)  # twice as fast on the CPU
        self.eval()

    @classmethod
    def build(cls, backbone: str, class_names: list[str] | tuple[str, ...], *, seed: int = 0) -> SourceModel:
        """An untrained model around a backbone known by name, with fresh bottleneck and classifier."""
        with private_rng(seeded(seed)):
            built = build_backbone(backbone)
            return cls(
                built.module,
                class_names=class_names,
                input_size=built.input_size,
                mean=built.mean,
                std=built.std,
                flip=built.flip,
                backbone_name=backbone,
            )

    @classmethod
    def from_spec(cls, spec: ModelSpec | dict[str, Any]) -> SourceModel:
        """An untrained model of the given spec; only for backbones known by name."""
        spec = spec if isinstance(spec, ModelSpec) else ModelSpec(**spec)
        if spec.backbone == CUSTOM_BACKBONE:
            raise DriftgateError(
                "Expected a model for a checkpoint with a backbone of your own; build the network and pass it as `model`."
            )
        return cls(
            build_backbone(spec.backbone).module,
            class_names=spec.class_names,
            input_size=spec.input_size,
            mean=spec.mean,
            std=spec.std,
            feature_dim=spec.feature_dim,
            flip=spec.flip,
            backbone_name=spec.backbone,
        )

    def save(self, path: str | Path) -> None:
        """Write weights and spec to ``path`` (safetensors)."""
        write_checkpoint(path, KIND, self.state_dict(), {"model": self.spec.model_dump(mode="json")})

    @classmethod
    def load(cls, path: str | Path, *, model: SourceModel | None = None) -> SourceModel:
        """A model as it was saved. ``model`` is needed only around a backbone of the user's own: a fresh one to fill."""
        tensors, info = read_checkpoint(path, KIND)
        model = model or cls.from_spec(info["model"])
        found = model.spec.model_dump(mode="json")
        if found != info["model"]:
            raise DriftgateError(f"Expected a model of spec {info['model']} but got {found}.")
        model.load_state_dict(tensors)
        return model

    @property
    def num_classes(self) -> int:
        return self.spec.num_classes

    def features(self, images: Tensor) -> Tensor:
        """g(x): images (N, 3, H, W) in [0, 1] to features (N, D)."""
        normalised = ((images - self.mean) / self.std).contiguous(memory_format=torch.channels_last)
        features: Tensor = self.bottleneck(self.backbone(normalised))
        return features

    def forward(self, images: Tensor) -> ModelOutput:
        features = self.features(images)
        return ModelOutput(features, self.classifier(features))

    def head_parameters(self) -> list[nn.Parameter]:
        """Bottleneck and classifier: what learns at the full rate."""
        return [*self.bottleneck.parameters(), *self.classifier.parameters()]

    def check_images(self, images: Tensor) -> None:
        """Refuse a batch that the network would misread, before anything is changed by it."""
        height, width = self.spec.input_size
        expected = f"Expected images of shape (N, 3, {height}, {width})"
        if not isinstance(images, Tensor):
            raise DriftgateError(f"{expected} but got {type(images).__name__}; pass a float tensor.")
        shape = tuple(images.shape)
        if images.ndim == 4 and shape[1] != 3 and shape[3] == 3:
            raise DriftgateError(f"{expected} but got {shape}; move channels first.")
        if images.ndim != 4 or shape[1] != 3:
            raise DriftgateError(f"{expected} but got {shape}; pass a batch of RGB images.")
        if shape[2:] != (height, width):
            raise DriftgateError(f"{expected} but got {shape}; resize them to the size the model was trained on.")
        if shape[0] == 0:
            raise DriftgateError(f"{expected} but got an empty batch; pass at least one image.")
        if not images.is_floating_point():
            raise DriftgateError(f"{expected} and floats in [0, 1] but got {images.dtype}; divide by 255.")
        low, high = (float(value) for value in images.detach().aminmax())
        if not (math.isfinite(low) and math.isfinite(high)):
            raise DriftgateError(f"{expected} with finite values but got NaN or infinity; leave broken images out.")
        if low < -1e-3 or high > 1 + 1e-3:
            raise DriftgateError(
                f"Expected pixels in [0, 1] but got [{low:.4g}, {high:.4g}]; the model normalises by itself, "
                "pass them as they are."
            )


def _output_size(module: nn.Module, shape: tuple[int, ...], role: str) -> int:
    """Size of what ``module`` makes of one input of ``shape``; its mode and buffers stay as they are."""
    was_training = module.training
    module.eval()
    try:
        with torch.no_grad():
            output = module(torch.zeros(2, *shape))
    except (RuntimeError, ValueError, TypeError) as error:
        raise DriftgateError(f"Expected a {role} that takes inputs of shape (N, {shape}) but it failed: {error}") from error
    finally:
        module.train(was_training)
    if not isinstance(output, Tensor) or output.ndim != 2:
        found = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
        raise DriftgateError(f"Expected a {role} that maps to shape (N, size) but got {found}; flatten its output.")
    return output.shape[1]
