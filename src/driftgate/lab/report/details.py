"""The further tables of a report: metrics, ranks, comparisons, costs, tenths, shares, classes, runs and models."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from driftgate.lab.bench.comparable import shown
from driftgate.lab.bench.names import method_name
from driftgate.lab.bench.results import Results
from driftgate.lab.bench.statistics import Summary
from driftgate.lab.bench.tables import (
    EMPTY,
    Array,
    Table,
    by_method,
    cells,
    marks,
    mean_summary,
    number,
    pair_label,
    rank,
    result_columns,
    shifts_of,
    signed,
)
from driftgate.lab.data.orders import StreamShare
from driftgate.lab.report import findings
from driftgate.stream import LONG_STREAM

METRIC_HEADS = {
    "score": "Score",
    "best_threshold": "Best threshold",
    "known_accuracy": "Known",
    "unknown_accuracy": "Unknown",
    "auroc": "AUROC",
}
MOST_CLASSES = 60
"""With more classes than these their table is written to a file only."""

Formats = Mapping[str, tuple[str, Callable[[Any], str]]]
"""Column -> its head, and how a value is printed."""


def tidy_table(name: str, title: str, data: pd.DataFrame, formats: Formats) -> Table:
    """A table whose rows are those of ``data``; the first column of ``formats`` names them."""
    first, *rest = formats
    text = pd.DataFrame({formats[key][0]: [formats[key][1](value) for value in data[key]] for key in rest})
    value = pd.DataFrame({formats[key][0]: data[key].to_numpy() for key in rest})
    index = pd.Index([formats[first][1](value) for value in data[first]], name=formats[first][0])
    return Table(name, title, data, text.set_axis(index), value.set_axis(index))


def wide_table(
    name: str, title: str, data: pd.DataFrame, text: pd.DataFrame, value: pd.DataFrame, **more: Any
) -> Table:
    """A table with methods down; ``text`` and ``value`` are indexed by method."""
    index = pd.Index([method_name(str(key)) for key in text.index], name="Method")
    rank = {"rank": more.pop("rank").set_axis(index)} if "rank" in more else {}
    return Table(name, title, data, text.set_axis(index), value.set_axis(index), **rank, **more)


def metrics_table(suite: Results) -> Table | None:
    """Score, best threshold, known and unknown accuracy and AUROC of every method under every shift."""
    runs = suite.main
    if runs.empty:
        return None
    means = pd.concat(
        {key: group.groupby("shift")[list(METRIC_HEADS)].mean() for key, group in by_method(runs).items()},
        names=["method", "shift"],
    )
    wide = means.unstack("shift").swaplevel(axis=1).reindex(index=list(by_method(runs)))
    heads = [(shift, metric) for shift in shifts_of(runs) for metric in METRIC_HEADS]
    wide = wide[[head for head in heads if head in wide.columns and wide[head].notna().any()]]
    best = wide.apply(lambda column: marks(rank(column)))
    wide.columns = best.columns = pd.MultiIndex.from_tuples([(shift, METRIC_HEADS[m]) for shift, m in wide.columns])
    title = f"{suite.title}: what is behind the scores (means over pairs and seeds, %)"
    return wide_table(f"{suite.name}-metrics", title, means.reset_index(), wide.map(number), wide, rank=best)


def ranks_table(suite: Results) -> Table | None:
    """The rank of every method under every shift, by the means over common seeds, and the mean of its ranks."""
    runs = suite.main
    rows = by_method(runs)
    if len(rows) < 2:
        return None
    columns = [column for column in result_columns(runs, means_only=True) if column.shift]
    lines = cells(rows, columns)
    wide = lines.pivot(index="row", columns="shift", values="rank").reindex(index=list(rows), columns=shifts_of(runs))
    if len(columns) > 1:
        wide["Mean rank"] = wide.mean(axis=1, skipna=False)
    data = lines[["row", "shift", "mean_on_common_seeds", "rank"]]
    text = wide.apply(lambda column: column.map(lambda value: number(value, 1 if column.name == "Mean rank" else 0)))
    return wide_table(f"{suite.name}-ranks", f"{suite.title}: ranks", data, text, wide)


def comparison_table(suite: Results, reference: str) -> Table | None:
    """A method against every other one."""
    rows = findings.comparisons(findings.common_ground(suite.main), reference)
    if rows.empty:
        return None
    data = rows.rename_axis("method").reset_index()
    data.insert(0, "reference", reference)
    formats: Formats = {
        "method": ("Method", method_name),
        "difference": ("Difference", signed),
        "low_95": ("95 % interval", _interval(data, signed)),
        "wins": ("Wins", str),
        "n": ("Of", str),
        "t_p": ("t-test p", p_text),
        "t_p_holm": ("Holm p", p_text),
        "wilcoxon_p": ("Wilcoxon p", p_text),
    }
    title = f"{method_name(reference)} against each other method, in points"
    return tidy_table(f"{suite.name}-against-{reference}", title, data, formats)


def _interval(data: pd.DataFrame, show: Callable[[float], str]) -> Callable[[float], str]:
    """Low end -> ``1.1 to 2.9``."""
    ends = dict(zip(data.low_95, data.high_95, strict=True))
    return lambda low: EMPTY if math.isnan(low) else f"{show(low)} to {show(ends[low])}"


def p_text(value: float) -> str:
    """``0.012`` or ``< 0.001``."""
    return EMPTY if math.isnan(value) else findings.p_words(value).removeprefix("p ").removeprefix("= ")


def method_costs(runs: pd.DataFrame) -> pd.DataFrame:
    """Score (of ranked methods), its half interval, state, peak memory and time of every method."""
    table = findings.standings(runs)
    ranked = table[table.ranked]
    rows = by_method(runs)
    costs = pd.DataFrame({key: group[["state_bytes", "peak_bytes", "seconds"]].mean() for key, group in rows.items()}).T
    costs["score"] = ranked["mean"].astype(float)
    costs["half"] = ((ranked.high - ranked.low) / 2).astype(float)
    costs["source_free"] = [findings.is_source_free(key) for key in costs.index]
    return costs


def cost_table(suite: Results, costs: pd.DataFrame) -> Table:
    """Score, memory and time of every method."""
    formats: Formats = {
        "method": ("Method", method_name),
        "score": ("Mean score", number),
        "state_bytes": ("State", bytes_text),
        "peak_bytes": ("Peak memory", bytes_text),
        "seconds": ("Time a batch", seconds_text),
        "source_free": ("Source-free", lambda free: "yes" if free else "no"),
    }
    title = f"{suite.title}: memory and time of each method"
    data = costs.rename_axis("method").reset_index()[[*formats]]
    return tidy_table(f"{suite.name}-costs", title, data, formats)


def long_streams(runs: pd.DataFrame) -> pd.DataFrame:
    """The runs over streams so long that each tenth has something to tell, with a score in all of them."""
    whole = runs.tenths.map(lambda scores: all(map(math.isfinite, scores))).astype(bool)
    return runs[(runs.batches >= LONG_STREAM) & whole]


def tenths_table(suite: Results, shift: str, runs: pd.DataFrame) -> Table:
    """A row a method: the mean score of each tenth, and how far a run fell from its best to its last tenth."""
    lines = []
    for method, group in by_method(runs).items():
        scores = np.array(group.tenths.tolist())
        fall = float((scores.max(axis=1) - scores[:, -1]).max())
        means = {f"tenth_{part}": mean for part, mean in enumerate(scores.mean(axis=0), start=1)}
        lines.append({"shift": shift, "method": method, **means, "largest_fall": fall, "runs": len(group)})
    formats: Formats = {
        "method": ("Method", method_name),
        **{f"tenth_{part}": (f"{part}.", number) for part in range(1, 11)},
        "largest_fall": ("Largest fall", number),
        "runs": ("Runs", str),
    }
    title = f"{shift}: score of each tenth of the stream, %"
    return tidy_table(f"{suite.name}-tenths-{shift}", title, pd.DataFrame(lines), formats)


def share_points(runs: pd.DataFrame) -> pd.DataFrame:
    """A row for each method and share of one shift: score and its spread, rejected and estimated share, in per cent."""
    lines = []
    shares = sorted(map(StreamShare.parse, runs.unknown_share.unique()), key=lambda s: (s.changes, s.start, s.end))
    for method, group in by_method(runs).items():
        for share in shares:
            own = group[group.unknown_share == str(share)]
            if own.empty:
                continue
            wide = own.pivot_table(index=["source", "target"], columns="seed", values="score")
            score = mean_summary(wide.to_numpy()) if len(wide) else Summary(0, math.nan)
            batches = sorted({int(length) for length in runs[runs.unknown_share == str(share)].batches.dropna()})
            lines.append(
                {
                    **{"shift": own["shift"].iloc[0], "method": method, "unknown_share": str(share), "share": share},
                    "batches": " to ".join(map(str, dict.fromkeys([batches[0], batches[-1]]))) if batches else EMPTY,
                    **{"score": score.mean, "std": score.std, "low": score.low, "high": score.high},
                    **{"rejected": own.rejected.mean(), "estimated": own.estimated.mean(), "runs": len(own)},
                }
            )
    frame = pd.DataFrame(lines)
    frame["rank"] = frame.groupby("unknown_share").score.transform(rank)
    return frame


def share_table(suite: Results, points: pd.DataFrame) -> Table:
    """Methods down, shares across: the score, below it the rejected and the estimated share."""
    shift = points["shift"].iloc[0]
    order = list(dict.fromkeys(points.unknown_share))

    def spread_out(values: pd.Series) -> pd.DataFrame:
        wide = points.assign(shown=values).pivot(index="method", columns="unknown_share", values="shown")
        wide = wide.loc[list(dict.fromkeys(points.method)), order]
        return wide.set_axis([str(share).replace("->", " → ") for share in order], axis=1)

    spread = points["std"].map(lambda std: "" if math.isnan(std) else f" ± {std:.1f}")
    guessed = points.estimated.map(lambda share: "" if math.isnan(share) else f" ({share:.1f})")
    batches = points.drop_duplicates("unknown_share").set_index("unknown_share").batches[order]
    words = ", and the estimated one in brackets" if guessed.any() else ""
    below = spread_out(points.rejected.map(number) + guessed).fillna("")
    return wide_table(
        f"{suite.name}-shares-{shift}",
        f"{shift}: score by share of unknown samples; below it the rejected share{words} (%)",
        points.drop(columns=["share", "low", "high"]),
        spread_out(points.score.map(number) + spread).fillna(EMPTY),
        spread_out(points.score),
        rank=spread_out(points["rank"]).apply(marks),
        below=below.set_axis(pd.Index([method_name(m) for m in below.index], name="Method")),
        below_is="rejected (estimated)" if guessed.any() else "rejected",
        notes=(f"Batches: {', '.join(f'{n} at {share}' for share, n in batches.items())}.",),
    )


def class_tables(suite: Results) -> list[Table]:
    """For each shift: accuracy of every class, and the share of the unknown samples that each class took."""
    runs = suite.main
    runs = runs[runs.classes.notna()]
    heads, tables = ["shift", "class", "method", "accuracy", "rejected", "unknown_taken"], []
    titles = {"accuracy": "accuracy of each class", "unknown_taken": "unknown samples taken for each class"}
    for shift in shifts_of(runs):
        lines = []
        for method, group in by_method(runs[runs["shift"] == shift]).items():
            counts = [np.array(list(found.model_dump().values()), dtype=np.float64) for found in group.classes]
            parts = [_class_shares(each, samples) for each, samples in zip(counts, group.samples, strict=True)]
            means = pd.DataFrame(np.concatenate(parts), columns=heads[3:])
            means["class"] = [name for names in group.class_names for name in names]
            lines.append(means.groupby("class", sort=False).mean().reset_index().assign(shift=shift, method=method))
        data = pd.concat(lines)[heads]
        for value, words in titles.items():
            wide = data.pivot(index="class", columns="method", values=value)
            wide = wide.loc[list(dict.fromkeys(data["class"])), list(dict.fromkeys(data.method))]
            wide = wide[wide.notna().any(axis=1)].rename_axis("Class").rename(columns=method_name)
            if len(wide):
                name, title = f"{suite.name}-{value}-{shift}", f"{shift}: {words}, % (mean over pairs and seeds)"
                tables.append(Table(name, title, data[[*heads[:3], value]], wide.map(number), wide))
    return tables


def _class_shares(counts: Array, samples: float) -> Array:
    """(4, C) counts of a run -> (C, 3): accuracy, rejected and, of all unknown samples, taken; in per cent."""
    came, right, rejected, taken = counts
    with np.errstate(invalid="ignore", divide="ignore"):
        shares = 100.0 * np.stack([right / came, rejected / came, taken / (samples - came.sum())], axis=1)
    return np.where(np.isfinite(shares), shares, math.nan)


def interval_table(table: Table) -> Table:
    """Runs and 95 % intervals of a table of results."""
    data = table.data[table.data["mean"].notna()].copy()
    data["where"] = [
        f"{s}, {'Mean' if a == 'mean' else pair_label(a, b)}"
        for s, a, b in zip(data["shift"], data.source, data.target, strict=True)
    ]
    formats: Formats = {
        "row": (str(table.text.index.name), method_name),
        "where": ("Column", str),
        "mean": ("Mean", number),
        "low_95": ("95 % interval", _interval(data, number)),
        "runs": ("Runs", str),
        "missing_cells": ("Missing cells", str),
        "mean_on_common_seeds": ("Mean over common seeds", number),
    }
    return tidy_table(f"{table.name}-intervals", f"{table.title}: runs and 95 % intervals", data, formats)


def run_table(suite: Results, settings_of: Mapping[str, str]) -> Table:
    """Every run, also those that are kept out of the tables."""
    runs = suite.frame.assign(settings_set=suite.frame.id.map(settings_of))
    runs["pair"] = [pair_label(source, target) for source, target in zip(runs.source, runs.target, strict=True)]
    shares = runs.unknown_share.map(lambda share: f"{share} unknown", na_action="ignore")
    runs["part"] = runs.variant.fillna(runs.study).fillna(shares).fillna("")
    formats: Formats = {
        "method": ("Method", method_name),
        "pair": ("Pair", str),
        "shift": ("Shift", str),
        "seed": ("Seed", str),
        "part": ("Study", str),
        **{key: (head, number) for key, head in METRIC_HEADS.items()},
        "first_half": ("1st half", number),
        "second_half": ("2nd half", number),
        "samples": ("Samples", lambda value: number(value, 0)),
        "skipped": ("Skipped", str),
        "seconds": ("Time a batch", seconds_text),
        "model_id": ("Source model", lambda name: name or EMPTY),
        "settings_set": ("Settings", str),
        "kept": ("In the tables", lambda kept: "yes" if kept else "left out"),
    }
    table = tidy_table(f"{suite.name}-runs", f"All runs of {suite.title}", runs, formats)
    kept = [key for key in formats if key not in {"pair", "part", "settings_set"}]
    return replace(table, data=runs[["id", *kept, "source", "target", "study", "variant", "unknown_share"]])


def model_table(suite: Results) -> Table | None:
    """The source models: how good they are and how they were trained."""
    lines = [
        {"model": name, "held_out": 100.0 * held if (held := model.get("held_out_accuracy")) is not None else math.nan}
        | {"network": model.get("backbone") or EMPTY, "training": _recipe(model) or EMPTY}
        for name, model in suite.models.items()
    ]
    formats: Formats = {
        "model": ("Model", str),
        "held_out": ("Held-out accuracy", number),
        "network": ("Network", str),
        "training": ("Training", str),
    }
    return tidy_table(f"{suite.name}-models", "Source models", pd.DataFrame(lines), formats) if lines else None


def _recipe(model: dict[str, Any]) -> str:
    """How a source model was trained, in a line."""
    facts = {**(model.get("training") or {}), "images of a class": model.get("per_class")}
    return ", ".join(f"{name} {shown(value)}" for name, value in facts.items() if value is not None)


def bytes_text(count: float) -> str:
    """``75 KiB``."""
    if math.isnan(count):
        return EMPTY
    size, units = float(count), ["B", "KiB", "MiB", "GiB", "TiB"]
    while size >= 1024 and len(units) > 1:
        size, units = size / 1024, units[1:]
    return "0" if count == 0 else f"{size:.3g} {units[0]}" if size < 999.5 else f"{size:.0f} {units[0]}"


def seconds_text(seconds: float) -> str:
    """``20 ms`` or ``1.5 s``."""
    if math.isnan(seconds):
        return EMPTY
    return f"{1000 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
