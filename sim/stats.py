"""Prefix-cache statistics as vLLM counts them: in tokens, preempted requests apart."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from sim.request import Request


@dataclass(slots=True)
class PrefixCacheStats:
    """Admissions of one step (or of a run): requests, tokens asked for, tokens hit.

    A request that comes back after a preemption finds its own blocks, which is no reuse: it is
    counted in the `preempted_*` fields. Source: vLLM `v1/metrics/stats.py`.
    """

    requests: int = 0
    queries: int = 0
    hits: int = 0
    preempted_requests: int = 0
    preempted_queries: int = 0
    preempted_hits: int = 0
    reset: bool = False

    def record(self, request: Request, num_hit_tokens: int) -> None:
        """Count the admission of *request* with *num_hit_tokens* cached tokens."""
        if request.num_preemptions:
            self.preempted_requests += 1
            self.preempted_queries += request.num_tokens
            self.preempted_hits += num_hit_tokens
        else:
            self.requests += 1
            self.queries += request.num_tokens
            self.hits += num_hit_tokens

    def add(self, step: PrefixCacheStats) -> None:
        """Add the counts of one step to these."""
        self.requests += step.requests
        self.queries += step.queries
        self.hits += step.hits
        self.preempted_requests += step.preempted_requests
        self.preempted_queries += step.preempted_queries
        self.preempted_hits += step.preempted_hits


class HitRateWindow:
    """The hit rate that vLLM logs: tokens hit / tokens asked for over the most recent requests.

    One entry per step; the oldest leave while more than *max_recent_requests* requests are in the
    window and more than one entry is left. A reset of the cache empties the window first.
    Preempted requests are not in it.
    """

    def __init__(self, max_recent_requests: int = 1000) -> None:
        self.max_recent_requests = max_recent_requests
        self._clear()

    def _clear(self) -> None:
        self._entries: deque[tuple[int, int, int]] = deque()
        self.requests = self.queries = self.hits = 0

    def observe(self, step: PrefixCacheStats) -> None:
        """Add one step; a step that admitted nothing adds no entry."""
        if step.reset:
            self._clear()
        if not step.requests:
            return
        self._entries.append((step.requests, step.queries, step.hits))
        self.requests += step.requests
        self.queries += step.queries
        self.hits += step.hits
        while self.requests > self.max_recent_requests and len(self._entries) > 1:
            requests, queries, hits = self._entries.popleft()
            self.requests -= requests
            self.queries -= queries
            self.hits -= hits

    @property
    def hit_rate(self) -> float:
        """Between 0 and 1; 0 before the first request, as vLLM has it."""
        return self.hits / self.queries if self.queries else 0.0
