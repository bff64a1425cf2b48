"""LRU that spares what the scheduler's waiting queue is about to use.

Blocks of prompts among the first *window* waiting requests are evicted only when no others are
left, and then least recently used first. Without a scheduler (replay) nothing waits: LRU.
Source: vLLM RFC 48485, "Waiting-Queue-Informed LRU"; the idea is CachedAttention's (ATC 2024).

Differs from the RFC: every copy of a wanted content is spared, not only the one that a lookup would
find now; queued requests are looked at when a victim is needed, not once per allocation.

What is spared is put aside on account of the request that came last among those who want it, and
looked at again when that one leaves the queue: a victim costs what changed since the last one.
"""

from __future__ import annotations

from collections.abc import Hashable
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import ClassVar

from policies.ranked import SPARE_ENTRIES, Entry, Ranked
from sim.cache import Pool, Span
from sim.errors import ConfigError
from sim.request import Request

MOST_POSITIONS = 1024


class QueueLookahead(Ranked):
    """Evict what no waiting request wants, LRU; *window*: how many waiting requests count."""

    lists_in_order: ClassVar[bool] = False

    def __init__(self, window: int = 256) -> None:
        if window < 0:
            raise ConfigError(f"window is {window} requests; it must be at least 0")
        self.window = window

    def bind(self, pool: Pool) -> None:
        super().bind(pool)
        self._wanted = Wanted()
        self._last_look: tuple[list[Request], list[int]] = ([], [])
        self._accounts: dict[Request, dict[Span, None]] = {}  # what is spared, for whom
        self._spared: dict[Span, Request] = {}  # the same; not in the heap of the others but in
        self._spared_heap: list[Entry] = []  # this one, with entries that are out of date

    def rank(self, span: Span, request: Request, now: float) -> int:
        return 0

    def victim(self, num_blocks: int) -> tuple[Span, int]:
        if self.waiting or self._wanted.requests:
            self._look_at_queue()
        if not self._wanted.requests:
            return super().victim(num_blocks)
        while (entry := self._first()) is not None:
            span = entry[3]
            num_wanted = self._wanted.num_blocks(span)
            if num_wanted < span.num_blocks:
                return span, min(num_blocks, span.num_blocks - num_wanted)
            self._spare(heappop(self._heap))
        return self._wanted_victim(num_blocks)

    def _wanted_victim(self, num_blocks: int) -> tuple[Span, int]:
        """All is wanted: the heap is empty, and what is spared goes in the same order."""
        self._heap, self._spared_heap = self._spared_heap, self._heap
        try:
            return super().victim(num_blocks)
        finally:
            self._heap, self._spared_heap = self._spared_heap, self._heap

    def _look_at_queue(self) -> None:
        """Take note of who came and who left; whoever was admitted and preempted did both."""
        queue = list(islice(self.waiting, self.window))
        look = (queue, [request.num_output_tokens for request in queue])
        if look == self._last_look:
            return
        self._last_look = look
        waiting, known = dict(zip(*look, strict=True)), self._wanted.requests
        for request in [r for r, num_outputs in known.items() if waiting.get(r) != num_outputs]:
            self._wanted.leave(request)
            for span in self._accounts.pop(request, ()):
                del self._spared[span]
                self._enter(self._entries[span])
        for request in queue:
            if request not in known:
                self._wanted.join(request)

    def _spare(self, entry: Entry) -> None:
        """Put aside what is wanted as a whole."""
        span = entry[3]
        self._close(span)
        request = self._wanted.last_to_want(span)
        self._spared[span] = request
        self._accounts.setdefault(request, {})[span] = None
        heappush(self._spared_heap, entry)
        if len(self._spared_heap) > 2 * len(self._spared) + SPARE_ENTRIES:
            self._rebuild()

    def _close(self, span: Span) -> None:
        """*span* is on nobody's account any more."""
        request = self._spared.pop(span, None)
        if request is not None:
            del self._accounts[request][span]

    def _drop(self, span: Span) -> None:
        super()._drop(span)
        if self._spared:
            self._close(span)

    def _rebuild(self) -> None:
        super()._rebuild()
        spared = self._spared
        self._spared_heap = [self._entries[span] for span in spared]
        self._heap = [entry for entry in self._heap if entry[3] not in spared]
        heapify(self._spared_heap)
        heapify(self._heap)


class Wanted:
    """The blocks that waiting requests would hit, found by position and key.

    Positions are entered when they are asked for; beyond MOST_POSITIONS it begins anew.
    """

    def __init__(self) -> None:
        self.requests: dict[Request, int] = {}  # who waits, with so many output tokens
        self._at: dict[int, dict[Hashable, dict[Request, None]]] = {}

    def join(self, request: Request) -> None:
        """*request* waits, behind all others."""
        self.requests[request] = request.num_output_tokens
        for position, wanters in self._at.items():
            if position < self._num_blocks_of(request):
                wanters.setdefault(request.keys[position], {})[request] = None

    def leave(self, request: Request) -> None:
        """*request* waits no more, or with another number of tokens."""
        stop = self._num_blocks_of(request)
        del self.requests[request]
        for position, wanters in self._at.items():
            if position < stop:
                key = request.keys[position]
                del wanters[key][request]
                if not wanters[key]:
                    del wanters[key]

    def num_blocks(self, span: Span) -> int:
        """How many of the span's blocks, from its start, are wanted by some request."""
        low, high = 0, span.num_blocks  # blocks before low are wanted, block high is not
        for i in (0, span.num_blocks - 1):
            if self._wanters(span, i):
                low = i + 1
            else:
                high = i
                break
        while low < high:  # equal keys mean equal prefixes: blocks before low are equal
            middle = (low + high) // 2
            if self._wanters(span, middle):
                low = middle + 1
            else:
                high = middle
        return low

    def last_to_want(self, span: Span) -> Request:
        """Who joined last of those who want all of *span*."""
        return next(reversed(self._wanters(span, span.num_blocks - 1)))

    def _num_blocks_of(self, request: Request) -> int:
        num_tokens = request.num_prompt_tokens + self.requests[request]
        return (num_tokens - 1) // request.keys.block_size

    def _wanters(self, span: Span, i: int) -> dict[Request, None]:
        """Who wants block *i* of *span*."""
        position = span.start + i
        if position not in self._at:
            if len(self._at) >= MOST_POSITIONS:
                self._at.clear()
            self._at[position] = self._wanters_at(position)
        return self._at[position].get(span.key(i)) or {}

    def _wanters_at(self, position: int) -> dict[Hashable, dict[Request, None]]:
        wanters: dict[Hashable, dict[Request, None]] = {}
        for request in self.requests:
            if position < self._num_blocks_of(request):
                wanters.setdefault(request.keys[position], {})[request] = None
        return wanters
