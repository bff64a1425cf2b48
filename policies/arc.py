"""ARC: two LRU lists, used once and used again, and ghosts that say which of them is too short.

T1 holds what was used once, T2 what was reused. A block that leaves T1 becomes a ghost in B1, one
that leaves T2 in B2. A miss that is in B1 raises the target size p of T1 by max(1, |B2| / |B1|), a
miss in B2 lowers it by max(1, |B1| / |B2|); then a block is taken from T1 if it is longer than p,
else from T2. *variant*: "paper" (default): what comes back from a ghost list enters T2, and ghosts
are kept while |T1| + |B1| is at most the pool and all four at most twice the pool. "vllm": what is
new always enters T1, T1 is taken from also when it is just int(p) long, and each ghost list may be
as long as the pool (vLLM `v1/kv_offload/cpu/policies/arc.py`).
Source: Megiddo and Modha, "ARC: a self-tuning, low overhead replacement cache", FAST 2003;
libCacheSim's ARC, to which "paper" is equal on requests of one block.

Differs from the paper: p moves once for all blocks that a request misses, as many steps as there
are, with the lengths before. Ghosts too many are forgotten before the next miss or eviction.
A block in use is in T2 if it was ever reused, and goes to its recent end when it is released; until
its first release a block is in no list. If no block of the preferred list may go, the other one's
does.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil
from typing import Literal

from policies.counted_queue import CountedQueue, Place
from policies.ghosts import Ghosts, Run, cut_by
from policies.insertion_queue import nothing_may_go, offer
from sim.cache import EvictionPolicy, Pool, Span
from sim.errors import ConfigError
from sim.keys import BlockKeys
from sim.request import Request

Variant = Literal["paper", "vllm"]


class ARC(EvictionPolicy):
    """Evict the LRU block of T1 or T2, whichever is longer than the ghosts say it should be."""

    def __init__(self, variant: Variant = "paper") -> None:
        if variant not in ("paper", "vllm"):
            raise ConfigError(f"variant is {variant!r}; it must be paper or vllm")
        self.variant = variant

    def bind(self, pool: Pool) -> None:
        super().bind(pool)
        self.p = 0.0  # blocks that T1 should have
        self._t1, self._t2 = CountedQueue(), CountedQueue()  # T1 holds no block in use
        self._b1, self._b2 = Ghosts(), Ghosts()
        self._is_in_b2 = False  # the last miss was

    def miss(self, request: Request, start: int, stop: int) -> None:
        self._settle()
        in_b1 = _num_blocks(self._b1.find(request.keys, start, stop))
        in_b2 = _num_blocks(self._b2.find(request.keys, start, stop))
        len_b1, len_b2 = self._b1.num_blocks, self._b2.num_blocks
        up = in_b1 * max(1.0, len_b2 / len_b1) if in_b1 else 0.0
        down = in_b2 * max(1.0, len_b1 / len_b2) if in_b2 else 0.0
        self.p = max(0.0, min(self.p + up, float(self.pool.num_blocks)) - down)
        self._is_in_b2 = in_b2 > 0

    def _settle(self) -> None:
        """Forget the ghosts that are too many since blocks were last inserted."""
        if self.variant == "paper":
            size = self.pool.num_blocks
            self._b1.trim(size - self._t1.num_blocks)
            cached = self._t1.num_blocks + self._t2.num_blocks
            self._b2.trim(2 * size - cached - self._b1.num_blocks)

    # Using

    def release(self, span: Span, request: Request, now: float) -> None:
        place: Place | None = span.note
        self._is_in_b2 = False
        if place is not None and place.queue is not None:
            self._t2.append(span)
            self._t2.num_held += span.num_blocks
            return
        keys, start, stop = request.keys, span.start, span.start + span.num_blocks
        runs = self._b1.take(keys, start, stop) + self._b2.take(keys, start, stop)
        if place is not None:
            self._insert(span, keys, self._t2)
        elif self.variant == "vllm" or not runs:
            self._insert(span, keys, self._t1)
        else:
            for part, run in cut_by(self.pool, span, _union(runs)):
                self._insert(part, keys, self._t1 if run is None else self._t2)

    def _insert(self, span: Span, keys: BlockKeys, queue: CountedQueue) -> None:
        span.note = Place(keys)
        span.note.queue = queue
        queue.insert(span)

    def hit(self, span: Span, request: Request, now: float) -> None:
        place: Place | None = span.note
        if place is None:
            span.note = Place(request.keys)
        elif not span.ref_cnt and place.queue is not None:
            self._settle()  # by the length that T1 had when blocks were last inserted
            place.queue.take(span)
            place.queue = self._t2
            self._t2.num_blocks += span.num_blocks

    def unlocked(self, span: Span) -> None:
        span.note.queue.wake(span)

    def split(self, upper: Span, lower: Span) -> None:
        place: Place | None = lower.note
        upper.note = place and place.copy()
        if place is not None and place.queue is not None and not lower.ref_cnt:
            place.queue.insert_after(upper, lower)

    # Evicting

    def victim(self, num_blocks: int) -> tuple[Span, int]:
        self._settle()
        excess = self._excess()
        first, second = (self._t1, self._t2) if excess > 0 else (self._t2, self._t1)
        span = first.first_evictable(self.pool)
        if span is not None:
            return offer(span, min(num_blocks, excess) if first is self._t1 else num_blocks)
        span = second.first_evictable(self.pool)
        if span is None:
            raise nothing_may_go()
        return offer(span, 1 if first.num_held else num_blocks)

    def _excess(self) -> int:
        """How many blocks T1 gives before it is T2's turn."""
        length = self._t1.num_blocks
        if not length:
            return 0
        if self.variant == "vllm":
            return max(0, length - int(self.p) + 1)
        is_tie = self._is_in_b2 and self.p == int(self.p)
        return max(0, ceil(length - self.p) + is_tie)

    def evicted(self, span: Span, num_blocks: int) -> None:
        place: Place = span.note
        assert place.queue is not None
        ghosts = self._b1 if place.queue is self._t1 else self._b2
        start = span.start + span.num_blocks
        ghosts.push(place.keys, start, start + num_blocks)
        if self.variant == "vllm":
            ghosts.trim(self.pool.num_blocks)
        place.queue.give_up(span, num_blocks)

    def forget(self, span: Span) -> None:
        span.note.queue.take(span)
        span.note = None

    def __iter__(self) -> Iterator[Span]:
        """The spans held: T1, then T2."""
        yield from self._t1
        yield from self._t2


def _num_blocks(runs: list[Run]) -> int:
    return sum(run.stop - run.start for run in runs)


def _union(runs: list[Run]) -> list[Run]:
    """*runs* in order and without overlaps: two copies of one content may be in both lists."""
    united: list[Run] = []
    for run in sorted(runs, key=lambda run: run.start):
        if united and run.start < united[-1].stop:
            united[-1] = united[-1]._replace(stop=max(run.stop, united[-1].stop))
        else:
            united.append(run)
    return united
