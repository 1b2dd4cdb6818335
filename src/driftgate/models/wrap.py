"""Any classifier as a model to adapt: the network stays whole, its features are what goes into its head."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from driftgate.models.arithmetic import one_attention
from driftgate.models.heads import find_head, get_layer, logits_of, tap
from driftgate.models.input import InputSpec
from driftgate.models.normalization import preserved_buffers
from driftgate.models.pieces import in_pieces
from driftgate.models.preprocessing import known_input
from driftgate.models.source_model import ModelOutput, Part, SourceModel, check_class_names
from driftgate.models.spec import ModelSpec
from driftgate.rng import seeded
from driftgate.types import DriftgateError

logger = logging.getLogger(__name__)


class WrappedModel(SourceModel):
    """A whole network in the place of a source model's parts; ``driftgate.wrap`` makes it."""

    def __init__(self, network: nn.Module, spec: ModelSpec) -> None:
        nn.Module.__init__(self)  # the parts a SourceModel is made of are not there
        self.network = network
        self._describe(spec)

    @property
    def head(self) -> nn.Module:
        return get_layer(self.network, self.spec.head or "")

    @property
    def trunk(self) -> nn.Module:
        return self.network

    def part_of(self, name: str) -> Part:
        head = f"network.{self.spec.head}" if self.spec.head else "network"
        return "classifier" if name.startswith(f"{head}.") else "backbone"

    def unwrapped(self) -> nn.Module:
        return self.network

    def _run(self, normalised: Tensor) -> ModelOutput:
        with self._autocast():
            features, logits = in_pieces(self.network, self._run_piece, normalised, self.piece_size)
        if self.precision == "float32":
            return ModelOutput(features, logits)
        # As in every model, the head computes in float32: all that is remembered is made of its outputs.
        return ModelOutput(features.float(), self.head(features.float()))

    def _run_piece(self, normalised: Tensor) -> tuple[Tensor, ...]:
        with one_attention:
            return tap(self.network, self.head, normalised)


def wrap(
    network: nn.Module,
    class_names: Sequence[str] | None = None,
    *,
    head: str | None = None,
    preprocessing: Any = None,
    pretrained: bool = True,
    **input: Any,
) -> SourceModel:
    """A model to adapt around any trained classifier, which stays whole and is adapted in place.

    Args:
        network: maps normalised inputs to logits (N, C), or to something with ``.logits``.
        class_names: names of the C classes in the order of the outputs; None for the network's own, or numbers.
        head: name of the layer that makes the logits of the features; found if None.
        preprocessing: how the network's library feeds it, in its own words: torchvision's ``weights.transforms()``, an
            image processor of transformers, or the data configuration of timm.
        pretrained: whether the network was trained on much other data before the classes it knows now; methods whose
            settings follow the model then change it slowly and keep its head.
        input: fields of ``InputSpec``, where neither network nor ``preprocessing`` tell or they are to be overruled:
            ``input_size`` (height, width) or, for rows of features, (D,); ``channels``, ``mean``, ``std``,
            ``pixel_range``, ``resize``, ``flip``.
    """
    _check_network(network)
    spec = _input_spec(network, preprocessing, input)
    if class_names is not None:
        check_class_names(class_names)
    name = find_head(network, None if class_names is None else len(class_names)) if head is None else head
    features, logits = _probe(network, name, spec)
    names = tuple(class_names) if class_names is not None else _own_names(network, logits.shape[1])
    if len(names) != logits.shape[1]:
        raise DriftgateError(
            f"Expected {logits.shape[1]} class names, as the network has outputs, but got {len(names)}; name each of "
            "them."
        )
    size = features.shape[1]
    described = {
        **spec.model_dump(),
        "head": name,
        "class_names": names,
        "backbone_dim": size,
        "feature_dim": size,
        "pretrained": pretrained,
    }
    return WrappedModel(network, ModelSpec.parse(described))


