"""The tables beside a report: results, comparisons, costs, tenths and shares, as CSV, Markdown and LaTeX."""

from __future__ import annotations

import re
from pathlib import Path

from driftgate.checkpoint import write_text
from driftgate.lab.bench import findings, table_writers
from driftgate.lab.bench.report_parts import SuitePart
from driftgate.lab.bench.shares import share_table
from driftgate.lab.bench.table_writers import PlainTable
from driftgate.lab.bench.tables import method_name
from driftgate.lab.bench.tenths import tenths_table


def comparison_table(part: SuitePart) -> PlainTable | None:
    """Every reference against every other method."""
    found = [(reference, row) for reference, rows in part.comparisons.items() for row in rows]
    if not found:
        return None
    heads = ("reference", "method", "difference", "low_95", "high_95", "n", "wins", "ties")
    rows, texts = [], []
    for reference, row in found:
        difference, comparison = row.comparison.difference, row.comparison
        points = (difference.mean, difference.low, difference.high)
        counts = (difference.n, comparison.wins, comparison.ties)
        chances = (comparison.t_p, row.t_p_adjusted, comparison.wilcoxon_p)
        rows.append((reference, row.method, *points, *counts, *chances))
        texts.append(
            (
                method_name(reference),
                method_name(row.method),
                *(table_writers.EMPTY if value is None else table_writers.signed(value) for value in points),
                *map(str, counts),
                *map(p_text, chances),
            )
        )
    unit = "means over seeds" if found[0][1].averaged else "runs"
    title = f"{part.suite.title}: paired differences over n {unit}, reference minus method, in points"
    name = f"{part.suite.name}-comparisons"
    return PlainTable(name, title, (*heads, "t_p", "t_p_holm", "wilcoxon_p"), tuple(rows), tuple(texts))


def cost_table(part: SuitePart) -> PlainTable | None:
    """Score, memory and time of every method."""
    if not part.costs:
        return None
    heads = ("method", "mean_score", "state_bytes", "peak_memory_bytes", "seconds_per_batch", "source_free")
    rows, texts = [], []
    for cost in part.costs:
        score = None if cost.score is None else cost.score.mean
        rows.append((cost.method, score, cost.state_bytes, cost.peak_bytes, cost.seconds_per_batch, cost.source_free))
        texts.append(
            (
                cost.name,
                table_writers.number(score),
                bytes_text(cost.state_bytes),
                bytes_text(cost.peak_bytes),
                seconds_text(cost.seconds_per_batch),
                "yes" if cost.source_free else "no",
            )
        )
    title = f"{part.suite.title}: memory and time of each method"
    return PlainTable(f"{part.suite.name}-costs", title, heads, tuple(rows), tuple(texts))


def write_tables(part: SuitePart, folder: Path) -> list[Path]:
    """``<suite>``, ``<suite>-comparisons``, ``-costs``, ``-tenths`` and ``-shares``: ``.csv``, ``.md`` and ``.tex``."""
    everything = [*part.tables, *(study.table for study in part.studies)]
    texts: dict[str, str] = {}
    if everything:
        stem = file_name(part.suite.name)
        texts[f"{stem}.csv"] = table_writers.to_csv(everything)
        texts[f"{stem}.md"] = "\n".join(map(table_writers.to_markdown, everything))
        texts[f"{stem}.tex"] = "\n".join(map(table_writers.to_latex, everything))
    name, title = part.suite.name, part.suite.title
    further = (tenths_table(name, title, part.tenths), share_table(name, title, part.sweeps))
    for table in filter(None, (comparison_table(part), cost_table(part), *further)):
        stem = file_name(table.name)
        texts[f"{stem}.csv"] = table_writers.plain_csv(table)
        texts[f"{stem}.md"] = table_writers.plain_markdown(table)
        texts[f"{stem}.tex"] = table_writers.plain_latex(table)
    for name, text in texts.items():
        write_text(folder / name, text)
    return [folder / name for name in texts]


def p_text(value: float | None) -> str:
    """``0.012`` or ``< 0.001``."""
    return table_writers.EMPTY if value is None else findings.p_words(value).removeprefix("p ").removeprefix("= ")


def bytes_text(count: float | None) -> str:
    """``75 KiB``."""
    if count is None:
        return table_writers.EMPTY
    size, units = float(count), ["B", "KiB", "MiB", "GiB", "TiB"]
    while size >= 1024 and len(units) > 1:
        size, units = size / 1024, units[1:]
    return "0" if count == 0 else f"{size:.3g} {units[0]}" if size < 999.5 else f"{size:.0f} {units[0]}"


def seconds_text(seconds: float | None) -> str:
    """``20 ms`` or ``1.5 s``."""
    if seconds is None:
        return table_writers.EMPTY
    return f"{1000 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def file_name(name: str) -> str:
    """A name fit for a file or an anchor."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", name) or "suite"
