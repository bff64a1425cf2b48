"""SGLang's eviction strategies for the radix tree: each is a rank, the smallest goes first.

Source: SGLang `srt/mem_cache/evict_policy.py`. Only leaves that no request holds are ranked.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any, Literal, cast

from policies.radix_tree import RadixNode
from policies.ranked import SPARE_ENTRIES
from sim.cache import EvictionPolicy, Pool, Span
from sim.errors import ConfigError
from sim.request import Request

Strategy = Literal["lru", "lfu", "fifo", "mru", "filo", "slru", "priority"]

PROTECTED_FROM = 2  # slru: insertions through a node that make it worth protecting

RANKS: dict[Strategy, Callable[[RadixNode], tuple[float, ...]]] = {
    "lru": lambda node: (node.last_access,),
    "lfu": lambda node: (node.hit_count, node.last_access),
    "fifo": lambda node: (node.created,),
    "mru": lambda node: (-node.last_access,),
    "filo": lambda node: (-node.created,),
    "slru": lambda node: (node.hit_count >= PROTECTED_FROM, node.last_access),
    "priority": lambda node: (node.priority, node.last_access),
}


class LeafHeap(EvictionPolicy):
    """Evict the unused leaf with the smallest rank; its parent may be the next leaf.

    A leaf's rank is read when it becomes a leaf or unused: until it is used again only a split
    changes it. SGLang builds its heap anew for each eviction, with the same order; here what is out
    of date stays until it shows up or is as much as the rest.
    """

    def __init__(self, strategy: Strategy = "lru") -> None:
        if strategy not in RANKS:
            raise ConfigError(f"strategy is {strategy!r}; it must be one of {', '.join(RANKS)}")
        self._rank = RANKS[strategy]

    def bind(self, pool: Pool) -> None:
        super().bind(pool)
        self._heap: list[tuple[Any, ...]] = []  # (*rank, number, node); node.note is its entry
        self._num_entries = 0
        self._most_entries = SPARE_ENTRIES  # in the heap: more, and it is rebuilt

    def release(self, span: Span, request: Request, now: float) -> None:
        if self.pool.may_evict(span):
            self._offer(cast("RadixNode", span))

    def _offer(self, node: RadixNode) -> None:
        self._num_entries += 1
        node.note = entry = (*self._rank(node), self._num_entries, node)
        heapq.heappush(self._heap, entry)
        if len(self._heap) > self._most_entries:
            self._rebuild()

    def _rebuild(self) -> None:
        """Drop what is out of date."""
        self._heap = [entry for entry in self._heap if entry[-1].note is entry]
        heapq.heapify(self._heap)
        self._most_entries = 2 * len(self._heap) + SPARE_ENTRIES

    def hit(self, span: Span, request: Request, now: float) -> None:
        span.note = None

    def split(self, upper: Span, lower: Span) -> None:
        if lower.note is not None:
            self._offer(cast("RadixNode", lower))  # it was looked at just now, as a whole

    def victim(self, num_blocks: int) -> tuple[Span, int]:
        heap = self._heap
        while heap[0][-1].note is not heap[0]:
            heapq.heappop(heap)
        node: RadixNode = heap[0][-1]
        return node, min(num_blocks, node.num_blocks)

    def evicted(self, span: Span, num_blocks: int) -> None:
        if span.num_blocks == 0:
            span.note = None

    def unlocked(self, span: Span) -> None:
        self._offer(cast("RadixNode", span))

    def forget(self, span: Span) -> None:
        span.note = None
