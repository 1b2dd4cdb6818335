"""The further tables of a report: standings, metrics, ranks, comparisons, costs, tenths, shares, classes, runs."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import resources
from typing import Any

import numpy as np
import pandas as pd

from driftgate.lab.bench import standings
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
from driftgate.stream import LONG_STREAM

METRICS = ("score", "best_threshold", "known_accuracy", "unknown_accuracy", "auroc")
MOST_CLASSES = 60
"""With more classes than these their table is written to a file only."""


def _whole(value: float) -> str:
    return number(value, 0)


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


def p_text(value: float) -> str:
    """``0.012`` or ``< 0.001``."""
    return EMPTY if math.isnan(value) else "< 0.001" if value < 0.001 else f"{value:.3f}"


FORMATS: dict[str, Callable[[Any], str]] = {
    **{"text": lambda value: str(value).replace("->", " → ") or EMPTY, "yes": lambda value: "yes" if value else "no"},
    **{"number": number, "whole": _whole, "signed": signed, "p": p_text, "bytes": bytes_text, "seconds": seconds_text},
    "method": method_name,
}
WORDS = json.loads(resources.files("driftgate.lab.report").joinpath("words.json").read_text(encoding="utf-8"))
"""What stands above and below the parts of a page."""

SHOWN = {column: (head, FORMATS[kind]) for column, (head, kind) in WORDS["columns"].items()}
"""Column of a tidy table -> its head, and how a value is printed."""


def tidy_table(name: str, title: str, data: pd.DataFrame, columns: Sequence[str]) -> Table:
    """A table whose rows are those of ``data``; the first of ``columns`` names them."""
    first, *rest = columns
    text = pd.DataFrame({SHOWN[key][0]: list(map(SHOWN[key][1], data[key])) for key in rest})
    value = pd.DataFrame({SHOWN[key][0]: data[key].to_numpy() for key in rest})
    index = pd.Index(map(SHOWN[first][1], data[first]), name=SHOWN[first][0])
    told = data.drop(columns="interval", errors="ignore")  # which is there as two numbers
    return Table(name, title, told, text.set_axis(index), value.set_axis(index))


def wide_table(
    name: str, title: str, data: pd.DataFrame, text: pd.DataFrame, value: pd.DataFrame, **more: Any
) -> Table:
    """A table with methods down; ``text`` and ``value`` are indexed by method."""
    index = pd.Index([method_name(str(key)) for key in text.index], name="Method")
    rank = {"rank": more.pop("rank").set_axis(index)} if "rank" in more else {}
    return Table(name, title, data, text.set_axis(index), value.set_axis(index), **rank, **more)


def _intervals(data: pd.DataFrame, low: str, high: str, show: Callable[[float], str]) -> pd.Series:
    """``1.1 to 2.9``."""
    pairs = zip(data[low], data[high], strict=True)
    return pd.Series([EMPTY if math.isnan(a) else f"{show(a)} to {show(b)}" for a, b in pairs], index=data.index)


def standings_table(suite: Results) -> Table:
    """Methods by their mean over the cells most of them have, best first; the unranked last."""
    runs, table = suite.main, standings.standings(suite.main)
    ground = standings.common_ground(runs)
    part, whole = (len(some.drop_duplicates(standings.PART)) for some in (ground, runs))
    data = (
        table.rename_axis("method").reset_index().assign(interval=_intervals(table, "low", "high", number).to_numpy())
    )
    words = f"mean over {part} of {whole} cells (pairs under shifts)"
    words += ", those that most methods have" if part < whole else ""
    columns = ("method", "mean", "std", "interval", "n", "rank", "missing")
    found = tidy_table(f"{suite.name}-standings", f"{suite.title}: {words}", data, columns)
    ranks = pd.DataFrame(math.nan, found.text.index, found.text.columns)
    ranks["Mean score"] = marks(table["rank"]).to_numpy()
    return replace(found, rank=ranks)


def metrics_table(suite: Results) -> Table:
    """Score, best threshold, known and unknown accuracy and AUROC of every method under every shift."""
    runs = suite.main
    means = pd.concat(
        {key: group.groupby("shift")[list(METRICS)].mean() for key, group in by_method(runs).items()},
        names=["method", "shift"],
    )
    wide = means.unstack("shift").swaplevel(axis=1).reindex(index=list(by_method(runs)))
    heads = [(shift, metric) for shift in shifts_of(runs) for metric in METRICS]
    wide = wide[[head for head in heads if head in wide.columns and wide[head].notna().any()]]
    best = wide.apply(lambda column: marks(rank(column)))
    wide.columns = best.columns = pd.MultiIndex.from_tuples([(shift, SHOWN[m][0]) for shift, m in wide.columns])
    title = f"{suite.title}: what is behind the scores (means over pairs and seeds, %)"
    return wide_table(f"{suite.name}-metrics", title, means.reset_index(), wide.map(number), wide, rank=best)


def ranks_table(suite: Results) -> Table | None:
    """The rank of every method under every shift, by the means over common seeds, and the mean of its ranks."""
    runs, rows = suite.main, by_method(suite.main)
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
    rows = standings.comparisons(standings.common_ground(suite.main), reference)
    if rows.empty:
        return None
    data = rows.rename_axis("method").reset_index()
    data.insert(0, "reference", reference)
    title = f"{method_name(reference)} against each other method, in points"
    data["interval"] = _intervals(data, "low_95", "high_95", signed)
    columns = ("method", "difference", "interval", "wins", "n", "t_p", "t_p_holm", "wilcoxon_p")
    return tidy_table(f"{suite.name}-against-{reference}", title, data, columns)


def method_costs(runs: pd.DataFrame) -> pd.DataFrame:
    """Score (of ranked methods), its half interval, state, peak memory and time of every method."""
    table = standings.standings(runs)
    ranked, rows = table[table.ranked], by_method(runs)
    costs = pd.DataFrame({key: group[["state_bytes", "peak_bytes", "seconds"]].mean() for key, group in rows.items()}).T
    costs["score"] = ranked["mean"].astype(float)
    costs["half"] = ((ranked.high - ranked.low) / 2).astype(float)
    costs["source_free"] = [standings.is_source_free(key) for key in costs.index]
    return costs


def cost_table(suite: Results, costs: pd.DataFrame) -> Table:
    """Score, memory and time of every method."""
    columns = ["method", "score", "state_bytes", "peak_bytes", "seconds", "source_free"]
    title = f"{suite.title}: memory and time of each method"
    return tidy_table(f"{suite.name}-costs", title, costs.rename_axis("method").reset_index()[columns], columns)


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
    columns = ("method", *(f"tenth_{part}" for part in range(1, 11)), "largest_fall", "runs")
    title = f"{shift}: score of each tenth of the stream, %"
    return tidy_table(f"{suite.name}-tenths-{shift}", title, pd.DataFrame(lines), columns)


def share_points(runs: pd.DataFrame) -> pd.DataFrame:
    """A row for each method and share of one shift: score and its spread, rejected and estimated share, in per cent."""
    lines = []
    shares = sorted(map(StreamShare.parse, runs.unknown_share.unique()), key=lambda s: (s.changes, s.start, s.end))
    groups = by_method(runs)
    for method, share in ((method, share) for method in groups for share in shares):
        own = groups[method][groups[method].unknown_share == str(share)]
        if own.empty:
            continue
        wide = own.pivot_table(index=["source", "target"], columns="seed", values="score")
        score = mean_summary(wide.to_numpy()) if len(wide) else Summary(0, math.nan)
        lines.append(
            {
                **{"shift": own["shift"].iloc[0], "method": method, "unknown_share": str(share), "share": share},
                **{"batches": own.batches.mean(), "score": score.mean, "std": score.std},
                **{"low": score.low, "high": score.high},
                **{"rejected": own.rejected.mean(), "estimated": own.estimated.mean(), "runs": len(own)},
            }
        )
    frame = pd.DataFrame(lines)
    frame["rank"] = frame.groupby("unknown_share").score.transform(rank)
    return frame


def share_table(suite: Results, points: pd.DataFrame) -> Table:
    """A row for each method and share: score, rejected and estimated share."""
    shift, data = points["shift"].iloc[0], points.drop(columns=["share", "low", "high"])
    columns = ("method", "unknown_share", "score", "std", "rejected", "estimated", "rank", "batches", "runs")
    title = f"{shift}: score, rejected and estimated share by share of unknown samples (%)"
    return tidy_table(f"{suite.name}-shares-{shift}", title, data, columns)


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


def run_table(suite: Results) -> Table:
    """Every run, also those that are kept out of the tables."""
    runs = suite.frame.copy()
    runs["pair"] = [pair_label(source, target) for source, target in zip(runs.source, runs.target, strict=True)]
    shares = runs.unknown_share.map(lambda share: f"{share} unknown", na_action="ignore")
    runs["part"] = runs.variant.fillna(runs.study).fillna(shares).fillna("")
    columns = ["method", "pair", "shift", "seed", "part", *METRICS, "first_half", "second_half", "samples", "skipped"]
    columns += ["seconds", "model_id", "kept"]
    table = tidy_table(f"{suite.name}-runs", f"All runs of {suite.title}", runs, columns)
    kept = [key for key in columns if key not in {"pair", "part"}]
    return replace(table, data=runs[["id", *kept, "source", "target", "study", "variant", "unknown_share"]])


def model_table(suite: Results) -> Table | None:
    """The source models: how good they are and how they were trained."""
    lines = []
    for name, facts in suite.models.items():
        recipe = {**(facts.get("training") or {}), "images of a class": facts.get("per_class")}
        told = ", ".join(f"{key} {value}" for key, value in recipe.items() if value is not None)
        held = facts.get("held_out_accuracy")
        share = math.nan if held is None else 100.0 * held
        lines.append({"model": name, "held_out": share, "network": facts.get("backbone") or EMPTY, "training": told})
    columns = ("model", "held_out", "network", "training")
    return tidy_table(f"{suite.name}-models", "Source models", pd.DataFrame(lines), columns) if lines else None
