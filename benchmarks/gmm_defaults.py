"""The table that chose the defaults of `gmm`: one setting changed at a time, over shifts, targets and seeds.

    python benchmarks/gmm_defaults.py --seeds 3 --targets mnist,uci --out docs/gmm_defaults.md

Every row is a mean over the targets and seeds; a row that diverged says so. The numbers are percent: accuracy for PDA,
H-score for ODA and OPDA, in brackets the score of the best fixed threshold in hindsight on the same novelties.
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path
from typing import Any

import joblib

from driftgate.files import write_text
from driftgate.lab.bench.sweep import single_thread
from driftgate.lab.data.datasets import open_dataset
from driftgate.lab.data.streams import DomainStream
from driftgate.lab.serve_demo import BATCH_SIZE, train_source
from driftgate.methods import create
from driftgate.shifts import Shift
from driftgate.stream import run_stream
from driftgate.types import DivergedError

Variant = tuple[str, str, dict[str, Any]]

VARIANTS: list[Variant] = [
    ("source-only", "source-only", {}),
    ("bn-stats", "bn-stats", {}),
    ("**gmm, default**", "gmm", {}),
    ("preset `paper`", "gmm", {"preset": "paper"}),
    ("preset `paper`, lr 0.001", "gmm", {"preset": "paper", "lr": 0.001}),
    ("preset `released`", "gmm", {"preset": "released"}),
    ("preset `released`, lr 0.001", "gmm", {"preset": "released", "lr": 0.001}),
    ("`covariance_shrinkage` 0", "gmm", {"covariance_shrinkage": 0.0}),
    ("`covariance_shrinkage` 30", "gmm", {"covariance_shrinkage": 30.0}),
    ("`covariance_shrinkage` 3000", "gmm", {"covariance_shrinkage": 3000.0}),
    ("`class_prior` 0", "gmm", {"class_prior": 0.0}),
    ("`gate` frozen", "gmm", {"gate": "frozen"}),
    ("`gate` mixture", "gmm", {"gate": "mixture"}),
    ("`certain_below` 0", "gmm", {"certain_below": 0.0}),
    ("`p_reject` 0.5", "gmm", {"p_reject": 0.5}),
    ("`p_reject` 0.75", "gmm", {"p_reject": 0.75}),
    ("`kl_form` paper", "gmm", {"kl_form": "paper"}),
    ("`kl_form` bounded", "gmm", {"kl_form": "bounded"}),
    ("`kl_form` comet", "gmm", {"kl_form": "comet"}),
    ("`contrastive_weight` 0", "gmm", {"contrastive_weight": 0.0}),
    ("`kl_weight` 0", "gmm", {"kl_weight": 0.0}),
    ("`self_pairs` true", "gmm", {"self_pairs": True}),
    ("`mean_term` classes", "gmm", {"mean_term": "classes"}),
    ("`backbone_lr_scale` 0.1", "gmm", {"backbone_lr_scale": 0.1}),
    ("`lr` 0.003", "gmm", {"lr": 0.003}),
    ("`lr` 0.0003", "gmm", {"lr": 0.0003}),
    ("`batch_norm` running", "gmm", {"batch_norm": "running"}),
]

Scores = dict[tuple[str, str], tuple[float, float, float, float]]
"""(variant, target) -> score, best fixed threshold, first half, second half."""


def run_cell(seed: int, shift: Shift, targets: list[str], variants: list[Variant]) -> Scores:
    """All variants on one source model."""
    with single_thread():
        return _run_cell(seed, shift, targets, variants)


def _run_cell(seed: int, shift: Shift, targets: list[str], variants: list[Variant]) -> Scores:
    data = open_dataset("digits")
    split = data.split(shift)
    source = train_source(split, seed)
    scores: Scores = {}
    for label, method, settings in variants:
        for target in targets:
            model = source.clone()
            stream = DomainStream(
                [data.domain(target)],
                split,
                input_size=model.spec.image_size,
                batch_size=BATCH_SIZE,
                seed=seed,
                workers=0,
            )
            try:
                result = run_stream(create(method, model, seed=seed, **settings), stream, split)
                first, second = result.record["halves"]
                best = float(result.record["metrics"]["best_threshold_score"])
                scores[label, target] = (result.score, best, float(first), float(second))
            except DivergedError:
                scores[label, target] = (math.nan,) * 4
    return scores


def table(cells: dict[tuple[int, Shift], Scores], variants: list[Variant], targets: list[str]) -> str:
    lines = ["| variant | mean | PDA | ODA | OPDA | second half minus first |", "|---|---|---|---|---|---|"]
    for label, _, _ in variants:
        columns, drifts, means = [], [], []
        for shift in Shift:
            rows = [scores[label, target] for (_, at), scores in cells.items() if at is shift for target in targets]
            score, best, first, second = (100 * sum(column) / len(rows) for column in zip(*rows, strict=True))
            columns.append("diverged" if math.isnan(score) else f"{score:.1f} ({best:.1f})")
            means.append(score)
            drifts.append(second - first)
        mean = sum(means) / len(means)
        drift = " / ".join("-" if math.isnan(value) else f"{value:+.1f}" for value in drifts)
        shown = "-" if math.isnan(mean) else f"{mean:.1f}"
        lines.append(f"| {label} | {shown} | {' | '.join(columns)} | {drift} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--targets", default="mnist,uci")
    parser.add_argument("--variants", default="", help="only those whose label contains one of these, by commas")
    parser.add_argument("--workers", type=int, default=joblib.cpu_count())
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    wanted = [part for part in arguments.variants.split(",") if part]
    variants = [variant for variant in VARIANTS if not wanted or any(part in variant[0] for part in wanted)]
    targets = arguments.targets.split(",")
    jobs = [(seed, shift, targets, variants) for seed in range(arguments.seeds) for shift in Shift]
    started = time.perf_counter()
    results = joblib.Parallel(n_jobs=arguments.workers)(joblib.delayed(run_cell)(*job) for job in jobs)
    text = table({(job[0], job[1]): scores for job, scores in zip(jobs, results, strict=True)}, variants, targets)
    print(text)
    print(f"\n{arguments.seeds} seeds, {', '.join(targets)}, {time.perf_counter() - started:.0f} s")
    if arguments.out is not None:
        write_text(arguments.out, text + "\n")


if __name__ == "__main__":
    main()
