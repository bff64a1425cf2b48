"""What a sweep has computed so far, one folder per unit, each whole or not there.

    DIR/runs/<key>/    requests.parquet, series.parquet, summary.csv, config.yaml    (a run)
    DIR/runs/<key>/    bounds.json, config.yaml                                      (bounds)
    DIR/runs/<key>.failed.txt    the configuration and the traceback of what failed last

A unit is written beside its place, brought to the disk and then renamed: a process that is killed
at any moment loses only what it was computing.
"""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from sim.errors import KvsimError
from sim.run_folder import disk_errors
from sim.spec.config import in_words
from sim.spec.yaml_text import dump
from sim.studies.unit import Outcome, Unit

RUNS = "runs"
LOCK = ".lock"
BOUNDS = "bounds.json"


class RunStore:
    """The units of the results folder *folder*."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / RUNS

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Alone in this folder; KvsimError if another process is, or if it cannot be written."""
        with disk_errors(self.folder):
            self.path.mkdir(parents=True, exist_ok=True)
            file = (self.path / LOCK).open("a+", encoding="utf-8")
        with file:
            if not _lock(file):
                raise KvsimError(
                    f"{self.folder}: another run is writing its results here; wait until it has "
                    "ended, or choose another folder with --out"
                )
            self.sweep_up()
            yield

    def sweep_up(self) -> None:
        """Remove what processes that were killed had begun to write."""
        for path in (*self.path.glob(".new-*"), *self.folder.glob(".saving-*")):
            shutil.rmtree(path, ignore_errors=True)

    def has(self, unit: Unit) -> bool:
        """Whether the outcome of *unit* is here and may be used."""
        return unit.is_plain and (self.path / unit.key).is_dir()

    def put(self, unit: Unit, outcome: Outcome) -> None:
        """Keep the outcome of *unit*; KvsimError if the disk is full or the like."""
        place, scratch = self.path / unit.key, self.path / f".new-{uuid.uuid4().hex[:12]}"
        with disk_errors(self.folder):
            try:
                scratch.mkdir()
                if unit.kind == "run":
                    outcome.save(scratch)
                else:
                    write(scratch / BOUNDS, json.dumps(outcome, indent=2) + "\n")
                write(scratch / "config.yaml", dump(in_words(unit.spec)))
                sync_folder(scratch)
                if place.exists() and not unit.is_plain:
                    shutil.rmtree(place)
                try:
                    scratch.rename(place)
                except OSError:
                    if not place.exists():  # else another process was faster; the two are equal
                        raise
                sync_folder(self.path)
                self._failure(unit).unlink(missing_ok=True)
            finally:
                shutil.rmtree(scratch, ignore_errors=True)

    def get(self, unit: Unit) -> Outcome:
        """The outcome of *unit*."""
        if unit.kind == "bounds":
            return json.loads((self.path / unit.key / BOUNDS).read_text(encoding="utf-8"))
        from sim.results import Results

        return Results.load(self.path / unit.key)

    def put_failure(self, unit: Unit, text: str) -> Path:
        """Keep why *unit* failed, with its configuration; the file."""
        path = self._failure(unit)
        with disk_errors(self.folder):
            write(path, f"{unit.label}\n\n{text}\n\nconfiguration:\n{dump(in_words(unit.spec))}")
        return path

    def _failure(self, unit: Unit) -> Path:
        return self.path / f"{unit.key}.failed.txt"

    def keep_only(self, units: Collection[Unit]) -> None:
        """Remove what other configurations, other code or other inputs have left."""
        kept = {unit.key for unit in units}
        for path in self.path.iterdir():
            if path.name != LOCK and path.name.partition(".")[0] not in kept:
                shutil.rmtree(path) if path.is_dir() else path.unlink()

    def others(self, units: Collection[Unit]) -> int:
        """How many units of other configurations, other code or other inputs are here."""
        kept = {unit.key for unit in units}
        found = {path.name for path in self.path.iterdir() if path.is_dir()}
        return len(found - kept)


def write(path: Path, text: str) -> None:
    """Write *text* to *path* and to the disk."""
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """Bring the names in *path* to the disk, where the system can."""
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _lock(file: TextIO) -> bool:
    """Lock *file* for as long as it is open in this process; False if another has it."""
    try:
        try:
            import fcntl
        except ImportError:  # Windows
            import msvcrt

            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
        else:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
