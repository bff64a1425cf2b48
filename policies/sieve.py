"""SIEVE: a hand that removes what was not hit, in a queue that hits do not reorder.

A hit marks a block. The hand walks from the oldest block to the newest, takes marks away, evicts
the first block without a mark and stays there; new blocks enter at the new end, so they are soon
sifted. No parameters. Source: Zhang et al., "SIEVE is simpler than LRU: an efficient turn-key
eviction algorithm for web caches", NSDI 2024; libCacheSim's Sieve, to which it is equal on requests
of one block.

Differs from the paper: the hand passes over blocks in use, which keep their mark and place, and,
with leaves only, over what may not go yet. If the hand never comes round, SIEVE and LFU evict the
same (always the oldest that was never hit), as on several LLM traces.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop
from typing import NamedTuple

from policies.insertion_queue import nothing_may_go, offer
from policies.ranked import Entry, Ranked
from sim.cache import Pool, Span
from sim.request import Request

Position = tuple[int, int]  # of a block: the number of its insertion, - its place in the prompt
Meeting = tuple[int, Position]  # with the hand: its turn, and where


class Mark(NamedTuple):
    """A span's note: which insertion it is, None before its first release; and the mark."""

    number: int | None
    is_marked: bool


NEW = Mark(None, False)


class Sieve(Ranked):
    """Evict the next block behind the hand that was not hit since the hand last passed it.

    A rank is when the hand will meet the span's deepest block: what is in use costs it no step.
    """

    def bind(self, pool: Pool) -> None:
        super().bind(pool)
        self._num_inserted = 0
        self._spans: dict[int, dict[Span, None]] = {}  # of each insertion; the newest is last
        self._turn = 0  # of the hand: how often it came round
        self._hand: Position = (0, 0)  # of the block that it took last

    def touch(self, span: Span, request: Request, now: float) -> None:
        number, _ = span.note or NEW
        span.note = Mark(number, True)

    def rank(self, span: Span, request: Request, now: float) -> Meeting:
        number, is_marked = span.note or NEW
        if number is None:
            self._num_inserted += 1
            self._spans[self._num_inserted] = {span: None}
            span.note = Mark(self._num_inserted, is_marked)
        return self._next_meeting(span)

    def _next_meeting(self, span: Span) -> Meeting:
        """In this turn if it is in front of the hand, else in the next one."""
        position = _position(span)
        return self._turn + (position < self._hand), position

    def split(self, upper: Span, lower: Span) -> None:
        super().split(upper, lower)
        if upper.note and upper.note.number:
            self._spans[upper.note.number][upper] = None

    def victim(self, num_blocks: int) -> tuple[Span, int]:
        heap, pool = self._heap, self.pool
        while heap:
            entry = heap[0]
            meeting, _, _, span = entry
            if self._entries.get(span) is not entry:
                heappop(heap)
            elif meeting < (self._turn, self._hand):  # it could not go when the hand passed it
                self._meet_again(entry, self._next_meeting(span))
            elif span.note.is_marked:
                span.note = Mark(span.note.number, False)
                self._meet_again(entry, (meeting[0] + 1, _position(span)))
            elif pool.leaf_only and not pool.may_evict(span):
                self._locked[span] = heappop(heap)
            else:
                self._turn = meeting[0]
                return offer(span, num_blocks)
        raise nothing_may_go()

    def _meet_again(self, first: Entry, meeting: Meeting) -> None:
        """The *first* of the heap is to be met at another time."""
        heappop(self._heap)
        self._enter((meeting, *first[1:]))

    def evicted(self, span: Span, num_blocks: int) -> None:
        self._hand = span.note.number, -(span.start + span.num_blocks)
        super().evicted(span, num_blocks)

    def forget(self, span: Span) -> None:
        number: int = span.note.number
        super().forget(span)
        del self._spans[number][span]
        if not self._spans[number]:
            del self._spans[number]
        newest = next(reversed(self._spans), 0)
        in_front = newest > self._hand[0] or (
            newest == self._hand[0]
            and any(_position(each) > self._hand for each in self._spans.get(newest, ()))
        )
        if not in_front:  # the hand is at the end: what is inserted next is met in the next turn
            self._turn += 1
            self._hand = (0, 0)

    def __iter__(self) -> Iterator[Span]:
        """The spans held, in the order of the queue."""
        return iter(sorted(self._entries, key=_position))


def _position(span: Span) -> Position:
    """The place of a span's deepest block in the queue."""
    return span.note.number, 1 - (span.start + span.num_blocks)
