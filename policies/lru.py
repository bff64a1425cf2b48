"""Least recently used, by the end of use: the order of vLLM's free queue.

A span goes to the tail when its last user lets go, and the front is evicted. A request lets go of
its deepest blocks first, so of two spans of one prompt the deeper goes first and what stays cached
is always a usable prefix. Source: the specification; vLLM v1 `core/block_pool.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from policies.free_queue import FreeQueue
from sim.cache import EvictionPolicy, Pool, Span
from sim.request import Request


class LRU(EvictionPolicy):
    """Evict what was released longest ago."""

    ranks_unhashed: ClassVar[bool] = True

    def bind(self, pool: Pool) -> None:
        super().bind(pool)
        self._queue = FreeQueue()
        self._end = self._queue.end

    # The queue's own methods, written out: these four run for every span of every request.

    def release(self, span: Span, request: Request, now: float) -> None:
        end = self._end
        last = end.prev_free
        span.prev_free = last
        span.next_free = end
        last.next_free = end.prev_free = span

    def hit(self, span: Span, request: Request, now: float) -> None:
        if not span.ref_cnt:
            before, after = span.prev_free, span.next_free
            before.next_free = after
            after.prev_free = before

    def victim(self, num_blocks: int) -> tuple[Span, int]:
        span = self._end.next_free
        return span, num_blocks if num_blocks < span.num_blocks else span.num_blocks

    def evicted(self, span: Span, num_blocks: int) -> None:
        if not span.num_blocks:
            before, after = span.prev_free, span.next_free
            before.next_free = after
            after.prev_free = before

    def split(self, upper: Span, lower: Span) -> None:
        if lower.ref_cnt == 0:
            self._queue.insert_after(upper, lower)

    def forget(self, span: Span) -> None:
        self._queue.remove(span)

    def __iter__(self) -> Iterator[Span]:
        """The spans held, next victim first."""
        return iter(self._queue)
