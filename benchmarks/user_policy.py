"""LRU as users would write it: what a policy of one's own costs."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import ClassVar

from policies.ranked import Ranked
from sim.cache import EvictionPolicy, Pool, Span
from sim.request import Request


class OrderedDictLRU(EvictionPolicy):
    """The decisions of `policies.lru.LRU`.

    Spans released together later stay together: those cut from one span share its place.
    """

    ranks_unhashed: ClassVar[bool] = True

    def bind(self, pool: Pool) -> None:
        super().bind(pool)
        self._places: OrderedDict[int, list[Span]] = OrderedDict()
        self._num_released = 0

    def release(self, span: Span, request: Request, now: float) -> None:
        self._num_released += 1
        span.note = self._num_released
        self._places[span.note] = [span]

    def hit(self, span: Span, request: Request, now: float) -> None:
        if span.ref_cnt == 0:
            self.forget(span)

    def split(self, upper: Span, lower: Span) -> None:
        if lower.ref_cnt == 0:
            place = self._places[lower.note]
            place.insert(place.index(lower) + 1, upper)

    def victim(self, num_blocks: int) -> tuple[Span, int]:
        span = next(iter(self._places.values()))[0]
        return span, min(num_blocks, span.num_blocks)

    def evicted(self, span: Span, num_blocks: int) -> None:
        if not span.num_blocks:
            self.forget(span)

    def forget(self, span: Span) -> None:
        place = self._places[span.note]
        place.remove(span)
        if not place:
            del self._places[span.note]

    def __iter__(self) -> Iterator[Span]:
        for place in self._places.values():
            yield from place


class RankedLRU(Ranked):
    """The shortest way to say it: the one released longest ago goes first."""

    ranks_unhashed: ClassVar[bool] = True

    def rank(self, span: Span, request: Request, now: float) -> int:
        return self.moment
