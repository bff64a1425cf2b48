"""Retention for a time: what is pinned goes only when nothing else is left.

A block is pinned from its last use for *ttl_s* seconds, or for the seconds in its request's hint
`ttl_s`, as providers price it (5 minutes, 1 hour). Without such hints all pins are equally long and
end in the order of last use: then this is exactly LRU. Source: Anthropic's and OpenAI's
prompt caching, whose retention is a time since the last use; here in a bounded pool.
"""

from __future__ import annotations

from policies.ranked import Rank
from policies.timed import Timed
from sim.cache import Span
from sim.errors import ConfigError
from sim.request import Request

BELOW_TIMES = 1 << 60  # ranks of what is not pinned are far below all times


class TTL(Timed):
    """Evict what is not pinned, least recently used first; then the pin that ends soonest."""

    def __init__(self, ttl_s: float = 300.0) -> None:
        if not ttl_s >= 0:
            raise ConfigError(f"ttl_s is {ttl_s} s; it must be at least 0")
        self.ttl_s = ttl_s

    def rank(self, span: Span, request: Request, now: float) -> float:
        span.note = self.moment
        return self.until(span, request, now)

    def until(self, span: Span, request: Request, now: float) -> float:
        hints = request.hints
        return now + (hints.get("ttl_s", self.ttl_s) if hints else self.ttl_s)

    def rank_after(self, span: Span, rank: Rank) -> Rank:
        return span.note - BELOW_TIMES  # by last use, whenever the pin ended
