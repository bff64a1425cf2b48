"""Replay recordings of real vLLM and report the first difference.

`kvsim golden PATH...` is the front door; the format of the recordings is described in
docs/fidelity.md. A manager without block ids is compared in everything but the ids.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sim.errors import KvsimError
from sim.golden.manager import replay_manager
from sim.golden.recording import Difference, Unsupported
from sim.golden.scheduler import replay_scheduler
from sim.golden.vectors import replay_hashes, replay_hit_rate_window

Status = Literal["same", "differs", "not supported yet"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of one recording: *detail* is the first difference, or why it was not replayed."""

    path: Path
    status: Status
    num_steps: int
    detail: str = ""

    def __str__(self) -> str:
        line = (
            f"{self.status:<17} {self.num_steps:5d} steps  {self.path.parent.name}/{self.path.name}"
        )
        return f"{line}: {self.detail}" if self.detail else line


def replay_file(path: Path, manager: str = "reference") -> Verdict:
    """Replay one recording under the named manager."""
    recording = _load(path)
    try:
        if "vectors" in recording:
            num_steps = replay_hashes(recording)
        elif "series" in recording:
            num_steps = replay_hit_rate_window(recording)
        elif "arrivals" in recording:
            num_steps = replay_scheduler(recording, manager)
        else:
            num_steps = replay_manager(recording, manager)
    except Unsupported as reason:
        return Verdict(path, "not supported yet", 0, str(reason))
    except Difference as difference:
        return Verdict(path, "differs", difference.step, str(difference))
    return Verdict(path, "same", num_steps)


def find(paths: Iterable[str | Path]) -> list[Path]:
    """The recordings at *paths*: files, or folders searched for *.json."""
    found: list[Path] = []
    for path in map(Path, paths):
        if not path.exists():
            raise KvsimError(f"{path}: no such file or folder; give recordings (*.json) or folders")
        files = sorted(path.rglob("*.json")) if path.is_dir() else [path]
        if not files:
            raise KvsimError(f"{path}: holds no recording (*.json); give a folder that does")
        found += files
    return found


def main(paths: Sequence[str | Path], manager: str = "reference") -> int:
    """Print one line per recording and a count; 1 if any differs."""
    verdicts = []
    for path in find(paths):
        verdict = replay_file(path, manager)
        print(verdict, flush=True)
        verdicts.append(verdict)
    counts = {
        status: sum(verdict.status == status for verdict in verdicts)
        for status in ("same", "differs", "not supported yet")
    }
    print(", ".join(f"{count} {status}" for status, count in counts.items()))
    return 1 if counts["differs"] else 0


def _load(path: Path) -> dict[str, Any]:
    try:
        recording = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise KvsimError(f"{path}: not a recording: {error}; give *.json files") from None
    if not isinstance(recording, dict) or not recording.keys() & {"steps", "vectors", "series"}:
        raise KvsimError(f"{path}: not a recording: it has no steps, vectors or series")
    return recording
