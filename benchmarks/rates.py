"""Is it the learning rate? Every method that learns, on the digits, at its published rate and at larger ones.

    python benchmarks/rates.py                        # seed 0, up to ten times the rate
    python benchmarks/rates.py --seeds 3 --methods comet-f,gmm --workers 2

The published rates were made for large networks and data sets. The best rate in hindsight is not a result, for it is
picked on the streams it is shown for; it tells whether a comparison at published rates is unfair to somebody.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from typing import Any

from driftgate.lab.bench.plan import Plan, make_plan, merge_plans
from driftgate.lab.bench.studies import Study, Variant
from driftgate.lab.bench.suite import Suite, parse_seeds, read_suite
from driftgate.lab.bench.sweep import run_sweep, summarise

FACTORS = (1.0, 3.0, 10.0)


def published_rate(suite: Suite, method: str) -> float | None:
    """The rate the suite gives a method; None for one that does not learn."""
    entry = next(entry for entry in suite.methods if entry.name == method)
    rate: float | None = entry.resolve(suite.data, 0).get("lr")
    return rate


def plan_of(suite: Suite, method: str, rate: float) -> Plan:
    """The suite's streams with one method at all rates."""
    variants = tuple(Variant(name=f"{factor:g}", settings={"lr": factor * rate}) for factor in FACTORS)
    return make_plan(suite, study=Study(name="rate", title="Learning rate", variants=variants, method=method))


def table(records: list[dict[str, Any]], rates: dict[str, float]) -> str:
    """A row a method: the mean over the shifts, in per cent, at each factor; the best one bold."""
    heads = [f"{factor:g} times" for factor in FACTORS]
    lines = [f"| method | published rate | {' | '.join(heads)} |", "|---" * (len(heads) + 2) + "|"]
    for method, rate in rates.items():
        shifts = summarise([record for record in records if record["method"] == method]).values()
        means = [mean_over_shifts([shift.get(f"{factor:g}", {}).get("mean") for shift in shifts]) for factor in FACTORS]
        best = max((mean for mean in means if mean is not None), default=None)
        cells = ["diverged" if mean is None else f"**{mean:.1f}**" if mean == best else f"{mean:.1f}" for mean in means]
        lines.append(f"| `{method}` | {rate:g} | {' | '.join(cells)} |")
    return "\n".join(lines)


def mean_over_shifts(means: list[float | None]) -> float | None:
    """In per cent; None where a run of some shift is missing, for it diverged."""
    known = [mean for mean in means if mean is not None]
    return None if len(known) < len(means) else 100.0 * statistics.fmean(known)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", help="with commas between; all that learn if not given")
    parser.add_argument("--seeds", default="1")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("runs/rates"))
    arguments = parser.parse_args()
    suite = read_suite("digits").changed(seeds=parse_seeds(arguments.seeds))
    chosen = arguments.methods.split(",") if arguments.methods else [entry.name for entry in suite.methods]
    rates = {method: rate for method in chosen if (rate := published_rate(suite, method)) is not None}
    plan = merge_plans([plan_of(suite, method, rate) for method, rate in rates.items()])
    result = run_sweep(plan, arguments.out, workers=arguments.workers)
    print(table(result.records, rates))
    for job, error in result.failures.items():
        print(f"- {job}: {error}")


if __name__ == "__main__":
    main()
