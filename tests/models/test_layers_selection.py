"""Which parameters a name stands for."""

from __future__ import annotations

import pytest
from support import small_model
from torch import nn

import driftgate
from driftgate import DriftgateError, SourceModel
from driftgate.models.layers import GROUPS, select_parameters

BACKBONE = ["backbone.0.weight", "backbone.0.bias", "backbone.1.weight", "backbone.1.bias"]
BOTTLENECK = ["bottleneck.0.weight", "bottleneck.0.bias", "bottleneck.1.weight", "bottleneck.1.bias"]
CLASSIFIER = [
    "classifier.bias",
    "classifier.parametrizations.weight.original0",
    "classifier.parametrizations.weight.original1",
]


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        ("all", [*BACKBONE, *BOTTLENECK, *CLASSIFIER]),
        ("features", [*BACKBONE, *BOTTLENECK]),
        ("head", [*BOTTLENECK, *CLASSIFIER]),
        ("norm", ["backbone.1.weight", "backbone.1.bias", "bottleneck.1.weight", "bottleneck.1.bias"]),
        ("norm2d", ["backbone.1.weight", "backbone.1.bias"]),
        ("last", BACKBONE),
        ("classifier", CLASSIFIER),
        ("bottleneck", BOTTLENECK),
        ("backbone.1", ["backbone.1.weight", "backbone.1.bias"]),
        ("backbone.0.bias", ["backbone.0.bias"]),
        ("norm, classifier", [*BACKBONE[2:], *BOTTLENECK[2:], *CLASSIFIER]),
        (" backbone.0 ,head,norm", [*BACKBONE, *BOTTLENECK, *CLASSIFIER]),
    ],
)
def test_each_group_and_name(layers: str, expected: list[str]) -> None:
    model = small_model()
    chosen = select_parameters(model, layers)
    assert list(chosen) == expected
    named = dict(model.named_parameters())
    assert all(parameter is named[name] for name, parameter in chosen.items())


def test_a_name_is_not_a_beginning_of_another() -> None:
    """``backbone.1`` must not take ``backbone.10`` along."""
    backbone = nn.Sequential(nn.Flatten(), *(nn.Linear(12, 12) for _ in range(10)))
    model = SourceModel.untrained(backbone, class_names=["a", "b"], input_size=(2, 2))
    assert list(select_parameters(model, "backbone.1")) == ["backbone.1.weight", "backbone.1.bias"]


def test_norm_layers_of_every_kind() -> None:
    kinds = [nn.GroupNorm(2, 4), nn.InstanceNorm2d(4, affine=True), nn.BatchNorm2d(4), nn.BatchNorm2d(4, affine=False)]
    backbone = nn.Sequential(nn.Conv2d(3, 4, 1), *kinds, nn.Flatten(), nn.LayerNorm(64))
    model = SourceModel(backbone, nn.Linear(64, 2), class_names=["a", "b"], input_size=(4, 4))
    places = [1, 2, 3, 6]  # layer 4 has no scale and shift
    expected = [f"backbone.{place}.{name}" for place in places for name in ("weight", "bias")]
    assert list(select_parameters(model, "norm")) == expected
    assert list(select_parameters(model, "norm2d")) == ["backbone.3.weight", "backbone.3.bias"]


def test_resnet50_groups_have_the_known_sizes() -> None:
    model = SourceModel.build("resnet50", ["a", "b", "c"], weights="none", input_size=(32, 32))
    count = {name: sum(value.numel() for value in select_parameters(model, name).values()) for name in GROUPS}
    assert count["all"] == 24_033_088 + 258 * 3
    assert count["features"] == 24_033_088
    assert count["head"] == 2048 * 256 + 256 + 512 + 258 * 3
    assert count["norm2d"] == 53_120
    stage = sum(value.numel() for value in select_parameters(model, "backbone.layer4").values())
    assert count["last"] == stage + count["head"]
    assert count["norm"] == 53_120 + 512  # 26,560 channels of ResNet-50, 256 of the bottleneck, two numbers each


@pytest.mark.parametrize("layers", ["heads", "", "norm,", "backbone.9", "backbone.0.b", "ALL"])
def test_unknown_names_are_refused_with_what_there_is(layers: str) -> None:
    with pytest.raises(
        DriftgateError, match=r"out of auto, all, last, features, head, norm, norm2d or names of layers but got '.*'"
    ) as error:
        select_parameters(small_model(), layers)
    assert "backbone, bottleneck, classifier, backbone.0, backbone.1." in str(error.value)


def test_a_model_without_norm_layers_is_refused_where_they_should_learn() -> None:
    model = SourceModel(nn.Flatten(), nn.Linear(12, 2), class_names=["a", "b"], input_size=(2, 2))
    for group in ("norm", "norm2d"):
        with pytest.raises(
            DriftgateError, match=f"'{group}' but this model has none; take another of auto, all, last, features"
        ):
            driftgate.create("tent", model, adapt_layers=group)


def test_only_what_is_chosen_asks_for_gradients() -> None:
    method = driftgate.create("tent", small_model())
    learning = {name for name, parameter in method.model.named_parameters() if parameter.requires_grad}
    assert learning == {"backbone.1.weight", "backbone.1.bias"}
