"""LRU-K: by the K-th last use, so that one scan cannot push out what is used again and again.

Blocks with fewer than K uses go first, least recently used first. Uses of evicted blocks are
remembered for a while, by their keys. Source: O'Neil, O'Neil and Weikum, "The LRU-K page
replacement algorithm for database disk buffering", SIGMOD 1993.

Differs from the paper: no correlated reference period; the history is limited in blocks, not in
time; a use is counted when a request adopts a block, the first when it is inserted.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import ClassVar

from policies.ranked import Ranked
from sim.cache import Pool, Span
from sim.errors import ConfigError
from sim.request import Request


class LRUK(Ranked):
    """Evict by the *k*-th last use; *history*: evicted blocks remembered, as a share of the pool.

    Blocks of one request may have different histories, hence single blocks.
    """

    max_span: ClassVar[int | None] = 1

    def __init__(self, k: int = 2, history: float = 1.0) -> None:
        if k < 1:
            raise ConfigError(f"k is {k}; it must be at least 1")
        if not history >= 0:
            raise ConfigError(f"history is {history}; it must be a share of the pool, at least 0")
        self.k = k
        self.history = history

    def bind(self, pool: Pool) -> None:
        super().bind(pool)
        self._past: OrderedDict[Hashable, tuple[int, ...]] = OrderedDict()
        self._most_past = int(self.history * pool.num_blocks)

    def touch(self, span: Span, request: Request, now: float) -> None:
        self._tick(request, now)
        span.note = (*self._uses(span), self.moment)[-self.k :]

    def rank(self, span: Span, request: Request, now: float) -> int:
        if span.note is None:
            span.note = (*self._uses(span), self.moment)[-self.k :]
        return span.note[0] if len(span.note) == self.k else 0

    def _uses(self, span: Span) -> tuple[int, ...]:
        uses: tuple[int, ...] | None = span.note
        return self._past.pop(span.key(0), ()) if uses is None else uses

    def evicted(self, span: Span, num_blocks: int) -> None:
        self._past[span.key(0)] = span.note
        if len(self._past) > self._most_past:
            self._past.popitem(last=False)
        super().evicted(span, num_blocks)
