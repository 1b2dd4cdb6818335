from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support import load_benchmark
from synthetic_runs import decay_study, novelty_study, tiny_suite, write_runs

from driftgate.lab.bench.plan import Plan, make_plan
from driftgate.lab.bench.studies import STUDIES, get_study
from driftgate.methods.gmm import GMMSettings
from driftgate.types import DriftgateError

SUPPLEMENT = {"losses", "reduced_dim", "p_reject", "init_batches", "batch_size", "decay", "novelty"}
LEFT_OPEN = {"kl_form", "reduction", "covariance", "gate", "class_order", "batch_norm"}


def plan_of(study: str, **changes: object) -> Plan:
    return make_plan(tiny_suite(**changes), study=get_study(study))


def test_every_study_of_the_supplement_and_what_it_leaves_open() -> None:
    assert set(STUDIES) == SUPPLEMENT | LEFT_OPEN
    assert {name for name, study in STUDIES.items() if study.paper is not None} == SUPPLEMENT


@pytest.mark.parametrize("name", STUDIES)
def test_variants_are_valid_and_differ(name: str) -> None:
    runs = plan_of(name).runs
    assert [run.variant for run in runs] == [variant.name for variant in STUDIES[name].variants]
    assert len({run.digest for run in runs}) == len({run.id for run in runs}) == len(runs) > 1
    assert {run.method for run in runs} == {"gmm"} and {run.study for run in runs} == {name}


@pytest.mark.parametrize("name", sorted((SUPPLEMENT | LEFT_OPEN) - {"class_order"}))
def test_the_default_is_among_the_variants_and_is_the_suites_own_run(name: str) -> None:
    """So that every figure has the point all others are compared with, and it costs nothing."""
    document_runs = plan_of("decay").runs
    default = next(run for run in document_runs if run.settings["decay"] == GMMSettings().decay)
    assert default.digest in {run.digest for run in plan_of(name).runs}


def test_the_ranges_of_the_paper() -> None:
    dims = [run.settings["reduced_dim"] for run in plan_of("reduced_dim").runs]
    assert (min(dims), max(dims)) == (16, 128) and 48 in dims and 64 in dims
    assert [run.batch_size for run in plan_of("batch_size").runs] == [8, 16, 32, 64, 128]
    assert {0.25, 0.5, 0.75} <= {run.settings["p_reject"] for run in plan_of("p_reject").runs}
    losses = {run.variant: run.settings for run in plan_of("losses").runs}
    assert losses["C only"]["kl_weight"] == 0 and losses["KLD only"]["contrastive_weight"] == 0
    assert losses["C and COMET's entropy loss"]["kl_form"] == "comet"


def test_class_orders_share_their_source_model() -> None:
    plan = plan_of("class_order")
    assert len(plan.models) == 1 and len(plan.runs) == 2
    first, second = (run.class_split for run in plan.runs)
    assert first.target_classes != second.target_classes and first.source_classes == second.source_classes


def test_a_study_starts_from_the_suites_settings() -> None:
    runs = plan_of("decay", methods=[{"name": "gmm", "preset": "paper", "settings": {"lr": 0.02}}]).runs
    assert {run.settings["lr"] for run in runs} == {0.02} and {run.settings["gate"] for run in runs} == {"frozen"}
    assert len({run.settings["decay"] for run in runs}) == len(runs)


def test_names() -> None:
    assert get_study("batch-size") is STUDIES["batch_size"]
    with pytest.raises(DriftgateError, match="did you mean decay"):
        get_study("dekay")


def test_the_studies_of_a_sweep_in_one_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, picture = write_runs(tmp_path / "runs", decay_study() + novelty_study()), tmp_path / "studies.png"
    monkeypatch.setattr("sys.argv", ["study_figure.py", str(folder), str(picture)])
    load_benchmark("study_figure").main()
    with Image.open(picture) as drawn:
        width, height = drawn.size
        red, green, _ = np.moveaxis(np.asarray(drawn.convert("RGB")).astype(int), 2, 0)
    assert width > 1.8 * height  # two panels side by side
    left, right = np.array_split(red - green > 100, 2, axis=1)  # the colour of OPDA
    assert left.sum() > 500 and right.sum() > 500
