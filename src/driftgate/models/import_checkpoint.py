"""Source models of the paper's authors: their checkpoint layout, read without unpickling code."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from driftgate.models.backbones import UNTRAINED
from driftgate.models.source_model import SourceModel
from driftgate.models.statistics import SourceStatistics
from driftgate.models.weights import load_weights, read_tensors
from driftgate.types import DriftgateError

PARTS = ("backbone_state_dict", "feature_extractor_state_dict", "classifier_state_dict")
PROTOTYPES = "class_prototypes"

BOTTLENECK_NAMES = {"bottleneck": "0", "bn": "1"}
CLASSIFIER_NAMES = {
    "fc.weight_g": "parametrizations.weight.original0",
    "fc.weight_v": "parametrizations.weight.original1",
    "fc.bias": "bias",
}
"""Weight norm before torch 2 kept norm g and direction v as plain parameters; the parametrization numbers them."""


def import_checkpoint(path: str | Path, class_names: Sequence[str] | None = None) -> SourceModel:
    """A ResNet-50 source model out of ``source_ckpt.pt`` as the released code of GMM and COMET writes it.

    Args:
        path: the checkpoint.
        class_names: names of the C source classes, which the file does not hold; ``class 0`` to ``class C-1`` if None.

    The file holds class prototypes, but neither mean nor covariance of the features, so ``model.statistics`` has only
    the former; and the prototypes were taken in train mode with random crops.
    """
    content = read_tensors(path)
    missing = [name for name in PARTS if not isinstance(content.get(name), dict)]
    if missing:
        raise DriftgateError(
            f"Expected a released checkpoint with {', '.join(PARTS)} but {path} lacks {', '.join(missing)}; it has "
            f"{', '.join(list(map(str, content))[:5]) or 'nothing'}."
        )
    backbone, bottleneck, classifier = (_tensors(content[name], name, path) for name in PARTS)
    num_classes, feature_dim = _head_size(classifier, path)
    names = tuple(class_names) if class_names is not None else tuple(f"class {index}" for index in range(num_classes))
    if len(names) != num_classes:
        raise DriftgateError(
            f"Expected {num_classes} class names, as {path} has classes, but got {len(names)}; name them all."
        )
    model = SourceModel.build("resnet50", names, weights=UNTRAINED, feature_dim=feature_dim)
    model.spec = model.spec.model_copy(update={"pretrained": True})
    load_weights(model.backbone, backbone, architecture="a ResNet-50 backbone", path=path)
    load_weights(model.bottleneck, _bottleneck(bottleneck), architecture="the bottleneck", path=path)
    load_weights(model.classifier, _classifier(classifier), architecture="the classifier", path=path)
    model.statistics = _prototypes(content.get(PROTOTYPES), num_classes, feature_dim, path)
    return model


def _tensors(part: dict[Any, Any], name: str, path: str | Path) -> dict[str, Tensor]:
    """The part as it is, if it holds nothing but tensors by name."""
    for key, value in part.items():
        if not isinstance(key, str) or not isinstance(value, Tensor):
            raise DriftgateError(
                f"Expected tensors by name in {name} of {path} but {key!r} is {type(value).__name__}; it must be the "
                "released code's own file."
            )
    return part


def _head_size(classifier: dict[str, Tensor], path: str | Path) -> tuple[int, int]:
    """Number of classes C and feature size D, from the direction v (C, D) of the classifier."""
    direction = _classifier(classifier).get("parametrizations.weight.original1")
    if direction is None or direction.ndim != 2:
        raise DriftgateError(
            f"Expected a weight-normed classifier (fc.weight_g, fc.weight_v) in {path} but got "
            f"{', '.join(classifier)}; it must be the released code's own file."
        )
    return direction.shape[0], direction.shape[1]


def _bottleneck(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    renamed = {}
    for name, tensor in tensors.items():
        layer, _, rest = name.partition(".")
        renamed[f"{BOTTLENECK_NAMES.get(layer, layer)}.{rest}"] = tensor
    return renamed


def _classifier(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {CLASSIFIER_NAMES.get(name, name.removeprefix("fc.")): tensor for name, tensor in tensors.items()}


def _prototypes(found: Any, num_classes: int, feature_dim: int, path: str | Path) -> SourceStatistics | None:
    if found is None:
        return None
    if not isinstance(found, Tensor) or found.shape != (num_classes, feature_dim):
        shape = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
        raise DriftgateError(
            f"Expected {PROTOTYPES} of shape ({num_classes}, {feature_dim}) in {path} but got {shape}; it must be the "
            "released code's own file."
        )
    return SourceStatistics(found.detach().float().clone())
