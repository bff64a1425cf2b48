"""Ranks that change all the time, such as uses per second: re-evaluated now and then.

No order of such ranks lasts, so this is an approximation: a rank is as of the span's release or of
the last refresh, whichever came later. A refresh re-ranks everything held, each time *refresh* x
the pool's blocks have been evicted: O(1 / refresh) ranks per evicted block. Exact alternatives:
`Timed` for ranks that change at known moments, `policies.workload_aware` for a few classes.
"""

from __future__ import annotations

from abc import abstractmethod

from policies.ranked import Ranked
from sim.cache import Pool, Span
from sim.errors import ConfigError
from sim.request import Request


class Decaying(Ranked):
    """Evict the smallest score. *refresh*: share of the pool evicted between two refreshes."""

    def __init__(self, refresh: float = 0.1) -> None:
        if not 0 < refresh <= 1:
            raise ConfigError(f"refresh is {refresh}; it must be a share of the pool, above 0 to 1")
        self.refresh = refresh

    def bind(self, pool: Pool) -> None:
        super().bind(pool)
        self._now = 0.0
        self._period = self._num_left = max(1, int(self.refresh * pool.num_blocks))

    @abstractmethod
    def score(self, span: Span, now: float) -> float:
        """What *span* is worth at *now*; its note is set."""

    @abstractmethod
    def remember(self, span: Span, request: Request, now: float) -> None:
        """Put into `span.note` all that `score` needs; called at every release."""

    def rank(self, span: Span, request: Request, now: float) -> float:
        self._now = now
        self.remember(span, request, now)
        return self.score(span, now)

    def victim(self, num_blocks: int) -> tuple[Span, int]:
        if not self._num_left:
            self._refresh()
        return super().victim(min(num_blocks, self._num_left))

    def evicted(self, span: Span, num_blocks: int) -> None:
        self._num_left -= num_blocks
        super().evicted(span, num_blocks)

    def _refresh(self) -> None:
        self._num_left = self._period
        now = self._now
        for span, (_, number, end, _) in self._entries.items():
            self._entries[span] = (self.score(span, now), number, end, span)
        self._rebuild()
