"""Mooncake's LengthAware: LFU that prefers to give up blocks that stand late in a prompt.

Source: Qin et al., "Mooncake", arXiv 2407.00079, table 1: "similar to LFU but prioritizing cache
blocks occurring later in requests". It does not say whether those go or stay first; here, by
default, they go.
"""

from __future__ import annotations

from policies.stepped import Stepped
from sim.cache import Span
from sim.request import Request


class LengthAware(Stepped):
    """Evict what was used least; among equals the deepest, or with *keep_late* the shallowest."""

    def __init__(self, keep_late: bool = False) -> None:
        self.keep_late = keep_late
        self.max_span = 1 if keep_late else None  # a span gives its deepest block first

    def touch(self, span: Span, request: Request, now: float) -> None:
        span.note = (span.note or 1) + 1

    def remember(self, span: Span, request: Request, now: float) -> None:
        span.note = span.note or 1

    def step(self, span: Span) -> tuple[tuple[int, int], int]:
        depth = span.start + span.num_blocks
        return (span.note, depth if self.keep_late else -depth), span.num_blocks

    def victim(self, num_blocks: int) -> tuple[Span, int]:
        span, num_offered = super().victim(num_blocks)
        second = self._second()
        if second and second[0] == span.note:  # it is as deep at some point
            num_offered = min(num_offered, span.start + span.num_blocks + second[1])
        return span, max(1, num_offered)
