"""The dial: what each effort sets, and that its parts do what they say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from support import images_of, small_model
from torch import Tensor

import driftgate
from driftgate import UNLABELED, DriftgateError, Method, available
from driftgate.methods.effort import EffortSettings, answer_scores, is_due, sure_enough
from driftgate.methods.gmm import GMM, GMMSettings
from driftgate.methods.gmm_settings import EFFORTS, PAPER

LEARNING = sorted(name for name, method in available().items() if issubclass(method.Settings, EffortSettings))


def weights_of(method: Method) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in method.named_parameters()}


def moved(method: Method, before: dict[str, Tensor]) -> set[str]:
    return {name for name, value in method.named_parameters() if not torch.equal(value, before[name])}


EASY: dict[str, dict[str, Any]] = {name: {"tau_known": 1.0, "tau_unknown": 1.0} for name in ("comet-f", "comet-p")}
"""Of a network that is sure of nothing they would learn nothing else."""


def gmm(**settings: Any) -> GMM:
    method = driftgate.create("gmm", small_model(), **settings)
    assert isinstance(method, GMM)
    return method


def forwards(method: Method) -> list[tuple[int, ...]]:
    """Shapes of all that goes through the network from now on."""
    shapes: list[tuple[int, ...]] = []
    method.model.register_forward_pre_hook(lambda _, inputs: shapes.append(tuple(inputs[0].shape)))
    return shapes


@pytest.mark.parametrize(
    ("share", "due"),
    [(1.0, "111111"), (0.5, "101010"), (1 / 3, "100100"), (0.75, "111011"), (0.0, "000000"), (0.01, "100000")],
)
def test_the_batches_that_teach_are_spread_evenly(share: float, due: str) -> None:
    assert "".join("01"[is_due(step, share)] for step in range(6)) == due


def test_over_a_long_stream_the_share_is_kept_to_a_batch() -> None:
    for share in (0.1, 1 / 3, 0.49, 1 / 7):
        assert abs(sum(is_due(step, share) for step in range(10_000)) - 10_000 * share) <= 1


def test_light_teaches_half_as_often_and_twice_as_much() -> None:
    full, light = gmm(adapt_layers="features"), gmm(adapt_layers="features", effort="light")
    assert light.teach_share * light.settings.lr == full.teach_share * full.settings.lr and light.teach_share == 0.5


@pytest.mark.parametrize(
    ("pretrained", "backbone_norm", "settings", "share"),
    [
        (True, "running", {}, 0.0),
        (True, "running", {"effort": "light"}, 0.0),
        (True, None, {}, 0.0),
        (True, "batch", {}, 0.0),
        (True, "batch", {"effort": "light"}, 0.0),
        (False, "batch", {"effort": "light"}, 0.5),
        (False, "running", {}, 1.0),
        (False, "running", {"effort": "frozen"}, 0.0),
        (True, "running", {"teach_share": 0.3}, 0.3),
        (True, "running", {"adapt_layers": "norm"}, 1.0),
        (True, "running", {"adapt_layers": "last", "effort": "light"}, 0.5),
        (True, "running", {"preset": "paper"}, 1.0),
    ],
)
def test_a_pretrained_network_learns_only_if_asked_to(
    pretrained: bool, backbone_norm: str | None, settings: dict[str, Any], share: float
) -> None:
    model = small_model()
    model.spec = model.spec.model_copy(update={"pretrained": pretrained, "backbone_norm": backbone_norm})
    method = driftgate.create("gmm", model, **settings)
    assert isinstance(method, GMM) and method.teach_share == share
    before = weights_of(method)
    for seed in range(2):
        method.step(images_of(32, seed=seed))
    if share == 0.0:
        assert not moved(method, before)
    if share == 1.0:
        assert moved(method, before)


def test_an_effort_is_a_bundle_under_what_is_set_alone() -> None:
    for effort, bundle in EFFORTS.items():
        chosen = gmm(effort=effort).settings.model_dump()
        assert {name: chosen[name] for name in bundle} == bundle
        assert chosen == {**GMMSettings().model_dump(), **bundle, "effort": effort}
        assert GMMSettings(effort=effort).model_dump() == chosen  # type: ignore[arg-type]
    mixed = gmm(effort="light", second_view="half", lr=0.1).settings
    assert (mixed.second_view, mixed.lr, mixed.backward) == ("half", 0.1, "apart")


def test_an_effort_stands_over_a_preset_and_leaves_the_rest_of_it() -> None:
    chosen = driftgate.create("gmm", small_model(), preset="paper", effort="frozen").settings.model_dump()
    assert {name: chosen[name] for name in EFFORTS["frozen"]} == EFFORTS["frozen"]
    rest = {name: value for name, value in PAPER.items() if name not in EFFORTS["frozen"]}
    assert {name: chosen[name] for name in rest} == rest
    plain = driftgate.create("gmm", small_model(), preset="paper").settings.model_dump()
    assert plain == {**GMMSettings().model_dump(), **PAPER}


def test_an_unknown_effort_is_refused() -> None:
    with pytest.raises(DriftgateError, match="effort"):
        gmm(effort="lazy")


@pytest.mark.parametrize("name", LEARNING)
def test_frozen_changes_no_weight_and_keeps_no_optimiser_state(name: str) -> None:
    method = driftgate.create(name, small_model(), effort="frozen")
    before = weights_of(method)
    for step in range(3):
        prediction = method.step(images_of(32, seed=step))
        assert not prediction.losses and bool((prediction.pseudo_labels == UNLABELED).all())
    assert not moved(method, before) and method.steps == 3
    assert not method.optimizer.state  # type: ignore[union-attr,operator]


@pytest.mark.parametrize("name", LEARNING)
def test_every_method_learns_at_light_on_every_second_batch(name: str) -> None:
    model = small_model()
    model.spec = model.spec.model_copy(update={"pretrained": False})
    method = driftgate.create(name, model, effort="light", **EASY.get(name, {}))
    changed = []
    for step in range(4):
        before = weights_of(method)
        method.step(images_of(32, seed=step))
        changed.append(bool(moved(method, before)))
    assert not changed[1] and not changed[3]
    assert any(changed)


@pytest.mark.parametrize("name", sorted(available()))
def test_a_step_without_learning_changes_no_weight(name: str) -> None:
    method = driftgate.create(name, small_model())
    method.step(images_of(32, seed=0))
    before = weights_of(method)
    told: list[Any] = []
    prediction = method.step(images_of(32, seed=1), learn=False, on_prediction=told.append)
    assert not moved(method, before) and len(told) == 1
    assert bool((prediction.pseudo_labels == UNLABELED).all()) and method.steps == 2


def test_frozen_gmm_is_one_forward_pass_and_its_memory_follows() -> None:
    method = gmm(effort="frozen")
    buffers = {name: value.clone() for name, value in method.model.named_buffers()}
    shapes = forwards(method)
    expected = method.predict(images_of(32, seed=0))
    shapes.clear()
    found = method.step(images_of(32, seed=0))
    assert [shape[0] for shape in shapes] == [32]
    assert torch.equal(found.labels, expected.labels) and torch.equal(found.scores, expected.scores)
    assert float(method.mixture.weights.sum()) == pytest.approx(32, rel=1e-4)
    assert all(torch.equal(value, buffers[name]) for name, value in method.model.named_buffers())


@pytest.mark.parametrize("name", ["gmm", "gmm-comet"])
def test_what_was_only_watched_is_in_the_mixture(name: str) -> None:
    method = driftgate.create(name, small_model(), teach_share=0.0)
    assert isinstance(method, GMM)
    method.step(images_of(32, seed=0))
    assert float(method.mixture.weights.sum()) == pytest.approx(32, rel=1e-4)


def test_few_samples_wait_also_where_nobody_learns() -> None:
    method = gmm(effort="frozen", min_batch=20)
    method.step(images_of(12, seed=0))
    assert len(method.waiting) == 12 and float(method.mixture.weights.sum()) == 0
    method.step(images_of(12, seed=1))
    assert len(method.waiting) == 0 and float(method.mixture.weights.sum()) == pytest.approx(24, rel=1e-4)


def test_the_second_view_is_as_large_as_asked_for() -> None:
    sides = {"full": [8, 8], "half": [8, 4], "none": [8]}
    for second_view, expected in sides.items():
        method = gmm(second_view=second_view, batch_norm="batch", second_opinion=0.0, teach_share=1.0)
        shapes = forwards(method)
        method.step(images_of(32, seed=0))
        assert [shape[-1] for shape in shapes] == expected


def test_half_a_row_of_features_is_refused() -> None:
    network = torch.nn.Sequential(torch.nn.Linear(12, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    model = driftgate.wrap(network, ["a", "b", "c"], input_size=(12,))
    with pytest.raises(DriftgateError, match=r"second_view out of full, none .* rows"):
        driftgate.create("gmm", model, second_view="half")


@pytest.mark.parametrize("contrastive_weight", [0.0, 1.0])
def test_apart_only_labelled_samples_go_backward(contrastive_weight: float) -> None:
    settings = {"backward": "apart", "second_view": "none", "veto_below": 0.0, "batch_norm": "running"}
    method = gmm(**settings, teach_share=1.0, contrastive_weight=contrastive_weight, second_opinion=0.0)
    shapes = forwards(method)
    labels = method.step(images_of(32, seed=0)).pseudo_labels
    count = int((labels != UNLABELED).sum())
    assert 0 < count < 32 and sum(shape[0] for shape in shapes) == 32 + count


@pytest.mark.parametrize("name", ["gmm", "tent", "comet-f", "shot-o", "adacontrast"])
def test_apart_gives_the_weights_of_together_where_statistics_run(name: str) -> None:
    settings: dict[str, Any] = {"batch_norm": "running", "teach_share": 1.0, "lr": 0.01, **EASY.get(name, {})}
    # Of the contrastive loss, samples without a label are the background, and apart they are no more than that.
    settings |= {"contrastive_weight": 0.0, "second_view": "none"} if name == "gmm" else {}
    methods = [driftgate.create(name, small_model(), **settings, backward=way) for way in ("together", "apart")]
    before = weights_of(methods[0])
    for step in range(3):
        answers = [method.step(images_of(32, seed=step)) for method in methods]
        assert torch.equal(answers[0].labels, answers[1].labels)
    assert moved(methods[0], before)
    for key, value in weights_of(methods[0]).items():
        assert torch.allclose(weights_of(methods[1])[key], value, rtol=1e-4, atol=1e-6), key


def test_a_thinned_out_run_goes_on_where_it_was(tmp_path: Path) -> None:
    whole, part = gmm(effort="light", teach_share=1 / 3), gmm(effort="light", teach_share=1 / 3)
    for step in range(5):
        whole.step(images_of(32, seed=step))
    for step in range(2):
        part.step(images_of(32, seed=step))
    part.save(tmp_path / "part.safetensors")
    resumed = driftgate.load(tmp_path / "part.safetensors", model=small_model())
    for step in range(2, 5):
        resumed.step(images_of(32, seed=step))
    assert resumed.settings == whole.settings
    for name, value in whole.state_dict().items():
        assert torch.equal(resumed.state_dict()[name], value), name


def test_sure_enough() -> None:
    labels = torch.tensor([0, UNLABELED, -1, UNLABELED])
    assert sure_enough(labels, 0.5) and not sure_enough(labels, 0.51) and sure_enough(labels[1:2], 0.0)


def test_the_answer_is_the_classifiers_the_mixtures_or_their_mean() -> None:
    logits, likelihood = torch.tensor([[2.0, 0.0]]), torch.tensor([[0.0, 3.0]]).double()
    one, two = logits.softmax(1), likelihood.softmax(1).float()
    assert torch.allclose(answer_scores("classifier", logits, likelihood), one)
    assert torch.allclose(answer_scores("mixture", logits, likelihood), two)
    assert torch.allclose(answer_scores("both", logits, likelihood), (one + two) / 2)


def test_the_exported_file_says_that_the_classifier_names_the_class(tmp_path: Path) -> None:
    method = gmm(effort="frozen")
    method.step(images_of(32, seed=0))
    assert "classifier" in method.frozen().approximation
