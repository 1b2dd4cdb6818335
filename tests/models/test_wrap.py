"""Any classifier: its head is found, its logits stay the same, every method adapts it, and it comes back as it came."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from networks import CASES, CLASSES, SIZE, Body, Case, LikeTimm, LikeTorchvision, LikeTransformers, Nested, sequential
from support import add_statistics, batch_of, settings_for, state_of
from torch import Tensor, nn

import driftgate
from driftgate import DriftgateError, SourceModel
from driftgate.methods.gradient import GradientMethod
from driftgate.models import Resize, WrappedModel
from driftgate.models.compiling import parts_without
from driftgate.models.heads import logits_of
from driftgate.models.passes import repeated_blocks

METHODS = sorted(driftgate.available())


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Iterator[Case]:
    yield CASES[request.param]


def wrapped(case: Case) -> SourceModel:
    model = driftgate.wrap(case(), **case.told)
    add_statistics(model)
    return model


def test_the_head_is_found_and_the_logits_stay_the_same(case: Case) -> None:
    network = case().eval()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    model = driftgate.wrap(network, **case.told)
    assert (model.spec.head, model.spec.feature_dim, model.num_classes) == (case.head, case.feature_dim, CLASSES)
    inputs = batch_of(model, 5, 0)
    output = model(inputs)
    own = logits_of(network((inputs - model.mean) / model.std))
    torch.testing.assert_close(output.logits, own, rtol=1e-5, atol=1e-5)
    made = model.head(output.features)
    torch.testing.assert_close(made.softmax(dim=1), own.softmax(dim=1), rtol=1e-5, atol=1e-5)
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())


def test_wrapping_draws_nothing_and_leaves_nothing_on_the_network(case: Case) -> None:
    network, random_state = case(), torch.get_rng_state()
    kind, names = type(network), list(network.state_dict())
    model = driftgate.wrap(network, **case.told)
    model(batch_of(model, 2, 0))
    assert torch.equal(random_state, torch.get_rng_state())
    assert type(network) is kind and list(network.state_dict()) == names
    for layer in network.modules():
        assert not layer._forward_pre_hooks and not layer._forward_hooks and "forward" not in vars(layer)


@pytest.mark.parametrize("name", METHODS)
def test_two_steps_of_every_method(case: Case, name: str) -> None:
    model = wrapped(case)
    settings = settings_for(name, model.unwrapped())
    kind = driftgate.available()[name]
    layers = settings.get("adapt_layers") or getattr(kind.Settings(), "adapt_layers", "all")
    unlearnable = case.head == "" and issubclass(kind, GradientMethod) and layers in ("features", "norm")
    if unlearnable:  # nothing but a head: there are no features to learn
        with pytest.raises(DriftgateError, match="Expected"):
            driftgate.create(name, model, **settings)
        return
    method = driftgate.create(name, model, **settings)
    for seed in range(2):
        batch = batch_of(model, 6, seed)
        said = method.predict(batch)
        out = method.step(batch)
        assert torch.equal(said.labels, out.labels) and torch.equal(said.scores, out.scores)
        assert out.scores.shape == (6, CLASSES) and out.scores.isfinite().all() and out.novelty.isfinite().all()
    assert method.steps == 2
    assert all(value.isfinite().all() for value in state_of(method).values() if value.is_floating_point())


@pytest.mark.parametrize("name", ["gmm", "adacontrast", "owttt", "lead"])
def test_the_network_comes_back_adapted_and_as_it_came(name: str) -> None:
    case = CASES["torchvision"]
    network = case()
    names, before = list(network.state_dict()), {key: value.clone() for key, value in network.state_dict().items()}
    model = driftgate.wrap(network, **case.told)
    add_statistics(model)
    method = driftgate.create(name, model, lr=0.05, teach_share=1.0)
    for seed in range(4):
        method.step(batch_of(model, 8, seed))
    back = method.network()
    assert back is network and type(back) is LikeTorchvision and list(back.state_dict()) == names
    assert any(not torch.equal(value, before[key]) for key, value in back.state_dict().items())
    images = batch_of(model, 4, 9)
    with torch.no_grad():
        torch.testing.assert_close(back((images - model.mean) / model.std), model(images).logits, rtol=1e-5, atol=1e-5)


def test_parts_of_the_network_are_told_apart() -> None:
    method = driftgate.create("gmm", wrapped(CASES["nested"]), lr=0.1, backbone_lr_scale=0.25, adapt_layers="all")
    backbone, head = method.optimizer.param_groups
    layer = method.network().get_submodule("top.out.1")
    assert {id(value) for value in layer.parameters()} <= {id(value) for value in head["params"]}
    assert len(head["params"]) == 4  # with those of the reducer
    assert (backbone["lr"], head["lr"]) == (0.025, 0.1)
    # SHOT keeps the classifier, and so does gmm in a network that was trained before.
    for name in ("shot-o", "gmm"):
        frozen = driftgate.create(name, wrapped(CASES["nested"])).network()
        assert [path for path, value in frozen.named_parameters() if not value.requires_grad] == [
            "top.out.1.weight",
            "top.out.1.bias",
        ]
    scratch = driftgate.wrap(CASES["nested"](), **CASES["nested"].told, pretrained=False)
    assert all(value.requires_grad for value in driftgate.create("gmm", scratch).network().parameters())
    only = driftgate.create("gmm", wrapped(CASES["nested"]), adapt_layers="network.body.stem").network()
    assert {name.split(".")[1] for name, value in only.named_parameters() if value.requires_grad} == {"stem"}
    with pytest.raises(DriftgateError, match=r"layers of this model are network, network\.top, network\.body\."):
        driftgate.create("gmm", wrapped(CASES["nested"]), adapt_layers="body")


@pytest.mark.parametrize("name", ["gmm", "comet-f"])
@pytest.mark.parametrize("network", ["nested", "attention"])
def test_memory_modes_learn_the_same(network: str, name: str) -> None:
    case = CASES[network]
    always = {"lr": 0.05, "teach_share": 1.0}
    methods = [driftgate.create(name, wrapped(case), **always, memory=mode) for mode in ("fast", "balanced", "low")]
    model = methods[0].model
    assert len(repeated_blocks(model.trunk, apart=model.head)) == 2
    for seed in range(5):
        for method in methods:
            method.step(batch_of(model, 8, seed))
    fast, *others = (state_of(method) for method in methods)
    for other in others:
        for key, value in other.items():
            assert torch.allclose(value.double(), fast[key].double(), rtol=1e-3, atol=1e-5), key


def test_the_block_that_holds_the_head_is_kept_open() -> None:
    network = nn.Sequential(Body(), Nested())
    assert repeated_blocks(network) == [network[0], network[1]]
    head = network[1].top["out"][1]
    assert repeated_blocks(network, apart=head) == [network[0], *network[1].body.blocks]
    assert parts_without(network, head) == [
        network[0],
        network[1].top["out"][0],
        network[1].body,
    ]
    assert parts_without(network[1].body, head) == [network[1].body]


@pytest.mark.parametrize("form", ["model", "network"])
@pytest.mark.parametrize("name", ["gmm", "gmm-comet", "adacontrast", "owttt"])
def test_stopped_and_resumed_equals_uninterrupted(tmp_path: Path, name: str, form: str) -> None:
    case = CASES["timm"]
    whole, first = (driftgate.create(name, wrapped(case), seed=1, teach_share=1.0) for _ in range(2))
    for seed in range(2):
        whole.step(batch_of(whole.model, 8, seed))
        first.step(batch_of(whole.model, 8, seed))
    first.save(tmp_path / "method.safetensors")
    # A plain network is wrapped as the file says; its weights do not matter.
    fresh = wrapped(case) if form == "model" else LikeTimm()
    resumed = driftgate.load(tmp_path / "method.safetensors", model=fresh)
    for seed in range(2, 4):
        batch = batch_of(whole.model, 8, seed)
        assert torch.equal(whole.step(batch).scores, resumed.step(batch).scores)
    one, two = state_of(whole), state_of(resumed)
    assert one.keys() == two.keys() and all(torch.equal(value, two[key]) for key, value in one.items())


def test_a_saved_model_of_ones_own_network(tmp_path: Path) -> None:
    model = wrapped(CASES["nested"])
    model.save(tmp_path / "model.safetensors")
    with pytest.raises(DriftgateError, match="your own backbone; build the network"):
        SourceModel.load(tmp_path / "model.safetensors")
    torch.manual_seed(5)
    other = driftgate.wrap(Nested(), **CASES["nested"].told)
    loaded = SourceModel.load(tmp_path / "model.safetensors", model=other)
    images = batch_of(model, 3, 0)
    assert torch.equal(loaded(images).logits, model(images).logits) and loaded.statistics is not None
    method = driftgate.create("gmm", model)
    method.save(tmp_path / "method.safetensors")
    with pytest.raises(DriftgateError, match=r"Expected the name of a layer as head but got 'top\.out\.1'"):
        driftgate.load(tmp_path / "method.safetensors", model=sequential())
    parts = SourceModel(nn.Flatten(), nn.Linear(12, 2), class_names=["a", "b"], input_size=(2, 2))
    driftgate.create("gmm", parts).save(tmp_path / "parts.safetensors")
    with pytest.raises(DriftgateError, match="whose network came in parts"):
        driftgate.load(tmp_path / "parts.safetensors", model=nn.Linear(12, 2))


def test_bfloat16_stays_in_front_of_the_head(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("driftgate.models.arithmetic.has_bfloat16", lambda device: True)
    model = wrapped(CASES["torchvision"])
    images = batch_of(model, 4, 0)
    exact = model(images)
    model.set_precision("bfloat16")
    rough = model(images)
    assert rough.features.dtype == rough.logits.dtype == torch.float32
    assert not torch.equal(rough.features, exact.features)
    torch.testing.assert_close(rough.logits, exact.logits, rtol=0.05, atol=0.05)
    assert torch.equal(rough.logits, model.head(rough.features))


def test_input_comes_from_timm_s_configuration() -> None:
    model = driftgate.wrap(LikeTimm(), ["a", "b", "c", "d"])
    assert model.spec.mean == (0.5, 0.4, 0.3) and model.spec.std == (0.2, 0.25, 0.3)
    assert model.spec.resize == Resize(crop=0.9, interpolation="bicubic")
    assert model.prepare(torch.rand(2, 3, 40, 30)).shape == (2, 3, SIZE, SIZE)
    squashed = LikeTimm()
    squashed.pretrained_cfg = SimpleNamespace(**{**squashed.pretrained_cfg, "crop_mode": "squash", "crop_pct": 1.0})
    assert driftgate.wrap(squashed).spec.resize == Resize(keep_aspect=False, interpolation="bicubic")
    assert driftgate.wrap(LikeTimm(), mean=0.0, resize=None).spec.mean == (0.0,)  # what is said counts


def test_input_and_names_come_from_transformers_configuration() -> None:
    model = driftgate.wrap(LikeTransformers(), mean=0.5, std=0.5)
    assert model.spec.class_names == ("cat", "dog", "owl", "yak")
    assert (model.spec.input_size, model.spec.channels) == ((SIZE, SIZE), 3)


@pytest.mark.parametrize(
    ("preprocessing", "size", "resize"),
    [
        (  # torchvision's weights.transforms()
            SimpleNamespace(
                crop_size=[14], resize_size=[16], mean=[0.1, 0.2, 0.3], std=[0.3] * 3, interpolation="bilinear"
            ),
            (14, 14),
            Resize(crop=14 / 16),
        ),
        (  # ViTImageProcessor
            SimpleNamespace(
                size={"height": 10, "width": 12},
                image_mean=[0.1, 0.2, 0.3],
                image_std=[0.3] * 3,
                resample=2,
                do_normalize=True,
            ),
            (10, 12),
            Resize(keep_aspect=False),
        ),
        (  # ConvNextImageProcessor
            SimpleNamespace(
                size=SimpleNamespace(shortest_edge=14, height=None, width=None),
                crop_pct=0.875,
                image_mean=[0.1, 0.2, 0.3],
                image_std=[0.3] * 3,
                resample=3,
            ),
            (14, 14),
            Resize(crop=0.875, interpolation="bicubic"),
        ),
        (  # CLIPImageProcessor
            SimpleNamespace(
                size={"shortest_edge": 16},
                crop_size={"height": 12, "width": 12},
                do_center_crop=True,
                image_mean=[0.1, 0.2, 0.3],
                image_std=[0.3] * 3,
                resample=3,
            ),
            (12, 12),
            Resize(crop=0.75, interpolation="bicubic"),
        ),
        (  # timm.data.resolve_model_data_config
            {"input_size": (3, 9, 9), "mean": (0.1, 0.2, 0.3), "std": (0.3,) * 3, "crop_pct": 0.5},
            (9, 9),
            Resize(crop=0.5),
        ),
    ],
)
def test_preprocessing_in_the_words_of_each_library(
    preprocessing: Any, size: tuple[int, int], resize: Resize, caplog: pytest.LogCaptureFixture
) -> None:
    spec = driftgate.wrap(LikeTorchvision(), preprocessing=preprocessing).spec
    assert (spec.input_size, spec.resize, spec.mean, spec.std) == (size, resize, (0.1, 0.2, 0.3), (0.3, 0.3, 0.3))
    assert not caplog.records


def test_an_unknown_normalisation_is_told(caplog: pytest.LogCaptureFixture) -> None:
    driftgate.wrap(sequential(), input_size=(SIZE, SIZE))
    assert "nothing tells how Sequential normalises" in caplog.text
    caplog.clear()
    driftgate.wrap(sequential(), input_size=(SIZE, SIZE), mean=0.0, std=1.0)
    driftgate.wrap(CASES["rows"]())
    assert caplog.text == ""


class Twice(nn.Module):
    """Two heads, their mean the answer, as a distilled transformer has it."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.head_dist = nn.Linear(6, 3), nn.Linear(6, 3)

    def get_classifier(self) -> tuple[nn.Module, nn.Module]:
        return self.head, self.head_dist

    def forward(self, rows: Tensor) -> Tensor:
        return (self.head(rows) + self.head_dist(rows)) / 2  # type: ignore[no-any-return]


