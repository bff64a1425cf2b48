"""LRU that spares what the scheduler's waiting queue is about to use.

Blocks of prompts among the first *window* waiting requests are evicted only when no others are
left, and then least recently used first. Without a scheduler (replay) nothing waits: LRU.
Source: vLLM RFC 48485, "Waiting-Queue-Informed LRU"; the idea is CachedAttention's (ATC 2024).

Differs from the RFC: every copy of a wanted content is spared, not only the one that a lookup would
find now; queued requests are looked at when a victim is needed, not once per allocation.
"""

from __future__ import annotations

from heapq import heappop
from itertools import islice
from typing import ClassVar

from policies.ranked import Entry, Ranked
from sim.cache import Pool, Span
from sim.errors import ConfigError
from sim.request import Request


class QueueLookahead(Ranked):
    """Evict what no waiting request wants, LRU; *window*: how many waiting requests count."""

    lists_in_order: ClassVar[bool] = False

    def __init__(self, window: int = 256) -> None:
        if window < 0:
            raise ConfigError(f"window is {window} requests; it must be at least 0")
        self.window = window

    def bind(self, pool: Pool) -> None:
        super().bind(pool)
        self._queue: tuple[Request, ...] = ()
        self._spared: list[Entry] = []  # wanted by this queue, in LRU order

    def rank(self, span: Span, request: Request, now: float) -> int:
        return 0

    def victim(self, num_blocks: int) -> tuple[Span, int]:
        queue = tuple(islice(self.waiting, self.window))
        if queue != self._queue:
            self._queue = queue
            self._forgive()
        while (entry := self._first()) is not None:
            span = entry[3]
            num_wanted = max((_num_wanted(span, request) for request in queue), default=0)
            if num_wanted < span.num_blocks:
                return span, min(num_blocks, span.num_blocks - num_wanted)
            heappop(self._heap)
            self._spared.append(entry)
        self._forgive()  # all is wanted
        return super().victim(num_blocks)

    def _forgive(self) -> None:
        """Put back what was spared."""
        spared, self._spared = self._spared, []
        for entry in spared:
            if self._entries.get(entry[3]) is entry:
                self._enter(entry)


def _num_wanted(span: Span, request: Request) -> int:
    """How many of the span's blocks, from its start, a waiting *request* would hit."""
    keys, start = request.keys, span.start
    low = 0
    high = min((request.num_tokens - 1) // keys.block_size - start, span.num_blocks)
    while low < high:  # equal keys mean equal prefixes: blocks before low are equal
        middle = (low + high + 1) // 2
        if keys[start + middle - 1] == span.key(middle - 1):
            low = middle
        else:
            high = middle - 1
    return low
