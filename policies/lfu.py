"""Least frequently used, forgetting at eviction: uses since a block was last inserted.

Ties: least recently used, then deeper. Since every use of a block is one of the blocks before it,
what stays cached is always a usable prefix. Source: libCacheSim's LFU, where the frequency is lost
with the content, too; LMCache's LFU breaks ties by insertion instead.
"""

from __future__ import annotations

from policies.ranked import Ranked
from sim.cache import Span
from sim.request import Request


class LFU(Ranked):
    """Evict what was used by the fewest requests since it was inserted."""

    def touch(self, span: Span, request: Request, now: float) -> None:
        span.note = (span.note or 1) + 1

    def rank(self, span: Span, request: Request, now: float) -> int:
        return span.note or 1
