"""Checkpoints in the released layout, against a network built by hand from the same tensors."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from driftgate.models import SourceModel, import_checkpoint
from driftgate.models.resnet import ResNet50
from driftgate.types import DriftgateError

CLASSES, DIM = 5, 256


@pytest.fixture(scope="module")
def content() -> dict[str, object]:
    """What the released code saves, with random numbers everywhere a trained network has its own."""
    with torch.random.fork_rng():
        torch.manual_seed(7)
        backbone = ResNet50().state_dict()
        for name, value in backbone.items():
            if "running" in name or ("bn" in name and value.is_floating_point()):
                value.uniform_(0.5, 1.5)
        return {
            "backbone_state_dict": backbone,
            "feature_extractor_state_dict": {
                "bn.weight": torch.rand(DIM) + 0.5,
                "bn.bias": torch.randn(DIM),
                "bn.running_mean": torch.randn(DIM),
                "bn.running_var": torch.rand(DIM) + 0.5,
                "bn.num_batches_tracked": torch.tensor(12),
                "bottleneck.weight": torch.randn(DIM, 2048) * 0.05,
                "bottleneck.bias": torch.randn(DIM),
            },
            "classifier_state_dict": {
                "fc.bias": torch.randn(CLASSES),
                "fc.weight_g": torch.rand(CLASSES, 1) + 1.0,
                "fc.weight_v": torch.randn(CLASSES, DIM),
            },
            "class_prototypes": torch.randn(CLASSES, DIM),
        }


@pytest.fixture
def checkpoint(tmp_path, content):
    torch.save(content, tmp_path / "source_ckpt.pt")
    return tmp_path / "source_ckpt.pt"


def by_hand(content: dict[str, dict[str, Tensor]], images: Tensor) -> tuple[Tensor, Tensor]:
    """Features and logits by plain functions of the saved tensors: ImageNet normalisation, the three parts."""
    backbone, middle, top = (content[f"{part}_state_dict"] for part in ("backbone", "feature_extractor", "classifier"))

    def norm(name: str, hidden: Tensor) -> Tensor:
        part = {key: backbone[f"{name}.{key}"] for key in ("running_mean", "running_var", "weight", "bias")}
        return F.batch_norm(hidden, **part)

    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    hidden = (images - mean.view(1, 3, 1, 1)) / std.view(1, 3, 1, 1)
    hidden = norm("bn1", F.conv2d(hidden, backbone["conv1.weight"], stride=2, padding=3)).relu()
    hidden = F.max_pool2d(hidden, 3, 2, 1)
    for stage, blocks in ((1, 3), (2, 4), (3, 6), (4, 3)):
        for block in range(blocks):
            name, stride = f"layer{stage}.{block}", 2 if stage > 1 and block == 0 else 1
            inner = norm(f"{name}.bn1", F.conv2d(hidden, backbone[f"{name}.conv1.weight"])).relu()
            inner = F.conv2d(inner, backbone[f"{name}.conv2.weight"], stride=stride, padding=1)
            inner = norm(f"{name}.bn2", inner).relu()
            inner = norm(f"{name}.bn3", F.conv2d(inner, backbone[f"{name}.conv3.weight"]))
            if block == 0:
                hidden = F.conv2d(hidden, backbone[f"{name}.downsample.0.weight"], stride=stride)
                hidden = norm(f"{name}.downsample.1", hidden)
            hidden = (inner + hidden).relu()
    features = F.linear(hidden.mean(dim=(2, 3)), middle["bottleneck.weight"], middle["bottleneck.bias"])
    features = (features - middle["bn.running_mean"]) / (middle["bn.running_var"] + 1e-5).sqrt()
    features = features * middle["bn.weight"] + middle["bn.bias"]
    direction = top["fc.weight_v"] / top["fc.weight_v"].norm(dim=1, keepdim=True)
    return features, features @ (top["fc.weight_g"] * direction).T + top["fc.bias"]


def test_outputs_equal_a_hand_built_network(tmp_path, checkpoint, content):
    model = import_checkpoint(checkpoint)
    images = torch.rand(2, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        output = model(images)
        features, logits = by_hand(content, images)
    torch.testing.assert_close(output.features, features, rtol=1e-3, atol=1e-3 * float(features.abs().max()))
    torch.testing.assert_close(output.logits, logits, rtol=1e-3, atol=1e-3 * float(logits.abs().max()))
    assert float(logits.std()) > 1e-3
    model.save(tmp_path / "ours.safetensors")
    again = SourceModel.load(tmp_path / "ours.safetensors")
    with torch.no_grad():
        assert torch.equal(again(images).logits, output.logits)


def test_prototypes_and_spec(checkpoint, content):
    model = import_checkpoint(checkpoint, class_names=list("abcde"))
    assert model.statistics is not None
    assert torch.equal(model.statistics.prototypes, content["class_prototypes"])
    assert model.statistics.feature_mean is None
    assert model.spec.class_names == tuple("abcde")
    assert model.spec.pretrained
    assert (model.spec.backbone, model.spec.input_size) == ("resnet50", (224, 224))
    assert import_checkpoint(checkpoint).spec.class_names == tuple(f"class {index}" for index in range(5))


def test_wrong_number_of_class_names_is_refused(checkpoint):
    with pytest.raises(DriftgateError, match="Expected 5 class names"):
        import_checkpoint(checkpoint, class_names=["a"])


def test_another_layout_is_refused(tmp_path):
    torch.save({"state_dict": {}}, tmp_path / "x.pt")
    with pytest.raises(DriftgateError, match=r"lacks backbone_state_dict, .* it has state_dict"):
        import_checkpoint(tmp_path / "x.pt")


@pytest.mark.parametrize(
    ("part", "change", "message"),
    [
        ("backbone_state_dict", {"layer5.weight": torch.zeros(1)}, "1 unexpected, first 'layer5.weight'"),
        ("feature_extractor_state_dict", {"bottleneck.weight": torch.zeros(DIM, 512)}, "misshapen"),
        ("classifier_state_dict", {"fc.weight_v": torch.zeros(3)}, "weight-normed classifier"),
        ("classifier_state_dict", {"fc.weight_v": 3}, "'fc.weight_v' is int"),
        ("feature_extractor_state_dict", {7: torch.zeros(1)}, "tensors by name in feature_extractor_state_dict"),
    ],
)
def test_parts_that_do_not_fit_are_refused(tmp_path, content, part, change, message):
    torch.save({**content, part: {**content[part], **change}}, tmp_path / "x.pt")
    with pytest.raises(DriftgateError, match=message):
        import_checkpoint(tmp_path / "x.pt")


def test_prototypes_of_another_shape_are_refused(tmp_path, content):
    torch.save({**content, "class_prototypes": torch.zeros(2, 2)}, tmp_path / "x.pt")
    with pytest.raises(DriftgateError, match=r"class_prototypes of shape \(5, 256\)"):
        import_checkpoint(tmp_path / "x.pt")
