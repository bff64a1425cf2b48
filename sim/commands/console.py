"""What a command prints: the summary as a table, and progress for whoever is watching."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import TextIO

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from sim.results import Results
from sim.summary import headline

MOST_ROWS = 100
Advance = Callable[[float], None]


def print_summary(results: Results, file: TextIO | None = None) -> None:
    """Print one line per run to *file* (stdout): a table on a terminal, plain text elsewhere.

    A terminal that is too narrow for the table gets the plain text, which it wraps by itself. Of
    a long sweep only the first runs are printed, and how many others there are.
    """
    file = file or sys.stdout
    num_left = len(results.summary) - MOST_ROWS
    if num_left > 0:
        first = Results(results.summary.head(MOST_ROWS), results.requests, results.series)
        print_summary(first, file)
        file.write(f"and {num_left:,} more in summary.csv\n")
        return
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


class RunProgress:
    """Shows on stderr which run has started, and how long the others will take.

    A bar on a terminal; elsewhere a line per run: `[3/48] lru, seed=1 (about 2:10 left)`.
    """

    def __init__(self) -> None:
        self._first: tuple[float, int] | None = None
        columns = (
            TextColumn("[{task.completed}/{task.total}]", markup=False),
            BarColumn(),
            TextColumn("{task.description}", markup=False),
        )
        self._bar = Progress(*columns, console=Console(file=sys.stderr), transient=True)
        self._task: TaskID | None = None

    def __enter__(self) -> RunProgress:
        if sys.stderr.isatty():
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if sys.stderr.isatty():
            self._bar.stop()

    def started(self, label: str, number: int, num_runs: int) -> None:
        """Run *number* (from 1) of *num_runs* begins."""
        left = self._left(number, num_runs)
        if not sys.stderr.isatty():
            print(f"[{number}/{num_runs}] {label}{left}", file=sys.stderr, flush=True)
            return
        if self._task is None:
            self._task = self._bar.add_task("", total=num_runs)
        self._bar.update(self._task, completed=number - 1, description=f"{label}{left}")

    def _left(self, number: int, num_runs: int) -> str:
        """The time for the runs that have not started, at the speed so far."""
        now = monotonic()
        if self._first is None:
            self._first = now, number
        since, first = self._first
        if number - first < 2 or now - since < 2:
            return ""
        seconds = round((now - since) / (number - first) * (num_runs - number + 1))
        hours, minutes = divmod(seconds // 60, 60)
        clock = f"{hours}:{minutes:02}" if hours else f"{minutes}"
        return f" (about {clock}:{seconds % 60:02} left)"


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
