"""A table as CSV, Markdown and LaTeX."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd

from driftgate.files import write_text
from driftgate.lab.bench.tables import EMPTY, MINUS, Table

MOST_LINES = 1000
BELOW = "↳ "
"""Before what a second line is."""
LATEX_SPECIAL = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    **{letter: f"\\{letter}" for letter in "&%$#_{}"},
    "→": r"$\to$",
    "±": r"$\pm$",
    "↳": r"\quad",
    "<": "$<$",
    MINUS: "$-$",
    EMPTY: "--",
}


def to_csv(tables: Sequence[Table]) -> str:
    """The numbers of tables with the same columns below each other; full precision."""
    return str(pd.concat([table.data for table in tables]).to_csv(index=False, lineterminator="\n"))


def to_markdown(table: Table) -> str:
    """A Markdown table; the best bold, the second best in italics, the paper's numbers in a line of their own."""
    shown = _lines(table, "**{}**", "*{}*")
    heads = [str(shown.index.name or ""), *(_flat(head) for head in shown.columns)]
    rows = [
        heads,
        ["---", *["---:"] * len(shown.columns)],
        *([name, *row] for name, row in zip(shown.index, shown.to_numpy(), strict=True)),
    ]
    lines = [f"| {' | '.join(map(str, row))} |" for row in rows]
    lines[1] = lines[1].replace(" ", "")
    return "\n".join([f"**{table.title}**", "", *lines, *(line for note in table.notes for line in ("", note))]) + "\n"


def to_latex(table: Table) -> str:
    """A booktabs table; the best bold, the second best underlined, the paper's numbers in a line of their own."""
    shown = _lines(table, r"\textbf{{{}}}", r"\underline{{{}}}", escape)
    places = [place for place, name in enumerate(shown.index) if not str(name).startswith(BELOW)]
    shown.index = pd.Index([escape(str(name)) for name in shown.index])
    heads = [
        [escape(str(part)) for part in ((head,) if isinstance(head, str) else head)] for head in table.text.columns
    ]
    first = escape(str(table.text.index.name or ""))
    shown.columns = pd.MultiIndex.from_tuples(heads) if len(heads[0]) > 1 else pd.Index([head[0] for head in heads])
    ranked = (
        " Best bold, second best underlined." if table.rank is not None and table.rank.notna().any(axis=None) else ""
    )
    caption = f"{escape(table.title)}.{ranked}{''.join(f' {escape(note)}' for note in table.notes)}"
    text = shown.to_latex(
        escape=False,
        multicolumn_format="c",
        column_format=f"l{'c' * len(heads)}",
        caption=caption,
        label=f"tab:{table.name}",
    )
    body = text.splitlines()
    start = next(place for place, line in enumerate(body) if line.startswith(r"\midrule"))
    body[start - 1] = first + body[start - 1]
    for place in reversed(table.starts):
        body.insert(start + 1 + places[place], r"\midrule")
    return "\n".join([r"% needs \usepackage{booktabs}", *body, ""])


def _lines(table: Table, best: str, second: str, clean: Callable[[str], str] = str) -> pd.DataFrame:
    """The text with its marks, and the line below each row that has one."""
    patterns = {1.0: best, 2.0: second}
    shown = table.text.map(clean)
    if table.rank is not None:
        marked = table.rank.map(lambda rank: patterns.get(rank, "{}")).to_numpy()
        for place, texts in enumerate(shown.to_numpy()):
            shown.iloc[place] = [pattern.format(text) for pattern, text in zip(marked[place], texts, strict=True)]
    if table.below is None:
        return shown
    theirs = table.below.map(clean).set_axis([f"{BELOW}{table.below_is}"] * len(shown))
    both = pd.concat([shown, theirs])
    order = [place for row in range(len(shown)) for place in (row, row + len(shown))]
    kept = [place for place in order if place < len(shown) or any(both.iloc[place])]
    return both.iloc[kept].rename_axis(table.text.index.name)


def _flat(head: str | tuple[str, str]) -> str:
    """A header for formats with a single line of them."""
    if isinstance(head, str):
        return head
    group, label = head
    return "Mean" if group == "All shifts" else f"{group.split(',')[0]} {label}"


def escape(text: str) -> str:
    """Any text for LaTeX."""
    return "".join(LATEX_SPECIAL.get(letter, letter) for letter in text)


def write_tables(tables: Sequence[Table], folder: Path) -> list[Path]:
    """Every table as ``.csv`` and, unless it is too long to be read, as ``.md`` and ``.tex``."""
    texts: dict[str, str] = {}
    for table in tables:
        stem = file_name(table.name)
        texts[f"{stem}.csv"] = to_csv([table])
        if len(table.text) <= MOST_LINES:
            texts |= {f"{stem}.md": to_markdown(table), f"{stem}.tex": to_latex(table)}
    for name, text in texts.items():
        write_text(folder / name, text)
    return [folder / name for name in texts]


def file_name(name: str) -> str:
    """A name fit for a file or an anchor."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", name) or "suite"
