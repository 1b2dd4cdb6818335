"""The classifier that is adapted: f = h o g, a backbone and bottleneck g under a weight-normed classifier h."""

from __future__ import annotations

import math
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from driftgate.checkpoint import read_checkpoint, under_prefix, with_prefix, write_checkpoint
from driftgate.models.backbones import UNTRAINED, build_backbone
from driftgate.models.statistics import SourceStatistics
from driftgate.rng import private_rng, seeded
from driftgate.types import DriftgateError

KIND = "source-model"
CUSTOM_BACKBONE = "custom"
STATISTICS = "statistics"

X86 = ("x86_64", "AMD64")
"""What ``platform.machine`` calls Intel's and AMD's processors."""

Precision = Literal["float32", "bfloat16"]


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
        pretrained: whether the backbone was trained before source training, which then changes it slowly.
        backbone_norm: by which statistics batch norm of the backbone normalised in source training, ``batch`` or
            ``running``; None where nobody wrote it down.
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
    pretrained: bool = True
    backbone_norm: Literal["batch", "running"] | None = None

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

    @classmethod
    def parse(cls, spec: ModelSpec | dict[str, Any]) -> ModelSpec:
        """The spec out of a checkpoint's metadata; refuses what is none."""
        if isinstance(spec, ModelSpec):
            return spec
        try:
            return cls(**spec)
        except (ValidationError, TypeError) as error:
            first = error.errors()[0] if isinstance(error, ValidationError) else {"loc": (), "msg": str(error)}
            field = ".".join(str(part) for part in first["loc"])
            raise DriftgateError(
                f"Expected the spec of a model but {field or 'it'} is wrong: {first['msg']}."
            ) from error

    def differences(self, other: ModelSpec) -> str:
        """What differs between this (expected) and the ``other`` (found) spec, for a person; empty if nothing does."""
        pairs = [(name, getattr(self, name), getattr(other, name)) for name in type(self).model_fields]
        return "; ".join(f"{name} {mine} but got {found}" for name, mine, found in pairs if mine != found)


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
    weight_norm(layer)
    return layer


