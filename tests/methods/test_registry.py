"""Methods by name: what is refused, and with which words."""

from __future__ import annotations

import pytest
from support import small_model

import driftgate
from driftgate import DriftgateError
from driftgate.methods.registry import get_method


def test_every_method_is_found_by_its_name_and_no_other() -> None:
    for name, method in driftgate.available().items():
        assert get_method(name) is method and method.name == name
    with pytest.raises(DriftgateError, match=r"Expected a method out of adacontrast, .*, tent but got 'gnn'"):
        driftgate.create("gnn", small_model())


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
