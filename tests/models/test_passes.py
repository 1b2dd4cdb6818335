"""The passes of a step: every memory mode gives the gradients and statistics of plain autograd, in less memory."""

from __future__ import annotations

import pytest
import torch
from support import bytes_kept, images_of, residual_model, small_model
from torch import Tensor, nn

import driftgate
from driftgate import SourceModel
from driftgate.models.layers import select_parameters
from driftgate.models.passes import MemoryMode, Passes, checkpointed, repeated_blocks
from driftgate.models.source_model import ModelOutput

MODES: list[MemoryMode] = ["fast", "balanced", "low"]
BatchNorm = nn.modules.batchnorm._BatchNorm


def build(kind: str) -> SourceModel:
    names = ["a", "b", "c"]
    if kind == "residual":
        return residual_model()
    if kind == "small":
        return small_model()
    if kind == "cnn":
        return SourceModel.build("cnn", names)
    return SourceModel.build(kind, names, weights="none", input_size=(32, 32))


def views_of(model: SourceModel, count: int = 2, size: int = 6) -> list[Tensor]:
    height, width = model.spec.input_size
    generator = torch.Generator().manual_seed(0)
    return [torch.rand(size, 3, height, width, generator=generator) for _ in range(count)]


def tangled(outputs: list[ModelOutput]) -> Tensor:
    """A loss that ties the views to each other, through features and through logits."""
    loss = torch.zeros(())
    for index, (features, logits) in enumerate(outputs):
        other = outputs[index - 1].features
        loss = loss + nn.functional.cosine_similarity(features, other.roll(1, dims=0)).square().sum()
        loss = loss + (logits.log_softmax(dim=1)[:, index % logits.shape[1]]).sum()
    return loss


def gradients(model: SourceModel) -> dict[str, Tensor]:
    return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}


def plain_autograd(model: SourceModel, views: list[Tensor], *, follow: bool) -> dict[str, Tensor]:
    """Batch norm in train mode, everything else in eval mode, and nothing else done."""
    for layer in model.modules():
        if isinstance(layer, BatchNorm):
            layer.train(follow)
    tangled([model(images) for images in views]).backward()
    model.eval()
    return gradients(model)


def through_passes(model: SourceModel, views: list[Tensor], mode: MemoryMode, *, follow: bool) -> dict[str, Tensor]:
    passes = Passes(model, memory=mode, follow=follow)
    outputs = [passes.forward(images, last=index == len(views) - 1) for index, images in enumerate(views)]
    passes.backward(tangled(outputs))
    return gradients(model)


def assert_close(one: dict[str, Tensor], two: dict[str, Tensor]) -> None:
    assert one.keys() == two.keys() and len(one) > 0
    for name, expected in one.items():
        scale = max(float(expected.abs().max()), 1e-3)
        assert torch.allclose(two[name], expected, rtol=1e-3, atol=2e-4 * scale), name


@pytest.mark.parametrize("follow", [True, False], ids=["batch", "running"])
@pytest.mark.parametrize("kind", ["small", "residual", "cnn", "resnet50", "lite0"])
def test_every_mode_gives_the_gradients_and_statistics_of_autograd(kind: str, follow: bool) -> None:
    model = build(kind)
    start = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    views = views_of(model, count=3 if kind == "small" else 2)
    expected = {name: gradient.clone() for name, gradient in plain_autograd(model, views, follow=follow).items()}
    statistics = {name: buffer.clone() for name, buffer in model.named_buffers()}
    assert len(expected) == len(list(model.parameters()))
    for mode in MODES:
        model.load_state_dict(start)
        model.zero_grad(set_to_none=True)
        assert_close(expected, through_passes(model, views, mode, follow=follow))
        for name, buffer in model.named_buffers():
            assert torch.equal(buffer, statistics[name]), (mode, name)  # counters of batches among them
        assert not any(module.training for module in model.modules())
        assert all("forward" not in vars(module) for module in model.modules())


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("layers", ["all", "norm", "head", "features", "classifier", "backbone._blocks.7"])
def test_layers_that_do_not_learn_get_nothing_and_the_others_the_same(layers: str, mode: MemoryMode) -> None:
    model = build("lite0")
    learning = select_parameters(model, layers)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in learning)
    start = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    views = views_of(model, size=4)
    expected = {name: gradient.clone() for name, gradient in plain_autograd(model, views, follow=True).items()}
    model.load_state_dict(start)
    model.zero_grad(set_to_none=True)
    found = through_passes(model, views, mode, follow=True)
    assert found.keys() == learning.keys()
    assert_close(expected, found)


