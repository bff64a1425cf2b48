"""Greedy-Dual-Size-Frequency with the work of prefill as cost: uses times FLOPs to recompute.

All blocks have one size, so size drops out. A token's attention grows with what stands before it:
its cost is 1 + context / *crossover_tokens*, where attention costs as much as all the rest at
*crossover_tokens* (30,000 is about an 8 B model: 2 x 8e9 FLOPs against 4 x 32 layers x 4,096
dimensions per token of context). Source: Cherkasova, HP Laboratories 98-69R1, 1998; the cost model
is ours.

A deep block is worth more than those before it, which are useless without it and it without them:
made for managers that evict leaves. Under others it leaves unreachable blocks behind.
"""

from __future__ import annotations

from policies.aging import Aging
from sim.cache import Span
from sim.errors import ConfigError
from sim.request import Request


class GDSF(Aging):
    """Evict the smallest clock + uses x cost; *crossover_tokens*: context that doubles the cost."""

    max_span = 1

    def __init__(self, crossover_tokens: float = 30_000) -> None:
        if not crossover_tokens > 0:
            raise ConfigError(
                f"crossover_tokens is {crossover_tokens}; it must be more than 0 tokens"
            )
        self.crossover_tokens = crossover_tokens

    def touch(self, span: Span, request: Request, now: float) -> None:
        span.note = (span.note or 1) + 1

    def value(self, span: Span, request: Request, now: float) -> float:
        context = (span.start + 0.5) * self.pool.block_size
        return float((span.note or 1) * (1 + context / self.crossover_tokens))
