"""A report as one HTML file: no network, no scripts; light and dark, for phones and for paper."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from html import escape
from typing import Any, cast

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Picture

from sim.plots.style import FAINT, GRID, INK
from sim.reports.report import Report, Table

STYLE = """
:root { color-scheme: light dark; --ink: #1d2226; --faint: #626c75; --grid: #e3e6e8;
  --paper: #ffffff; --sheet: #f6f7f8; --accent: #0b5c94; --line: #dde1e4; --best: #e7f1f8; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9eb; --faint: #9aa5ad; --grid: #363d43;
  --paper: #15191c; --sheet: #1d2226; --accent: #6bb7ea; --line: #343b41; --best: #17344a; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); -webkit-text-size-adjust: 100%;
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; }
main { max-width: 58rem; margin: 0 auto; padding: 2.5rem 1.25rem 4rem; }
header p.kind { color: var(--faint); margin: 0; font-size: .85rem; letter-spacing: .04em; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: .2rem 0 .6rem; letter-spacing: -.01em; }
h2 { font-size: 1.2rem; margin: 2.6rem 0 .6rem; letter-spacing: -.005em; }
p.question { font-size: 1.1rem; color: var(--faint); margin: 0 0 1.2rem; }
.answer { background: var(--sheet); border-left: 4px solid var(--accent); padding: 1rem 1.25rem;
  border-radius: 0 8px 8px 0; }
.answer p { margin: .45rem 0; } .answer p:first-child { font-size: 1.15rem; margin-top: 0; }
.answer p:last-child { margin-bottom: 0; }
.wide { overflow-x: auto; margin: .5rem 0; -webkit-overflow-scrolling: touch; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums;
  min-width: 100%; }
th, td { padding: .38rem .7rem; text-align: right; border-bottom: 1px solid var(--line);
  white-space: nowrap; }
th { color: var(--faint); font-weight: 600; border-bottom-color: var(--faint); }
th:first-child, td:first-child { text-align: left; padding-left: 0; position: sticky; left: 0;
  background: var(--paper); }
td:first-child { font-weight: 600; } td.best { font-weight: 700; background: var(--best); }
tr.bound td { color: var(--faint); font-style: italic; font-weight: 400; }
.note { color: var(--faint); font-size: .85rem; margin: .4rem 0 0; }
figure { margin: 2.2rem 0 0; break-inside: avoid; }
figure svg { width: 100%; height: auto; display: block; }
figcaption { font-size: .92rem; color: var(--faint); margin-top: .35rem; max-width: 46rem; }
details { margin: 1rem 0; } summary { cursor: pointer; color: var(--accent); font-weight: 600; }
pre { background: var(--sheet); padding: 1rem; border-radius: 8px; overflow-x: auto;
  font: .82rem/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1rem; font-size: .88rem;
  margin: .5rem 0; } dt { color: var(--faint); } dd { margin: 0; overflow-wrap: anywhere; }
hr { border: 0; border-top: 1px solid var(--line); margin: 4rem 0 3rem; }
@media (max-width: 40rem) { main { padding: 1.5rem 1rem 3rem; } h1 { font-size: 1.5rem; }
  dl { grid-template-columns: 1fr; gap: 0; } dd { margin-bottom: .5rem; } }