def model_for(spec: ModelSpec, model: nn.Module | None, path: str | Path) -> SourceModel:
    """A model of the ``spec`` read from ``path``, to be filled: built by name, or around what the user brings."""
    if model is None:
        return SourceModel.from_spec(spec)
    if not isinstance(model, SourceModel):
        if spec.head is None:
            raise DriftgateError(
                f"Expected a SourceModel for {path}, whose network came in parts, but got {type(model).__name__}; "
                "build it from its parts again."
            )
        fields = {name: getattr(spec, name) for name in InputSpec.model_fields}
        model = wrap(model, spec.class_names, head=spec.head, pretrained=spec.pretrained, **fields)
    spec.check_same(model.spec, path)
    return model


def _check_network(network: nn.Module) -> None:
    if isinstance(network, SourceModel) or not isinstance(network, nn.Module):
        raise DriftgateError(
            f"Expected a network, an nn.Module that returns logits, but got {type(network).__name__}"
            + ("; it is wrapped already." if isinstance(network, SourceModel) else ".")
        )
    other = {tensor.dtype for tensor in network.parameters() if tensor.is_floating_point()} - {torch.float32}
    if other:
        raise DriftgateError(
            f"Expected a network with weights in float32 but got {', '.join(map(str, other))}; call network.float()."
        )


def _input_spec(network: nn.Module, preprocessing: Any, given: dict[str, Any]) -> InputSpec:
    known = {**known_input(network, preprocessing), **given}
    if "input_size" not in known:
        raise DriftgateError(
            f"Expected input_size=(height, width), or (D,) for rows of features: nothing in {type(network).__name__} "
            "tells it; give it."
        )
    spec = InputSpec.parse(known)
    if spec.kind == "images" and not known.keys() & {"mean", "std"}:
        logger.warning(
            "nothing tells how %s normalises its pixels, so they go in as they are, in [0, 1]; say mean= and std=, or "
            "preprocessing=",
            type(network).__name__,
        )
    return spec


def _probe(network: nn.Module, name: str, spec: InputSpec) -> tuple[Tensor, Tensor]:
    """Features and logits of two random samples, once it is sure that they are the network's own: f = h o g."""
    head = get_layer(network, name)
    device = next((tensor.device for tensor in network.parameters()), None)
    inputs = torch.randn(2, *spec.shape, generator=seeded(0)).to(device)
    network.eval()
    with torch.no_grad(), preserved_buffers(network):
        try:
            own = logits_of(network(inputs))
        except (RuntimeError, ValueError, TypeError, IndexError, AssertionError, NotImplementedError) as error:
            if isinstance(error, DriftgateError):
                raise
            raise DriftgateError(
                f"Expected a network that takes {spec.expected.removeprefix('Expected ')} but it failed: {error}; say "
                "what it takes: input_size=(height, width) and channels=, or input_size=(D,) for rows."
            ) from error
        features, logits = tap(network, head, inputs)
        made = head(features)
    if not torch.allclose(logits, own, rtol=1e-5, atol=1e-5):
        raise DriftgateError(
            "Expected the same logits for the same inputs in eval mode but they differ; make the network deterministic."
        )
    _check_head(name, made, logits)
    return features, logits


def _check_head(name: str, made: Tensor, logits: Tensor) -> None:
    """Refuse a layer whose output (N, C) is not what the network returns; a constant a row, as of log_softmax, may
    lie between."""
    if made.shape == logits.shape:
        rest = logits - made
        if torch.allclose(rest, rest[:, :1].expand_as(rest), rtol=0.0, atol=1e-4 * max(float(made.abs().max()), 1.0)):
            return
        if bool((logits >= 0).all()) and torch.allclose(logits.sum(dim=1), torch.ones_like(logits[:, 0])):
            raise DriftgateError("Expected logits but the network ends in a softmax; return what goes into it.")
    raise DriftgateError(
        f"Expected the network's outputs of the layer {name!r} but they are made of more, such as a second head or a "
        "scale; let the network end at its head, or say which layer that is: head='path.to.layer'."
    )


def _own_names(network: nn.Module, count: int) -> tuple[str, ...]:
    """The classes' names in a configuration of transformers, or numbers."""
    told = getattr(getattr(network, "config", None), "id2label", None)
    if isinstance(told, dict) and len(told) == count:
        return tuple(str(told[key]) for key in sorted(told, key=int))
    return tuple(f"class {index}" for index in range(count))
