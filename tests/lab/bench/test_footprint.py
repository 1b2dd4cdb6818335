from __future__ import annotations

import pytest
import torch

from driftgate.lab.bench import footprint
from driftgate.types import DriftgateError


@pytest.mark.parametrize(("classes", "queue", "teacher"), [(9, 0.0013, 0.0008), (200, 0.0170, 0.0178)])
def test_ratios_are_those_of_the_formulas(classes: int, queue: float, teacher: float) -> None:
    comparison = footprint.compare(classes)
    assert comparison.ratio_to_queue == pytest.approx(queue, abs=5e-5)
    assert comparison.ratio_to_teacher == pytest.approx(teacher, abs=5e-5)


def test_the_ratios_of_the_paper_come_out() -> None:
    # "even for 345 source classes approximately 2.2 % of the memory queue and 3.1 % of the mean teacher"
    comparison = footprint.compare(345)
    assert round(100 * comparison.ratio_to_queue, 1) == 2.2
    assert round(100 * comparison.ratio_to_teacher, 1) == 3.1


def test_counts_of_values() -> None:
    assert footprint.gmm_values(9) == 9 * (64 + 64 * 65 // 2 + 1) == 19_305
    assert footprint.queue_values(9) == 14_677_820
    assert footprint.queue_values(345) == 33_288_188
    assert footprint.teacher_values(9) == 24_033_088 + 258 * 9


@pytest.mark.parametrize("classes", sorted(footprint.PAPER))
def test_measured_bytes_match_the_supplement(classes: int) -> None:
    comparison, paper = footprint.compare(classes), footprint.PAPER[classes]
    assert comparison.teacher.measured_bytes / 1024 == pytest.approx(paper.teacher_kb, abs=0.02)
    assert footprint.released_gmm_bytes(classes) / 1024 == pytest.approx(paper.gmm_kb, abs=0.005)
    # The real network has exactly the parameters of the formula; beyond them it holds batch norm's statistics.
    assert comparison.teacher.measured_bytes - comparison.teacher.formula_bytes == 4 * 53_632 + 8 * 54


@pytest.mark.parametrize(("classes", "ours", "released"), [(9, 73, 283), (200, 941, 3650)])
def test_break_even_of_the_queue(classes: int, ours: int, released: int) -> None:
    comparison = footprint.compare(classes)
    assert (comparison.break_even_queue_length, comparison.released_break_even_queue_length) == (ours, released)
    assert comparison.break_even_queue_length * comparison.queue_bytes_per_sample >= comparison.gmm.measured_bytes
    assert (comparison.break_even_queue_length - 1) * comparison.queue_bytes_per_sample < comparison.gmm.measured_bytes


def test_measured_is_formula_for_mixture_and_queue() -> None:
    for classes, dim in ((1, 1), (7, 5), (65, 64)):
        assert footprint.measured_gmm(classes, dim) == 4 * footprint.gmm_values(classes, dim)
        assert footprint.measured_gmm(classes, dim, "tied") == 4 * footprint.tied_values(classes, dim)
    assert footprint.measured_queue_row(9, 256) == (256 + 9) * torch.float32.itemsize


def test_tied_is_a_hundredth_of_what_the_released_code_keeps() -> None:
    comparison = footprint.compare(200)
    assert comparison.tied.values == 200 * 65 + 2080
    assert comparison.tied.measured_bytes == 60_320  # 59 KB
    assert comparison.tied_to_released == pytest.approx(58.9 / 6_501.56, abs=1e-4)
    assert comparison.tied.formula_bytes == comparison.tied.measured_bytes


def test_no_class_is_refused() -> None:
    with pytest.raises(DriftgateError, match="at least one class"):
        footprint.compare(0)
