"""benchmarks/hostile.py, share_anchors.py and norm_blend.py: the batches they make, and what they count."""

from __future__ import annotations

import pytest
import torch
from support import images_of, load_benchmark, small_model

from driftgate import UNKNOWN
from driftgate.models.normalization import batch_statistics, preserved_buffers
from driftgate.rng import seeded

hostile, share_anchors, norm_blend = map(load_benchmark, ("hostile", "share_anchors", "norm_blend"))


@pytest.mark.parametrize("kind", (*hostile.KINDS, "copies"))
def test_a_hostile_batch_is_what_its_name_says(kind: str) -> None:
    images, labels = images_of(40, 0), torch.arange(40) % 4 - 1
    batch = hostile.hostile_batch(kind, images, labels, seeded(5))
    assert batch.shape == (hostile.BATCH_SIZE, *images.shape[1:])
    sources = [(images == one).flatten(1).all(dim=1).nonzero().flatten().tolist() for one in batch]
    if kind in ("only unknown", "one class"):
        wanted = UNKNOWN if kind == "only unknown" else 0
        assert all(labels[places[0]] == wanted for places in sources)
    elif kind == "black":
        assert not batch.any()
    elif kind == "copies":
        assert len({places[0] for places in sources}) == 1
    elif kind == "noise":
        assert not any(sources) and batch.std() > 0.25
    else:
        assert all((images == one.flip(1)).flatten(1).all(dim=1).any() for one in batch)


def test_an_episode_has_its_length() -> None:
    clean = [(images_of(20, seed), torch.arange(20) % 4 - 1) for seed in range(2)]
    assert not list(hostile.episode("black", 0, clean))
    mixed = list(hostile.episode("mixed", 7, clean))
    assert len(mixed) == 7 and not mixed[1].any() and not mixed[6].any() and mixed[0].any()


def test_quarters_are_moved_whole() -> None:
    images = (
        torch.arange(4.0).view(1, 1, 2, 2).repeat_interleave(4, dim=2).repeat_interleave(4, dim=3).repeat(9, 3, 1, 1)
    )
    moved = share_anchors.shuffled_quarters(images, seeded(0))
    quarters = moved[:, 0].unflatten(1, (2, 4)).unflatten(3, (2, 4)).mean(dim=(2, 4)).flatten(1)
    assert (quarters.sort(dim=1).values == torch.arange(4.0)).all()
    assert len({tuple(row) for row in quarters.tolist()}) > 3


def test_anchors_are_means_over_the_stream_and_leave_the_model_alone() -> None:
    model = small_model().eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with torch.no_grad():
        values, predicted = share_anchors.anchors(model, iter([images_of(20, 0), images_of(12, 1)]), by_batch=False)
        own = torch.cat([model(images).logits.argmax(dim=1) for images in (images_of(20, 0), images_of(12, 1))])
    assert torch.equal(predicted, own) and all(0 <= value <= 1 for value in values.values())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_blend_reaches_from_the_source_to_the_batch() -> None:
    model, images = small_model().eval(), images_of(24, 0)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = {}
    with torch.no_grad():
        for share in (0.0, 0.5, 1.0):
            with norm_blend.blended(model, share):
                found[share] = model(images).logits
        assert torch.allclose(found[0.0], model(images).logits, atol=1e-5)
        with preserved_buffers(model), batch_statistics(model, len(images)):
            assert torch.allclose(found[1.0], model(images).logits, atol=1e-4)
    assert not torch.allclose(found[0.5], found[0.0], atol=1e-2)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
