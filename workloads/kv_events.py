"""vLLM's KV-cache events, recorded as JSON lines: which blocks were stored and removed, and when.

A line is a batch as vLLM publishes it, `{"ts": s, "events": [...]}` or `[ts, [...]]`; an event is
`{"type": "BlockStored", "block_hashes", "parent_block_hash", "token_ids", "block_size", ...}` or
the same as a list that begins with its type, `BlockRemoved` or `AllBlocksCleared`.
Source: vLLM, `vllm/distributed/kv_events.py`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from reprlib import repr as short_repr
from typing import Any, ClassVar

from workloads import fields
from workloads.lines import lines, parse
from workloads.recorded import Recorded, Row

NAMES = {  # the fields of an event that is a list, behind its type
    "BlockStored": ("block_hashes", "parent_block_hash", "token_ids", "block_size"),
    "BlockRemoved": ("block_hashes",),
    "AllBlocksCleared": (),
}


class KVEvents(Recorded):
    """One request for every BlockStored event: its blocks, after the chain of their parents.

    Events tell of misses only: a prompt that was cached as a whole leaves none, and the blocks of
    one request are stored by several events. So this is not the traffic that was served, but what
    it made the cache store, in order; a hit rate of it is of no server. `num_stored`,
    `num_removed`, `num_cleared` and `peak_blocks` count what the events say.

    Arguments as for Mooncake; *block_size* is the events' unless given.
    """

    format_name: ClassVar[str] = "KV-event"
    time_field: str = "ts"

    def __init__(
        self,
        path: str | os.PathLike[str],
        block_size: int | None = None,
        *,
        limit: int | None = None,
        time_scale: float = 1.0,
        lenient: bool = False,
    ) -> None:
        super().__init__(path, block_size or 1, limit=limit, time_scale=time_scale, lenient=lenient)
        self.trace_block_size = 0
        self.num_stored = self.num_removed = self.num_cleared = self.peak_blocks = 0
        self._numbers: dict[int | str, int] = {}
        self._parents: list[int] = []  # by number; -1: none
        self._resident: dict[int, int] = {}  # number -> copies
        self._load(self._events(), self._row)
        if block_size is None:
            self.block_size = self.trace_block_size
        self.notes += (
            f"{self.num_stored} blocks stored, {self.num_removed} removed, {self.num_cleared} "
            f"times all cleared, {self.peak_blocks} different ones at most at a time; requests "
            "that were cached as a whole left no event",
        )
        del self._numbers, self._parents, self._resident

    def _events(self) -> Iterator[tuple[int, Any]]:
        """Line number and (time, event), or what is wrong with the line."""
        for line, text in lines(self.path):
            try:
                yield from ((line, event) for event in _batch(parse(text)))
            except ValueError as fault:
                yield line, fault

    def _row(self, event: Any) -> Row | None:
        if isinstance(event, ValueError):
            raise event
        time, kind, row = event
        if kind == "AllBlocksCleared":
            self.num_cleared += 1
            self._resident.clear()
            return None
        hashes = [self._number(value) for value in _hashes(row)]
        if kind == "BlockRemoved":
            self._remove(hashes)
            return None
        return self._stored(time, hashes, row)

    def _stored(self, time: float, hashes: list[int], row: fields.Record) -> Row:
        size = fields.whole(row, "block_size")
        if size != (self.trace_block_size or size):
            raise ValueError(f"block_size is {size}; it must be {self.trace_block_size} as before")
        parent = row.get("parent_block_hash")
        above = -1 if parent is None else self._known(parent)
        self.trace_block_size = size
        for number in hashes:
            if self._parents[number] not in (-2, above):
                raise ValueError("a block is stored again behind another parent")
            self._parents[number] = above
            self._resident[number] = self._resident.get(number, 0) + 1
            above = number
        self.num_stored += len(hashes)
        self.peak_blocks = max(self.peak_blocks, len(self._resident))
        chain = self._chain(above)
        fields.check_length(len(chain) * size, size, "the number of tokens")
        return Row(time, len(chain) * size + 1, 1, chain)

    def _remove(self, hashes: list[int]) -> None:
        for number in hashes:
            copies = self._resident.get(number, 0)
            if not copies:
                raise ValueError("a block is removed that is not stored")
            if copies == 1:
                del self._resident[number]
            else:
                self._resident[number] = copies - 1
        self.num_removed += len(hashes)

    def _chain(self, number: int) -> list[int]:
        """The blocks from the root to *number*."""
        chain = []
        while number >= 0:
            chain.append(number)
            number = self._parents[number]
        return chain[::-1]

    def _known(self, value: Any) -> int:
        if type(value) not in (int, str):
            raise ValueError(
                f"parent_block_hash is {short_repr(value)}; it must be a number or text"
            )
        if value not in self._numbers or self._parents[self._numbers[value]] == -2:
            raise ValueError(f"parent_block_hash {short_repr(value)} was never stored")
        return self._numbers[value]

    def _number(self, value: int | str) -> int:
        number = self._numbers.setdefault(value, len(self._numbers))
        if number == len(self._parents):
            self._parents.append(-2)  # not stored yet
        return number


def _batch(value: Any) -> Iterator[tuple[float, str, fields.Record]]:
    """(time, type, fields) of every event in a line."""
    if type(value) is list:
        if len(value) < 2:
            raise ValueError("the batch is too short; it must be [ts, [events], ...]")
        value = {"ts": value[0], "events": value[1]}
    batch = fields.record(value, "the batch")
    time = fields.time(batch, "ts", "seconds")
    events = fields.field(batch, "events")
    if type(events) is not list:
        raise ValueError(f"events is {short_repr(events)}; it must be a list")
    for event in events:
        row = _named(event)
        kind = fields.text(row, "type")
        if kind not in NAMES:
            raise ValueError(f"type is {short_repr(kind)}; it must be one of {', '.join(NAMES)}")
        yield time, kind, row


def _named(event: Any) -> fields.Record:
    """An event as a mapping."""
    if type(event) is not list:
        return fields.record(event, "the event")
    kind = event[0] if event else None
    if type(kind) is not str or kind not in NAMES or len(event) <= len(NAMES[kind]):
        raise ValueError(f"the event is {short_repr(event)}; it must be [type, its fields ...]")
    return {"type": kind} | dict(zip(NAMES[kind], event[1:], strict=False))


def _hashes(row: fields.Record) -> list[int | str]:
    value = fields.field(row, "block_hashes")
    if type(value) is not list or any(type(one) not in (int, str) for one in value) or not value:
        raise ValueError(f"block_hashes is {short_repr(value)}; it must list numbers or text")
    return value
