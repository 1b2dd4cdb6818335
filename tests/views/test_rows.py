"""Views of rows, none, and of the user's own: as large as the features' spread, drawn from the generator alone."""

from __future__ import annotations

import pytest
import torch
from support import state_of
from torch import Tensor, nn

import driftgate
from driftgate import DriftgateError, SourceModel
from driftgate.models.input import InputSpec
from driftgate.rng import seeded
from driftgate.views import RowView, RowViews, choose_views

PLAIN = InputSpec(input_size=(50,))
PICTURES = InputSpec(input_size=(8, 8))


def rows(count: int, seed: int = 0) -> Tensor:
    """Features of very different spread: 0.01 to 100, and one that is constant."""
    scale = torch.logspace(-2, 2, 50)
    scale[-1] = 0.0
    return torch.randn(count, 50, generator=seeded(seed)) * scale + 3.0


def test_noise_and_dropout_are_as_large_as_they_say() -> None:
    batch = rows(4_000)
    view = RowView(0.2, 0.25, PLAIN)(batch, seeded(1))
    mean, spread = batch.mean(dim=0), batch.std(dim=0)
    dropped = view == mean
    assert dropped[:, :-1].float().mean() == pytest.approx(0.25, abs=0.01)
    moved = torch.where(dropped, torch.nan, view - batch)[:, :-1]
    spreads = torch.stack([column[~column.isnan()].std() for column in moved.T])
    torch.testing.assert_close(spreads, 0.2 * spread[:-1], rtol=0.06, atol=0.0)
    assert torch.equal(view[:, -1], batch[:, -1])  # what never varies gets no noise


def test_the_source_s_moments_are_taken_where_the_model_knows_them() -> None:
    spec = InputSpec(input_size=(50,), mean=tuple(range(50)), std=(2.0,) * 50)
    view = RowView(0.5, 0.5, spec)(torch.zeros(2_000, 50), seeded(0))
    dropped = view == torch.arange(50.0)
    assert dropped[:, 1:].float().mean() == pytest.approx(0.5, abs=0.01)
    assert view[~dropped].std() == pytest.approx(1.0, rel=0.02)


def test_a_row_alone_takes_the_moments_over_its_features() -> None:
    row = torch.randn(1, 50, generator=seeded(3))
    view = RowView(0.1, 0.1, PLAIN)(row, seeded(0))
    assert view.isfinite().all() and not torch.equal(view, row)
    assert (view - row).abs().max() < 4.0
    assert torch.equal(RowView(0.1, 0.1, PLAIN)(torch.full((1, 50), 7.0), seeded(0)), torch.full((1, 50), 7.0))


def test_draws_come_from_the_generator_alone_and_each_row_draws_its_own() -> None:
    batch, before = rows(1).repeat(6, 1) + rows(6) * 1e-3, torch.get_rng_state()
    for view in (RowViews(PLAIN).weak, RowViews(PLAIN).strong):
        one, two = view(batch, seeded(5)), view(batch, seeded(5))
        assert torch.equal(one, two) and not torch.equal(one, view(batch, seeded(6)))
        assert all(not torch.equal(one[0], one[other]) for other in range(1, 6))
    assert torch.equal(before, torch.get_rng_state())


def test_the_strong_view_is_further_away() -> None:
    batch, views = rows(200), RowViews(PLAIN)
    distance = [float((view(batch, seeded(0)) - batch).norm()) for view in (views.weak, views.strong)]
    assert distance[1] > 1.5 * distance[0]


def test_the_inputs_decide() -> None:
    assert choose_views(None, PLAIN).name == "rows"
    assert choose_views(None, PICTURES).name == "images"
    assert choose_views("none", PICTURES).name == choose_views("none", PLAIN).name == "none"
    batch = rows(3)
    assert choose_views("none", PLAIN).weak(batch, seeded(0)) is batch
    for choice, spec in (("rows", PICTURES), ("images", PLAIN), ("mirror", PLAIN)):
        with pytest.raises(DriftgateError, match=f"Expected views out of {spec.kind}, none, or a function"):
            choose_views(choice, spec)
    with pytest.raises(DriftgateError, match="as a name or a function"):
        choose_views(3, PLAIN)  # type: ignore[arg-type]


