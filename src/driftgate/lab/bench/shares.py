"""The share sweep: what every method scores, rejects and estimates where more and more of the stream is unknown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from driftgate.lab.bench import table_writers
from driftgate.lab.bench.charts import Chart
from driftgate.lab.bench.runs import Run
from driftgate.lab.bench.share_charts import along_chart, rejected_chart, score_chart
from driftgate.lab.bench.statistics import Summary
from driftgate.lab.bench.table_writers import PlainTable
from driftgate.lab.bench.tables import by_method, mean_summary, method_name, ranks, shifts_of
from driftgate.lab.bench.tenths import tenths_chart
from driftgate.lab.data.orders import StreamShare


@dataclass(frozen=True)
class SharePoint:
    """A method at one share of one shift, over pairs and seeds; in per cent.

    Attributes:
        score: H-score, or accuracy where nothing is unknown; None if there was nothing to measure.
        rejected: share of the samples that were predicted as unknown.
        estimated: the method's own estimate of the share; None if it makes none.
        runs: how many runs it is the mean of.
        rank: 1 for the best score of its share, 2 for the second best.
    """

    score: Summary | None
    rejected: float | None
    estimated: float | None
    runs: int
    rank: int | None = None


@dataclass(frozen=True)
class ShareSweep:
    """All shares of one shift: ``points`` is method -> share -> point, ``batches`` share -> shortest and longest."""

    shift: str
    shares: tuple[StreamShare, ...]
    batches: dict[StreamShare, tuple[int, int]]
    points: dict[str, dict[StreamShare, SharePoint]]
    charts: list[Chart]

    @property
    def estimates(self) -> bool:
        """Whether a method estimates the share."""
        return any(point.estimated is not None for found in self.points.values() for point in found.values())


def share_sweeps(runs: Sequence[Run], anchor: str) -> list[ShareSweep]:
    """The sweep of every shift."""
    return [
        _sweep(shift, [run for run in runs if run.shift == shift], f"{anchor}-share{shift}")
        for shift in shifts_of(runs)
    ]


def _sweep(shift: str, runs: Sequence[Run], anchor: str) -> ShareSweep:
    of_share: dict[StreamShare, list[Run]] = {}
    for run in runs:
        of_share.setdefault(StreamShare.parse(run.unknown_share or ""), []).append(run)
    shares = tuple(sorted(of_share, key=lambda share: (share.changes, share.start, share.end)))
    points: dict[str, dict[StreamShare, SharePoint]] = {method: {} for method in by_method(runs)}
    for share in shares:
        for method, point in _points(of_share[share]).items():
            points[method][share] = point
    lengths = {share: [int(run.number("protocol", "batches") or 0) for run in of_share[share]] for share in shares}
    steady = {
        method: {share: point for share, point in found.items() if not share.changes}
        for method, found in points.items()
    }
    charts: list[Chart] = []
    if sum(not share.changes for share in shares) > 1:
        charts += [score_chart(steady, f"{anchor}-score", shift), rejected_chart(steady, f"{anchor}-rejected", shift)]
    for place, share in enumerate(share for share in shares if share.changes):
        title = f"{shift}, share from {100 * share.start:g} to {100 * share.end:g} %"
        charts += filter(
            None,
            (
                tenths_chart(of_share[share], f"{anchor}-tenths{place}", f"{title}: score"),
                along_chart(of_share[share], f"{anchor}-along{place}", f"{title}: rejected"),
            ),
        )
    batches = {share: (min(found), max(found)) for share, found in lengths.items()}
    return ShareSweep(shift, shares, batches, points, charts)


def _points(runs: Sequence[Run]) -> dict[str, SharePoint]:
    """Method -> its point, of the runs of one share."""
    found = {}
    for method, group in by_method(runs).items():
        cells: dict[tuple[str, str], dict[int, float]] = {}
        for run in group:
            if run.score is not None:
                cells.setdefault(run.pair, {})[run.seed] = run.score
        score = mean_summary(list(cells.values())) if cells else None
        found[method] = SharePoint(score, _mean(group, "rejected"), _mean(group, "estimated"), len(group))
    places = ranks([point.score for point in found.values()])
    return {
        method: SharePoint(point.score, point.rejected, point.estimated, point.runs, rank)
        for (method, point), rank in zip(found.items(), places, strict=True)
    }


def _mean(runs: Sequence[Run], share: str) -> float | None:
    values = [value for run in runs if (value := run.number("shares", share)) is not None]
    return 100.0 * sum(values) / len(values) if values else None


def batches_text(batches: tuple[int, int]) -> str:
    """``34 batches``, or from the shortest to the longest where pairs differ."""
    low, high = batches
    return f"{low} batch{'' if low == 1 else 'es'}" if low == high else f"{low} to {high} batches"


def share_table(name: str, title: str, sweeps: Sequence[ShareSweep]) -> PlainTable | None:
    """A row for each shift, method and share."""
    heads = ("shift", "method", "unknown_share", "batches", "score", "std", "rejected", "estimated", "runs")
    rows: list[tuple[str | float | bool | None, ...]] = []
    texts: list[tuple[str, ...]] = []
    for sweep in sweeps:
        for method, points in sweep.points.items():
            for share, point in points.items():
                score, std = (None, None) if point.score is None else (point.score.mean, point.score.std)
                batches = batches_text(sweep.batches[share]).rpartition(" ")[0]
                numbers = (score, std, point.rejected, point.estimated)
                rows.append((sweep.shift, method, str(share), batches, *numbers, point.runs))
                texts.append(
                    (
                        sweep.shift,
                        method_name(method),
                        str(share).replace("->", " → "),
                        batches,
                        *map(table_writers.number, numbers),
                        str(point.runs),
                    )
                )
    if not rows:
        return None
    words = "score (accuracy at share 0, H-score otherwise), rejected and estimated share in per cent"
    return PlainTable(f"{name}-shares", f"{title}: {words}", heads, tuple(rows), tuple(texts))
