"""LIRS: keep what is reused at short distances, not what was used last.

A stack S orders blocks by last use. LIR blocks have the shortest reuse distances and fill all but
*hir_ratio* (0.01) of the pool; HIR blocks wait in a queue Q for their eviction. An HIR block that
is used while it is still in S is reused sooner than the oldest LIR block, and takes its place. S is
pruned so that its oldest block is LIR; evicted blocks stay in S as ghosts while S has at most twice
as many blocks as the pool, those evicted first are dropped first.
Source: Jiang and Zhang, "LIRS: an efficient low inter-reference recency set replacement policy",
SIGMETRICS 2002; libCacheSim's LIRS for the limit of S. On requests of one block it is equal to
libCacheSim, except that there a hit on an HIR block outside S also turns the oldest LIR block into
an HIR block and evicts from Q to make room (a few times per 10,000 requests).

Differs from the paper: a use counts when the block is released; a block in use is not in Q. If Q is
empty, the oldest LIR block that is not in use goes. The blocks of one request part ways in S, so
the rule needs single blocks.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator
from typing import cast

from policies.insertion_queue import nothing_may_go
from policies.skipping_queue import SkippingQueue
from sim.cache import EvictionPolicy, Pool, Span
from sim.errors import ConfigError
from sim.request import Request


class Entry(Span):
    """What S knows of one block: its span (None for a ghost), and whether it is LIR."""

    __slots__ = ("block", "is_in_q", "is_in_s", "is_lir", "name")

    def __init__(self, name: Hashable) -> None:
        super().__init__(1)
        self.name = name
        self.block: Span | None = None
        self.is_lir = self.is_in_s = self.is_in_q = False


class LIRS(EvictionPolicy):
    """Evict HIR blocks, first in first out; `span.note` is the block's entry."""

    max_span = 1

    def __init__(self, hir_ratio: float = 0.01) -> None:
        if not 0 < hir_ratio < 1:
            raise ConfigError(f"hir_ratio is {hir_ratio}; it must be between 0 and 1")
        self.hir_ratio = hir_ratio

    def bind(self, pool: Pool) -> None:
        super().bind(pool)
        self._stack, self._queue = SkippingQueue(), SkippingQueue()  # the oldest, the next first
        self._ghosts: OrderedDict[Hashable, Entry] = OrderedDict()  # in S, evicted first first
        self._num_lir = self._num_stacked = 0
        self._most_lir = pool.num_blocks - max(1, int(self.hir_ratio * pool.num_blocks))

    def release(self, span: Span, request: Request, now: float) -> None:
        entry: Entry | None = span.note
        if entry is None:
            entry = span.note = self._entry_of_new(span)
        elif not entry.is_lir and entry.is_in_s:
            self._make_lir(entry)
        elif not entry.is_lir:
            self._wait(entry)
        self._use(entry)
        while self._num_stacked > 2 * self.pool.num_blocks and self._ghosts:
            self._unstack(self._ghosts.popitem(last=False)[1])

    def _entry_of_new(self, span: Span) -> Entry:
        ghost = self._ghosts.pop(span.key(0), None)
        entry = ghost or Entry(span.key(0))
        entry.block = span
        if ghost:
            self._make_lir(entry)
        elif self._num_lir < self._most_lir:
            entry.is_lir = True
            self._num_lir += 1
        else:
            self._wait(entry)
        return entry

    def _make_lir(self, entry: Entry) -> None:
        """*entry* becomes LIR, and if these are too many the oldest of them becomes HIR."""
        entry.is_lir = True
        self._num_lir += 1
        self._use(entry)  # before the oldest is looked for
        if self._num_lir > self._most_lir:
            self._demote(cast("Entry", self._stack.first))
            self._prune()

    def _demote(self, oldest: Entry) -> None:
        """An LIR block becomes HIR; it leaves S and waits for its eviction, unless it is in use."""
        oldest.is_lir = False
        self._num_lir -= 1
        self._unstack(oldest)
        if oldest.block is not None and not oldest.block.ref_cnt:
            self._wait(oldest)

    def _wait(self, entry: Entry) -> None:
        entry.is_in_q = True
        self._queue.append(cast("Span", entry.block))

    def _use(self, entry: Entry) -> None:
        """*entry* is the youngest in S."""
        self._stack_up(entry)
        self._prune()

    def _stack_up(self, entry: Entry) -> None:
        self._unstack(entry)
        self._stack.append(entry)
        entry.is_in_s = True
        self._num_stacked += 1

    def _unstack(self, entry: Entry) -> None:
        if entry.is_in_s:
            self._stack.remove(entry)
            entry.is_in_s = False
            self._num_stacked -= 1

    def _prune(self) -> None:
        """Drop the oldest of S until an LIR block is the oldest."""
        stack = self._stack
        while self._num_stacked > 1 and not (oldest := cast("Entry", stack.first)).is_lir:
            self._unstack(oldest)
            if oldest.block is None:
                del self._ghosts[oldest.name]

    def hit(self, span: Span, request: Request, now: float) -> None:
        entry: Entry | None = span.note
        if entry is not None and entry.is_in_q:
            self._leave_q(entry, span)

    def _leave_q(self, entry: Entry, span: Span) -> None:
        entry.is_in_q = False
        self._queue.remove(span)

    def split(self, upper: Span, lower: Span) -> None:
        raise AssertionError("a span of one block cannot be cut")

    def unlocked(self, span: Span) -> None:
        self._queue.wake(span)
        self._stack.wake(span.note)

    def victim(self, num_blocks: int) -> tuple[Span, int]:
        while (span := self._queue.peek()) is not None:
            if self._may_go(span):
                return span, 1
            self._queue.set_aside(span)
        while (entry := cast("Entry | None", self._stack.peek())) is not None:
            if entry.block is not None and self._may_go(entry.block):
                return entry.block, 1
            self._stack.set_aside(entry)  # until it is used again
        raise nothing_may_go()

    def _may_go(self, block: Span) -> bool:
        return not block.ref_cnt and (not self.pool.leaf_only or self.pool.may_evict(block))

    def evicted(self, span: Span, num_blocks: int) -> None:
        entry: Entry = span.note
        if entry.is_lir:
            self.forget(span)
            return
        self._leave_q(entry, span)
        span.note = entry.block = None
        if entry.is_in_s:
            older = self._ghosts.pop(entry.name, None)  # of another copy
            if older is not None:
                self._unstack(older)
            self._ghosts[entry.name] = entry

    def forget(self, span: Span) -> None:
        entry: Entry = span.note
        if entry.is_lir:
            self._num_lir -= 1
        if entry.is_in_q:
            self._leave_q(entry, span)
        self._unstack(entry)
        self._prune()
        span.note = entry.block = None

    def __iter__(self) -> Iterator[Span]:
        """The spans held: Q, then LIR blocks, the oldest first."""
        yield from self._queue
        for entry in self._stack:
            block = cast("Entry", entry).block
            if cast("Entry", entry).is_lir and block is not None and not block.ref_cnt:
                yield block
