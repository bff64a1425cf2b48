"""The rows of a trace that cannot be used, gathered so that one message names them all."""

from __future__ import annotations

from pathlib import Path

from sim.errors import TraceError

NUM_NAMED = 5


class BadRows:
    """Line numbers and what is wrong there, in file order; a message names the first few."""

    def __init__(self) -> None:
        self._faults: list[tuple[int, str]] = []

    def __len__(self) -> int:
        return len(self._faults)

    def add(self, line: int, fault: str) -> None:
        """Line *line* is unusable because of *fault*."""
        self._faults.append((line, fault))

    def refuse(self, path: Path, remedy: str) -> None:
        """Raise a TraceError that names the bad rows, if there are any."""
        if self._faults:
            raise TraceError(f"{path}:{self._faults[0][0]}: {self._named()}; {remedy}")

    def note(self, num_rows: int) -> str:
        """What a lenient reader tells about rows it left out."""
        return f"{len(self)} of {num_rows} rows dropped: {self._named()}"

    def _named(self) -> str:
        named = [f"line {line}: {fault}" for line, fault in self._faults[:NUM_NAMED]]
        if len(self) > NUM_NAMED:
            named.append(f"+{len(self) - NUM_NAMED} more")
        return "; ".join(named)
