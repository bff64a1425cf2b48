"""LFU with dynamic aging: a count starts where the last evicted one ended.

So a block that was popular long ago does not stay for ever. Source: Arlitt et al., "Evaluating
content management techniques for web proxy caches", 1999.
"""

from __future__ import annotations

from policies.aging import Aging
from sim.cache import Span
from sim.request import Request


class LFUDA(Aging):
    """Evict the smallest clock + number of uses; the clock is the largest rank evicted."""

    def touch(self, span: Span, request: Request, now: float) -> None:
        span.note = (span.note or 1) + 1

    def value(self, span: Span, request: Request, now: float) -> float:
        return float(span.note or 1)
