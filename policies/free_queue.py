"""The doubly linked free queue: constant time at both ends and in the middle.

It links `Span`s (a `KVCacheBlock` is a span of one block) through their own `prev_free` and
`next_free`, as vLLM's `FreeKVCacheBlockQueue` does, so that a span can leave from any place
without a search. First = next to be handed out.
"""

from __future__ import annotations

from collections.abc import Iterator

from sim.cache import Span


class FreeQueue:
    """Spans in order; a span is in at most one queue at a time."""

    __slots__ = ("end",)

    def __init__(self) -> None:
        self.end = Span(0)  # one fake span closes the ring: no special case for an empty queue
        self.end.prev_free = self.end.next_free = self.end

    def __bool__(self) -> bool:
        return self.end.next_free is not self.end

    @property
    def first(self) -> Span:
        """The span that is next to be handed out; IndexError if there is none."""
        if self.end.next_free is self.end:
            raise IndexError("the free queue is empty")
        return self.end.next_free

    def append(self, span: Span) -> None:
        """Put *span* last."""
        end = self.end
        last = end.prev_free
        span.prev_free = last
        span.next_free = end
        last.next_free = end.prev_free = span

    def prepend(self, span: Span) -> None:
        """Put *span* first."""
        self.insert_after(span, self.end)

    def insert_after(self, span: Span, place: Span) -> None:
        """Put *span* directly behind *place*."""
        after = place.next_free
        span.prev_free = place
        span.next_free = after
        place.next_free = after.prev_free = span

    def remove(self, span: Span) -> None:
        """Take *span* out, wherever it is; its own links are left as they were."""
        before = span.prev_free
        after = span.next_free
        before.next_free = after
        after.prev_free = before

    def popleft(self) -> Span:
        """Take out the first span; IndexError if there is none."""
        span = self.first
        self.remove(span)
        return span

    def __iter__(self) -> Iterator[Span]:
        """First to last; the span just yielded may be removed."""
        span = self.end.next_free
        while span is not self.end:
            after = span.next_free
            yield span
            span = after
