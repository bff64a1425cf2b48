"""SLRU: segments of LRU; each hit promotes by one, and overflow is demoted by one.

A block enters the lowest segment that has room, or the lowest of all. When it is reused it moves
to the recent end of the next segment, whose least recent blocks then move down as far as there are
too many. The least recent block of the lowest segment that has any is evicted. Parameter:
*num_segments* of equal size (4); *shares* instead gives the relative sizes, the lowest first.
Source: Karedla, Love and Wherry, "Caching strategies to improve disk system performance", 1994 (two
segments); libCacheSim's SLRU, to which it is equal on requests of one block if the pool is a
multiple of the segments (otherwise libCacheSim uses only the multiple, and may evict on a hit).

Differs from the source: a block in use keeps its seat in its segment, moves when it is released,
and cannot be demoted before. SGLang's "slru" has two levels without limits: `slru_sglang`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from policies.counted_queue import CountedQueue
from policies.insertion_queue import nothing_may_go, offer
from sim.cache import EvictionPolicy, Pool, Span
from sim.errors import ConfigError
from sim.request import Request


class SLRU(EvictionPolicy):
    """Evict the LRU block of the lowest segment.

    `span.note`: the segment; None for a span that was never touched, and minus the hits of one
    that its first user still holds.
    """

    def __init__(self, num_segments: int = 4, shares: Sequence[float] | None = None) -> None:
        if shares is None and num_segments < 1:
            raise ConfigError(f"num_segments is {num_segments}; it must be at least 1")
        if shares is not None and not (shares and min(shares) > 0):
            raise ConfigError(f"shares is {list(shares)}; they must be positive numbers")
        self.shares = [1.0] * num_segments if shares is None else list(shares)
        self.num_segments = len(self.shares)

    def bind(self, pool: Pool) -> None:
        super().bind(pool)
        self._segments = [CountedQueue() for _ in self.shares]
        total = sum(self.shares)
        self._most = [int(share / total * pool.num_blocks) for share in self.shares]

    def release(self, span: Span, request: Request, now: float) -> None:
        note: int | None = span.note
        if note is None:
            self._enter(span)
            return
        if note < 0:  # its first release, but it was reused meanwhile
            span.note = note = min(-note, self.num_segments - 1)
            self._segments[note].num_blocks += span.num_blocks
        segment = self._segments[note]
        segment.append(span)
        segment.num_held += span.num_blocks
        self._cool(note)

    def _enter(self, span: Span) -> None:
        """Place a new span, in pieces if it must be, where there is room."""
        for i, segment in enumerate(self._segments):
            room = self._most[i] - segment.num_blocks
            if room >= span.num_blocks:
                self._seat(span, i)
                return
            if room > 0:
                upper = self.pool.cut(span, room)
                self._seat(span, i)
                span = upper
        self._seat(span, 0)

    def _seat(self, span: Span, i: int) -> None:
        span.note = i
        self._segments[i].insert(span)

    def _cool(self, highest: int) -> None:
        """Demote what is too much in segment *highest*, and in those below it in turn."""
        for i in range(highest, 0, -1):
            segment = self._segments[i]
            while segment and segment.num_blocks > self._most[i]:
                span = segment.first
                excess = segment.num_blocks - self._most[i]
                if span.num_blocks > excess:
                    self.pool.cut(span, excess)
                segment.take(span)
                self._seat(span, i - 1)

    def hit(self, span: Span, request: Request, now: float) -> None:
        note: int | None = span.note
        if note is None or note < 0:
            span.note = (note or 0) - 1
            return
        if not span.ref_cnt:
            self._segments[note].remove(span)
            self._segments[note].num_held -= span.num_blocks
        if note + 1 < self.num_segments:
            self._segments[note].num_blocks -= span.num_blocks
            self._segments[note + 1].num_blocks += span.num_blocks
            span.note = note + 1

    def unlocked(self, span: Span) -> None:
        self._segments[span.note].wake(span)

    def split(self, upper: Span, lower: Span) -> None:
        upper.note = note = lower.note
        if note is not None and note >= 0 and not lower.ref_cnt:
            self._segments[note].insert_after(upper, lower)

    def victim(self, num_blocks: int) -> tuple[Span, int]:
        for segment in self._segments:
            span = segment.first_evictable(self.pool)
            if span is not None:
                return offer(span, num_blocks)
        raise nothing_may_go()

    def evicted(self, span: Span, num_blocks: int) -> None:
        self._segments[span.note].give_up(span, num_blocks)

    def forget(self, span: Span) -> None:
        self._segments[span.note].take(span)
        span.note = None

    def __iter__(self) -> Iterator[Span]:
        """The spans held: the lowest segment first, each from its least recent end."""
        for segment in self._segments:
            yield from segment
