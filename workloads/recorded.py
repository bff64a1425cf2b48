"""Recorded requests in columns: what every reader of a trace fills, and every run reads.

A reader says what one row means (`Row`, or None for a row that is no request); everything else is
here: bad rows, time order, the clock's origin, block ids, and the requests themselves.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from sim.errors import TraceError
from sim.keys import BlockKeys, ChunkKeys
from sim.request import Request
from sim.workload import Workload
from workloads.arguments import real_number, whole_number
from workloads.bad_rows import BadRows
from workloads.data import find
from workloads.ids import IdColumn, first_conflict

LONGEST_SPAN = 10 * 365 * 24 * 3600  # s; no recording lasts longer

Ints = npt.NDArray[np.int64]
Source = TypeVar("Source")


class Row(NamedTuple):
    """One request of a trace; *time* is in the trace's unit, from any origin."""

    time: float
    num_prompt: int
    num_output: int
    ids: Sequence[int] = ()
    session: int | str | None = None
    hints: Mapping[str, Any] | None = None


class Columns:
    """The rows read so far, eight bytes per number."""

    def __init__(self) -> None:
        self.ids = IdColumn()
        self.rows, self.lines = array("q"), array("q")
        self.times = array("d")
        self.prompts, self.outputs = array("q"), array("q")
        self.offsets = array("q", [0])
        self.sessions: list[int | str | None] = []
        self.hints: list[Mapping[str, Any] | None] = []

    def __len__(self) -> int:
        return len(self.rows)

    def add(self, index: int, line: int, row: Row) -> None:
        """Row *index* from 0, which stands in *line*."""
        self.ids.extend(row.ids)
        self.rows.append(index)
        self.lines.append(line)
        self.times.append(row.time)
        self.prompts.append(row.num_prompt)
        self.outputs.append(row.num_output)
        self.offsets.append(len(self.ids))
        self.sessions.append(row.session)
        self.hints.append(row.hints)


