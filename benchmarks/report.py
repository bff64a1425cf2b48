"""Rows and promises as text, for a terminal or as Markdown."""

from __future__ import annotations

import datetime
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.inputs import Settings
from benchmarks.measure import Row
from benchmarks.targets import Target
from sim.studies.provenance import git_revision

HEADER = (
    "",
    "requests/s",
    "best",
    "ratio",
    "blocks/s",
    "peak MiB",
    "call, walk ns",
    "what was done",
)
BEGIN, END = "<!-- results -->", "<!-- end of results -->"
CPU_INFO = Path("/proc/cpuinfo")


def machine(settings: Settings) -> str:
    """Where and when: processor, Python, revision, date."""
    size = "toy sizes, synthetic requests" if settings.quick else "full size"
    return (
        f"{datetime.date.today().isoformat()}, {_processor()}, one core of {os.cpu_count()}, "
        f"{platform.system()} {platform.machine()}, {platform.python_implementation()} "
        f"{platform.python_version()}, revision {(git_revision() or 'unknown')[:12]}, {size}; "
        f"medians of up to {settings.repetitions} repetitions, CPU time"
    )


def _processor() -> str:
    if CPU_INFO.is_file():
        for line in CPU_INFO.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown processor"


def section(title: str, results: Sequence[Row | str], *, markdown: bool) -> str:
    """One table: a row per measurement, or a line that says why there is none."""
    firsts: dict[str, Row] = {}
    for row in results:
        if isinstance(row, Row) and row.group:
            firsts.setdefault(row.group, row)
    lines = [HEADER, *(_cells(row, firsts) for row in results)]
    return f"{_heading(title, markdown)}\n\n{_table(lines, markdown)}\n"


def promises(targets: Sequence[Target], *, markdown: bool) -> str:
    """One table: a row per promise, met or missed."""
    lines = [("", "promised", "measured", "")]
    for target in targets:
        sign = "at least" if target.at_least else "at most"
        promised = f"{sign} {_number(target.limit)} {target.unit}"
        verdict = "met" if target.is_met else "MISSED"
        lines.append((target.promise, promised, _number(target.measured), verdict))
    return f"{_heading('Targets', markdown)}\n\n{_table(lines, markdown)}\n"


def put_into(path: Path, text: str) -> None:
    """Replace what stands between the two marks of a Markdown file."""
    before, begin, rest = path.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise SystemExit(f"{path}: no {BEGIN} ... {END} to replace; add both lines")
    path.write_text(f"{before}{BEGIN}\n\n{text.strip()}\n\n{END}{after}", encoding="utf-8")


def _heading(title: str, markdown: bool) -> str:
    return f"### {title}" if markdown else title


def _cells(row: Row | str, firsts: Mapping[str, Row]) -> tuple[str, ...]:
    if isinstance(row, str):
        name, _, reason = row.partition(": ")
        return (name, "", "", "", "", "", "", reason)
    blocks, first = row.blocks_per_s, firsts.get(row.group)
    return (
        row.name,
        f"{row.requests_per_s:,.0f}",
        f"{row.best_requests_per_s:,.0f}",
        "" if first is None else f"{row.requests_per_s / first.requests_per_s:.3g}",
        "" if blocks is None else f"{blocks / 1e6:,.2f} M",
        f"{row.peak_mib:,.0f}",
        f"{row.call_ns:.0f}, {row.walk_ns:.0f}",
        row.outcome.work,
    )


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _table(lines: Sequence[Sequence[str]], markdown: bool) -> str:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(_lines(lines, widths, markdown))


def _lines(lines: Sequence[Sequence[str]], widths: Sequence[int], markdown: bool) -> Iterator[str]:
    """Columns of equal width: the first and the last to the left, the others to the right."""
    last = len(widths) - 1
    for number, line in enumerate(lines):
        cells = [
            cell.rjust(width) if 0 < i < last else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        yield f"| {' | '.join(cells)} |" if markdown else "  ".join(cells).rstrip()
        if markdown and number == 0:
            rules = ("-" * (w - 1) + ":" if 0 < i < last else "-" * w for i, w in enumerate(widths))
            yield f"| {' | '.join(rules)} |"
