"""The paper's networks, and classifiers of timm, torchvision and transformers wrapped; `make test-timm` runs these."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from support import settings_for
from torch import Tensor, nn

import driftgate
from driftgate.methods.gmm import GMM
from driftgate.methods.registry import create
from driftgate.models import Resize, SourceModel, SourceStatistics, build_backbone
from driftgate.models.heads import logits_of
from driftgate.models.resnet import ResNet50
from driftgate.types import UNKNOWN, UNLABELED, DriftgateError

pytestmark = pytest.mark.timm

CLASSES = [f"class {index}" for index in range(9)]
NETWORKS = {"timm/resnet50": 23_508_032, "timm/vit_base_patch16_224": 85_798_656}


@pytest.mark.parametrize("name", NETWORKS)
def test_the_papers_networks_have_their_size(name):
    model = SourceModel.build(name, CLASSES, weights="none")
    dim = model.spec.backbone_dim
    assert dim == {"timm/resnet50": 2048, "timm/vit_base_patch16_224": 768}[name]
    assert model.spec.input_size == (224, 224)
    assert sum(value.numel() for value in model.backbone.parameters()) == NETWORKS[name]
    head = (dim + 1) * 256 + 2 * 256 + 258 * len(CLASSES)
    assert sum(value.numel() for value in model.parameters()) == NETWORKS[name] + head


def test_the_model_copy_of_the_supplement():
    model = SourceModel.build("timm/resnet50", CLASSES, weights="none")
    assert sum(value.numel() for value in model.parameters()) == 24_033_088 + 258 * 9
    assert round(model.num_bytes / 1024, 2) == 94_098.24


@pytest.fixture(scope="module", params=NETWORKS)
def fresh(request) -> tuple[SourceModel, dict[str, torch.Tensor]]:
    """A model and its first state, to which each test puts it back: drawing the random weights takes seconds."""
    model = SourceModel.build(request.param, CLASSES, weights="none")
    return model, {name: value.clone() for name, value in model.state_dict().items()}


@pytest.mark.parametrize("preset", [None, *GMM.presets])
def test_two_steps_with_every_preset(fresh, preset):
    model, state = fresh
    model.load_state_dict(state)
    before = [value.clone() for value in model.parameters()]
    # Thresholds are known after one batch, so that the second step learns from both kinds of pseudo-labels.
    method = create("gmm", model, preset=preset, init_batches=1, min_batch=1, teach_share=1.0)
    generator = torch.Generator().manual_seed(0)
    for _ in range(2):
        out = method.step(torch.rand(3, 3, 224, 224, generator=generator))
        assert out.scores.shape == (3, 9)
        torch.testing.assert_close(out.scores.sum(dim=1), torch.ones(3))
        assert torch.isfinite(out.novelty).all()
        assert all(-1 <= label < 9 for label in out.labels.tolist())
        assert set(out.pseudo_labels.tolist()) <= {UNKNOWN, UNLABELED, *range(9)}
    assert method.steps == 2
    assert all(torch.isfinite(value).all() for value in model.parameters())
    assert any(not torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))
    # Equation of section 3.7, in float32: C (R + R (R + 1) / 2 + 1) values.
    assert method.mixture.num_bytes == 4 * 9 * (64 + 64 * 65 // 2 + 1)


def test_our_resnet50_equals_timms_and_torchvisions(tmp_path):
    from torchvision.models import resnet50

    torch.manual_seed(0)
    theirs = resnet50(weights=None).eval()
    with torch.no_grad():
        for name, buffer in theirs.named_buffers():
            if "running" in name:
                buffer.uniform_(0.5, 1.5)
    torch.save(theirs.state_dict(), tmp_path / "resnet50.pth")
    theirs.fc = torch.nn.Identity()
    images = torch.randn(2, 3, 224, 224)
    with torch.no_grad():
        expected = theirs(images)
        for name in ("resnet50", "timm/resnet50"):
            built = build_backbone(name, weights=tmp_path / "resnet50.pth")
            assert built.pretrained
            found = built.module.eval()(images)
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))
    assert list(ResNet50().state_dict()) == list(theirs.state_dict())


def test_a_transformers_weights_in_torchvisions_naming(tmp_path):
    from torchvision.models import vit_b_16

    torch.manual_seed(0)
    theirs = vit_b_16(weights=None).eval()
    torch.save(theirs.state_dict(), tmp_path / "vit.pth")
    theirs.heads = torch.nn.Identity()
    built = build_backbone("timm/vit_base_patch16_224", weights=tmp_path / "vit.pth")
    assert built.mean == (0.485, 0.456, 0.406)
    images = torch.randn(2, 3, 224, 224)
    with torch.no_grad():
        torch.testing.assert_close(built.module.eval()(images), theirs(images), rtol=1e-3, atol=1e-4)


def test_a_transformer_at_another_size_saves_and_loads_without_a_hub(tmp_path, monkeypatch):
    import timm

    model = SourceModel.build("timm/vit_tiny_patch16_224", CLASSES, input_size=(96, 96), weights="none")
    model.save(tmp_path / "vit.safetensors")
    real, asked = timm.create_model, []

    def create_model(name, pretrained=False, **options):
        asked.append(pretrained)
        return real(name, pretrained=pretrained, **options)

    monkeypatch.setattr(timm, "create_model", create_model)
    loaded = SourceModel.load(tmp_path / "vit.safetensors")
    assert asked == [False]
    images = torch.rand(2, 3, 96, 96)
    with torch.no_grad():
        assert torch.equal(loaded(images).logits, model(images).logits)


def test_normalisation_and_size_come_from_timm():
    built = build_backbone("timm/vit_base_patch16_224.augreg_in21k_ft_in1k", weights="none")
    assert (built.mean, built.std) == ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
    small = build_backbone("timm/resnet18", input_size=(64, 64), weights="none")
    assert (small.mean, small.input_size) == ((0.485, 0.456, 0.406), (64, 64))


def test_weights_of_another_architecture_are_refused(tmp_path):
    torch.save(build_backbone("timm/resnet18", weights="none").module.state_dict(), tmp_path / "resnet18.pth")
    with pytest.raises(DriftgateError, match=r"Expected weights of 'timm/resnet50'.*missing, first"):
        build_backbone("timm/resnet50", weights=tmp_path / "resnet18.pth")


def test_an_unknown_model_gets_suggestions():
    with pytest.raises(DriftgateError, match=r"did you mean .*timm/resnet50"):
        build_backbone("timm/resnet_50", weights="none")


def test_a_hub_out_of_reach_is_told(monkeypatch):
    import timm

    def create_model(name, pretrained=False, **options):
        raise OSError("no network\nmore lines")

    monkeypatch.setattr(timm, "create_model", create_model)
    with pytest.raises(
        DriftgateError, match="fetch weights for 'timm/resnet50' but that failed: no network; pass a file"
    ):
        build_backbone("timm/resnet50")


def of_timm(name: str) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        import timm

        network: nn.Module = timm.create_model(name, pretrained=False, num_classes=9)
        return network

    return build


def of_torchvision(name: str) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        import torchvision

        network: nn.Module = torchvision.models.get_model(name, weights=None, num_classes=9)
        return network

    return build


def transformers_resnet() -> nn.Module:
    from transformers import ResNetConfig, ResNetForImageClassification

    config = ResNetConfig(embedding_size=16, hidden_sizes=[16, 32], depths=[1, 2], layer_type="basic", num_labels=9)
    network: nn.Module = ResNetForImageClassification(config)
    return network


def transformers_vit() -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    layers = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    network: nn.Module = ViTForImageClassification(ViTConfig(**layers, image_size=32, patch_size=8, num_labels=9))
    return network


class Theirs(NamedTuple):
    """A classifier as a library builds it, what has to be said, and what is found."""

    build: Callable[[], nn.Module]
    told: dict[str, Any]
    head: str
    size: tuple[int, int]


SMALL = {"input_size": (64, 64)}  # convolutions run at any size, and small pictures save minutes
PLAIN = {**SMALL, "mean": 0.5, "std": 0.25}
WRAPPED = {
    "timm resnet50": Theirs(of_timm("resnet50"), SMALL, "fc", (64, 64)),
    "timm vit_base_patch16_224": Theirs(of_timm("vit_base_patch16_224"), {}, "head", (224, 224)),
    "timm convnext_tiny": Theirs(of_timm("convnext_tiny"), SMALL, "head.fc", (64, 64)),
    "timm mobilenetv3_large_100": Theirs(of_timm("mobilenetv3_large_100"), SMALL, "classifier", (64, 64)),
    "torchvision resnet50": Theirs(of_torchvision("resnet50"), PLAIN, "fc", (64, 64)),
    "torchvision swin_t": Theirs(of_torchvision("swin_t"), PLAIN, "head", (64, 64)),
    "transformers resnet": Theirs(transformers_resnet, PLAIN, "classifier.1", (64, 64)),
    "transformers vit": Theirs(transformers_vit, {"mean": 0.5, "std": 0.5}, "classifier", (32, 32)),
}


class Fresh(NamedTuple):
    network: nn.Module
    model: SourceModel
    state: dict[str, Tensor]
    expected: Theirs


@pytest.fixture(scope="module", params=WRAPPED)
def theirs(request: pytest.FixtureRequest) -> Fresh:
    """Wrapped once, with the first state, to which each test puts it back: building it takes seconds."""
    expected = WRAPPED[request.param]
    torch.manual_seed(0)
    network = expected.build()
    model = driftgate.wrap(network, CLASSES, **expected.told)
    size = model.spec.feature_dim
    model.statistics = SourceStatistics(torch.randn(9, size), torch.zeros(size), torch.eye(size))
    return Fresh(network, model, {name: value.clone() for name, value in network.state_dict().items()}, expected)


def test_the_head_of_each_library_is_found_and_the_logits_stay_the_same(theirs: Fresh) -> None:
    network, model, state, expected = theirs
    network.load_state_dict(state)
    assert (model.spec.head, model.spec.image_size, model.num_classes) == (expected.head, expected.size, 9)
    images = torch.rand(2, *model.spec.shape, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        own = logits_of(network.eval()((images - model.mean) / model.std))
        found = model(images)
    torch.testing.assert_close(found.logits, own, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(model.head(found.features), own, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", sorted(driftgate.available()))
def test_two_steps_of_every_method_with_each_library(theirs: Fresh, name: str) -> None:
    network, model, state, _ = theirs
    network.load_state_dict(state)
    method = create(name, model, **settings_for(name, network))
    generator = torch.Generator().manual_seed(0)
    for _ in range(2):
        images = torch.randint(0, 256, (2, *model.spec.shape), dtype=torch.uint8, generator=generator)
        said, out = method.predict(images), method.step(images)
        torch.testing.assert_close(said.scores, out.scores, rtol=1e-4, atol=1e-6)
        assert out.scores.shape == (2, 9) and out.scores.isfinite().all() and out.novelty.isfinite().all()
    assert method.network() is network and list(network.state_dict()) == list(state)
    assert all(value.isfinite().all() for value in network.parameters())
    if name == "gmm":
        assert any(not torch.equal(value, state[key]) for key, value in network.named_parameters())


def test_how_timm_feeds_its_networks() -> None:
    spec = driftgate.wrap(of_timm("resnet18")()).spec
    assert (spec.input_size, spec.mean, spec.std) == ((224, 224), (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    assert spec.resize == Resize(crop=0.95, interpolation="bicubic")


def test_how_torchvision_feeds_its_networks() -> None:
    from torchvision.models import ResNet18_Weights, Swin_T_Weights

    spec = driftgate.wrap(of_torchvision("resnet18")(), preprocessing=ResNet18_Weights.DEFAULT.transforms()).spec
    assert (spec.input_size, spec.mean) == ((224, 224), (0.485, 0.456, 0.406))
    assert spec.resize == Resize(crop=224 / 256)
    swin = driftgate.wrap(of_torchvision("swin_t")(), preprocessing=Swin_T_Weights.DEFAULT.transforms()).spec
    assert swin.resize == Resize(crop=224 / 232, interpolation="bicubic")


def test_how_transformers_feeds_its_networks() -> None:
    from transformers import ConvNextImageProcessor, ViTImageProcessor

    processor = ViTImageProcessor(size={"height": 32, "width": 32})
    spec = driftgate.wrap(transformers_vit(), preprocessing=processor).spec
    assert (spec.input_size, spec.mean, spec.std) == ((32, 32), (0.5,) * 3, (0.5,) * 3)
    assert spec.resize == Resize(keep_aspect=False)
    assert spec.class_names[:2] == ("LABEL_0", "LABEL_1")
    processor = ConvNextImageProcessor(size={"shortest_edge": 224}, crop_pct=0.875)
    resnet = driftgate.wrap(transformers_resnet(), preprocessing=processor).spec
    assert resnet.input_size == (224, 224) and resnet.resize is not None and resnet.resize.crop == 0.875


def test_a_distilled_transformer_has_two_heads_and_is_refused() -> None:
    with pytest.raises(DriftgateError, match="such as a second head"):
        driftgate.wrap(of_timm("deit_tiny_distilled_patch16_224")())
