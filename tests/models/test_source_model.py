"""The model: its spec, its checkpoint, its copies, and what it refuses."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from driftgate.checkpoint import KEY
from driftgate.models import ModelSpec, SourceModel, SourceStatistics
from driftgate.models.arithmetic import has_bfloat16
from driftgate.types import DriftgateError

CLASSES = ["cat", "dog", "owl"]


@pytest.fixture
def model() -> SourceModel:
    return SourceModel.build("cnn", CLASSES, seed=3)


@pytest.fixture
def images() -> torch.Tensor:
    return torch.rand(4, 3, 28, 28, generator=torch.Generator().manual_seed(0))


def own_network() -> nn.Module:
    return nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten())


def test_build_is_seeded_and_leaves_the_global_generator_alone(images):
    before = torch.get_rng_state()
    first, again = SourceModel.build("cnn", CLASSES, seed=3), SourceModel.build("cnn", CLASSES, seed=3)
    other = SourceModel.build("cnn", CLASSES, seed=4)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first(images).logits, again(images).logits)
    assert not torch.equal(first(images).logits, other(images).logits)


def test_spec_round_trip(tmp_path, images):
    model = SourceModel.build("cnn", CLASSES, input_size=(20, 24), feature_dim=32)
    model.save(tmp_path / "source.safetensors")
    loaded = SourceModel.load(tmp_path / "source.safetensors")
    assert loaded.spec == model.spec
    assert loaded.spec.input_size == (20, 24)
    assert loaded.spec.feature_dim == 32
    assert loaded.spec.class_names == tuple(CLASSES)
    assert not loaded.spec.pretrained
    assert loaded.statistics is None
    small = images[:, :, :20, :24]
    assert torch.equal(loaded(small).logits, model(small).logits)
    with pytest.raises(DriftgateError, match=r"\(N, 3, 20, 24\)"):
        loaded.prepare(torch.rand(4, 2, 20, 24))


def test_a_weight_normed_classifier_copies_through_its_state_dict(model, images):
    with torch.no_grad():
        model.classifier.parametrizations.weight.original0.mul_(2.0)
    twin = SourceModel.from_spec(model.spec)
    twin.load_state_dict(model.state_dict())
    assert torch.equal(twin(images).logits, model(images).logits)
    # The norm g is a parameter apart from the direction v: doubling v changes nothing.
    before = model(images).logits
    with torch.no_grad():
        model.classifier.parametrizations.weight.original1.mul_(2.0)
    torch.testing.assert_close(model(images).logits, before)
    torch.testing.assert_close(
        model.classifier.weight.norm(dim=1), model.classifier.parametrizations.weight.original0.flatten()
    )


def test_a_copy_shares_no_memory_with_its_source(model, images):
    twin = SourceModel.from_spec(model.spec)
    twin.load_state_dict(model.state_dict())
    before = twin(images).logits
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    assert torch.equal(twin(images).logits, before)


def test_statistics_travel_with_every_state_dict(tmp_path, model):
    model.statistics = SourceStatistics(torch.rand(3, 256), torch.rand(256), torch.rand(256, 256))
    model.save(tmp_path / "source.safetensors")
    assert {"statistics.prototypes", "statistics.feature_mean", "statistics.feature_covariance"} <= set(
        load_file(tmp_path / "source.safetensors")
    )
    twin = SourceModel.from_spec(model.spec)
    twin.load_state_dict(model.state_dict())
    for other in (SourceModel.load(tmp_path / "source.safetensors"), twin):
        assert other.statistics is not None
        for name, tensor in model.statistics.tensors().items():
            assert torch.equal(other.statistics.tensors()[name], tensor)
    fresh = SourceModel.from_spec(model.spec)
    assert fresh.num_bytes == model.num_bytes
    twin.load_state_dict(fresh.state_dict())
    assert twin.statistics is None  # they described other weights


def test_statistics_travel_inside_a_larger_module(model):
    model.statistics = SourceStatistics(torch.rand(3, 256))
    outer, other = nn.ModuleDict({"student": model}), nn.ModuleDict({"student": SourceModel.from_spec(model.spec)})
    other.load_state_dict(outer.state_dict())
    assert torch.equal(other["student"].statistics.prototypes, model.statistics.prototypes)


def test_a_model_of_another_spec_is_refused(tmp_path, model):
    model.save(tmp_path / "source.safetensors")
    other = SourceModel.build("cnn", ["cat", "dog", "emu"])
    with pytest.raises(DriftgateError, match=r"class_names \('cat', 'dog', 'owl'\) but got \('cat', 'dog', 'emu'\)"):
        SourceModel.load(tmp_path / "source.safetensors", model=other)


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        ({"class_names": []}, "class_names: .*at least 1"),
        ({"class_names": ["cat", "cat"]}, "must differ"),
        ({"std": [0.3, 0.3, 0.0]}, r"positive, got \(0.3, 0.3, 0.0\)"),
        ({"mean": [0.3, 0.3]}, "1 or 3 numbers as mean and std, got 2 and [13]"),
        ({"colour": "red"}, "no property of a model 'colour', expected one of input_size, channels"),
    ],
)
def test_a_spec_that_is_none_is_refused(model, change, wrong):
    spec = model.spec.model_dump(mode="json") | change
    with pytest.raises(DriftgateError, match=f"Expected a model's properties but .*{wrong}"):
        SourceModel.from_spec(spec)


def test_a_checkpoint_whose_weights_do_not_fit_its_spec_is_refused(tmp_path, model):
    path = tmp_path / "source.safetensors"
    info = {"format": 1, "kind": "source-model", "model": model.spec.model_dump(mode="json")}
    tensors = {name: value.contiguous() for name, value in model.state_dict().items() if "bias" not in name}
    save_file(tensors, path, metadata={KEY: json.dumps(info)})
    with pytest.raises(DriftgateError, match="Missing key"):
        SourceModel.load(path)


def test_other_source_classes_are_refused(model):
    model.check_class_names(CLASSES)
    with pytest.raises(DriftgateError, match="first difference is class 1: model 'dog', data 'emu'"):
        model.check_class_names(["cat", "emu", "owl"])
    with pytest.raises(DriftgateError, match=r"data has 2; .* class 2: model 'owl', data nothing"):
        model.check_class_names(["cat", "dog"])
    with pytest.raises(DriftgateError, match="data has 4"):
        model.check_class_names([*CLASSES, "yak"])


def test_around_a_network_of_ones_own(tmp_path, images):
    model = SourceModel.untrained(own_network(), class_names=CLASSES, input_size=(28, 28))
    assert (model.spec.backbone, model.spec.backbone_dim, model.spec.feature_dim) == ("custom", 12, 256)
    model.save(tmp_path / "own.safetensors")
    with pytest.raises(DriftgateError, match="your own backbone"):
        SourceModel.load(tmp_path / "own.safetensors")
    fresh = SourceModel.untrained(own_network(), class_names=CLASSES, input_size=(28, 28))
    loaded = SourceModel.load(tmp_path / "own.safetensors", model=fresh)
    assert torch.equal(loaded(images).logits, model(images).logits)


def test_with_a_classifier_of_ones_own_features_are_the_backbones(images):
    classifier = nn.Linear(12, 3)
    model = SourceModel(own_network(), classifier, class_names=CLASSES, input_size=(28, 28))
    output = model(images)
    torch.testing.assert_close(output.features, own_network()(images))
    torch.testing.assert_close(output.logits, classifier(output.features))


def test_a_network_that_does_not_fit_is_refused():
    with pytest.raises(DriftgateError, match="flatten its output"):
        SourceModel.untrained(nn.Conv2d(3, 4, 3), class_names=CLASSES, input_size=(28, 28))
    with pytest.raises(DriftgateError, match="classifier with 3 outputs"):
        SourceModel(own_network(), nn.Linear(12, 4), class_names=CLASSES, input_size=(28, 28))
    with pytest.raises(DriftgateError, match="takes inputs of shape"):
        SourceModel.untrained(nn.Linear(5, 5), class_names=CLASSES, input_size=(28, 28))


def test_normalisation_is_inside_the_model(images):
    plain = SourceModel(own_network(), nn.Identity(), class_names=[str(i) for i in range(12)], input_size=(28, 28))
    scaled = SourceModel(
        own_network(),
        nn.Identity(),
        class_names=[str(i) for i in range(12)],
        input_size=(28, 28),
        mean=(0.1, 0.2, 0.3),
        std=(0.5, 0.5, 0.25),
    )
    mean = torch.tensor([0.1, 0.2, 0.3]).repeat_interleave(4)
    std = torch.tensor([0.5, 0.5, 0.25]).repeat_interleave(4)
    torch.testing.assert_close(scaled(images).features, (plain(images).features - mean) / std)


def test_weights_are_channels_last(model):
    convolutions = [module.weight for module in model.modules() if isinstance(module, nn.Conv2d)]
    assert all(weight.is_contiguous(memory_format=torch.channels_last) for weight in convolutions)


def test_bfloat16_stays_inside_the_backbone(monkeypatch, model, images):
    monkeypatch.setattr("driftgate.models.arithmetic.has_bfloat16", lambda device: True)
    exact = model(images)
    model.set_precision("bfloat16")
    rough = model(images)
    assert rough.features.dtype == rough.logits.dtype == torch.float32
    assert not torch.equal(rough.features, exact.features)
    torch.testing.assert_close(rough.features, exact.features, rtol=0.05, atol=0.05)


@pytest.mark.parametrize(
    ("machine", "onednn", "avx512_bf16", "amx", "expected"),
    [
        ("x86_64", True, False, False, False),  # AVX-512 that only emulates
        ("x86_64", True, True, False, True),
        ("AMD64", True, False, True, True),
        ("x86_64", False, False, False, False),
        ("aarch64", True, False, False, True),
        ("aarch64", False, False, False, False),
    ],
)
def test_bfloat16_that_is_emulated_is_none(monkeypatch, machine, onednn, avx512_bf16, amx, expected):
    monkeypatch.setattr("platform.machine", lambda: machine)
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: onednn)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: avx512_bf16)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx)
    assert has_bfloat16() is expected


def test_bfloat16_is_refused_where_it_is_only_emulated(monkeypatch, model):
    monkeypatch.setattr("driftgate.models.arithmetic.has_bfloat16", lambda device: False)
    with pytest.raises(DriftgateError, match="use precision float32"):
        model.set_precision("bfloat16")
    assert model.precision == "float32"


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (torch.zeros(2, 28, 28, 3), "move channels first"),
        (torch.zeros(2, 2, 28, 28), "RGB"),
        (torch.zeros(3, 28, 28), "RGB"),
        (torch.zeros(0, 3, 28, 28), "empty"),
        (torch.zeros(2, 3, 28, 28, dtype=torch.int32), "as uint8, or as floats"),
        (torch.full((2, 3, 28, 28), torch.nan), "finite"),
        (torch.full((2, 3, 28, 28), 2.0), r"pixels in \[0, 1\]"),
        ([1, 2], "got int"),
    ],
)
def test_a_batch_the_network_would_misread_is_refused(model, batch, message):
    with pytest.raises(DriftgateError, match=message):
        model.prepare(batch)


def test_a_whole_network_is_no_backbone():
    with pytest.raises(DriftgateError, match=r"driftgate\.wrap\(network, class_names=\.\.\.\).*untrained"):
        SourceModel(own_network(), class_names=CLASSES, input_size=(28, 28))


def test_differences_name_only_what_differs():
    spec = ModelSpec(class_names=("a",), input_size=(8, 8), backbone_dim=4)
    assert spec.differences(spec) == ""
    assert spec.differences(spec.model_copy(update={"flip": False})) == "flip True but got False"