@pytest.mark.parametrize("channels", [1, 2, 3, 5])
def test_pictures_of_any_number_of_channels(channels: int) -> None:
    views = choose_views(None, InputSpec(input_size=(12, 10), channels=channels))
    images = torch.rand(6, channels, 12, 10, generator=seeded(0))
    for view in (views.weak, views.strong):
        changed = view(images, seeded(1))
        assert changed.shape == images.shape and changed.min() >= 0 and changed.max() <= 1
        assert (changed - images).abs().mean() > 0.01


def model() -> SourceModel:
    """Partly sure and partly not: one that doubts everything teaches COMET nothing."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(50, 20), nn.BatchNorm1d(20), nn.ReLU(), nn.Linear(20, 4))
    with torch.no_grad():
        network[-1].weight.mul_(20.0)
    return driftgate.wrap(network)


@pytest.mark.parametrize("name", ["adacontrast", "comet-f", "gmm", "gmm-comet"])
def test_methods_learn_from_the_view_they_are_given(name: str) -> None:
    def learned(views: object) -> dict[str, Tensor]:
        method = driftgate.create(name, model(), views=views, lr=0.1, teach_share=1.0)
        for seed in range(3):
            method.step(rows(32, seed) / 50)
        return state_of(method)

    seen: list[tuple[int, ...]] = []

    def mirrored(inputs: Tensor, generator: torch.Generator) -> Tensor:
        seen.append(tuple(inputs.shape))
        return inputs.flip(1)

    def untouched(inputs: Tensor, generator: torch.Generator) -> Tensor:
        return inputs.mul_(1.0)  # in place: on a copy

    own, none, default = learned(mirrored), learned("none"), learned(None)
    assert len(seen) >= 3 and set(seen) == {(32, 50)}
    weights = "model.network.0.weight"
    assert not torch.equal(own[weights], none[weights]) and not torch.equal(default[weights], none[weights])
    assert torch.equal(learned(untouched)[weights], none[weights])


@pytest.mark.parametrize(
    ("view", "message"),
    [
        (lambda inputs, generator: inputs[:, :3], r"shape \(32, 50\) but got \(32, 3\)"),
        (lambda inputs, generator: inputs.long(), "torch.int64"),
        (lambda inputs, generator: None, "NoneType"),
    ],
)
def test_a_view_that_is_none_is_refused_and_changes_nothing(view: object, message: str) -> None:
    method = driftgate.create("gmm", model(), views=view)
    before = state_of(method)
    with pytest.raises(DriftgateError, match=message):
        method.step(rows(32))
    assert all(torch.equal(value, before[key]) for key, value in state_of(method).items())


def test_views_come_back_with_a_saved_method(tmp_path: object) -> None:
    path = f"{tmp_path}/method.safetensors"
    driftgate.create("gmm", model(), views="none").save(path)
    assert driftgate.load(path, model=model()).views.name == "none"
    own = driftgate.create("gmm", model(), views=lambda inputs, generator: inputs + 1.0)
    own.save(path)
    with pytest.raises(DriftgateError, match="views of your own"):
        driftgate.load(path, model=model())
    again = driftgate.load(path, model=model(), views=own.views.weak)
    assert torch.equal(again.views.weak(rows(2), seeded(0)), rows(2) + 1.0)


def test_a_view_that_cannot_be_called_is_refused_before_the_first_batch() -> None:
    with pytest.raises(DriftgateError, match=r"inputs and a torch.Generator .* `def views\(inputs, generator\)`"):
        driftgate.create("gmm", model(), views=lambda inputs: inputs)
