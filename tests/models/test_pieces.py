"""Batches in pieces: what the whole gives, for every method that learns, and a graph that does not grow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from support import SIZE, bytes_kept, images_of, residual_model, settings_for
from torch import Tensor, nn

import driftgate
from driftgate import SourceModel, available
from driftgate.methods.batchwise import SoftTargetMethod
from driftgate.methods.gradient import GradientMethod
from driftgate.models.passes import MemoryMode, Passes
from driftgate.models.statistics import SourceStatistics
from driftgate.types import DriftgateError

NAMES = [f"class {index}" for index in range(5)]
WIDTH = 16
LEARNING = sorted(name for name, kind in available().items() if issubclass(kind, GradientMethod))


class TinyViT(nn.Module):
    """Patches of 2 x 2 pixels, a class token, two blocks of attention."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, 2, stride=2)
        self.token = nn.Parameter(torch.randn(1, 1, WIDTH))
        self.places = nn.Parameter(torch.randn(1, 17, WIDTH))
        layer = nn.TransformerEncoderLayer(WIDTH, 2, 32, activation="gelu", batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, len(NAMES))
        nn.init.normal_(self.head.weight)  # partly sure

    def forward(self, images: Tensor) -> Tensor:
        patches = self.patches(images).flatten(2).mT
        tokens = torch.cat([self.token.expand(images.shape[0], -1, -1), patches], dim=1) + self.places
        logits: Tensor = self.head(self.blocks(tokens)[:, 0])
        return logits


class ConvNeXtBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(WIDTH, WIDTH, 3, padding=1, groups=WIDTH)
        self.inside = nn.Sequential(
            nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH)
        )

    def forward(self, maps: Tensor) -> Tensor:
        output: Tensor = maps + self.inside(self.depthwise(maps).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return output


def build(kind: str) -> SourceModel:
    """A wrapped ViT; or a ConvNeXt under a bottleneck, whose batch norm sees the whole batch."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        if kind == "vit":
            model = driftgate.wrap(TinyViT(), NAMES, input_size=(SIZE, SIZE), mean=0.5, std=0.25)
        else:
            stem, blocks = nn.Conv2d(3, WIDTH, 2, stride=2), (ConvNeXtBlock(), ConvNeXtBlock())
            backbone = nn.Sequential(stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LayerNorm(WIDTH))
            model = SourceModel.untrained(backbone, class_names=NAMES, input_size=(SIZE, SIZE), feature_dim=WIDTH)
            with torch.no_grad():  # partly sure, or some methods find nothing to learn from
                model.classifier.weight = 30.0 * model.classifier.weight
        mixing = torch.randn(WIDTH, WIDTH) / 4
        model.statistics = SourceStatistics(torch.randn(5, WIDTH), torch.randn(WIDTH), mixing @ mixing.T)
        return model


def run(kind: str, name: str, **settings: Any) -> dict[str, Tensor]:
    model = build(kind)
    if kind == "vit" and issubclass(available()[name], SoftTargetMethod):
        model.double()  # K-means on features without clusters: in float32 a last digit decides, on some processors
    method = driftgate.create(name, model, **settings_for(name, model), **settings)
    for seed in range(3):
        method.step(images_of(20, seed))
    return method.state_dict()


@pytest.mark.parametrize("kind", ["vit", "convnext"])
@pytest.mark.parametrize("name", LEARNING)
def test_every_method_learns_the_same_in_pieces(name: str, kind: str) -> None:
    start, whole, pieces = build(kind).state_dict(), run(kind, name), run(kind, name, piece_size=8)
    moved = [key for key, value in start.items() if not torch.equal(whole[f"model.{key}"], value)]
    assert moved  # or the agreement would say nothing
    for key, expected in whole.items():
        near = 1e-5 if key.startswith("model.") else 1e-4  # sums of logarithms in memory and gate round more coarsely
        assert torch.allclose(pieces[key].double(), expected.double(), rtol=near, atol=near), key


def gradients(model: SourceModel, memory: MemoryMode, piece_size: int | None, follow: bool = True) -> dict[str, Tensor]:
    model.piece_size = piece_size
    model.zero_grad(set_to_none=True)
    passes = Passes(model, memory=memory, follow=follow)
    one, two = (passes.forward(images_of(10, seed), last=seed == 1) for seed in range(2))
    passes.backward(
        nn.functional.cosine_similarity(one.features, two.features.roll(1, 0)).sum() + two.logits.square().sum()
    )
    assert all("forward" not in vars(module) for module in model.modules())
    return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}


@pytest.mark.parametrize("kind", ["vit", "convnext"])
@pytest.mark.parametrize("memory", ["fast", "balanced", "low"])
@pytest.mark.parametrize("piece_size", [1, 3, 10, 99])
def test_gradients_are_those_of_the_whole_in_every_mode(kind: str, memory: MemoryMode, piece_size: int) -> None:
    model = build(kind)
    expected, found = gradients(model, "fast", None), gradients(model, memory, piece_size)
    assert found.keys() == expected.keys() == dict(model.named_parameters()).keys()
    # Of the same absolute size for all: the gradient of a bias before batch norm is nothing but rounding.
    largest = max(float(gradient.abs().max()) for gradient in expected.values())
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-6 * largest)


def test_running_statistics_leave_batch_norm_free_to_be_cut() -> None:
    model = residual_model()
    expected, found = gradients(model, "fast", None, follow=False), gradients(model, "fast", 3, follow=False)
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("count", [4, 20])
def test_batch_norm_by_the_batch_is_refused_and_nothing_changes(count: int) -> None:
    method = driftgate.create("tent", residual_model(), piece_size=8)
    before = {name: value.clone() for name, value in method.state_dict().items()}
    with pytest.raises(DriftgateError, match=r"piece_size=8, .* batch_norm='running'"):
        method.step(images_of(count, 0))
    assert all(torch.equal(value, before[name]) for name, value in method.state_dict().items())
    driftgate.create("tent", residual_model(), piece_size=8, batch_norm="running").step(images_of(count, 0))


def kept_bytes(count: int, piece_size: int | None) -> int:
    """Bytes the graph of a forward pass keeps, weights and inputs not counted."""
    model, images = build("vit"), images_of(count, 0)
    model.piece_size = piece_size

    def forward() -> Tensor:
        logits = model(images).logits
        assert logits.requires_grad
        return logits

    return bytes_kept(forward, *model.parameters(), images)


def test_the_graph_keeps_the_pieces_inputs_alone() -> None:
    assert kept_bytes(32, None) > 100 * 32 * 4 * WIDTH
    assert kept_bytes(32, 4) <= 32 * 4 * 3 * SIZE * SIZE  # the normalised images
    assert kept_bytes(4, 4) == kept_bytes(4, None)


class Alive(nn.Module):
    """Tells how many samples' inner activations are held at most at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.now, self.most = [0], [0]

    def forward(self, values: Tensor) -> Tensor:
        output: Tensor = Counted.apply(values * self.weight, self.now, self.most)
        return output


class Counted(torch.autograd.Function):
    """Identity that counts the samples between its forward pass with a graph and its backward pass."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, now: list[int], most: list[int]) -> Tensor:
        ctx.now, ctx.count = now, len(values)
        now[0] += len(values)
        most[0] = max(most[0], now[0])
        ctx.save_for_backward(values)
        return values.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        ctx.saved_tensors  # noqa: B018 (what makes a piece be computed again)
        ctx.now[0] -= ctx.count
        return gradients[0], None, None


def test_one_piece_after_another_is_computed_again() -> None:
    inside = Alive()
    backbone = nn.Sequential(nn.Flatten(), nn.Linear(3 * SIZE * SIZE, WIDTH), inside)
    model = SourceModel.untrained(backbone, class_names=NAMES, input_size=(SIZE, SIZE), feature_dim=WIDTH)
    model.piece_size = 4
    passes = Passes(model)
    outputs = [passes.forward(images_of(32, seed), last=seed == 1) for seed in range(2)]
    inside.now[0] = inside.most[0] = 0  # of the first forward pass nothing is held
    passes.backward(torch.stack([output.logits.square().sum() for output in outputs]).sum())
    assert inside.most[0] == 4


def test_prediction_and_step_agree_to_the_last_bit_and_the_export_is_not_cut(tmp_path: Path) -> None:
    method = driftgate.create("gmm", build("vit"), piece_size=3, min_batch=1, teach_share=1.0)
    method.step(images_of(16, 0))
    predicted, stepped = method.predict(images_of(16, 1)), method.step(images_of(16, 1))
    assert torch.equal(predicted.scores, stepped.scores) and torch.equal(predicted.novelty, stepped.novelty)
    method.export(tmp_path / "network.pt", to="torchscript", sample=images_of(7, 2))
    assert method.model.piece_size == 3
    assert driftgate.create("source-only", method.model).model.piece_size is None
