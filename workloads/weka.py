"""WEKA's Claude Code sessions: agents' conversations with the ids of every 64 prompt tokens.

A line is one session: `{"id", "block_size": 64, "hash_id_scope": "local", "requests": [...]}`; a
request is `{"t": s, "in": tokens, "out": tokens, "hash_ids": [...]}` with floor(in / 64) ids: the
partial block at the end has none. It may have `api_time` and `think_time`, in seconds. An entry
with `requests` of its own is a sub-agent: its times count from its `t`, its ids are the session's.
Source: callanjfox/kv-cache-tester, `traces/`.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator
from itertools import islice
from reprlib import repr as short_repr
from typing import Any, NamedTuple

import numpy as np

from sim.errors import TraceError
from sim.keys import POSITION_BITS, ChunkKeys
from sim.request import Request
from sim.workload import Workload
from workloads.arguments import real_number, whole_number
from workloads.data import find
from workloads.lines import lines, parse
from workloads.session_ids import SessionIds

LONGEST_SPAN = 10 * 365 * 24 * 3600  # s


class Row(NamedTuple):
    """One request of a session: *time* is in seconds from the session's start."""

    time: float
    num_prompt: int
    num_output: int
    hash_ids: list[int]
    hints: dict[str, Any]


class Weka(Workload):
    """The requests of all sessions by arrival; `request_id` is the index in the file, from 0.

    *path*: a .jsonl, .jsonl.gz or .jsonl.xz file, as given or under $KVSIM_DATA.
    *block_size*: tokens per block of the keys. *limit*: read only the first sessions.
    *session_gap*: session i (from 0) starts at i * *session_gap* seconds. When sessions really
    started is not recorded, and hit rates depend on it: at 0 all start together, at 600 few
    overlap. Ties keep the order of the file.

    Ids are local to a session, so nothing is shared between sessions. A prompt's tokens behind its
    last id and the answer are never shared. Hints: `api_s` and `think_s`, how long the answer and
    the pause before it took (None where it is not recorded); `agent`, which sub-agent of the
    session asks (None: the session itself). An answer of 0 tokens is raised to 1, which an engine
    samples at least, and noted. TraceError at the first line that breaks the format.
    """

    hints = frozenset({"api_s", "think_s", "agent"})

    def __init__(
        self,
        path: str | os.PathLike[str],
        block_size: int = 64,
        *,
        session_gap: float = 0.0,
        limit: int | None = None,
    ) -> None:
        self.block_size = whole_number("Weka", "block_size", block_size, 1)
        self.session_gap = real_number("Weka", "session_gap", session_gap)
        self.limit = None if limit is None else whole_number("Weka", "limit", limit, 1)
        self.path = find(path)
        self.trace_block_size = 0
        self.session_ids: list[str] = []
        self._ids = SessionIds()
        self._sort(self._read())

    def __iter__(self) -> Iterator[Request]:
        ids = memoryview(self._ids.values)
        places = (self._rows, self._arrivals, self._starts, self._stops)
        columns: tuple[Any, ...] = (*places, *self._columns)
        # Memoryviews yield plain Python numbers, one at a time.
        for row, arrival, start, stop, session, num_prompt, num_output in zip(
            *(memoryview(column) for column in columns), strict=True
        ):
            keys = ChunkKeys(
                ids[start:stop],
                self.trace_block_size,
                self.block_size,
                (stop - start) * self.trace_block_size,  # what has ids; the rest is private
                num_prompt + num_output,
                -1 - row,
            )
            name, hints = self.session_ids[session], self._hints[row]
            yield Request(row, keys, num_prompt, num_output, arrival, session=name, hints=hints)

    def __len__(self) -> int:
        return len(self._rows)

    # Loading

    def _read(self) -> _Columns:
        columns = _Columns()
        for line, text in islice(lines(self.path), self.limit):
            try:
                session_id, rows = self._session(parse(text))
                self._ids.add([row.hash_ids for row in rows])
            except ValueError as fault:
                raise TraceError(
                    f"{self.path}:{line}: {fault}; correct or remove the line"
                ) from None
            start = len(self.session_ids) * self.session_gap
            for row in rows:
                columns.add(start, len(self.session_ids), row)
            self.session_ids.append(session_id)
        if not columns.times:
            raise TraceError(f"{self.path}:1: no session has a request; is this a WEKA trace?")
        return columns

    def _session(self, value: Any) -> tuple[str, list[Row]]:
        """A session's name and requests, in the order of the file."""
        if not isinstance(value, dict):
            raise ValueError(f"the line is {short_repr(value)}; it must be a JSON object")
        block_size = _whole(value, "block_size", 1)
        self.trace_block_size = self.trace_block_size or block_size
        if block_size != self.trace_block_size:
            raise ValueError(
                f"block_size is {block_size}; it must be {self.trace_block_size} as in line 1"
            )
        if value.get("hash_id_scope", "local") != "local":
            raise ValueError(
                f"hash_id_scope is {short_repr(value['hash_id_scope'])}; only local is known"
            )
        return str(value.get("id", len(self.session_ids))), list(self._rows_of(value, 0.0, None))

    def _rows_of(self, entry: dict[str, Any], start: float, agent: str | None) -> Iterator[Row]:
        """The requests of a session or sub-agent that began *start* seconds into the session."""
        entries = _field(entry, "requests")
        if type(entries) is not list or any(type(item) is not dict for item in entries):
            raise ValueError(f"requests is {short_repr(entries)}; it must list JSON objects")
        for i, item in enumerate(entries):
            time = start + _time(item, "t")
            if "requests" in item:
                name = f"{i}" if agent is None else f"{agent}.{i}"
                yield from self._rows_of(item, time, name)
            else:
                yield self._row(item, time, agent)

    def _row(self, item: dict[str, Any], time: float, agent: str | None) -> Row:
        num_prompt, num_output = _whole(item, "in", 1), _whole(item, "out", 0)
        if (num_prompt + num_output) // self.block_size >> POSITION_BITS:
            raise ValueError(
                f"in + out is {short_repr(num_prompt + num_output)}; it must be below "
                f"2**{POSITION_BITS} blocks of {self.block_size} tokens"
            )
        hash_ids = _field(item, "hash_ids")
        if type(hash_ids) is not list or not set(map(type, hash_ids)) <= {int}:
            raise ValueError(f"hash_ids is {short_repr(hash_ids)}; it must list whole numbers")
        expected = num_prompt // self.trace_block_size
        if len(hash_ids) != expected:
            raise ValueError(
                f"hash_ids has {len(hash_ids)} ids; {num_prompt} tokens of in need {expected} "
                f"(one per full block of {self.trace_block_size})"
            )
        hints = {
            name: None if item.get(source) is None else _time(item, source)
            for name, source in (("api_s", "api_time"), ("think_s", "think_time"))
        }
        return Row(time, num_prompt, num_output, hash_ids, hints | {"agent": agent})

    def _sort(self, columns: _Columns) -> None:
        """Keep the columns in order of arrival, as numpy arrays."""
        times = np.frombuffer(columns.times)
        order = np.argsort(times, kind="stable")
        self._rows, self._arrivals, self._hints = order, times[order], columns.hints
        offsets = np.cumsum([0, *columns.num_ids])
        self._starts, self._stops = offsets[:-1][order], offsets[1:][order]
        outputs = np.frombuffer(columns.outputs, dtype=np.int64)
        num_empty = int(np.count_nonzero(outputs == 0))
        if num_empty:
            self.notes += (
                f"{num_empty} of {len(outputs)} requests have out 0; 1 token is sampled for them",
            )
        self._columns = [
            np.frombuffer(columns.sessions, dtype=np.int64)[order],
            np.frombuffer(columns.prompts, dtype=np.int64)[order],
            np.maximum(outputs, 1)[order],
        ]


