"""Policies that are only a sort key: the smallest rank goes first.

A policy of one's own is a class with one method, and two if it keeps facts about spans:

    class LeastUsed(Ranked):
        def touch(self, span, request, now):
            span.note = (span.note or 1) + 1

        def rank(self, span, request, now):
            return span.note or 1

A rank is asked for when a span is released and holds until it is reused or evicted. Bases for ranks
that change meanwhile: `Aging` (a clock that evictions push forward), `Timed` (another rank from a
known moment on), `Decaying` (slowly, re-evaluated now and then).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import Any, ClassVar

from sim.cache import EvictionPolicy, Pool, Span
from sim.request import Request

Rank = Any  # numbers or tuples: all ranks of one policy must be comparable
Entry = tuple[Rank, int, int, Span]  # rank, number of the release, - end of the span, span

SPARE_ENTRIES = 64


class Ranked(EvictionPolicy):
    """Evict the span with the smallest rank; ties: released earliest, then deeper.

    `rank` must give the same for all blocks of a span, or the class must set `max_span = 1`.
    `span.note` is the policy's own: None until it is set and again once the span is evicted. Two
    spans may share a note after a cut, so it must be an immutable value. O(log n) per operation.

    *moment* counts admissions and ends of requests: what one of them touches shares it.
    """

    lists_in_order: ClassVar[bool] = True

    def bind(self, pool: Pool) -> None:
        super().bind(pool)
        self.moment = 0
        self._last: tuple[Request | None, float] = (None, 0.0)
        self._num_placed = 0
        self._entries: dict[Span, Entry] = {}  # what is held
        self._heap: list[Entry] = []  # and entries that are out of date, dropped when they show up
        self._locked: dict[Span, Entry] = {}  # leaf mode: what was first but may not go yet

    # What a policy says

    @abstractmethod
    def rank(self, span: Span, request: Request, now: float) -> Rank:
        """The place of *span*, which *request* was the last to let go; smaller goes first.

        Called once per release; here a policy may also set the note of a new span.
        """

    def touch(self, span: Span, request: Request, now: float) -> None:
        """*request* reuses *span* (in use or not): the moment to count it in `span.note`."""

    # What the manager says

    def release(self, span: Span, request: Request, now: float) -> None:
        last = self._last
        if request is not last[0] or now != last[1]:
            self._tick(request, now)
        self._place(span, self.rank(span, request, now))

    def hit(self, span: Span, request: Request, now: float) -> None:
        if not span.ref_cnt:
            self._drop(span)
        self.touch(span, request, now)

    def split(self, upper: Span, lower: Span) -> None:
        upper.note = lower.note
        entry = self._entries.get(lower)
        if entry is None:
            return
        # The same release, and a smaller depth: directly behind the lower part.
        self._enter((entry[0], entry[1], -(upper.start + upper.num_blocks), upper))

    def victim(self, num_blocks: int) -> tuple[Span, int]:
        entry = self._first()
        if entry is None:
            raise LookupError("no span that is held may be evicted")
        held = entry[3].num_blocks
        return entry[3], num_blocks if num_blocks < held else held

    def unlocked(self, span: Span) -> None:
        entry = self._locked.pop(span, None)
        if entry and self._entries.get(span) is entry:
            heappush(self._heap, entry)

    def evicted(self, span: Span, num_blocks: int) -> None:
        if not span.num_blocks:
            self.forget(span)

    def forget(self, span: Span) -> None:
        self._drop(span)
        span.note = None

    def __iter__(self) -> Iterator[Span]:
        """The spans held, smallest rank first."""
        return (entry[3] for entry in sorted(self._entries.values(), key=lambda entry: entry[:3]))

    # The heap

    def rank_of(self, span: Span) -> Rank:
        """The rank under which *span* is held."""
        return self._entries[span][0]

    def _tick(self, request: Request, now: float) -> None:
        """Count a moment, unless *request* at *now* is the one counted last."""
        if (request, now) != self._last:
            self._last = (request, now)
            self.moment += 1

    def _place(self, span: Span, rank: Rank) -> None:
        """Hold *span* under *rank*, behind all that have the same."""
        self._num_placed = number = self._num_placed + 1
        self._enter((rank, number, -(span.start + span.num_blocks), span))

    def _enter(self, entry: Entry) -> None:
        entries = self._entries
        entries[entry[3]] = entry
        heappush(self._heap, entry)
        if len(self._heap) > 2 * len(entries) + SPARE_ENTRIES:
            self._rebuild()

    def _rebuild(self) -> None:
        """Drop what is out of date; what was locked is looked at again."""
        self._heap = list(self._entries.values())
        heapify(self._heap)
        self._locked.clear()

    def _drop(self, span: Span) -> None:
        """*span* is held no more; its entry in the heap is out of date from now on."""
        del self._entries[span]
        self._locked.pop(span, None)

    def _second(self) -> Rank | None:
        """The smallest rank in the heap after the first, whether it is still held or not."""
        return min((entry[0] for entry in self._heap[1:3]), default=None)

    def _first(self) -> Entry | None:
        """The entry of the next victim, first in the heap; None if there is none."""
        entries, heap, pool = self._entries, self._heap, self.pool
        while heap:
            entry = heap[0]
            span = entry[3]
            if entries.get(span) is not entry:
                heappop(heap)
            elif pool.leaf_only and not pool.may_evict(span):
                self._locked[span] = heappop(heap)
            else:
                return entry
        return None
