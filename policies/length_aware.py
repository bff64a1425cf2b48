"""Mooncake's LengthAware: LFU that prefers to give up blocks that stand late in a prompt.

Source: Qin et al., "Mooncake", arXiv 2407.00079, table 1: "similar to LFU but prioritizing cache
blocks occurring later in requests". It does not say whether those go or stay first; here, by
default, they go.
"""

from __future__ import annotations

from typing import ClassVar

from policies.ranked import Ranked
from sim.cache import Span
from sim.request import Request


class LengthAware(Ranked):
    """Evict what was used least; among equals the deepest, or with *keep_late* the shallowest."""

    max_span: ClassVar[int | None] = 1

    def __init__(self, keep_late: bool = False) -> None:
        self.keep_late = keep_late

    def touch(self, span: Span, request: Request, now: float) -> None:
        span.note = (span.note or 1) + 1

    def rank(self, span: Span, request: Request, now: float) -> tuple[int, int]:
        return span.note or 1, span.start if self.keep_late else -span.start
