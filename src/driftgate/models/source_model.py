"""The classifier that is adapted: f = h o g, a backbone and bottleneck g under a weight-normed classifier h."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm
from typing_extensions import Self

from driftgate.checkpoint import foreign_content, read_checkpoint, under_prefix, with_prefix, write_checkpoint
from driftgate.models.arithmetic import Precision, autocast, check_precision, one_attention
from driftgate.models.backbones import UNTRAINED, build_backbone
from driftgate.models.input import PAPER_RESIZE, InputSpec, prepare
from driftgate.models.pieces import in_pieces
from driftgate.models.spec import CUSTOM_BACKBONE, ModelSpec
from driftgate.models.statistics import SourceStatistics
from driftgate.rng import DrawFrom, seeded
from driftgate.types import DriftgateError

KIND = "source-model"
STATISTICS = "statistics"


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


Part = Literal["backbone", "bottleneck", "classifier"]


class SourceModel(nn.Module):
    """A trained classifier and all that is needed to feed it: f = h o g.

    Around the two parts of the user's own network::

        model = SourceModel(backbone, classifier, class_names=["cat", "dog"], input_size=(32, 32))

    where ``backbone`` maps images (N, 3, H, W) to (N, D) and ``classifier`` maps (N, D) to (N, C). A network that is
    whole goes through ``driftgate.wrap``; a backbone that has no head yet through ``SourceModel.untrained``.

    What methods ask of a model, whatever it is made of: to be called, its ``spec`` and ``statistics``, its ``head`` and
    ``trunk``, and ``part_of``.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        backbone: nn.Module,
        classifier: nn.Module | None = None,
        *,
        class_names: Sequence[str],
        input_size: Sequence[int],
        bottleneck: nn.Module | None = None,
        pretrained: bool = True,
        backbone_norm: Literal["batch", "running"] | None = None,
        backbone_name: str = CUSTOM_BACKBONE,
        **input: Any,
    ) -> None:
        super().__init__()
        if classifier is None:
            raise DriftgateError(
                "Expected a backbone and a classifier but got one network; if it is a whole classifier, use "
                "driftgate.wrap(network, class_names=...), and if it has no head yet, SourceModel.untrained(...)."
            )
        check_class_names(class_names)
        inputs = InputSpec.parse({"input_size": input_size, **input})
        bottleneck = bottleneck or nn.Identity()
        backbone_dim = output_size(backbone, inputs.shape, "backbone")
        feature_dim = output_size(bottleneck, (backbone_dim,), "bottleneck")
        outputs = output_size(classifier, (feature_dim,), "classifier")
        if outputs != len(class_names):
            raise DriftgateError(
                f"Expected a classifier with {len(class_names)} outputs, one a class name, but it has {outputs}; name "
                "as many classes."
            )
        self.backbone = backbone
        self.bottleneck = bottleneck
        self.classifier = classifier
        self._describe(
            ModelSpec.parse(
                {
                    **inputs.model_dump(),
                    "backbone": backbone_name,
                    "class_names": tuple(class_names),
                    "backbone_dim": backbone_dim,
                    "feature_dim": feature_dim,
                    "pretrained": pretrained,
                    "backbone_norm": backbone_norm,
                }
            )
        )

    def _describe(self, spec: ModelSpec) -> None:
        """What stands beside the layers: spec, statistics, precision, normalisation."""
        self.spec = spec
        self.statistics: SourceStatistics | None = None
        self.precision: Precision = "float32"
        self.piece_size: int | None = None  # like the precision a choice of the run
        dims = (-1, 1, 1) if spec.kind == "images" else (-1,)
        device = next((tensor.device for tensor in self.parameters()), None)
        for name in ("mean", "std"):
            values = torch.tensor(getattr(spec, name), device=device).view(1, *dims)
            self.register_buffer(name, values, persistent=False)
        # Twice as fast on the CPU. torch's stubs know ``to`` only without a memory format.
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.eval()

    @classmethod
    def untrained(
        cls,
        backbone: nn.Module,
        *,
        class_names: Sequence[str],
        input_size: Sequence[int],
        feature_dim: int = 256,
        bottleneck: nn.Module | None = None,
        generator: torch.Generator | None = None,
        **options: Any,
    ) -> SourceModel:
        """A backbone under a fresh bottleneck and weight-normed classifier, for ``driftgate.lab.pretrain`` to train.

        The only way to a head that nobody trained; its weights are drawn from ``generator``, by default one of seed 0.
        ``options`` are those of ``SourceModel``.
        """
        check_class_names(class_names)
        inputs = {name: value for name, value in options.items() if name in InputSpec.model_fields}
        shape = InputSpec.parse({"input_size": input_size, **inputs}).shape
        with DrawFrom(generator or seeded(0)):
            bottleneck = bottleneck or Bottleneck(output_size(backbone, shape, "backbone"), feature_dim)
            classifier = weight_normed_classifier(feature_dim, len(class_names))
        return cls(
            backbone, classifier, class_names=class_names, input_size=input_size, bottleneck=bottleneck, **options
        )

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
        generator = seeded(seed)
        with DrawFrom(generator):
            built = build_backbone(backbone, input_size=input_size, weights=weights)
        return cls.untrained(
            built.module,
            class_names=class_names,
            input_size=built.input_size,
            generator=generator,
            mean=built.mean,
            std=built.std,
            resize=PAPER_RESIZE,
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
                "Expected a model for a checkpoint with your own backbone; build the network and pass it as `model`, "
                "as it was before driftgate.wrap or wrapped in the same way."
            )
        with DrawFrom(seeded(0)):
            backbone = build_backbone(spec.backbone, input_size=spec.image_size, weights=UNTRAINED).module
        inputs = {name: getattr(spec, name) for name in InputSpec.model_fields}
        return cls.untrained(
            backbone,
            class_names=spec.class_names,
            feature_dim=spec.feature_dim,
            pretrained=spec.pretrained,
            backbone_norm=spec.backbone_norm,
            backbone_name=spec.backbone,
            **inputs,
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
        with foreign_content(path):
            spec = ModelSpec.parse(info["model"])
            spec.check_size(tensors, path)
            model = model or cls.from_spec(spec)
            spec.check_same(model.spec, path)
            try:
                model.load_state_dict(tensors)
            except RuntimeError as error:
                reason = " ".join(str(error).split())
                raise DriftgateError(
                    f"Expected the weights of {spec.backbone!r} in {path}: {reason}; give the network it was saved "
                    "from."
                ) from error
        return model

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        # The statistics travel with the weights, so that every checkpoint of a method holds them too, but they are no
        # buffers: the network does not read them, and they are not part of its size.
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if self.statistics is not None:
            destination.update(with_prefix(f"{prefix}{STATISTICS}", self.statistics.tensors()))

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *arguments: Any) -> None:
        tensors = under_prefix(f"{prefix}{STATISTICS}", state_dict)
        # A file belongs to no device: like the buffers, they come to where the model is.
        here = {name: tensor.to(self.mean.device) for name, tensor in tensors.items()}
        self.statistics = SourceStatistics.from_tensors(here)
        for name in tensors:
            del state_dict[f"{prefix}{STATISTICS}.{name}"]
        super()._load_from_state_dict(state_dict, prefix, *arguments)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if self.statistics is not None:
            moved = {name: fn(tensor) for name, tensor in self.statistics.tensors().items()}
            self.statistics = SourceStatistics.from_tensors(moved)
        return self

    @property
    def num_classes(self) -> int:
        return self.spec.num_classes

    @property
    def num_bytes(self) -> int:
        """Bytes of a copy of the network: parameters and buffers."""
        tensors = super().state_dict().items()
        return sum(value.numel() * value.element_size() for name, value in tensors if not name.startswith(STATISTICS))

    def set_precision(self, precision: Precision) -> None:
        """Let the backbone compute in float32, bfloat16 or float16; a choice of the run, not of the model."""
        check_precision(precision, self.mean.device)
        self.precision = precision

    @property
    def head(self) -> nn.Module:
        """h: the layer that makes logits (N, C) of features (N, D)."""
        return self.classifier

    @property
    def trunk(self) -> nn.Module:
        """What is large: compiled if that pays, and computed again in the backward pass where memory is scarce."""
        return self.backbone

    def part_of(self, name: str) -> Part:
        """Where a parameter belongs, by its name in the model."""
        if name.startswith("classifier."):
            return "classifier"
        return "bottleneck" if name.startswith("bottleneck.") else "backbone"

    def unwrapped(self) -> nn.Module:
        """The network alone: from normalised inputs to logits."""
        return nn.Sequential(self.backbone, self.bottleneck, self.classifier)

    def prepare(self, batch: Any) -> Tensor:
        """A batch as it comes -> what ``forward`` takes; refuses what the network would misread."""
        device = self.mean.device
        # From pinned memory a GPU copies while the host goes on; the way back must be waited for.
        return prepare(batch, self.spec).to(device, non_blocking=device.type != "cpu")

    def normalise(self, inputs: Tensor) -> Tensor:
        """Prepared inputs -> what the network itself takes."""
        normalised = (inputs - self.mean) / self.std
        return normalised.contiguous(memory_format=torch.channels_last) if normalised.ndim == 4 else normalised

    def forward(self, inputs: Tensor) -> ModelOutput:
        """f(x): prepared inputs (N, C, H, W) in [0, 1] or (N, D) to features and logits."""
        with one_attention:
            return self._run(self.normalise(inputs))

    def features(self, inputs: Tensor) -> Tensor:
        """g(x) alone, of shape (N, D)."""
        output: ModelOutput = self(inputs)
        return output.features

    def _run(self, normalised: Tensor) -> ModelOutput:
        with self._autocast():
            (pooled,) = in_pieces(self.backbone, self._run_piece, normalised, self.piece_size)
        # Bottleneck and classifier cost nothing, and all that is remembered is made of their outputs: float32.
        features: Tensor = self.bottleneck(pooled.float())
        return ModelOutput(features, self.classifier(features))

    def _run_piece(self, normalised: Tensor) -> tuple[Tensor, ...]:
        """Some samples through the trunk; alone in the backward pass, where they are computed again."""
        with one_attention:
            return (self.backbone(normalised),)

    def _autocast(self) -> torch.autocast:
        return autocast(self.precision, self.mean.device)

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


def check_class_names(names: Sequence[str]) -> None:
    """Refuse what is no list of words."""
    if isinstance(names, str) or not all(isinstance(name, str) and name for name in names):
        raise DriftgateError(f"Expected class names as a list of words but got {names!r}; give one word a class.")


def output_size(module: nn.Module, shape: tuple[int, ...], role: str) -> int:
    """Size of what ``module`` makes of one input of ``shape``; its mode and buffers stay as they are."""
    was_training = module.training
    device = next((tensor.device for tensor in module.parameters()), None)
    module.eval()
    try:
        with torch.no_grad():
            output = module(torch.zeros(2, *shape, device=device))
    except (RuntimeError, ValueError, TypeError) as error:
        raise DriftgateError(
            f"Expected a {role} that takes inputs of shape (N, {shape}) but it failed: {error}; look at input_size."
        ) from error
    finally:
        module.train(was_training)
    if not isinstance(output, Tensor) or output.ndim != 2:
        found = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
        raise DriftgateError(f"Expected a {role} that maps to shape (N, size) but got {found}; flatten its output.")
    return output.shape[1]
