"""A report as Markdown, for repositories, tickets and terminals."""

from __future__ import annotations

from collections.abc import Sequence

from sim.reports.report import Report, Table
from sim.run_folder import PLOTS


def markdown(reports: Sequence[Report]) -> str:
    """The whole text; pictures are those that the run wrote beside it."""
    return "\n---\n\n".join(_chapter(report) for report in reports)


def _chapter(report: Report) -> str:
    parts = [f"# {report.name}\n"]
    if report.question:
        parts.append(f"*{report.question}*\n")
    parts += [f"{answer}\n" for answer in report.answers]
    parts += [f"> {note}\n" for note in report.notes]
    parts += [_table(table) for table in report.tables]
    for figure in report.figures:
        path = report.folder / PLOTS / f"{figure.name}.png"
        picture = f"![{figure.name}]({PLOTS}/{figure.name}.png)\n\n" if path.is_file() else ""
        if picture:
            parts.append(f"{picture}{figure.caption}\n")
    parts.append("## Where this comes from\n")
    versions = report.versions
    parts += [
        f"- {name}: {value}"
        for name, value in versions.items()
        if not isinstance(value, dict) and value is not None
    ]
    files = versions.get("workload", {}).get("files", {})
    parts += [f"- sha256 of {name}: `{digest}`" for name, digest in files.items()]
    parts.append(f"\n```yaml\n{report.config.rstrip()}\n```\n")
    return "\n".join(parts)


def _table(table: Table) -> str:
    rows = table.rows.astype(str).to_numpy().tolist()
    cells = [
        [f"**{cell}**" if (i, j) in table.best else cell for j, cell in enumerate(row)]
        for i, row in enumerate(rows)
    ]
    lines = [f"## {table.title}\n", _line(list(map(str, table.rows.columns)))]
    lines.append(_line(["---", *["---:"] * (len(table.rows.columns) - 1)]))
    lines += [_line(row) for row in cells]
    return "\n".join(lines) + (f"\n\n{table.note}\n" if table.note else "\n")


def _line(cells: Sequence[str]) -> str:
    escaped = (cell.replace("|", "\\|") for cell in cells)
    return f"| {' | '.join(escaped)} |"
