"""A table as CSV, Markdown and LaTeX."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from driftgate.files import write_text
from driftgate.lab.bench.tables import EMPTY, MINUS, Table

MOST_LINES = 1000
BELOW = "↳ "
"""Before what a second line is."""
LATEX_SPECIAL = {
    **{"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"},
    **{letter: f"\\{letter}" for letter in "&%$#_{}"},
    **{"→": r"$\to$", "±": r"$\pm$", "↳": r"\quad", "<": "$<$", MINUS: "$-$", EMPTY: "--"},
}


def to_markdown(table: Table) -> str:
    """A Markdown table; the best bold, the second best in italics, the paper's numbers in a line of their own."""
    heads, rows = _grid(table, "**{}**", "*{}*")
    lines = [heads, ["---", *["---:"] * (len(heads) - 1)], *rows]
    text = (
        "\n".join(f"| {' | '.join(line)} |" for line in lines).replace("| --- |", "|---|").replace(" ---: |", "---:|")
    )
    return "\n\n".join([f"**{table.title}**", text, *table.notes]) + "\n"


def to_latex(table: Table) -> str:
    """A booktabs table; the best bold, the second best underlined, the paper's numbers in a line of their own."""
    heads, rows = _grid(table, r"\textbf{{{}}}", r"\underline{{{}}}", escape, [r"\midrule"])
    marked = table.rank is not None and bool(table.rank.notna().any(axis=None))
    caption = [f"{table.title}.", *["Best bold, second best underlined."] * marked, *table.notes]
    lines = [line[0] if len(line) == 1 else " & ".join(line) + r" \\" for line in (heads, *rows)]
    return "\n".join(
        [
            *(r"% needs \usepackage{booktabs}", r"\begin{table}", r"\centering"),
            *(rf"\caption{{{escape(' '.join(caption))}}}", rf"\label{{tab:{table.name}}}"),
            *(rf"\begin{{tabular}}{{l{'c' * (len(heads) - 1)}}}", r"\toprule", lines[0], r"\midrule", *lines[1:]),
            *(r"\bottomrule", r"\end{tabular}", r"\end{table}", ""),
        ]
    )


def _grid(
    table: Table, best: str, second: str, clean: Callable[[str], str] = str, rule: Sequence[str] = ()
) -> tuple[list[str], list[list[str]]]:
    """The heads in one line, and the rows as text with their marks; below a row its second line, if it has one.

    A ``rule`` is put before the rows that begin a block.
    """
    patterns, rows = {"best": best, "second": second, "": "{}"}, list[list[str]]()
    heads = [str(table.text.index.name or ""), *(_flat(group, label) for group, label, _ in table.heads())]
    for name, starts, cells in table.rows():
        rows += [list(rule)] if starts and rule else []
        rows.append([clean(name), *(patterns[cell.mark].format(clean(cell.text)) for cell in cells)])
        if any(cell.below for cell in cells):
            rows.append([clean(BELOW + table.below_is), *(clean(cell.below) for cell in cells)])
    return [clean(head) for head in heads], rows


def _flat(group: str, label: str) -> str:
    """A header for formats with a single line of them."""
    return "Mean" if group == "All shifts" else f"{group.split(',', maxsplit=1)[0]} {label}".strip()


def escape(text: str) -> str:
    """Any text for LaTeX."""
    return "".join(LATEX_SPECIAL.get(letter, letter) for letter in text)


def write_tables(tables: Sequence[Table], folder: Path) -> list[Path]:
    """Every table as ``.csv`` and, unless it is too long to be read, as ``.md`` and ``.tex``."""
    texts: dict[str, str] = {}
    for table in tables:
        stem = file_name(table.name)
        texts[f"{stem}.csv"] = str(table.data.to_csv(index=False, lineterminator="\n"))
        if len(table.text) <= MOST_LINES:
            texts |= {f"{stem}.md": to_markdown(table), f"{stem}.tex": to_latex(table)}
    for name, text in texts.items():
        write_text(folder / name, text)
    return [folder / name for name in texts]


def file_name(name: str) -> str:
    """A name fit for a file or an anchor."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", name) or "suite"
