"""One queue in the order of insertion: what FIFO and CLOCK have in common.

A span is inserted by its first release, behind all others, and keeps its place while it is in use.
Hits are counted in the span's note, up to `most_hits`. The two differ in what their hand does.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator

from policies.skipping_queue import SkippingQueue
from sim.cache import EvictionPolicy, Pool, Span
from sim.request import Request


class InsertionQueue(EvictionPolicy):
    """Spans in order of insertion; `victim` is the hand that a policy moves along them.

    `span.note`: None for a span that was never touched; the hits that count, at least 0, once it is
    in the queue; and minus them while its first user still holds it and others reuse it already.
    """

    most_hits: int = 0

    def bind(self, pool: Pool) -> None:
        super().bind(pool)
        self._queue = SkippingQueue()

    def release(self, span: Span, request: Request, now: float) -> None:
        hits = span.note
        if hits is None or hits < 0:
            span.note = -(hits or 0)
            self._queue.append(span)
        else:
            self._queue.wake(span)

    def hit(self, span: Span, request: Request, now: float) -> None:
        hits = span.note
        if hits is None or hits < 0:
            if self.most_hits:
                span.note = max((hits or 0) - 1, -self.most_hits)
        else:
            if hits < self.most_hits:
                span.note = hits + 1
            self._queue.wake(span)  # the hand must see it, if only to move it on

    def split(self, upper: Span, lower: Span) -> None:
        upper.note = hits = lower.note
        if hits is not None and hits >= 0:
            self._queue.insert_after(upper, lower)

    def unlocked(self, span: Span) -> None:
        self._queue.wake(span)

    @abstractmethod
    def victim(self, num_blocks: int) -> tuple[Span, int]:
        """Sweep to the next span that may go; those in use are passed over."""

    def _may_go(self, span: Span) -> bool:
        """Whether a *span* of the queue may be offered."""
        return not span.ref_cnt and (not self.pool.leaf_only or self.pool.may_evict(span))

    def evicted(self, span: Span, num_blocks: int) -> None:
        if not span.num_blocks:
            self.forget(span)

    def forget(self, span: Span) -> None:
        self._queue.remove(span)
        span.note = None

    def __iter__(self) -> Iterator[Span]:
        """The spans held, in the order of the queue."""
        return (span for span in self._queue if not span.ref_cnt)


def offer(span: Span, num_blocks: int) -> tuple[Span, int]:
    """*span* and as many of its blocks as are wanted."""
    return span, num_blocks if num_blocks < span.num_blocks else span.num_blocks


def nothing_may_go() -> LookupError:
    """What a policy raises if nothing that it holds may be evicted."""
    return LookupError("no span that is held may be evicted")
