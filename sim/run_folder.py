"""The folder of one experiment's results: written beside its place, moved there when complete.

A run that fails or is interrupted leaves earlier results as they were.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from sim.errors import ConfigError, KvsimError

CONFIG, VERSIONS, PLOTS = "config.yaml", "versions.json", "plots"
NAMES = (CONFIG, VERSIONS, "summary.csv", "requests.parquet", "series.parquet", PLOTS)


@contextmanager
def run_folder(folder: Path) -> Iterator[Path]:
    """An empty folder to write into; it takes the place of *folder* if the block succeeds.

    ConfigError, before anything else, if *folder* holds what kvsim did not write or cannot be
    written. Results that stand there already are replaced.
    """
    folder = folder.resolve()
    refuse_foreign(folder)
    scratch = folder.with_name(f".{folder.name}.{uuid.uuid4().hex[:8]}")
    made = [parent for parent in folder.parents if not parent.exists()]
    try:
        with disk_errors(folder):
            scratch.mkdir(parents=True)
        yield scratch
        refuse_foreign(folder)
        with disk_errors(folder):
            _swap(scratch, folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        with suppress(OSError):  # not empty, if all went well
            for parent in made:
                parent.rmdir()


@contextmanager
def disk_errors(folder: Path) -> Iterator[None]:
    """Failures to write, as one line."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise KvsimError(f"{folder}: cannot write the results: {reason}") from error


def refuse_foreign(folder: Path) -> None:
    """ConfigError unless *folder* is free, empty, or results that may be replaced."""
    with disk_errors(folder):
        if not folder.exists():
            return
        if not folder.is_dir():
            raise ConfigError(f"{folder}: is a file; results need a folder")
        entries = sorted(path.name for path in folder.iterdir())
        plots = folder / PLOTS
        pictures = sorted(plots.iterdir()) if plots.is_dir() else []
    foreign = [name for name in entries if name not in NAMES]
    foreign += [f"{PLOTS}/{path.name}" for path in pictures if path.suffix != ".png"]
    complete = CONFIG in entries and "summary.csv" in entries
    if foreign or (entries and not complete):
        seen = foreign[0] if foreign else entries[0]
        raise ConfigError(
            f"{folder}: is no results folder of kvsim alone (it holds {seen}) and is not "
            "replaced; choose another with --out"
        )


def _swap(scratch: Path, folder: Path) -> None:
    """Put *scratch* in the place of *folder*; if that fails, everything is as it was."""
    old = scratch.with_name(f"{scratch.name}.old")
    if folder.exists():
        folder.rename(old)
    try:
        scratch.rename(folder)
    except BaseException:
        if old.exists():
            old.rename(folder)
        raise
    shutil.rmtree(old, ignore_errors=True)
