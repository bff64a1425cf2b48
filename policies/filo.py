"""First in, last out: what was inserted last goes first, however often it was reused.

Insertion is the end of the request that computed a block, which is also when it becomes evictable.
Source: SGLang's filo strategy (`srt/mem_cache/evict_policy.py`). For managers that evict leaves.
"""

from __future__ import annotations

from policies.ranked import Ranked
from sim.cache import Span
from sim.request import Request


class FILO(Ranked):
    """Evict what was inserted most recently, the deepest blocks of a request first."""

    def rank(self, span: Span, request: Request, now: float) -> int:
        if span.note is None:
            span.note = self.moment
        return -int(span.note)
