"""What a command prints: the summary as a table, and progress for whoever is watching."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from sim.results import Results
from sim.summary import headline

Advance = Callable[[float], None]


def print_summary(results: Results, file: TextIO | None = None) -> None:
    """Print one line per run to *file* (stdout): a table on a terminal, plain text elsewhere.

    A terminal that is too narrow for the table gets the plain text, which it wraps by itself.
    """
    file = file or sys.stdout
    if file.isatty():
        console = Console(file=file, highlight=False)
        for padding in (1, 0):
            table = summary_table(results, padding)
            unlimited = console.options.update(max_width=10_000)
            if Measurement.get(console, unlimited, table).maximum <= console.width:
                console.print(table)
                return
    file.write(summary_text(results))


def summary_text(results: Results) -> str:
    """The headline of every run as plain lines of any length, two spaces between columns."""
    rows = headline(results.summary)
    lines = [list(rows.columns), *rows.astype(str).to_numpy().tolist()]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    text = ""
    for first, *others in lines:
        cells = [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        text += "  ".join([first.ljust(widths[0]), *cells]) + "\n"
    return text


def summary_table(results: Results, padding: int = 1) -> Table:
    """The headline of every run as a table, headers over several lines to save width."""
    rows = headline(results.summary)
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, padding), header_style="bold")
    for name in rows.columns:
        if name == "policy":
            table.add_column(name, style="bold")
        else:
            table.add_column(name.replace(" ", "\n"), justify="right")
    for row in rows.itertuples(index=False):
        table.add_row(*(Text(str(cell)) for cell in row))
    return table


@contextmanager
def progress(label: str, total: float | None = None) -> Iterator[Advance]:
    """`with progress("replay", 20000) as advance: advance(1)`: a bar on stderr while it lasts.

    Nothing is written where stderr is not a terminal. *total* may be unknown.
    """
    if not sys.stderr.isatty():
        yield ignore
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(elapsed_when_finished=True),
    )
    with Progress(*columns, console=Console(file=sys.stderr), transient=True) as bar:
        task = bar.add_task(label, total=total)

        def advance(num_steps: float) -> None:
            bar.advance(task, num_steps)

        yield advance


def ignore(num_steps: float) -> None:
    """Nobody is watching."""
