"""`python -m benchmarks`: every measurement of docs/performance.md, in one run on one core."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks import engines, growth, peers, policies, replays, report, sessions
from benchmarks.inputs import Settings
from benchmarks.measure import Row
from benchmarks.targets import judged
from workloads.datasets import DATA_VARIABLE


class Section(NamedTuple):
    """One table: its title, the trace it needs, and what measures its rows.

    A row that is a text says why something was not measured.
    """

    title: str
    needs: Path | None
    rows: Callable[[Settings], Iterator[Row | str]]


SECTIONS = {
    "replay": Section(replays.TITLE, replays.NEEDS, replays.rows),
    "policies": Section(policies.TITLE, policies.NEEDS, policies.rows),
    "engine": Section(engines.TITLE, engines.NEEDS, engines.rows),
    "growth": Section(growth.TITLE, growth.NEEDS, growth.rows),
    "weka": Section(sessions.TITLE, sessions.NEEDS, sessions.rows),
    "peers": Section(peers.TITLE, peers.NEEDS, peers.rows),
}


def main() -> None:
    """Measure the chosen sections and print their tables; progress goes to standard error."""
    arguments = _arguments()
    settings = Settings(
        data=_data(),
        quick=arguments.quick,
        repetitions=1 if arguments.quick else arguments.repetitions,
        peers_python=arguments.peers_python,
    )
    if not settings.quick:
        _use_one_core()
    texts = []
    for text in _texts(arguments.only, settings, arguments.markdown or bool(arguments.into)):
        print(text, flush=True)
        texts.append(text)
    if arguments.into:
        report.put_into(arguments.into, "\n".join(texts))


def _texts(names: Sequence[str], settings: Settings, markdown: bool) -> Iterator[str]:
    """What is printed, piece by piece, as it is measured."""
    yield report.machine(settings) + "\n"
    measured: dict[str, Row] = {}
    for name in names:
        results = list(_watched(SECTIONS[name], settings))
        yield report.section(SECTIONS[name].title, results, markdown=markdown)
        measured |= {row.name: row for row in results if isinstance(row, Row)}
    if not settings.quick and (targets := judged(measured)):
        yield report.promises(targets, markdown=markdown)


def _watched(section: Section, settings: Settings) -> Iterator[Row | str]:
    """The section's rows, each announced when it is done."""
    if section.needs and not settings.has(section.needs):
        yield f"{section.needs}: not found; set {DATA_VARIABLE} to the folder that holds it"
        return
    for row in section.rows(settings):
        if isinstance(row, Row):
            print(f"{row.name}: {row.seconds:.3g} s", file=sys.stderr)
        yield row


def _data() -> Path | None:
    """The folder of traces: $KVSIM_DATA, or one that lies beside the checkout."""
    beside = Path(__file__).parent.parent.parent / "shared" / "traces"
    folder = Path(os.environ.get(DATA_VARIABLE) or beside)
    return folder.resolve() if folder.is_dir() else None


def _use_one_core() -> None:
    """Keep this process and its children on one core, where the system allows it."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=main.__doc__)
    parser.add_argument("--quick", action="store_true", help="toy sizes, no trace needed")
    parser.add_argument(
        "--only",
        type=_names,
        default=list(SECTIONS),
        help=f"sections, separated by commas: {', '.join(SECTIONS)}",
    )
    parser.add_argument("--markdown", action="store_true", help="print Markdown tables")
    parser.add_argument(
        "--into", type=Path, metavar="FILE", help="replace the results in this Markdown file"
    )
    parser.add_argument("--repetitions", type=int, default=5, help="of what is short (default 5)")
    parser.add_argument(
        "--peers-python",
        default=sys.executable,
        help="the interpreter that has the peers (default: this one)",
    )
    return parser.parse_args()


def _names(text: str) -> list[str]:
    names = text.split(",")
    unknown = sorted(set(names) - set(SECTIONS))
    if unknown:
        raise argparse.ArgumentTypeError(
            f"no section {', '.join(unknown)}; there are {', '.join(SECTIONS)}"
        )
    return names


if __name__ == "__main__":
    main()