class Tokens(nn.Module):
    """The head runs on every place, the mean comes after it."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 4)

    def forward(self, images: Tensor) -> Tensor:
        return self.fc(images.flatten(2).transpose(1, 2)).mean(dim=1)  # type: ignore[no-any-return]


class Unlayered(nn.Module):
    """The layer's weight is used, the layer is not."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 3)

    def forward(self, rows: Tensor) -> Tensor:
        return nn.functional.linear(rows, self.fc.weight)


class Again(nn.Module):
    """The same layer over and over."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 6)

    def forward(self, rows: Tensor) -> Tensor:
        return self.fc(self.fc(rows))  # type: ignore[no-any-return]


def convolutional() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten())


BAD: list[tuple[Any, dict[str, Any], str]] = [
    (sequential(), {"class_names": list("abc")}, r"linear layer with 3 outputs.*'6', has 4; pass as many"),
    (sequential(), {"class_names": "abcd"}, "class names as a list of words"),
    (sequential(), {"head": "6", "class_names": list("abc")}, "Expected 4 class names"),
    (sequential(), {"head": "fc"}, "name of a layer as head but got 'fc'; the network's last linear layers are '6'"),
    (sequential(), {"head": "3"}, r"features of shape \(N, D\) in front of the head but got \(2, 8, 10, 10\)"),
    (sequential(), {"head": "4"}, r"got \(2, 8, 2, 2\); name a later layer, behind pooling and flattening"),
    (sequential(), {"head": "5"}, "outputs of the layer '5' but they are made of more"),
    (sequential(), {"input_size": (1, 1)}, "takes images of shape .* but it failed"),
    (sequential(), {"channels": 1}, "but it failed.*channels="),
    (sequential(), {"colour": "red"}, "no property of a model .colour., expected one of"),
    (convolutional(), {}, r"last layer is the convolution '2', which makes maps \(N, C, H, W\).*nn.AdaptiveAvgPool2d"),
    (nn.Flatten(), {}, "Flatten has none; say which layer"),
    (nn.Sequential(sequential(), nn.Softmax(dim=1)), {}, "ends in a softmax; return what goes into it"),
    (Twice(), {"input_size": (6,)}, "made of more, such as a second head"),
    (Tokens(), {}, r"but got \(2, 144, 3\)"),
    (Unlayered(), {"input_size": (6,)}, "never ran as a layer; wrap the network before it is compiled"),
    (Again(), {"input_size": (6,)}, "ran 2 times"),
    (nn.Sequential(nn.Flatten(0), nn.Linear(6, 3)), {"input_size": (3,)}, r"logits of shape \(N, C\) but got \(3,\)"),
    (sequential().half(), {}, r"torch.float16; call network.float\(\)"),
    ("resnet50", {}, "an nn.Module that returns logits, but got str"),
    (sequential(), {"preprocessing": "imagenet"}, "weights.transforms"),
]


@pytest.mark.parametrize(("network", "told", "message"), BAD)
def test_what_cannot_be_wrapped_is_refused_with_what_to_do(network: Any, told: dict[str, Any], message: str) -> None:
    with pytest.raises(DriftgateError, match=message):
        driftgate.wrap(network, **{"input_size": (SIZE, SIZE), **told})


def test_what_is_wrapped_already_is_refused() -> None:
    model = driftgate.wrap(sequential(), input_size=(SIZE, SIZE))
    assert isinstance(model, WrappedModel)
    with pytest.raises(DriftgateError, match="wrapped already"):
        driftgate.wrap(model)
    with pytest.raises(DriftgateError, match=r"pass driftgate.wrap\(network, class_names=\.\.\.\)"):
        driftgate.create("gmm", sequential())  # type: ignore[arg-type]


def test_a_size_nothing_tells_is_asked_for() -> None:
    with pytest.raises(DriftgateError, match=r"Expected input_size=\(height, width\), or \(D,\) for rows"):
        driftgate.wrap(sequential())
