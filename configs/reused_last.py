"""Two queues: content that was ever reused goes last."""

from policies.free_queue import FreeQueue
from sim.cache import EvictionPolicy


class ReusedLast(EvictionPolicy):
    """Evict what was never reused, the oldest first; only then what was."""

    def bind(self, pool):
        super().bind(pool)
        self.once, self.reused = FreeQueue(), FreeQueue()

    def release(self, span, request, now):  # the last user let go: span may be evicted
        (self.reused if span.note else self.once).append(span)

    def hit(self, span, request, now):  # a request reuses it
        if span.ref_cnt == 0:
            self.once.remove(span)  # from whichever queue it is in
        span.note = "reused"

    def victim(self, num_blocks):  # which span, and how many of its deepest blocks
        leaves = self.pool.leaf_only  # then some wait until nothing hangs on them
        span = next(span for span in self if not leaves or self.pool.may_evict(span))
        return span, min(num_blocks, span.num_blocks)

    def evicted(self, span, num_blocks):  # they are gone; the rest keeps its place
        if span.num_blocks == 0:
            self.forget(span)

    def split(self, upper, lower):  # lower was cut; upper is its new shallower part
        if lower.ref_cnt == 0:
            self.once.insert_after(upper, lower)

    def forget(self, span):
        self.once.remove(span)
        span.note = None

    def __iter__(self):  # next victim first
        yield from self.once
        yield from self.reused
