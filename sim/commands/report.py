"""`kvsim report DIR...`: results folders as one page that answers their question."""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace
from pathlib import Path

from sim.run_folder import REPORTS, disk_errors


def add_options(parser: ArgumentParser) -> None:
    """The options of `kvsim report`."""
    parser.add_argument("folders", metavar="DIR", nargs="+", type=Path, help="results of kvsim run")
    parser.add_argument(
        "--out", metavar="DIR", type=Path, help="where to write them (the first results folder)"
    )


def run(arguments: Namespace) -> int:
    """Write report.html and report.md, and print the answers."""
    from sim.reports.html import html
    from sim.reports.markdown import markdown
    from sim.reports.report import Report

    reports = [Report.of(folder) for folder in arguments.folders]
    out: Path = arguments.out or arguments.folders[0]
    with disk_errors(out):
        out.mkdir(parents=True, exist_ok=True)
        for name, text in zip(REPORTS, (html(reports), markdown(reports)), strict=True):
            scratch = out / f".{name}.new"
            try:
                scratch.write_text(text, encoding="utf-8", newline="\n")
                os.replace(scratch, out / name)
            finally:
                scratch.unlink(missing_ok=True)
    for report in reports:
        print(f"{report.name}:")
        for answer in report.answers:
            print(f"  {answer.replace('**', '')}")
    print(f"\n{' and '.join(REPORTS)} in {out}")
    return 0
