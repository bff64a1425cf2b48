"""W-TinyLFU: a small LRU window, and a main cache that lets in only what is used more often.

New blocks enter the window. To make room, the least recent block of the window is compared with the
next victim of the main cache, an SLRU of two segments: the one that was used less often is evicted,
and if that is the main victim, the other takes its place. Uses are counted by content, also of what
is not cached, and halved now and then. Parameters: *window_ratio* (0.01), the share of the window;
*protected_ratio* (0.8), the upper segment's share of the main cache; *sample_factor* (10): all
counts are halved after so many uses per block of the pool.
Source: Einziger, Friedman and Manes, "TinyLFU: a highly efficient cache admission policy", ACM
Transactions on Storage 2017; Caffeine.

Differs from the paper: exact counts instead of a sketch with 4 bits and a doorkeeper. As blocks of
running requests cannot be refused, the comparison is made when memory is needed. Differs from
libCacheSim, which does not count hits in the window, counts one use more for the window's block at
every comparison or move, halves after 32 hits in the main cache per block of it, and estimates
counts by a Bloom filter. The blocks of one request have different counts and opponents, so the rule
needs single blocks.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator

from policies.counted_queue import CountedQueue
from policies.insertion_queue import nothing_may_go
from sim.cache import EvictionPolicy, Pool, Span
from sim.errors import ConfigError
from sim.request import Request

WINDOW, PROBATION, PROTECTED = 0, 1, 2


class WTinyLFU(EvictionPolicy):
    """Evict the less used of the window's and the main cache's candidates.

    `span.note`: the segment, once the span was released for the first time.
    """

    max_span = 1

    def __init__(
        self, window_ratio: float = 0.01, protected_ratio: float = 0.8, sample_factor: float = 10
    ) -> None:
        for name, ratio in (("window_ratio", window_ratio), ("protected_ratio", protected_ratio)):
            if not 0 < ratio < 1:
                raise ConfigError(f"{name} is {ratio}; it must be between 0 and 1")
        if not sample_factor > 0:
            raise ConfigError(f"sample_factor is {sample_factor}; it must be above 0")
        self.window_ratio = window_ratio
        self.protected_ratio = protected_ratio
        self.sample_factor = sample_factor

    def bind(self, pool: Pool) -> None:
        super().bind(pool)
        self._segments = [CountedQueue(), CountedQueue(), CountedQueue()]
        self._most_main = pool.num_blocks - int(self.window_ratio * pool.num_blocks)
        self._most_protected = int(self.protected_ratio * self._most_main)
        self._most_probation = self._most_main - self._most_protected
        self._counts: dict[Hashable, int] = {}
        self._num_uses = 0
        self._sample = max(1, int(self.sample_factor * pool.num_blocks))

    # Counting

    def count(self, key: Hashable) -> None:
        """One use of the content *key*."""
        self._counts[key] = self._counts.get(key, 0) + 1
        self._num_uses += 1
        if self._num_uses >= self._sample:
            self._num_uses //= 2
            self._counts = {key: n // 2 for key, n in self._counts.items() if n > 1}

    def wins(self, challenger: Span, defender: Span) -> bool:
        """Whether the window's *challenger* was used more often than the main *defender*."""
        counts = self._counts
        return counts.get(challenger.key(0), 0) > counts.get(defender.key(0), 0)

    # Using

    def release(self, span: Span, request: Request, now: float) -> None:
        if span.note is None:
            self.count(span.key(0))
            span.note = WINDOW
            self._segments[WINDOW].insert(span)
            return
        segment = self._segments[span.note]
        segment.append(span)
        segment.num_held += 1
        while self._segments[PROTECTED].num_blocks > self._most_protected:
            if not self._segments[PROTECTED].num_held:
                break
            self._move(self._segments[PROTECTED].first, PROBATION)

    def hit(self, span: Span, request: Request, now: float) -> None:
        self.count(span.key(0))
        if span.note is None:
            return
        segment = self._segments[span.note]
        if not span.ref_cnt:
            segment.remove(span)
            segment.num_held -= 1
        if span.note == PROBATION:
            segment.num_blocks -= 1
            self._segments[PROTECTED].num_blocks += 1
            span.note = PROTECTED

    def _move(self, span: Span, to: int) -> None:
        self._segments[span.note].take(span)
        span.note = to
        self._segments[to].insert(span)

    def unlocked(self, span: Span) -> None:
        self._segments[span.note].wake(span)

    def split(self, upper: Span, lower: Span) -> None:
        raise AssertionError("a span of one block cannot be cut")

    # Evicting

    def victim(self, num_blocks: int) -> tuple[Span, int]:
        window, probation, protected = self._segments
        while window.num_held:
            if probation.num_blocks + protected.num_blocks >= self._most_main:
                break
            self._admit(window.first)
        challenger = window.first_evictable(self.pool)
        defender = probation.first_evictable(self.pool) or protected.first_evictable(self.pool)
        if challenger is None or defender is None:
            span = challenger or defender
            if span is None:
                raise nothing_may_go()
            return span, 1
        if self.wins(challenger, defender):
            self._segments[defender.note].take(defender)
            self._admit(challenger)
            defender.note = WINDOW  # it is about to be evicted: first in the window
            window.prepend(defender)
            window.num_blocks += 1
            window.num_held += 1
            return defender, 1
        return challenger, 1

    def _admit(self, span: Span) -> None:
        """From the window to the main cache: to the lower segment, if that is not full."""
        probation, protected = self._segments[PROBATION], self._segments[PROTECTED]
        is_full = probation.num_blocks >= self._most_probation
        has_room = protected.num_blocks < self._most_protected
        self._move(span, PROTECTED if is_full and has_room else PROBATION)

    def evicted(self, span: Span, num_blocks: int) -> None:
        self._segments[span.note].shrink(1)
        self._segments[span.note].remove(span)
        span.note = None

    def forget(self, span: Span) -> None:
        self._segments[span.note].take(span)
        span.note = None

    def __iter__(self) -> Iterator[Span]:
        """The spans held: the window, the lower and the upper main segment."""
        for segment in self._segments:
            yield from segment
