"""KVFlow: what the workflow will need last goes first.

A workflow engine knows in how many steps each agent runs next and says so with every request. The
agent's fixed prompt is kept by that number; what follows it in the request, the dynamic part, goes
before any fixed prompt. A prefix that several agents share keeps the smallest number among them.
Source: Pan et al., "KVFlow", NeurIPS 2025, arXiv 2507.07400, section 3.

Differs from the paper: the numbers are those of the latest request, they do not count down while a
block is idle; of a shared prefix the smallest is remembered until the agent that gave it speaks
again; no prefetching.
"""

from __future__ import annotations

from typing import ClassVar

from policies.stepped import Stepped
from sim.cache import Span
from sim.request import Request


class KVFlow(Stepped):
    """Evict dynamic parts, then the fixed prompt with the most steps to its next execution.

    Needs the hint `steps_to_execution`; the hint `fixed_tokens`, the length of the fixed prompt, is
    optional (the whole prompt). An agent is a `Request.session`.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"steps_to_execution"})

    def touch(self, span: Span, request: Request, now: float) -> None:
        hints = request.hints or {}
        steps = hints["steps_to_execution"]
        fixed = hints.get("fixed_tokens", request.num_prompt_tokens) // self.pool.block_size
        agent = request.session
        if span.note is not None:
            other_steps, other_agent, other_fixed = span.note
            fixed = max(fixed, other_fixed)
            if other_steps < steps and other_agent != agent:
                steps, agent = other_steps, other_agent
        span.note = (steps, agent, fixed)

    def remember(self, span: Span, request: Request, now: float) -> None:
        self.touch(span, request, now)

    def step(self, span: Span) -> tuple[tuple[int, float], int]:
        steps, _, num_fixed = span.note
        num_dynamic = span.start + span.num_blocks - max(num_fixed, span.start)
        return ((0, 0), num_dynamic) if num_dynamic > 0 else ((1, -steps), span.num_blocks)