@media print { :root { --ink: #000; --faint: #444; --paper: #fff; --sheet: #f4f4f4;
  --accent: #0b5c94; --grid: #ddd; --line: #ccc; --best: #e7f1f8; }
  main { max-width: none; padding: 0; } body { font-size: 10.5pt; } .wide { overflow: visible; }
  table { font-size: 8pt; } th, td { padding: .2rem .35rem; }
  figure svg { min-width: 0 !important; } h2 { break-after: avoid; } tr { break-inside: avoid; }
  details > summary { list-style: none; } details::details-content { content-visibility: visible;
  display: block; } pre { white-space: pre-wrap; } }
"""


def html(reports: Sequence[Report]) -> str:
    """The whole page."""
    title = escape(" · ".join(report.name for report in reports))
    body = "\n<hr>\n".join(_chapter(report) for report in reports)
    return (
        "<!doctype html>\n"
        '<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title} · kvsim</title>\n<style>{STYLE}</style>\n</head>\n"
        f"<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


def _chapter(report: Report) -> str:
    versions = report.versions
    answers = "".join(f"<p>{_bold(answer)}</p>" for answer in report.answers)
    parts = [
        "<header>",
        '<p class="kind">kvsim experiment</p>',
        f"<h1>{escape(report.name)}</h1>",
        f'<p class="question">{escape(report.question)}</p>' if report.question else "",
        "</header>",
        f'<section class="answer">{answers}</section>',
        *(f'<p class="note">{escape(note)}</p>' for note in report.notes),
        *(_table(table) for table in report.tables if not table.is_detail),
        "<h2>Figures</h2>",
        *(
            f'<figure><div class="wide">{svg(figure.axes, figure.caption)}</div>'
            f"<figcaption>{escape(figure.caption)}</figcaption></figure>"
            for figure in report.figures
        ),
        *(_table(table) for table in report.tables if table.is_detail),
        "<h2>Where this comes from</h2>",
        _facts(versions),
        "<details><summary>Configuration: kvsim run on it repeats everything</summary>",
        f"<pre>{escape(report.config)}</pre></details>",
    ]
    return "\n".join(part for part in parts if part)


def _table(table: Table) -> str:
    names = [escape(str(name)) for name in table.rows.columns]
    head = "".join(f"<th>{name}</th>" for name in names)
    rows = []
    for i, row in enumerate(table.rows.astype(str).itertuples(index=False)):
        bound = ' class="bound"' if row[0] in ("MIN", "no limit") else ""
        cells = "".join(
            f'<td class="best">{escape(cell)}</td>'
            if (i, j) in table.best
            else f"<td>{escape(cell)}</td>"
            for j, cell in enumerate(row)
        )
        rows.append(f"<tr{bound}>{cells}</tr>")
    note = f'<p class="note">{escape(table.note)}</p>' if table.note else ""
    body = (
        f'<div class="wide"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>{note}"
    )
    if table.is_detail:
        return f"<details><summary>{escape(table.title)}</summary>{body}</details>"
    return f"<h2>{escape(table.title)}</h2>{body}"


def _facts(versions: dict[str, Any]) -> str:
    """Versions, and the inputs with their hashes."""
    facts = {
        name: str(value)
        for name, value in versions.items()
        if not isinstance(value, dict) and value is not None
    }
    workload = versions.get("workload", {})
    facts["requests"] = f"{workload.get('num_requests', 0):,}"
    facts |= {f"sha256 of {name}": digest for name, digest in workload.get("files", {}).items()}
    for i, note in enumerate(workload.get("notes", ()), start=1):
        facts[f"note {i}"] = note
    pairs = "".join(f"<dt>{escape(k)}</dt><dd>{escape(v)}</dd>" for k, v in facts.items())
    return f"<dl>{pairs}</dl>"


def _bold(text: str) -> str:
    return re.sub(r"\*\*(.+?)\*\*", r"<strong>\1</strong>", escape(text))


def svg(ax: Axes, caption: str) -> str:
    """The figure of *ax* as SVG whose ink follows the page's colours."""
    picture = cast("Picture", ax.figure)
    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": "kvsim", "svg.fonttype": "path"}):
        picture.savefig(
            buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None}
        )
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    width = float(re.search(r'width="([\d.]+)pt"', text)[1])  # type: ignore[index]
    text = re.sub(r' (width|height)="[\d.]+pt"', "", text, count=2)
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.S)
    text = re.sub(r'<g id="(?:[a-z0-9.]+)_\d+">', "<g>", text)
    for color, name in ((INK, "ink"), (FAINT, "faint"), (GRID, "grid")):
        text = text.replace(color.lower(), f"var(--{name})")
    narrow = f'style="min-width: {1.1 * width:.0f}px"'
    label = f'role="img" aria-label="{escape(caption, quote=True)}"'
    return text.replace("<svg", f"<svg {narrow} {label}", 1)
