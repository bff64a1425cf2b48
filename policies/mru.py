"""Most recently used: what was released last goes first, for scans longer than the pool.

In a prefix tree that takes the shared beginning of a prompt before older prompts that continue it,
so under a manager that evicts any block, not only leaves, much of the pool becomes unreachable.
Source: Chou and DeWitt, "An evaluation of buffer management strategies", VLDB 1985; SGLang's mru.
"""

from __future__ import annotations

from policies.ranked import Ranked
from sim.cache import Span
from sim.request import Request


class MRU(Ranked):
    """Evict what was released most recently, the deepest blocks of a request first."""

    def rank(self, span: Span, request: Request, now: float) -> int:
        return -self.moment