class SourceModel(nn.Module):
    """A trained classifier and all that is needed to feed it: f = h o g.

    Around the user's own network::

        model = SourceModel(backbone, classifier, class_names=["cat", "dog"], input_size=(32, 32))

    where ``backbone`` maps images (N, 3, H, W) to (N, D) and ``classifier`` maps (N, D) to (N, C). Without a
    ``classifier`` a fresh bottleneck and weight-normed classifier are built, to be trained by
    ``driftgate.lab.pretrain``.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        backbone: nn.Module,
        classifier: nn.Module | None = None,
        *,
        class_names: Sequence[str],
        input_size: tuple[int, int],
        bottleneck: nn.Module | None = None,
        mean: tuple[float, float, float] = (0.0, 0.0, 0.0),
        std: tuple[float, float, float] = (1.0, 1.0, 1.0),
        feature_dim: int = 256,
        flip: bool = True,
        pretrained: bool = True,
        backbone_norm: Literal["batch", "running"] | None = None,
        backbone_name: str = CUSTOM_BACKBONE,
    ) -> None:
        super().__init__()
        if isinstance(class_names, str) or not all(isinstance(name, str) and name for name in class_names):
            raise DriftgateError(f"Expected class names as a list of words but got {class_names!r}.")
        if not isinstance(input_size, Sequence) or len(input_size) != 2:
            raise DriftgateError(f"Expected input_size as (height, width) but got {input_size!r}.")
        backbone_dim = _output_size(backbone, (3, *input_size), "backbone")
        if classifier is None:
            bottleneck = bottleneck or Bottleneck(backbone_dim, feature_dim)
            classifier = weight_normed_classifier(feature_dim, len(class_names))
        bottleneck = bottleneck or nn.Identity()
        feature_dim = _output_size(bottleneck, (backbone_dim,), "bottleneck")
        outputs = _output_size(classifier, (feature_dim,), "classifier")
        if outputs != len(class_names):
            raise DriftgateError(
                f"Expected a classifier with {len(class_names)} outputs, one a class name, but it has {outputs}."
            )
        self.spec = ModelSpec.parse(
            {
                "backbone": backbone_name,
                "class_names": tuple(class_names),
                "input_size": input_size,
                "mean": mean,
                "std": std,
                "backbone_dim": backbone_dim,
                "feature_dim": feature_dim,
                "flip": flip,
                "pretrained": pretrained,
                "backbone_norm": backbone_norm,
            }
        )
        self.statistics: SourceStatistics | None = None
        self.precision: Precision = "float32"
        self.backbone = backbone
        self.bottleneck = bottleneck
        self.classifier = classifier
        self.register_buffer("mean", torch.tensor(mean).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(1, 3, 1, 1), persistent=False)
        # Twice as fast on the CPU. torch's stubs know ``to`` only without a memory format.
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.eval()

    @classmethod
    def build(
        cls,
        backbone: str,
        class_names: Sequence[str],
        *,
        seed: int = 0,
        input_size: tuple[int, int] | None = None,
        weights: str | Path | None = None,
        feature_dim: int = 256,
    ) -> SourceModel:
        """A model around a backbone known by name, with fresh bottleneck and classifier to be trained.

        ``input_size`` and ``weights`` are those of ``build_backbone``: None for the backbone's own.
        """
        with private_rng(seeded(seed)):
            built = build_backbone(backbone, input_size=input_size, weights=weights)
            return cls(
                built.module,
                class_names=class_names,
                input_size=built.input_size,
                mean=built.mean,
                std=built.std,
                feature_dim=feature_dim,
                flip=built.flip,
                pretrained=built.pretrained,
                backbone_name=backbone,
            )

    @classmethod
    def from_spec(cls, spec: ModelSpec | dict[str, Any]) -> SourceModel:
        """A model of the given spec with random weights, to be filled; only for backbones known by name."""
        spec = ModelSpec.parse(spec)
        if spec.backbone == CUSTOM_BACKBONE:
            raise DriftgateError(
                "Expected a model for a checkpoint with your own backbone; build the network and pass it as `model`."
            )
        with private_rng(seeded(0)):
            return cls(
                build_backbone(spec.backbone, input_size=spec.input_size, weights=UNTRAINED).module,
                class_names=spec.class_names,
                input_size=spec.input_size,
                mean=spec.mean,
                std=spec.std,
                feature_dim=spec.feature_dim,
                flip=spec.flip,
                pretrained=spec.pretrained,
                backbone_norm=spec.backbone_norm,
                backbone_name=spec.backbone,
            )

    def clone(self) -> SourceModel:
        """The same model again, for a method adapts its own in place; only for backbones known by name."""
        copy = SourceModel.from_spec(self.spec)
        copy.load_state_dict(self.state_dict())
        return copy

    def save(self, path: str | Path) -> None:
        """Write weights, source statistics and spec to ``path`` (safetensors)."""
        write_checkpoint(path, KIND, self.state_dict(), {"model": self.spec.model_dump(mode="json")})

    @classmethod
    def load(cls, path: str | Path, *, model: SourceModel | None = None) -> SourceModel:
        """A model as it was saved. ``model``, a fresh one to fill, is needed only around the user's own backbone."""
        tensors, info = read_checkpoint(path, KIND)
        spec = ModelSpec.parse(info["model"])
        model = model or cls.from_spec(spec)
        if model.spec != spec:
            raise DriftgateError(f"Expected a model for {path} with {spec.differences(model.spec)}.")
        try:
            model.load_state_dict(tensors)
        except RuntimeError as error:
            reason = " ".join(str(error).split())
            raise DriftgateError(f"Expected the weights of {spec.backbone!r} in {path}: {reason}") from error
        return model

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        # The statistics travel with the weights, so that every checkpoint of a method holds them too, but they are no
        # buffers: the network does not read them, and they are not part of its size.
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if self.statistics is not None:
            destination.update(with_prefix(f"{prefix}{STATISTICS}", self.statistics.tensors()))

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *arguments: Any) -> None:
        tensors = under_prefix(f"{prefix}{STATISTICS}", state_dict)
        self.statistics = SourceStatistics.from_tensors(tensors)
        for name in tensors:
            del state_dict[f"{prefix}{STATISTICS}.{name}"]
        super()._load_from_state_dict(state_dict, prefix, *arguments)

    @property
    def num_classes(self) -> int:
        return self.spec.num_classes

    @property
    def num_bytes(self) -> int:
        """Bytes of a copy of the network: parameters and buffers."""
        tensors = super().state_dict().items()
        return sum(value.numel() * value.element_size() for name, value in tensors if not name.startswith(STATISTICS))

    def set_precision(self, precision: Precision) -> None:
        """Let the backbone compute in ``float32`` or ``bfloat16``; a choice of the run, not of the model."""
        if precision not in ("float32", "bfloat16"):
            raise DriftgateError(f"Expected precision float32 or bfloat16 but got {precision!r}.")
        if precision == "bfloat16" and not has_bfloat16(self.mean.device.type):
            raise DriftgateError(
                "Expected a machine that computes in bfloat16 but this one only emulates it, slower than float32; "
                "use precision float32."
            )
        self.precision = precision

    def features(self, images: Tensor) -> Tensor:
        """g(x): images (N, 3, H, W) in [0, 1] to features (N, D)."""
        normalised = ((images - self.mean) / self.std).contiguous(memory_format=torch.channels_last)
        with torch.autocast(images.device.type, torch.bfloat16, enabled=self.precision == "bfloat16"):
            pooled: Tensor = self.backbone(normalised)
        # Bottleneck and classifier cost nothing, and all that is remembered is made of their outputs: float32.
        features: Tensor = self.bottleneck(pooled.float())
        return features

    def forward(self, images: Tensor) -> ModelOutput:
        features = self.features(images)
        return ModelOutput(features, self.classifier(features))

    def head_parameters(self) -> list[nn.Parameter]:
        """Bottleneck and classifier: what learns at the full rate."""
        return [*self.bottleneck.parameters(), *self.classifier.parameters()]

    def check_class_names(self, class_names: Sequence[str]) -> None:
        """Refuse data whose source classes are not those the classifier was trained on, in its order."""
        found = tuple(class_names)
        mine = self.spec.class_names
        if found == mine:
            return
        where = next(
            (index for index, pair in enumerate(zip(mine, found, strict=False)) if pair[0] != pair[1]),
            min(len(mine), len(found)),
        )
        first = (f"{names[where]!r}" if where < len(names) else "nothing" for names in (mine, found))
        raise DriftgateError(
            f"Expected the {len(mine)} source classes of the model but the data has {len(found)}; the first difference "
            "is class {0}: model {1}, data {2}; use the data set, shift and split of source training.".format(
                where, *first
            )
        )

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


def has_bfloat16(device: str = "cpu") -> bool:
    """Whether the device multiplies matrices in bfloat16 by itself."""
    if device == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return False
    # oneDNN's answer is yes for every AVX-512, also where it emulates, three times slower than float32.
    return platform.machine() not in X86 or torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()


def _output_size(module: nn.Module, shape: tuple[int, ...], role: str) -> int:
    """Size of what ``module`` makes of one input of ``shape``; its mode and buffers stay as they are."""
    was_training = module.training
    module.eval()
    try:
        with torch.no_grad():
            output = module(torch.zeros(2, *shape))
    except (RuntimeError, ValueError, TypeError) as error:
        raise DriftgateError(
            f"Expected a {role} that takes inputs of shape (N, {shape}) but it failed: {error}"
        ) from error
    finally:
        module.train(was_training)
    if not isinstance(output, Tensor) or output.ndim != 2:
        found = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
        raise DriftgateError(f"Expected a {role} that maps to shape (N, size) but got {found}; flatten its output.")
    return output.shape[1]
