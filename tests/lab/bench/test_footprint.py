from __future__ import annotations

import math

import pytest

from driftgate.lab.bench.footprint import PAPER_KB, QUEUE_LENGTH, compare
from driftgate.types import DriftgateError


def test_the_ratios_and_counts_of_the_paper_come_out() -> None:
    # "even for 345 source classes approximately 2.2 % of the memory queue and 3.1 % of the mean teacher"
    for classes, queue, teacher in ((9, 0.0013, 0.0008), (200, 0.0170, 0.0178), (345, 0.022, 0.031)):
        found = compare(classes)
        assert found["mixture"].values / found["queue"].values == pytest.approx(queue, abs=5e-4)
        assert found["mixture"].values / found["teacher"].values == pytest.approx(teacher, abs=5e-4)
    assert compare(9)["mixture"].values == 9 * (64 + 64 * 65 // 2 + 1) == 19_305
    assert found["queue"].values == 33_288_188
    assert compare(200)["tied mixture"].values == 200 * 65 + 2080


@pytest.mark.parametrize("classes", sorted(PAPER_KB))
def test_measured_bytes_match_the_supplement(classes: int) -> None:
    found = compare(classes)
    assert found["teacher"].measured_bytes / 1024 == pytest.approx(PAPER_KB[classes]["teacher"], abs=0.02)
    released = 8 * classes * (64 + 64 * 64 + 1)
    assert released / 1024 == pytest.approx(PAPER_KB[classes]["mixture"], abs=0.005)
    # The real network has exactly the parameters of the formula; beyond them it holds batch norm's statistics.
    assert found["teacher"].measured_bytes - found["teacher"].formula_bytes == 4 * 53_632 + 8 * 54
    for name in ("mixture", "tied mixture", "queue"):
        assert found[name].measured_bytes == found[name].formula_bytes, name


@pytest.mark.parametrize(("classes", "samples"), [(9, 73), (200, 941)])
def test_break_even_of_the_queue(classes: int, samples: int) -> None:
    found = compare(classes)
    assert math.ceil(found["mixture"].measured_bytes * QUEUE_LENGTH / found["queue"].measured_bytes) == samples


def test_no_class_is_refused() -> None:
    with pytest.raises(DriftgateError, match="at least one class"):
        compare(0)