def test_a_view_whose_outputs_the_loss_leaves_out_costs_nothing() -> None:
    model = small_model()
    passes = Passes(model, memory="balanced")
    passes.forward(images_of(6, 0), last=False)
    output = passes.forward(images_of(6, 1), last=True)
    passes.backward(output.logits.square().sum())
    found = {name: gradient.clone() for name, gradient in gradients(model).items()}
    model.zero_grad(set_to_none=True)
    alone = Passes(small_model())
    alone.backward(alone.forward(images_of(6, 1), last=True).logits.square().sum())
    assert_close(gradients(alone.model), found)


@pytest.mark.parametrize("mode", MODES)
def test_one_sample_keeps_the_running_statistics(mode: MemoryMode) -> None:
    model = small_model()
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    through_passes(model, views_of(model, size=1), mode, follow=True)
    assert all(torch.equal(before[name], buffer) for name, buffer in model.named_buffers())


@pytest.mark.parametrize("mode", MODES)
def test_without_gradients_nothing_is_kept(mode: MemoryMode) -> None:
    passes = Passes(small_model(), memory=mode)
    with torch.no_grad():
        output = passes.forward(images_of(4, 0), last=False)
    assert not output.features.requires_grad and passes.deferred == []


def test_blocks_are_found() -> None:
    resnet = build("resnet50").backbone
    assert repeated_blocks(resnet) == [
        block for stage in (resnet.layer1, resnet.layer2, resnet.layer3, resnet.layer4) for block in stage
    ]
    assert len(repeated_blocks(resnet)) == 16
    lite = build("lite0").backbone
    assert repeated_blocks(lite) == list(lite._blocks) and len(repeated_blocks(lite)) == 16
    assert repeated_blocks(build("cnn").backbone) == []  # layers, but no blocks of layers


def test_checkpointing_is_undone_after_an_error() -> None:
    network = nn.Sequential(nn.Sequential(), nn.ModuleList([nn.TransformerEncoderLayer(4, 2)]))
    block = network[1][0]
    assert repeated_blocks(network) == [block]
    with pytest.raises(RuntimeError, match="stop"), checkpointed(network):
        assert "forward" in vars(block)
        raise RuntimeError("stop")
    assert "forward" not in vars(block)


def kept_bytes(model: SourceModel, mode: MemoryMode) -> int:
    """Bytes of distinct memory the graph keeps for the backward pass, weights and inputs not counted."""
    passes = Passes(model, memory=mode)
    views = views_of(model, size=4)

    def forward() -> list[ModelOutput]:
        outputs = [passes.forward(images, last=index == len(views) - 1) for index, images in enumerate(views)]
        assert outputs[-1].logits.requires_grad
        return outputs

    return bytes_kept(forward, *model.parameters(), *model.buffers(), *views)


@pytest.mark.parametrize("kind", ["resnet50", "lite0"])
def test_less_is_kept_in_lower_modes(kind: str) -> None:
    fast, balanced, low = (kept_bytes(build(kind), mode) for mode in MODES)
    assert balanced < 0.6 * fast  # one view of two
    assert low < 0.6 * balanced


@pytest.mark.parametrize("mode", MODES)
def test_frozen_layers_before_the_first_that_learns_keep_no_activations(mode: MemoryMode) -> None:
    model = build("resnet50")
    method = driftgate.create("gmm", model, adapt_layers="head")
    everything = kept_bytes(build("resnet50"), mode)
    head = kept_bytes(method.model, mode)
    # Input of the bottleneck, of its norm and of the classifier, for two views at most.
    assert 0 < head < 2 * 4 * 4 * (2048 + 16 * 256) < everything / 2


@pytest.mark.parametrize("mode", ["balanced", "low"])
def test_twenty_steps_of_the_method_are_the_same_in_every_mode(mode: str) -> None:
    def run(memory: str) -> dict[str, Tensor]:
        method = driftgate.create("gmm", residual_model(), memory=memory, lr=0.01, teach_share=1.0)
        for seed in range(20):
            method.step(images_of(16, seed))
        return method.model.state_dict()

    assert len(repeated_blocks(residual_model().backbone)) == 2
    plain, other = run("fast"), run(mode)
    assert not torch.allclose(plain["backbone.0.weight"], residual_model().state_dict()["backbone.0.weight"], atol=1e-3)
    for name, expected in plain.items():
        assert torch.allclose(other[name].float(), expected.float(), rtol=1e-4, atol=1e-6), name
