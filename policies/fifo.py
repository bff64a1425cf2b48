"""First in, first out: hits change nothing.

The place of a block is fixed by its first release; later ones do not move it. With a shared prefix
this is a poor rule for single blocks: the root of a tree is its oldest part and goes first, what
hangs on it can then not be hit until the root is computed again (1 to 5 % of the pool on Mooncake's
traces). With leaves only (`victims: leaf`) it is close to LRU. No parameters.
Source: textbook; libCacheSim's FIFO, to which it is equal on requests of one block.

Differs from the textbook: blocks in use are passed over and keep their place.
"""

from __future__ import annotations

from policies.insertion_queue import InsertionQueue, nothing_may_go, offer
from sim.cache import Span


class FIFO(InsertionQueue):
    """Evict what was inserted first."""

    def victim(self, num_blocks: int) -> tuple[Span, int]:
        queue = self._queue
        while (span := queue.peek()) is not None:
            if self._may_go(span):
                return offer(span, num_blocks)
            queue.set_aside(span)
        raise nothing_may_go()
