"""Methods by name: what is refused, and with which words."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType

import pytest
import torch
from support import images_of, small_model
from torch import Tensor

import driftgate
from driftgate import DriftgateError, Prediction
from driftgate.losses import mean_entropy
from driftgate.methods import GradientSettings, Look, OneStep, homes, look_of, register, registry
from driftgate.methods.base import KNOWN
from driftgate.methods.look import STRANGERS
from driftgate.methods.registry import get_method
from driftgate.models.source_model import ModelOutput
from driftgate.novelty import entropy_prediction
from driftgate.plugins import import_module

EXAMPLE = Path(__file__).parents[2] / "examples" / "margin_entropy.py"


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    """What a test makes known is unknown after it."""
    before = dict(KNOWN)
    yield
    KNOWN.clear()
    KNOWN.update(before)
    registry.load_entry_points.cache_clear()


def test_every_method_is_found_by_its_name_and_no_other() -> None:
    for name, method in driftgate.available().items():
        assert get_method(name) is method and method.name == name
    with pytest.raises(DriftgateError, match=r"method out of adacontrast, .*, tent but got 'gm'; did you mean gmm\?"):
        driftgate.create("gm", small_model())


def test_what_the_methods_say_of_themselves() -> None:
    """As the papers have it: who needs more of the source than its model, and who cannot tell unknown classes."""
    methods = driftgate.available().values()
    assert {method.name for method in methods if not method.source_free} == {"comet-p", "owttt"}
    assert {method.name for method in methods if method.needs} == {"comet-p", "owttt"}
    assert {method.name for method in methods if not method.universal} == {"adacontrast", "shot-o", "shot-p", "tent"}


def test_what_is_wrong_with_settings_is_told_one_by_one() -> None:
    with pytest.raises(DriftgateError) as error:
        driftgate.create("tent", small_model(), lr=-1.0, threshold=2.0, speed=3)
    text = str(error.value)
    assert text.startswith("Settings of 'tent': threshold: Input should be less than or equal to 1, got 2.0; lr: ")
    assert "lr: Input should be greater than 0, got -1.0; no setting 'speed', expected one of seed, " in text
    assert text.endswith(".")


def make_class(name: str, module: str = "somewhere", **more: object) -> type[OneStep]:
    """A method of two functions, as if it stood in ``module``."""

    def assess(self: OneStep, output: ModelOutput) -> Prediction:
        return entropy_prediction(output.logits, 0.5)

    def loss(self: OneStep, output: ModelOutput, prediction: Prediction) -> Tensor:
        return mean_entropy(output.logits)

    body = {"assess": assess, "loss": loss, "__module__": module, "__qualname__": "Mine"}
    return type("Mine", (OneStep,), body, name=name, **more)  # type: ignore[call-overload, no-any-return]


def test_two_functions_are_a_method() -> None:
    mine = make_class("mine", settings=GradientSettings)
    method = driftgate.create("mine", small_model(), lr=0.1)
    assert isinstance(method, mine) and driftgate.available()["mine"] is mine
    before = {name: value.clone() for name, value in method.model.named_parameters()}
    images = images_of(8, 0)
    expected = method.predict(images)
    said = method.step(images)
    assert torch.equal(said.labels, expected.labels) and torch.equal(said.scores, expected.scores)
    assert said.losses.keys() == {"loss"} and float(said.losses["loss"]) == pytest.approx(
        float(-(expected.scores * expected.scores.log()).sum(dim=1).mean()), rel=1e-5
    )
    assert any(not torch.equal(value, before[name]) for name, value in method.model.named_parameters())


def test_a_name_is_taken_once_but_a_class_may_be_made_again() -> None:
    with pytest.raises(DriftgateError, match=r"somewhere.Mine but 'gmm' is driftgate.methods.gmm.GMM; take another"):
        make_class("gmm")
    assert get_method("gmm").__name__ == "GMM"
    make_class("mine")
    again = make_class("mine")  # as in a notebook, whose cell is run again
    assert get_method("mine") is again
    with pytest.raises(DriftgateError, match=r"elsewhere.Mine but 'mine' is somewhere.Mine"):
        make_class("mine", module="elsewhere")


def test_the_decorator_of_before_still_works() -> None:
    mine = make_class("mine")
    del KNOWN["mine"]
    with pytest.warns(DeprecationWarning, match="class's keyword"):
        assert register(mine) is mine
    assert get_method("mine") is mine


def test_looks_come_from_the_class() -> None:
    assert look_of("comet-p") == Look("COMET-P", 50, "told", ("#6a4c93", "#b79fe3"))
    assert (look_of("gmm").block, look_of("tent").block, look_of("shot-o").block) == ("universal", "baseline", "told")
    assert look_of("source-only").block == look_of("bn-stats").block == "baseline"
    make_class("mine", look=Look("Mine!", place=55, colors=("#000000", "#ffffff")))
    assert look_of("mine") == Look("Mine!", 55, "universal", ("#000000", "#ffffff"))
    stranger = look_of("never heard of")
    assert (stranger.label, stranger.block) == ("never heard of", "universal") and stranger.colors is not None
    assert stranger == look_of("never heard of")
    names = sorted((name for name in driftgate.available()), key=lambda name: (look_of(name).place, name))
    assert names[0] == "source-only" and names.index("comet-p") + 1 == names.index("mine") and names[-1] == "gmm"


def test_methods_of_installed_packages_are_found(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    plugin = ModuleType("plugin_of_somebody")
    monkeypatch.setitem(sys.modules, "plugin_of_somebody", plugin)
    points = [
        EntryPoint("broken", "no_such_module_at_all", registry.GROUP),
        EntryPoint("good", "plugin_of_somebody:make", registry.GROUP),
    ]
    asked: list[str] = []

    def entry_points(*, group: str) -> list[EntryPoint]:
        asked.append(group)
        make_class("theirs")
        return points

    plugin.make = None  # type: ignore[attr-defined]
    monkeypatch.setattr(registry.metadata, "entry_points", entry_points)
    registry.load_entry_points.cache_clear()
    with caplog.at_level(logging.WARNING):
        assert get_method("theirs").name == "theirs"
    assert "theirs" in driftgate.available()
    assert asked == ["driftgate.methods"], "asked once"
    assert "the methods of broken (no_such_module_at_all) cannot be imported" in caplog.text


def test_an_unknown_name_says_how_to_make_it_known(tmp_path: Path) -> None:
    make_class("mine")
    path = tmp_path / "saved.safetensors"
    driftgate.create("mine", small_model()).save(path)
    del KNOWN["mine"]
    with pytest.raises(DriftgateError, match=r"got 'mine'; one of your own is known once its module is imported"):
        driftgate.load(path, model=small_model())


def test_no_two_methods_look_alike() -> None:
    looks = [
        look_of(name) for name, method in driftgate.available().items() if method.__module__.startswith("driftgate.")
    ]
    assert len(looks) == 14
    for part in ("label", "place", "colors"):
        assert len({getattr(look, part) for look in looks}) == 14, part
    assert not {look.colors for look in looks} & set(STRANGERS)  # which are for those that name none


def test_another_process_learns_where_a_method_lives() -> None:
    assert homes(["gmm", "tent"]) == ()
    script = (
        "import sys\n"
        "from driftgate.plugins import import_module\n"
        "from driftgate.methods import homes\n"
        f"import_module({str(EXAMPLE)!r})\n"
        "print(*homes(['gmm', 'margin-entropy', 'margin-entropy']))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(EXAMPLE)]


def test_the_file_in_contributing_is_complete(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    (tmp_path / "copied_from_contributing.py").write_text(code)
    import_module(str(tmp_path / "copied_from_contributing.py"))
    method = driftgate.create("my-margin", small_model(), doubt=1.0, lr=0.1)
    assert method.step(images_of(8, 0)).losses.keys() == {"entropy"}
    assert driftgate.create("my-margin", small_model(), doubt=0.0).step(images_of(8, 0)).losses == {}
    path = tmp_path / "saved.safetensors"
    method.save(path)
    again = driftgate.load(path, model=small_model())
    assert torch.equal(again.predict(images_of(8, 1)).labels, method.predict(images_of(8, 1)).labels)
    assert look_of("my-margin").label == "My margin"
