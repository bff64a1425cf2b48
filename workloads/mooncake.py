"""Mooncake's traces: JSON rows with the prefix hash of every 512 prompt tokens.

A row is `{"timestamp": ms, "input_length": tokens, "output_length": tokens, "hash_ids": [...]}`
with ceil(input_length / 512) ids; the last id names a partial block. Source: the Mooncake project,
FAST'25 release. Answers have no ids: they occupy memory and are never reused.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator
from itertools import islice
from reprlib import repr as short_repr
from typing import Any

import numpy as np
import numpy.typing as npt

from sim.errors import TraceError
from sim.keys import POSITION_BITS, ChunkKeys
from sim.request import Request
from sim.workload import Workload
from workloads.arguments import real_number, whole_number
from workloads.bad_rows import BadRows
from workloads.data import find
from workloads.ids import IdColumn, first_conflict
from workloads.lines import lines, parse

LARGEST_TIMESTAMP = 2**53  # up to here a float holds every millisecond
LONGEST_SPAN = 10 * 365 * 24 * 3600 * 1000  # ms; no recording lasts longer

Row = tuple[float, int, int, list[int]]


class Mooncake(Workload):
    """The requests of a Mooncake trace, by arrival; `request_id` is the row's index from 0.

    *path*: a .jsonl, .jsonl.gz or .jsonl.xz file, as given or under $KVSIM_DATA.
    *block_size*: tokens per block of the keys; *trace_block_size*: prompt tokens per id.
    *limit*: read only the first rows of the file. Arrival times are seconds since the earliest
    row; *time_scale* stretches them, 0 makes all requests arrive at once.

    A bad row is refused with all others in one TraceError, or with *lenient* left out and counted
    in `notes`; a prompt or an answer of 0 tokens is bad, since an engine samples at least one
    token. Rows out of time order are sorted, ties in file order, and noted. A trace whose ids are
    not prefix hashes is always refused.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        block_size: int = 512,
        *,
        trace_block_size: int = 512,
        limit: int | None = None,
        time_scale: float = 1.0,
        lenient: bool = False,
    ) -> None:
        self.block_size = whole_number("Mooncake", "block_size", block_size, 1)
        self.trace_block_size = whole_number("Mooncake", "trace_block_size", trace_block_size, 1)
        self.limit = None if limit is None else whole_number("Mooncake", "limit", limit, 1)
        self.time_scale = real_number("Mooncake", "time_scale", time_scale)
        self.lenient = lenient
        self.path = find(path)
        self._ids = IdColumn()
        columns = self._read()
        offsets = np.frombuffer(columns.offsets, dtype=np.int64)
        self._check_ids(offsets, columns.lines)
        self._sort(columns, offsets)

    def __iter__(self) -> Iterator[Request]:
        ids = memoryview(self._ids.values)
        columns = (self._rows, self._arrivals, self._starts, self._stops, *self._lengths)
        # Memoryviews yield plain Python numbers, one at a time.
        for row, arrival, start, stop, num_prompt, num_output in zip(
            *(memoryview(column) for column in columns), strict=True
        ):
            keys = ChunkKeys(
                ids[start:stop],
                self.trace_block_size,
                self.block_size,
                num_prompt,
                num_prompt + num_output,
                -1 - row,  # chunk ids are >= 0
            )
            yield Request(row, keys, num_prompt, num_output, arrival)

    def __len__(self) -> int:
        return len(self._rows)

    def hash_ids(self, i: int) -> list[int]:
        """The ids of the *i*-th request by arrival, as they stand in the file."""
        return self._ids.original(int(self._starts[i]), int(self._stops[i]))

    # Loading

    def _read(self) -> _Columns:
        columns, bad = _Columns(), BadRows()
        num_rows = 0
        for line, text in islice(lines(self.path), self.limit):
            try:
                row = self._row(parse(text))
            except ValueError as fault:
                bad.add(line, str(fault))
            else:
                columns.add(num_rows, line, row)
                self._ids.extend(row[3])
            num_rows += 1
        if not self.lenient:
            bad.refuse(self.path, "correct these rows, or set lenient to leave them out")
        if len(bad) == num_rows:
            bad.refuse(self.path, "no row is left; is this a Mooncake trace?")
        if bad:
            self.notes += (bad.note(num_rows),)
        return columns

    def _row(self, value: Any) -> Row:
        """The fields of one row; ValueError says which one breaks which rule."""
        if not isinstance(value, dict):
            raise ValueError(f"the row is {short_repr(value)}; it must be a JSON object")
        timestamp = _timestamp(value)
        input_length = _length(value, "input_length")
        output_length = _length(value, "output_length")
        num_tokens = input_length + output_length
        if num_tokens // self.block_size >> POSITION_BITS:
            raise ValueError(
                f"input_length + output_length is {short_repr(num_tokens)}; it must be below "
                f"2**{POSITION_BITS} blocks of {self.block_size} tokens"
            )
        hash_ids = _hash_ids(value)
        expected = -(-input_length // self.trace_block_size)
        if len(hash_ids) != expected:
            raise ValueError(
                f"hash_ids has {len(hash_ids)} ids; an input_length of {input_length} needs "
                f"{expected} (one per trace_block_size = {self.trace_block_size} tokens)"
            )
        return timestamp, input_length, output_length, hash_ids

    def _check_ids(self, offsets: npt.NDArray[np.int64], line_numbers: array[int]) -> None:
        """Refuse ids that name a block's content but not what stands before it."""
        ids = np.frombuffer(self._ids.values, dtype=np.uint64)
        conflict = first_conflict(ids, offsets)
        if conflict is None:
            return
        earlier, later = (
            line_numbers[int(np.searchsorted(offsets, place, side="right")) - 1]
            for place in conflict
        )
        (block_id,) = self._ids.original(conflict[1], conflict[1] + 1)
        raise TraceError(
            f"{self.path}:{later}: block id {block_id} stands at another place or after another "
            f"id than in line {earlier}; ids must be prefix hashes, each with one position and "
            "one parent; this trace holds content ids: chain each with those before it first"
        )

    def _sort(self, columns: _Columns, offsets: npt.NDArray[np.int64]) -> None:
        """Keep the columns in order of arrival, as numpy arrays."""
        times = np.frombuffer(columns.timestamps)
        self._check_span(times, columns.lines)
        num_late = int(np.count_nonzero(times < np.maximum.accumulate(times)))
        if num_late:
            self.notes += (
                f"{num_late} of {len(times)} rows were earlier than a row before them; "
                "all were sorted by timestamp",
            )
        order = np.argsort(times, kind="stable")
        self._arrivals = (times[order] - times.min()) * self.time_scale / 1000.0
        self._rows = np.frombuffer(columns.rows, dtype=np.int64)[order]
        self._starts, self._stops = offsets[:-1][order], offsets[1:][order]
        lengths = (columns.input_lengths, columns.output_lengths)
        self._lengths = [np.frombuffer(column, dtype=np.int64)[order] for column in lengths]

    def _check_span(self, times: npt.NDArray[np.float64], line_numbers: array[int]) -> None:
        first, last = int(times.argmin()), int(times.argmax())
        if times[last] - times[first] > LONGEST_SPAN:
            raise TraceError(
                f"{self.path}:{line_numbers[last]}: timestamp {times[last]:.0f} is more than ten "
                f"years after {times[first]:.0f} in line {line_numbers[first]}; all must count "
                "milliseconds from one origin; do some count from 1970 and others from the start?"
            )


class _Columns:
    """The rows read so far, eight bytes per number."""

    def __init__(self) -> None:
        self.rows, self.lines = array("q"), array("q")
        self.timestamps = array("d")  # ms
        self.input_lengths, self.output_lengths = array("q"), array("q")
        self.offsets = array("q", [0])

    def add(self, index: int, line: int, row: Row) -> None:
        timestamp, input_length, output_length, hash_ids = row
        self.rows.append(index)
        self.lines.append(line)
        self.timestamps.append(timestamp)
        self.input_lengths.append(input_length)
        self.output_lengths.append(output_length)
        self.offsets.append(self.offsets[-1] + len(hash_ids))


def _field(row: dict[str, Any], name: str) -> Any:
    if name not in row:
        raise ValueError(f"{name} is missing")
    return row[name]


def _timestamp(row: dict[str, Any]) -> float:
    value = _field(row, "timestamp")
    if type(value) not in (int, float) or not 0 <= value <= LARGEST_TIMESTAMP:
        raise ValueError(
            f"timestamp is {short_repr(value)}; it must be milliseconds, 0 to {LARGEST_TIMESTAMP}"
        )
    return float(value)


def _length(row: dict[str, Any], name: str) -> int:
    value = _field(row, name)
    whole = type(value) is int or (type(value) is float and value.is_integer())
    if not whole or value < 1:
        raise ValueError(f"{name} is {short_repr(value)}; it must be a whole number of at least 1")
    return int(value)


def _hash_ids(row: dict[str, Any]) -> list[int]:
    ids = _field(row, "hash_ids")
    if type(ids) is not list or any(type(i) is not int or i < 0 for i in ids):
        raise ValueError(f"hash_ids is {short_repr(ids)}; it must list whole numbers >= 0")
    return ids
