"""Methods by name: what is refused, and with which words."""

from __future__ import annotations

import pytest
from support import small_model

import driftgate
from driftgate import DriftgateError
from driftgate.methods.base import get_method


def test_every_method_is_found_by_its_name_and_no_other() -> None:
    for name, method in driftgate.available().items():
        assert get_method(name) is method and method.name == name
    with pytest.raises(DriftgateError, match=r"Expected a method out of adacontrast, .*, tent but got 'gnn'"):
        driftgate.create("gnn", small_model())


def test_what_is_wrong_with_settings_is_told_one_by_one() -> None:
    with pytest.raises(DriftgateError) as error:
        driftgate.create("tent", small_model(), lr=-1.0, threshold=2.0, speed=3)
    text = str(error.value)
    assert text.startswith("Settings of 'tent': threshold: Input should be less than or equal to 1, got 2.0; lr: ")
    assert "lr: Input should be greater than 0, got -1.0; no setting 'speed', expected one of seed, " in text
    assert text.endswith(".")
