"""A queue that knows how many blocks it has, and how many of them nobody is using.

For policies with several queues whose sizes decide; spans keep their place while in use.
"""

from __future__ import annotations

from collections.abc import Iterator

from policies.skipping_queue import SkippingQueue
from sim.cache import Pool, Span
from sim.keys import BlockKeys


class CountedQueue(SkippingQueue):
    """Spans in order, with the number of their blocks, in use or not, and of those held."""

    __slots__ = ("num_blocks", "num_held")

    def __init__(self) -> None:
        super().__init__()
        self.num_blocks = 0
        self.num_held = 0

    def insert(self, span: Span) -> None:
        """Put a *span* that nobody uses last."""
        self.append(span)
        self.num_blocks += span.num_blocks
        self.num_held += span.num_blocks

    def take(self, span: Span) -> None:
        """Take out a *span* that nobody uses."""
        self.remove(span)
        self.shrink(span.num_blocks)

    def shrink(self, num_blocks: int) -> None:
        """So many blocks that nobody used are gone."""
        self.num_blocks -= num_blocks
        self.num_held -= num_blocks

    def give_up(self, span: Span, num_blocks: int) -> None:
        """*num_blocks* of *span* were evicted; it leaves, without its note, if none is left."""
        self.shrink(num_blocks)
        if not span.num_blocks:
            self.remove(span)
            span.note = None

    def first_evictable(self, pool: Pool) -> Span | None:
        """The first span that may be offered, if any."""
        while self.num_held and (span := self.peek()) is not None:
            if not span.ref_cnt and (not pool.leaf_only or pool.may_evict(span)):
                return span
            self.set_aside(span)
        return None

    def hold(self, span: Span) -> None:
        """Nobody uses *span* any more, which kept its place."""
        self.num_held += span.num_blocks
        self.wake(span)

    def held(self) -> Iterator[Span]:
        """The spans that nobody uses, in order."""
        return (span for span in self if not span.ref_cnt)


class Place:
    """A span's note: its queue (None before its first release), its hits, and its content.

    *is_away*: it is in use, and left the order of its queue until it is released.
    """

    __slots__ = ("hits", "is_away", "keys", "queue")

    def __init__(self, keys: BlockKeys, hits: int = 0) -> None:
        self.queue: CountedQueue | None = None
        self.keys = keys
        self.hits = hits
        self.is_away = False

    def copy(self) -> Place:
        """The same for a part that was cut off."""
        place = Place(self.keys, self.hits)
        place.queue = self.queue
        place.is_away = self.is_away
        return place
