"""A result table, or any plain table, as CSV, Markdown and LaTeX."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from driftgate.lab.bench.tables import Cell, Column, ResultTable, Row, column_group

CSV_COLUMNS = (
    "table",
    "row",
    "shift",
    "source",
    "target",
    "n",
    "runs",
    "mean",
    "std",
    "low_95",
    "high_95",
    "mean_on_common_seeds",
    "rank",
    "missing_cells",
    "published",
    "difference",
    "mean_as_released",
)
UNEVEN = (
    "In square brackets: the number of runs, where another cell of the column has more. Such a column is ranked by the "
    "mean over the seeds that all its cells have."
)
COUNTED = (
    "After a semicolon: our mean as the paper's authors count it, where that differs; a shared class without a sample "
    "has accuracy 0 there and is left out here."
)
EMPTY, MINUS = "\N{EN DASH}", "\N{MINUS SIGN}"
PAPER_WORDS = f"↳ paper (ours {MINUS} paper)"
PAPER_LINE = r"{\footnotesize\quad paper (ours $-$ paper)}"
LATEX_SPECIAL = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "→": r"$\to$",
    EMPTY: "--",
}


@dataclass(frozen=True)
class PlainTable:
    """A table of anything.

    Attributes:
        name: for its file and its label.
        title: its caption.
        heads: names of the columns, the first of them texts.
        rows: what a program reads: names, numbers, None.
        texts: the same for people.
    """

    name: str
    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str | float | bool | None, ...], ...]
    texts: tuple[tuple[str, ...], ...]


def number(value: float | None, decimals: int = 1) -> str:
    """A number as it is printed."""
    return EMPTY if value is None else f"{value:.{decimals}f}"


def signed(value: float, decimals: int = 1) -> str:
    """With its sign, a real minus."""
    text = f"{value:+.{decimals}f}"
    return text.replace("-", MINUS) if float(text) != 0 else f"±{abs(value):.{decimals}f}"


def cell_text(cell: Cell) -> str:
    """``52.3 ± 1.1``; in brackets where the mean lacks cells, with the number of runs where others have more."""
    if cell.summary is None:
        return EMPTY
    spread = "" if cell.summary.std is None else f" ± {cell.summary.std:.1f}"
    text = f"{cell.summary.mean:.1f}{spread}{f' [{runs_text(cell)}]' if cell.fewer else ''}"
    return f"({text})" if cell.missing else text


def runs_text(cell: Cell) -> str:
    """``1 run``."""
    return f"{cell.runs} run{'' if cell.runs == 1 else 's'}"


def published_text(cell: Cell) -> str:
    """``60.3 (−8.0; 41.4)``: the paper's number, ours minus it, and ours as its authors count where that differs."""
    if cell.published is None:
        return ""
    beside = ["" if cell.difference is None else signed(cell.difference), released_text(cell)]
    inside = "; ".join(filter(None, beside))
    return number(cell.published) + (f" ({inside})" if inside else "")


def released_text(cell: Cell) -> str:
    """Our mean as the paper's authors count it; empty where it is printed like ours, or no run tells it."""
    if cell.published is None or cell.summary is None or cell.as_released is None:
        return ""
    counted = number(cell.as_released)
    return "" if counted == number(cell.summary.mean) else counted


def to_csv(tables: Sequence[ResultTable]) -> str:
    """One line a cell, so that no program has to take ``52.3 ± 1.1`` apart; full precision."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for table in tables:
        for row in table.rows:
            for column, cell in zip(table.columns, row.cells, strict=True):
                if cell.summary is not None or cell.published is not None:
                    writer.writerow(_csv_line(table, row, column, cell))
    return text.getvalue()


def _csv_line(table: ResultTable, row: Row, column: Column, cell: Cell) -> list[object]:
    summary = cell.summary
    ours = (
        [None] * 6 if summary is None else [summary.n, cell.runs, summary.mean, summary.std, summary.low, summary.high]
    )
    common = None if cell.common is None else cell.common.mean
    place = [table.name, row.key, column.shift or "all", column.source or "mean", column.target or "mean"]
    return [*place, *ours, common, cell.rank, cell.missing, cell.published, cell.difference, cell.as_released]


def to_markdown(table: ResultTable) -> str:
    """A Markdown table; the best bold, the second best in italics, the paper's numbers in a line of their own."""
    heads = [_flat_head(column, table) for column in table.columns]
    lines = [
        f"**{table.title}**",
        "",
        f"| {' | '.join([table.head, *heads])} |",
        f"|{'|'.join(['---'] + ['---:'] * len(heads))}|",
    ]
    for row in table.rows:
        lines.append(f"| {' | '.join([row.name, *(_marked(cell, '**{}**', '*{}*') for cell in row.cells)])} |")
        if any(cell.published is not None for cell in row.cells):
            lines.append(f"| {' | '.join([PAPER_WORDS, *map(published_text, row.cells)])} |")
    return "\n".join([*lines, *(line for note in table_notes(table) for line in ("", note))]) + "\n"


