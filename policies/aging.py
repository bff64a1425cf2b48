"""Ranks with a clock that evictions push forward, so that old merit fades without being touched.

The clock L is the largest rank evicted so far, and a span's rank is L at its last use plus its
value: what has not been used for long falls behind, in O(log n) and without re-ranking anything.
Source: Cherkasova, "Improving WWW proxies performance with Greedy-Dual-Size-Frequency caching",
HP Laboratories 98-69R1, 1998; Arlitt et al., "Evaluating content management techniques", 1999.
"""

from __future__ import annotations

from abc import abstractmethod

from policies.ranked import Ranked
from sim.cache import Pool, Span
from sim.request import Request


class Aging(Ranked):
    """Evict the smallest clock + value.

    Differs from the papers: clock and value are taken when a span is released, not when it is hit,
    since a span in use cannot be evicted anyway.
    """

    def bind(self, pool: Pool) -> None:
        super().bind(pool)
        self.clock = 0.0

    @abstractmethod
    def value(self, span: Span, request: Request, now: float) -> float:
        """What the span is worth by itself, 0 or more; asked for at its release."""

    def rank(self, span: Span, request: Request, now: float) -> float:
        return self.clock + self.value(span, request, now)

    def evicted(self, span: Span, num_blocks: int) -> None:
        # In leaf mode a low rank may have to wait, so the largest counts, not the last.
        self.clock = max(self.clock, self.rank_of(span))
        super().evicted(span, num_blocks)