class Recorded(Workload):
    """The requests of a trace by arrival; `request_id` is the row's index from 0.

    *path*: a file, plain, .gz, .xz or .zst, as given or under $KVSIM_DATA. *block_size*: tokens per
    block of the keys. *limit*: read only the first rows. Arrival times are seconds since the
    earliest row; *time_scale* stretches them, 0 makes all requests arrive at once.

    A bad row is refused with all others in one TraceError, or with *lenient* left out and counted
    in `notes`. Rows out of time order are sorted, ties in file order, and noted. Ids that are not
    prefix hashes are always refused.
    """

    format_name: ClassVar[str]
    units_per_second: float = 1.0
    unit: str = "seconds"
    time_field: str = "timestamp"

    trace_block_size: int

    def __init__(
        self,
        path: str | os.PathLike[str],
        block_size: int,
        *,
        limit: int | None = None,
        time_scale: float = 1.0,
        lenient: bool = False,
    ) -> None:
        owner = type(self).__name__
        self.block_size = whole_number(owner, "block_size", block_size, 1)
        self.limit = None if limit is None else whole_number(owner, "limit", limit, 1)
        self.time_scale = real_number(owner, "time_scale", time_scale)
        self.lenient = lenient
        self.path = find(path)

    def __iter__(self) -> Iterator[Request]:
        columns: tuple[Any, ...] = (
            self._rows, self._arrivals, self._starts, self._stops, self._prompts, self._outputs
        )  # fmt: skip
        # Memoryviews yield plain Python numbers, one at a time.
        for row, arrival, start, stop, num_prompt, num_output in zip(
            *(memoryview(column) for column in columns), strict=True
        ):
            keys = self._keys(row, start, stop, num_prompt, num_output)
            session, hints = self._sessions[row], self._hints[row]
            yield Request(row, keys, num_prompt, num_output, arrival, session=session, hints=hints)

    def __len__(self) -> int:
        return len(self._rows)

    def hash_ids(self, i: int) -> list[int]:
        """The ids of the *i*-th request by arrival, as they stand in the file."""
        return self._ids.original(int(self._starts[i]), int(self._stops[i]))

    def _keys(self, row: int, start: int, stop: int, num_prompt: int, num_output: int) -> BlockKeys:
        """The content of a request with ids *start* to *stop* - 1; what has none is private."""
        num_named = min(num_prompt, (stop - start) * self.trace_block_size)
        return ChunkKeys(
            self._id_view[start:stop],
            self.trace_block_size,
            self.block_size,
            num_named,
            num_prompt + num_output,
            -1 - row,  # ids of the trace are >= 0
        )

    # Loading

    def _load(
        self, source: Iterable[tuple[int, Source]], row_of: Callable[[Source], Row | None]
    ) -> None:
        """Read all rows of *source*, (line number, row), and keep them by arrival."""
        columns = self._read(source, row_of)
        offsets = np.frombuffer(columns.offsets, dtype=np.int64)
        self._check_ids(columns, offsets)
        self._sort(columns, offsets)

    def _read(
        self, source: Iterable[tuple[int, Source]], row_of: Callable[[Source], Row | None]
    ) -> Columns:
        columns, bad = Columns(), BadRows()
        num_rows = 0
        for line, value in islice(source, self.limit):
            try:
                row = row_of(value)
            except ValueError as fault:
                bad.add(line, str(fault))
            else:
                if row is not None:
                    columns.add(num_rows, line, row)
            num_rows += 1
        if not self.lenient:
            bad.refuse(self.path, "correct these rows, or set lenient to leave them out")
        if len(bad) == num_rows:
            bad.refuse(self.path, f"no row is left; is this a {self.format_name} trace?")
        if not len(columns):
            raise TraceError(
                f"{self.path}:1: no row is a request; is this a {self.format_name} trace?"
            )
        if bad:
            self.notes += (bad.note(num_rows),)
        return columns

    def _check_ids(self, columns: Columns, offsets: Ints) -> None:
        """Refuse ids that name a block's content but not what stands before it."""
        conflict = first_conflict(np.frombuffer(columns.ids.values, dtype=np.uint64), offsets)
        if conflict is None:
            return
        earlier, later = (
            columns.lines[int(np.searchsorted(offsets, place, side="right")) - 1]
            for place in conflict
        )
        (block_id,) = columns.ids.original(conflict[1], conflict[1] + 1)
        raise TraceError(
            f"{self.path}:{later}: block id {block_id} stands at another place or after another "
            f"id than in line {earlier}; ids must be prefix hashes, each with one position and "
            "one parent; this trace holds content ids: chain each with those before it first"
        )

    def _sort(self, columns: Columns, offsets: Ints) -> None:
        """Keep the columns in order of arrival, as numpy arrays."""
        times = np.frombuffer(columns.times)
        self._check_span(times, columns.lines)
        num_late = int(np.count_nonzero(times < np.maximum.accumulate(times)))
        if num_late:
            self.notes += (
                f"{num_late} of {len(times)} rows were earlier than a row before them; "
                f"all were sorted by {self.time_field}",
            )
        order = np.argsort(times, kind="stable")
        since_first = times[order] - times.min()
        self._arrivals = since_first * self.time_scale / self.units_per_second
        self._rows = np.frombuffer(columns.rows, dtype=np.int64)[order]
        self._starts, self._stops = offsets[:-1][order], offsets[1:][order]
        self._prompts = np.frombuffer(columns.prompts, dtype=np.int64)[order]
        self._outputs = np.frombuffer(columns.outputs, dtype=np.int64)[order]
        self._ids = columns.ids
        self._id_view = memoryview(columns.ids.values)
        # By row, not by arrival; rows that are no requests have a place too.
        self._sessions = _spread(columns.sessions, columns.rows)
        self._hints = _spread(columns.hints, columns.rows)

    def _check_span(self, times: npt.NDArray[np.float64], line_numbers: array[int]) -> None:
        first, last = int(times.argmin()), int(times.argmax())
        if times[last] - times[first] > LONGEST_SPAN * self.units_per_second:
            raise TraceError(
                f"{self.path}:{line_numbers[last]}: {self.time_field} {times[last]:.0f} is more "
                f"than ten years after {times[first]:.0f} in line {line_numbers[first]}; all must "
                f"count {self.unit} from one origin; do some count from 1970 and others from the "
                "start?"
            )


T = TypeVar("T")


def _spread(values: list[T], rows: array[int]) -> Sequence[T | None]:
    """*values* indexed by row; one shared None if there are none."""
    if all(value is None for value in values):
        return _Nothing()
    if len(rows) == rows[-1] + 1:
        return values
    spread: list[T | None] = [None] * (rows[-1] + 1)
    for row, value in zip(rows, values, strict=True):
        spread[row] = value
    return spread


class _Nothing(Sequence[None]):
    """None at every index."""

    def __getitem__(self, i: Any) -> None:  # type: ignore[override]
        return None

    def __len__(self) -> int:
        return 0
