"""vLLM's proposal of frequency- and cost-aware eviction: uses per second times recompute cost.

The cost of a block is its prefix length to the power *alpha*, as attention is quadratic; its
frequency is uses over the time since it was inserted. Source: vLLM issue 23641 and pull request
27539 (closed without being merged).

A deep block is worth more than those before it: made for managers that evict leaves. Under others
it leaves unreachable blocks behind. Scores change all the time and are refreshed now and then.
"""

from __future__ import annotations

from policies.decaying import Decaying
from sim.cache import Span
from sim.request import Request

LEAST_AGE = 1e-3  # seconds; below it rates mean nothing


class FreqCost(Decaying):
    """Evict the smallest uses / age x length^*alpha*; *refresh* as in `Decaying`."""

    max_span = 1

    def __init__(self, alpha: float = 2.0, refresh: float = 0.1) -> None:
        super().__init__(refresh)
        self.alpha = alpha

    def touch(self, span: Span, request: Request, now: float) -> None:
        uses, since = span.note or (1, now)
        span.note = (uses + 1, since)

    def remember(self, span: Span, request: Request, now: float) -> None:
        if span.note is None:
            span.note = (1, now)

    def score(self, span: Span, now: float) -> float:
        uses, since = span.note
        length = (span.start + 1) * self.pool.block_size
        return float(uses / max(now - since, LEAST_AGE) * length**self.alpha)
