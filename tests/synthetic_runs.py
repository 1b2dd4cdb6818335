"""Folders of run records as the runner leaves them, without running anything: for tests of tables and reports."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from driftgate.lab.bench.suite import Suite, parse_suite

METHODS = (
    "source-only",
    "bn-stats",
    "tent",
    "owttt",
    "comet-p",
    "shot-o",
    "shot-p",
    "glc",
    "glc++",
    "lead",
    "adacontrast",
    "comet-f",
    "gmm-comet",
    "gmm",
)
SHIFTS = ("PDA", "ODA", "OPDA")
LEVELS = dict(zip(METHODS, (45, 52, 50, 57, 61, 55, 40, 22, 24, 28, 58, 60, 63, 65), strict=True))
STATE = dict(
    zip(METHODS, (0, 2_000, 3e5, 9e5, 1.3e6, 1e5, 1e5, 4e5, 4.4e5, 5e4, 8e6, 1.2e6, 1.3e6, 7.5e4), strict=True)
)


def record(
    method: str = "gmm",
    shift: str = "OPDA",
    seed: int = 0,
    *,
    score: float | None = None,
    suite: str = "digits",
    source: str = "rendered",
    target: str = "mnist",
    study: str | None = None,
    variant: str | None = None,
    settings: dict[str, Any] | None = None,
    batches: int = 40,
    protocol: dict[str, Any] | None = None,
    model: dict[str, Any] | None = None,
    tag: str | None = None,
) -> dict[str, Any]:
    """One record; ``score`` in per cent, otherwise drawn around the method's level; ``tag`` makes its id another."""
    words = f"{method} {shift} {source} {target} {seed} {variant}"
    random = np.random.default_rng(zlib.crc32(words.encode()))
    level = LEVELS.get(method, 50) + 5 * SHIFTS.index(shift) + random.normal(0, 1.2)
    final = (level if score is None else score) / 100.0
    place = np.arange(1, batches + 1)
    running = (
        final + (0.35 - final) * np.exp(-place / 7) * (1 - place / batches) + random.normal(0, 0.05, batches) / place
    )
    running[-1] = final
    metric = "accuracy" if shift == "PDA" else "h_score"
    metrics = {"accuracy": final} if shift == "PDA" else {"accuracy": final, "h_score": final, "auroc": 0.8}
    identity = "-".join(filter(None, (suite, source, target, shift, method, study, variant, f"seed{seed}", tag)))
    return {
        "id": identity.replace("=", "_"),
        "suite": suite,
        "source": source,
        "target": target,
        "shift": shift,
        "seed": seed,
        "study": study,
        "variant": variant,
        "format": 3,
        "method": method,
        "settings": {"seed": seed, "lr": 0.001, "decay": 0.999, **(settings or {})},
        "model": {
            "backbone": "cnn",
            "feature_dim": 256,
            "class_names": ["0", "1"],
            "input_size": [28, 28],
            **(model or {}),
        },
        "protocol": {
            "data": suite,
            "shift": shift,
            "split": "4/3/3",
            "batch_size": 64,
            "batches": batches,
            "samples": 64 * batches - 3,
            "skipped": [],
            "limit": None,
            **(protocol or {}),
        },
        "score": metric,
        "metrics": {**metrics, "best_threshold_score": min(final + 0.04, 1.0)},
        "halves": [final - 0.02, final + 0.02],
        "definitions": {name: f"what {name} means" for name in metrics},
        "series": {
            "running_score": [None, *running[1:].tolist()],
            "used_share": (0.85 - 0.35 * np.exp(-place / 20) + random.normal(0, 0.03, batches)).clip(0, 1).tolist(),
            "tau_known": [0.1] * batches,
            "tau_unknown": [0.2] * batches,
            "tau": [0.15] * batches,
        },
        "seconds": {"total": 0.05 * batches, "median_per_batch": 0.02 + 0.01 * METHODS.index(method) / 4},
        "state_bytes": int(STATE[method]),
        "peak_memory_bytes": int(4e8 + 10 * STATE[method]),
        "versions": {"python": "3.11.2", "driftgate": "0.1.0", "torch": "2.13.0"},
    }


def write_runs(
    folder: Path, records: Iterable[dict[str, Any]], *, suite: dict[str, Any] | None = None, failures: int = 0
) -> Path:
    """A folder of results as the runner leaves it."""
    (folder / "records").mkdir(parents=True, exist_ok=True)
    for document in records:
        (folder / "records" / f"{document['id']}.json").write_text(json.dumps(document))
    info = suite or {"name": "digits", "title": "Digits: rendered to handwritten", "data": "digits"}
    (folder / "suite.json").write_text(json.dumps(info))
    (folder / "models").mkdir(exist_ok=True)
    (folder / "models" / "rendered-OPDA-seed0.json").write_text(json.dumps({"held_out_accuracy": 0.985}))
    if failures:
        (folder / "failures").mkdir(exist_ok=True)
    for index in range(failures):
        document = {"id": f"failed-{index}", "error": "out of <memory>", "traceback": "Traceback ...\nMemoryError"}
        (folder / "failures" / f"failed-{index}.json").write_text(json.dumps(document))
    return folder


def sweep(
    methods: Sequence[str] = METHODS, shifts: Sequence[str] = SHIFTS, seeds: int = 3, **more: Any
) -> list[dict[str, Any]]:
    """Every method under every shift with every seed."""
    return [record(method, shift, seed, **more) for shift in shifts for method in methods for seed in range(seeds)]


def decay_study(seeds: int = 3, shifts: Sequence[str] = SHIFTS) -> list[dict[str, Any]]:
    """A study of one number: the score falls with the decay."""
    drops = {"0.9": 14.0, "0.95": 6.0, "0.99": -0.5, "0.999": 0.0, "1.0": 0.4}
    return [
        record(
            shift=shift,
            seed=seed,
            study="decay",
            variant=f"decay={value}",
            score=70 - drop + seed,
            settings={"decay": float(value)},
        )
        for value, drop in drops.items()
        for shift in shifts
        for seed in range(seeds)
    ]


def novelty_study(seeds: int = 3) -> list[dict[str, Any]]:
    """A study of names."""
    scores = ("likelihood_entropy", "max_likelihood", "mahalanobis", "gradnorm")
    return [
        record(seed=seed, study="novelty", variant=f"novelty={name}", score=70 - 4 * place + seed)
        for place, name in enumerate(scores)
        for seed in range(seeds)
    ]


def tiny_suite(**changes: Any) -> Suite:
    """A suite of digits that need no optional package, of which a run takes no time."""
    document = {
        **{"name": "tiny", "title": "Tiny", "data": "digits", "backbone": "cnn", "pairs": ["rendered -> uci"]},
        **{"shifts": ["OPDA"], "methods": ["source-only"], "batch_size": 16, "seeds": 1},
        **changes,
    }
    return parse_suite(document, "tiny")
