"""Tail-optimized LRU: give up first what the next turn can recompute within its time budget.

A conversation of L tokens whose next prompt adds Q more meets a budget of *threshold* tokens of
prefill if its first L + Q - threshold tokens stay cached. Blocks behind that depth are safe to lose
and go first, oldest first; then plain LRU. A block that several conversations share is safe only
if it is for all of them. Source: "Tail-Optimized Caching for LLM Inference", arXiv 2510.15152
(NeurIPS 2025); defaults as in SGLang's tlru, which make it LRU.

Differs from the sources: L is the request's own prompt and answer; Q is one number for all.
"""

from __future__ import annotations

from policies.stepped import Stepped
from sim.cache import Span
from sim.errors import ConfigError
from sim.request import Request


class TLRU(Stepped):
    """Evict safe blocks, then others, least recently used first. All parameters are tokens.

    *threshold*: prefill that meets the latency target; 0 makes nothing safe (LRU).
    *next_prompt_estimate*: new tokens expected in the next turn.
    """

    def __init__(self, threshold: int = 0, next_prompt_estimate: int = 0) -> None:
        for name, value in (
            ("threshold", threshold),
            ("next_prompt_estimate", next_prompt_estimate),
        ):
            if value < 0:
                raise ConfigError(f"{name} is {value} tokens; it must be at least 0")
        self.threshold = threshold
        self.next_prompt_estimate = next_prompt_estimate

    def touch(self, span: Span, request: Request, now: float) -> None:
        span.note = max(span.note or 0, self._first_safe(request))

    def remember(self, span: Span, request: Request, now: float) -> None:
        self.touch(span, request, now)

    def step(self, span: Span) -> tuple[int, int]:
        num_safe = span.start + span.num_blocks - max(span.note, span.start)
        return (0, num_safe) if num_safe > 0 else (1, span.num_blocks)

    def _first_safe(self, request: Request) -> int:
        """The first block that need not stay for this conversation."""
        length = request.num_prompt_tokens + request.max_tokens
        num_kept = max(0, length + self.next_prompt_estimate - self.threshold)
        return -(-num_kept // self.pool.block_size)
