"""S3-FIFO: a small queue that sifts, a main queue, and ghosts of what was sifted out.

New blocks enter the small queue. At its front, what was hit *move_to_main_threshold* times moves to
the main queue and the rest is evicted, leaving a ghost; what comes back while its ghost is
remembered enters the main queue. The main queue is a CLOCK with counters up to 3. Blocks are taken
from the small queue unless the main queue is above its share. Parameters are shares of the pool in
blocks: *small_ratio* (0.10) for the small queue, *ghost_ratio* (0.90) for the ghosts; *fill_main*:
until the first eviction, what finds the small queue full enters the main queue at once. AIBrix uses
small_ratio 0.3 and threshold 1.
Source: Yang et al., "FIFO queues are all you need for cache eviction", SOSP 2023; libCacheSim's
S3FIFO (2024), to which it is equal on requests of one block. The paper has no `fill_main` and a
main queue of 0.9 with as many ghosts.

Differs from the source: blocks in use count in their queue but are passed over; those that the hand
meets in the main queue go to its back when they are released, and keep their counter. If no block
of the preferred queue may go, the other one's does.
"""

from __future__ import annotations

from collections.abc import Iterator

from policies.counted_queue import CountedQueue, Place
from policies.ghosts import Ghosts, cut_by, with_spare
from policies.insertion_queue import nothing_may_go, offer
from sim.cache import EvictionPolicy, Pool, Span
from sim.errors import ConfigError
from sim.keys import BlockKeys
from sim.request import Request

MOST_HITS = 3  # of a block in the main queue: two bits


class S3FIFO(EvictionPolicy):
    """Evict from the small queue what was hardly hit, from the main queue what was not hit."""

    def __init__(
        self,
        small_ratio: float = 0.10,
        ghost_ratio: float = 0.90,
        move_to_main_threshold: int = 2,
        fill_main: bool = True,
    ) -> None:
        if not 0 < small_ratio < 1:
            raise ConfigError(f"small_ratio is {small_ratio}; it must be between 0 and 1")
        if not ghost_ratio >= 0:
            raise ConfigError(f"ghost_ratio is {ghost_ratio}; it must be at least 0")
        if move_to_main_threshold < 1:
            threshold = move_to_main_threshold
            raise ConfigError(f"move_to_main_threshold is {threshold}; it must be at least 1")
        self.small_ratio = small_ratio
        self.ghost_ratio = ghost_ratio
        self.move_to_main_threshold = move_to_main_threshold
        self.fill_main = fill_main

    def bind(self, pool: Pool) -> None:
        super().bind(pool)
        self._small, self._main = CountedQueue(), CountedQueue()
        self._ghosts = Ghosts()
        self._most_small = int(pool.num_blocks * self.small_ratio)
        self._most_main = pool.num_blocks - self._most_small
        self._most_ghosts = with_spare(int(pool.num_blocks * self.ghost_ratio))
        self._is_filling = self.fill_main

    # Inserting

    def release(self, span: Span, request: Request, now: float) -> None:
        place: Place | None = span.note
        if place is not None and place.queue is not None:
            if place.is_away:
                place.is_away = False
                place.queue.append(span)
            place.queue.hold(span)
            return
        keys = request.keys
        runs = self._ghosts.take(keys, span.start, span.start + span.num_blocks)
        for part, run in cut_by(self.pool, span, runs) if runs else ((span, None),):
            if run is not None:
                self._insert(part, keys, self._main)
            elif self._is_filling:
                self._fill(part, keys)
            else:
                self._insert(part, keys, self._small)

    def _fill(self, span: Span, keys: BlockKeys) -> None:
        """Nothing was evicted yet: what the small queue has no room for goes to the main queue."""
        room = self._most_small - self._small.num_blocks
        if 0 < room < span.num_blocks:
            upper = self.pool.cut(span, room)
            self._insert(span, keys, self._small)
            self._insert(upper, keys, self._main)
        else:
            self._insert(span, keys, self._small if room > 0 else self._main)

    def _insert(self, span: Span, keys: BlockKeys, queue: CountedQueue) -> None:
        if span.note is None:
            span.note = Place(keys)
        span.note.queue = queue
        queue.insert(span)

    def hit(self, span: Span, request: Request, now: float) -> None:
        place: Place | None = span.note
        if place is None:
            span.note = Place(request.keys, hits=1)
            return
        place.hits += 1
        if not span.ref_cnt and place.queue is not None:
            place.queue.num_held -= span.num_blocks
            place.queue.wake(span)  # the hand must see it, if only to move it on

    def unlocked(self, span: Span) -> None:
        span.note.queue.wake(span)

    def split(self, upper: Span, lower: Span) -> None:
        place: Place | None = lower.note
        upper.note = place and place.copy()
        if place is not None and place.queue is not None and not place.is_away:
            place.queue.insert_after(upper, lower)

    # Evicting

    def victim(self, num_blocks: int) -> tuple[Span, int]:
        small, main = self._small, self._main
        if main.num_blocks <= self._most_main and small.num_held:
            span = self._sweep_small()
            if span is not None:  # what moved to the main queue may have made that too long
                return offer(span, num_blocks if main.num_blocks <= self._most_main else 1)
        span = self._sweep_main()
        if span is not None:
            if small.num_held:  # the main queue gives no more than it has too much
                num_blocks = min(num_blocks, max(1, main.num_blocks - self._most_main))
            return offer(span, num_blocks)
        span = self._sweep_small() or self._sweep_main()  # leaves only: whatever may go
        if span is None:
            raise nothing_may_go()
        return span, 1

    def _sweep_small(self) -> Span | None:
        """The first in the small queue that was hardly hit; what was moves to the main queue."""
        small = self._small
        while small.num_held and (span := small.peek()) is not None:
            if not span.ref_cnt and span.note.hits >= self.move_to_main_threshold:
                small.take(span)
                self._main.insert(span)
                span.note.queue, span.note.hits = self._main, 0
            elif not span.ref_cnt and (not self.pool.leaf_only or self.pool.may_evict(span)):
                return span
            else:
                small.set_aside(span)
        return None

    def _sweep_main(self) -> Span | None:
        """The next in the main queue without hits; what has some pays one and goes to the back."""
        queue = self._main
        for _ in range(MOST_HITS + 2 if queue.num_held else 0):
            passed: Span | None = None  # the first that went to the back in this round
            while (span := queue.peek()) is not None and span is not passed:
                hits = span.note.hits
                if span.ref_cnt:
                    queue.remove(span)
                    span.note.is_away = True
                elif hits:
                    span.note.hits = min(hits, MOST_HITS) - 1
                    queue.remove(span)
                    queue.append(span)
                    passed = passed or span
                elif not self.pool.leaf_only or self.pool.may_evict(span):
                    return span
                else:
                    queue.set_aside(span)
        return None

    def evicted(self, span: Span, num_blocks: int) -> None:
        self._is_filling = False
        place: Place = span.note
        assert place.queue is not None
        if place.queue is self._small:
            start = span.start + span.num_blocks
            self._ghosts.push(place.keys, start, start + num_blocks)
            self._ghosts.trim(self._most_ghosts)
        place.queue.give_up(span, num_blocks)

    def forget(self, span: Span) -> None:
        if span.note is not None and span.note.queue is not None:
            span.note.queue.take(span)
        span.note = None

    def __iter__(self) -> Iterator[Span]:
        """The spans held: the small queue, then the main queue."""
        yield from self._small.held()
        yield from self._main.held()
