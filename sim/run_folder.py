"""The folder of a study's results: which files are ours, and how failures to write are told."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sim.errors import ConfigError, KvsimError

CONFIG, VERSIONS, PLOTS, RUNS = "config.yaml", "versions.json", "plots", "runs"
TABLES = ("summary.csv", "requests.parquet", "series.parquet")
REPORTS = ("report.html", "report.md")
NAMES = (CONFIG, VERSIONS, *TABLES, *REPORTS, PLOTS, RUNS)


@contextmanager
def disk_errors(folder: Path) -> Iterator[None]:
    """Failures to write, as one line."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise KvsimError(f"{folder}: cannot write the results: {reason}") from error


def refuse_foreign(folder: Path) -> None:
    """ConfigError unless *folder* is free, empty, or results whose tables may be replaced."""
    with disk_errors(folder):
        if not folder.exists():
            return
        if not folder.is_dir():
            raise ConfigError(f"{folder}: is a file; results need a folder")
        entries = sorted(path.name for path in folder.iterdir())
        plots = folder / PLOTS
        pictures = sorted(plots.iterdir()) if plots.is_dir() else []
    foreign = [name for name in entries if name not in NAMES and not name.startswith(".saving-")]
    foreign += [f"{PLOTS}/{path.name}" for path in pictures if path.suffix != ".png"]
    ours = RUNS in entries or (CONFIG in entries and "summary.csv" in entries)
    if foreign or (entries and not ours):
        seen = foreign[0] if foreign else entries[0]
        raise ConfigError(
            f"{folder}: is no results folder of kvsim alone (it holds {seen}) and is not "
            "replaced; choose another with --out"
        )