def table_notes(table: ResultTable) -> list[str]:
    """What must be said below a table for its cells to be understood."""
    counted = any(released_text(cell) for row in table.rows for cell in row.cells)
    return [note for note, needed in ((UNEVEN, table.is_uneven), (COUNTED, counted)) if needed]


def _flat_head(column: Column, table: ResultTable) -> str:
    """A header for formats with a single line of them."""
    if column.shift is None:
        return "Mean"
    alone = sum(other.shift == column.shift for other in table.columns) == 1
    return column_group(column.shift) if alone else f"{column.shift} {column.label}"


def to_latex(table: ResultTable) -> str:
    """A booktabs table; the best bold, the second best underlined, the paper's numbers in a line of their own."""
    groups = table.groups
    upper = " & ".join(["", *(rf"\multicolumn{{{width}}}{{c}}{{{escape(name)}}}" for name, width in groups)])
    rules, start = [], 2
    for _, width in groups:
        rules.append(rf"\cmidrule(lr){{{start}-{start + width - 1}}}")
        start += width
    lines = [
        r"% needs \usepackage{booktabs}",
        r"\begin{table}",
        rf"  \caption{{{escape(table.title)}. Mean $\pm$ standard deviation over the seeds, in \%; "
        rf"{' '.join(['best bold, second best underlined.', *map(escape, table_notes(table))])}}}",
        rf"  \label{{tab:{table.name}}}",
        rf"  \begin{{tabular}}{{l{'c' * len(table.columns)}}}",
        r"    \toprule",
        f"    {upper} \\\\",
        f"    {' '.join(rules)}",
        f"    {' & '.join([escape(table.head), *(escape(column.label) for column in table.columns)])} \\\\",
    ]
    block = None
    for row in table.rows:
        if row.block != block:
            lines.append(r"    \midrule")
        block = row.block
        cells = [_marked(cell, r"\textbf{{{}}}", r"\underline{{{}}}", _latex_cell) for cell in row.cells]
        lines.append(f"    {' & '.join([escape(row.name), *cells])} \\\\")
        if any(cell.published is not None for cell in row.cells):
            theirs = [rf"{{\footnotesize {_latex_number(published_text(cell))}}}" for cell in row.cells]
            lines.append(f"    {' & '.join([PAPER_LINE, *theirs])} \\\\")
    return "\n".join([*lines, r"    \bottomrule", r"  \end{tabular}", r"\end{table}", ""])


def _marked(cell: Cell, best: str, second: str, text: Callable[[Cell], str] = cell_text) -> str:
    pattern = {1: best, 2: second}.get(cell.rank or 0, "{}")
    return pattern.format(text(cell))


def _latex_cell(cell: Cell) -> str:
    return _latex_number(cell_text(cell))


def _latex_number(text: str) -> str:
    return text.replace("±", r"$\pm$").replace(MINUS, "$-$").replace(EMPTY, "--")


def escape(text: str) -> str:
    """Plain text for LaTeX."""
    return "".join(LATEX_SPECIAL.get(letter, letter) for letter in text)


def plain_csv(table: PlainTable) -> str:
    """A line a row; full precision."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([table.heads, *table.rows])
    return text.getvalue()


def plain_markdown(table: PlainTable) -> str:
    """A Markdown table."""
    lines = [table.heads, ("---",) * len(table.heads), *table.texts]
    return f"**{table.title}**\n\n" + "".join(f"| {' | '.join(line)} |\n" for line in lines)


def plain_latex(table: PlainTable) -> str:
    """A booktabs table."""
    heads, *body = [" & ".join(map(_latex_text, line)) + r" \\" for line in (table.heads, *table.texts)]
    return "\n".join(
        [
            r"% needs \usepackage{booktabs}",
            r"\begin{table}",
            rf"  \caption{{{escape(table.title)}}}",
            rf"  \label{{tab:{table.name}}}",
            rf"  \begin{{tabular}}{{l{'c' * (len(table.heads) - 1)}}}",
            r"    \toprule",
            f"    {heads}",
            r"    \midrule",
            *(f"    {line}" for line in body),
            r"    \bottomrule",
            r"  \end{tabular}",
            r"\end{table}",
            "",
        ]
    )


def _latex_text(text: str) -> str:
    return _latex_number(escape(text)).replace("<", "$<$")
