"""2Q: new blocks pass a FIFO, only what comes back after it enters the LRU queue.

New blocks enter the FIFO A1in; hits there change nothing. What leaves A1in is evicted and leaves a
ghost in A1out; a block that comes back while its ghost is remembered enters the LRU queue Am.
Blocks are taken from A1in while it is above its share, else from Am. Parameters are shares of the
pool in blocks: *in_ratio* (0.25) for A1in, *out_ratio* (0.5) for the ghosts.
Source: Johnson and Shasha, "2Q: a low overhead high performance buffer management replacement
algorithm", VLDB 1994 (the full version; defaults are the paper's); libCacheSim's TwoQ.

Differs from the paper: blocks in use count in A1in but are passed over. If no block of the
preferred queue may go, the other one's does.
"""

from __future__ import annotations

from collections.abc import Iterator

from policies.counted_queue import CountedQueue, Place
from policies.ghosts import Ghosts, cut_by, with_spare
from policies.insertion_queue import nothing_may_go, offer
from sim.cache import EvictionPolicy, Pool, Span
from sim.errors import ConfigError
from sim.request import Request


class TwoQ(EvictionPolicy):
    """Evict from A1in, first in first out, while it is too long; else the LRU block of Am."""

    def __init__(self, in_ratio: float = 0.25, out_ratio: float = 0.5) -> None:
        if not 0 < in_ratio < 1:
            raise ConfigError(f"in_ratio is {in_ratio}; it must be between 0 and 1")
        if not out_ratio >= 0:
            raise ConfigError(f"out_ratio is {out_ratio}; it must be at least 0")
        self.in_ratio = in_ratio
        self.out_ratio = out_ratio

    def bind(self, pool: Pool) -> None:
        super().bind(pool)
        self._in, self._main = CountedQueue(), CountedQueue()
        self._ghosts = Ghosts()
        self._most_in = int(pool.num_blocks * self.in_ratio)
        self._most_ghosts = with_spare(int(pool.num_blocks * self.out_ratio))

    def release(self, span: Span, request: Request, now: float) -> None:
        place: Place | None = span.note
        if place is None:
            keys = request.keys
            runs = self._ghosts.take(keys, span.start, span.start + span.num_blocks)
            for part, run in cut_by(self.pool, span, runs) if runs else ((span, None),):
                part.note = Place(keys)
                part.note.queue = self._in if run is None else self._main
                part.note.queue.insert(part)
        elif place.queue is self._in:
            self._in.hold(span)
        else:
            self._main.insert(span)

    def hit(self, span: Span, request: Request, now: float) -> None:
        if not span.ref_cnt:
            if span.note.queue is self._in:
                self._in.num_held -= span.num_blocks
            else:
                self._main.take(span)

    def unlocked(self, span: Span) -> None:
        span.note.queue.wake(span)

    def split(self, upper: Span, lower: Span) -> None:
        place: Place | None = lower.note
        upper.note = place and place.copy()
        if place is None or place.queue is None:
            return
        if place.queue is self._in or not lower.ref_cnt:
            place.queue.insert_after(upper, lower)

    def victim(self, num_blocks: int) -> tuple[Span, int]:
        excess = self._in.num_blocks - self._most_in
        if excess > 0 or not self._main.num_held:
            span = self._in.first_evictable(self.pool)
            if span is not None:
                most = min(num_blocks, excess) if self._main.num_held else num_blocks
                return offer(span, most)
        span = self._main.first_evictable(self.pool)
        if span is not None:
            return offer(span, 1 if excess > 0 else num_blocks)
        span = self._in.first_evictable(self.pool)
        if span is None:
            raise nothing_may_go()
        return span, 1

    def evicted(self, span: Span, num_blocks: int) -> None:
        place: Place = span.note
        assert place.queue is not None
        if place.queue is self._in:
            start = span.start + span.num_blocks
            self._ghosts.push(place.keys, start, start + num_blocks)
            self._ghosts.trim(self._most_ghosts)
        place.queue.give_up(span, num_blocks)

    def forget(self, span: Span) -> None:
        span.note.queue.take(span)
        span.note = None

    def __iter__(self) -> Iterator[Span]:
        """The spans held: A1in, then Am."""
        yield from self._in.held()
        yield from self._main