class _Columns:
    """The requests read so far, eight bytes per number."""

    def __init__(self) -> None:
        self.times = array("d")  # s
        self.sessions, self.num_ids = array("q"), array("q")
        self.prompts, self.outputs = array("q"), array("q")
        self.hints: list[dict[str, Any]] = []

    def add(self, start: float, session: int, row: Row) -> None:
        self.times.append(start + row.time)
        self.sessions.append(session)
        self.num_ids.append(len(row.hash_ids))
        self.prompts.append(row.num_prompt)
        self.outputs.append(row.num_output)
        self.hints.append(row.hints)


def _field(entry: dict[str, Any], name: str) -> Any:
    if name not in entry:
        raise ValueError(f"{name} is missing")
    return entry[name]


def _time(entry: dict[str, Any], name: str) -> float:
    value = _field(entry, name)
    if type(value) not in (int, float) or not 0 <= value <= LONGEST_SPAN:
        raise ValueError(f"{name} is {short_repr(value)}; it must be seconds, 0 to {LONGEST_SPAN}")
    return float(value)


def _whole(entry: dict[str, Any], name: str, least: int) -> int:
    value = _field(entry, name)
    if type(value) is not int or value < least:
        raise ValueError(
            f"{name} is {short_repr(value)}; it must be a whole number of at least {least}"
        )
    return value
