"""SGLang's SLRU: LRU among blocks that were used once; the others go only when none is left.

Two levels without limits, unlike `slru`: nothing is ever demoted. Parameter: from how many uses on
a block is protected, *protected_threshold* (2). Source: SGLang `srt/mem_cache/evict_policy.py`.

Differs from SGLang: blocks instead of whole tree nodes, so that it serves every manager; the radix
manager's own `strategy: slru` is exact.
"""

from __future__ import annotations

from policies.ranked import Ranked
from sim.cache import Span
from sim.errors import ConfigError
from sim.request import Request


class ProtectedLRU(Ranked):
    """Evict the LRU block among those used less than *protected_threshold* times, if any."""

    def __init__(self, protected_threshold: int = 2) -> None:
        if protected_threshold < 1:
            value = protected_threshold
            raise ConfigError(f"protected_threshold is {value}; it must be at least 1")
        self.protected_threshold = protected_threshold

    def touch(self, span: Span, request: Request, now: float) -> None:
        span.note = (span.note or 1) + 1

    def rank(self, span: Span, request: Request, now: float) -> bool:
        return (span.note or 1) >= self.protected_threshold
