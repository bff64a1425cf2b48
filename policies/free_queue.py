"""The doubly linked free queue: constant time at both ends and in the middle.

It links `Span`s (a `KVCacheBlock` is a span of one block) through their own `prev_free` and
`next_free`, as vLLM's `FreeKVCacheBlockQueue` does, so that a span can leave from any place
without a search. Front = next to be handed out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sim.cache import Span


class FreeQueue:
    """Spans in order; a span is in at most one queue at a time."""

    __slots__ = ("_end", "num_blocks")

    def __init__(self, spans: Iterable[Span] = ()) -> None:
        end = Span(0)  # one fake span closes the ring: no special case for an empty queue
        end.prev_free = end.next_free = end
        self._end = end
        self.num_blocks = 0
        for span in spans:
            self.append(span)

    @property
    def front(self) -> Span | None:
        """The span that is next to be handed out, or None."""
        return self._end.next_free if self._end.next_free is not self._end else None

    def append(self, span: Span) -> None:
        """Put *span* at the tail."""
        self._link(span, self._end.prev_free, self._end)
        self.num_blocks += span.num_blocks

    def prepend(self, span: Span) -> None:
        """Put *span* at the front."""
        self._link(span, self._end, self._end.next_free)
        self.num_blocks += span.num_blocks

    def insert_after(self, span: Span, place: Span) -> None:
        """Put *span*, just cut off from *place*, directly behind it (no blocks are added)."""
        self._link(span, place, place.next_free)

    def remove(self, span: Span) -> None:
        """Take *span* out, wherever it is."""
        before, after = span.prev_free, span.next_free
        before.next_free = after  # type: ignore[union-attr]
        after.prev_free = before  # type: ignore[union-attr]
        span.prev_free = span.next_free = None
        self.num_blocks -= span.num_blocks

    def popleft(self) -> Span:
        """Take out the span at the front; the queue must not be empty."""
        span = self._end.next_free
        self.remove(span)  # type: ignore[arg-type]
        return span  # type: ignore[return-value]

    def __iter__(self) -> Iterator[Span]:
        """From the front; the span just yielded may be removed."""
        span = self._end.next_free
        while span is not self._end:
            after = span.next_free  # type: ignore[union-attr]
            yield span  # type: ignore[misc]
            span = after

    @staticmethod
    def _link(span: Span, before: Span | None, after: Span | None) -> None:
        span.prev_free, span.next_free = before, after
        before.next_free = after.prev_free = span  # type: ignore[union-attr]
