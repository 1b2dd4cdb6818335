"""Who GLC, GLC++ and LEAD take for a sample's neighbours: ours, and the released codes' rule as a preset."""

from __future__ import annotations

import pytest
import torch
from support import calls_of, images_of, small_model
from torch import Tensor
from torch.nn import functional as F

import driftgate
from driftgate.methods.batchwise import SoftTargetMethod, SoftTargets

pytestmark = pytest.mark.parametrize("name", ["glc", "glc++", "lead"])


def make(name: str, **settings: object) -> SoftTargetMethod:
    method = driftgate.create(name, small_model(), **settings)
    assert isinstance(method, SoftTargetMethod)
    return method


def lesson_of(method: SoftTargetMethod, images: Tensor, monkeypatch: pytest.MonkeyPatch) -> SoftTargets:
    """What a step learned from."""
    calls = calls_of(method, "terms", monkeypatch)
    method.step(images)
    ((_, lesson), _), *others = calls
    assert isinstance(lesson, SoftTargets) and not others
    return lesson


def own_share(neighbors: Tensor) -> float:
    return float((neighbors == torch.arange(len(neighbors))[:, None]).any(dim=1).float().mean())


def test_the_preset_is_visda_with_the_released_rule(name: str) -> None:
    released, visda = (make(name, preset=preset).settings for preset in ("released", "visda"))
    assert (released.neighbor_rule, visda.neighbor_rule) == ("released", "others")
    assert released.model_dump() | {"neighbor_rule": "others"} == visda.model_dump()
    assert make(name, preset="office-home", neighbor_rule="released").settings.lr == 1e-3


def test_released_neighbours_by_hand(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bank is in the running statistics, the query in those of the batch; the best hit goes, whoever it is."""
    images, model = images_of(24, 0), small_model()
    with torch.no_grad():
        bank = model.eval()(images)
        for layer in (model.backbone[1], model.bottleneck[1]):
            layer.train()
        query = F.normalize(model(images).features, dim=1)
    lesson = lesson_of(make(name, preset="released"), images, monkeypatch)
    keys, chances = F.normalize(bank.features, dim=1), bank.logits.softmax(dim=1)
    for row in range(24):
        order = sorted(range(24), key=lambda place: -float(query[row] @ keys[place]))[1:5]
        assert sorted(lesson.neighbors[row].tolist()) == sorted(order)
        expected = sum(chances[place] for place in order) / 4
        assert torch.allclose(lesson.neighbor_targets[row], expected, atol=1e-6)


def test_released_lets_samples_be_their_own_neighbours(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    images = images_of(48, 0)
    assert own_share(lesson_of(make(name), images, monkeypatch).neighbors) == 0.0
    assert own_share(lesson_of(make(name, preset="released"), images, monkeypatch).neighbors) > 0.1


def test_rules_are_one_where_both_passes_are(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    images = images_of(24, 0)
    ours, theirs = (
        lesson_of(make(name, neighbor_rule=rule, batch_norm="running"), images, monkeypatch)
        for rule in ("others", "released")
    )
    assert torch.equal(ours.neighbors.sort(dim=1).values, theirs.neighbors.sort(dim=1).values)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_few_samples_have_few_neighbours(name: str, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    method = make(name, preset="released")
    lesson = lesson_of(method, images_of(size, 0), monkeypatch)
    assert lesson.neighbors.shape == (size, size - 1)
    assert all(parameter.isfinite().all() for parameter in method.model.parameters())
