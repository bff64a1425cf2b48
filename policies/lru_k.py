"""LRU-K: by the K-th last use, so that one scan cannot push out what is used again and again.

Blocks with fewer than K uses go first, least recently used first. Uses of evicted blocks are
remembered for a while, by their content. Source: O'Neil, O'Neil and Weikum, "The LRU-K page
replacement algorithm for database disk buffering", SIGMOD 1993.

Differs from the paper: no correlated reference period; the history is limited in blocks, not in
time; a use is counted when a request adopts a block, the first when it is inserted.
"""

from __future__ import annotations

from typing import NamedTuple

from policies.ghosts import Ghosts, cut_by, with_spare
from policies.ranked import Ranked
from sim.cache import Pool, Span
from sim.errors import ConfigError
from sim.keys import BlockKeys
from sim.request import Request


class Past(NamedTuple):
    """A span's note: the moments of its last K uses, and its content once it was released."""

    uses: tuple[int, ...]
    keys: BlockKeys | None


NO_PAST = Past((), None)


class LRUK(Ranked):
    """Evict by the *k*-th last use.

    *history*: evicted blocks that are remembered, as a share of the pool.
    """

    def __init__(self, k: int = 2, history: float = 1.0) -> None:
        if k < 1:
            raise ConfigError(f"k is {k}; it must be at least 1")
        if not history >= 0:
            raise ConfigError(f"history is {history}; it must be a share of the pool, at least 0")
        self.k = k
        self.history = history

    def bind(self, pool: Pool) -> None:
        super().bind(pool)
        self._ghosts = Ghosts()  # their notes are uses
        self._most_ghosts = with_spare(int(self.history * pool.num_blocks))

    def touch(self, span: Span, request: Request, now: float) -> None:
        self._tick(request, now)
        uses, keys = span.note or NO_PAST
        span.note = Past((*uses, self.moment)[-self.k :], keys)

    def release(self, span: Span, request: Request, now: float) -> None:
        uses, keys = span.note or NO_PAST
        if keys is not None:
            super().release(span, request, now)
            return
        self._tick(request, now)
        uses = uses or (self.moment,)
        keys, start, stop = request.keys, span.start, span.start + span.num_blocks
        for part, run in cut_by(self.pool, span, self._ghosts.take(keys, start, stop)):
            before = run.note if run else ()
            part.note = Past((*before, *uses)[-self.k :], keys)
            super().release(part, request, now)

    def rank(self, span: Span, request: Request, now: float) -> int:
        uses: tuple[int, ...] = span.note.uses
        return uses[0] if len(uses) == self.k else 0

    def evicted(self, span: Span, num_blocks: int) -> None:
        start = span.start + span.num_blocks
        self._ghosts.push(span.note.keys, start, start + num_blocks, span.note.uses)
        self._ghosts.trim(self._most_ghosts)
        super().evicted(span, num_blocks)
