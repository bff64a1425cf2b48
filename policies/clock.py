"""CLOCK, or second chance: FIFO in which what was hit goes round again.

Each block has a counter of *num_bits* bits that a hit raises. At the front of the queue a block
whose counter is 0 is evicted; any other pays one and goes to the back. Default: 1 bit.
Source: Corbato, "A paging experiment with the Multics system", 1968; libCacheSim's Clock
(init-freq=0, n-bit-counter=1), to which it is equal on requests of one block.

Differs from the source: a block in use at the front goes to the back, when it is released, and pays
nothing. With leaves only, what may not go yet stays at the front, and pays like any other.
"""

from __future__ import annotations

from policies.insertion_queue import InsertionQueue, nothing_may_go, offer
from sim.cache import Span
from sim.errors import ConfigError


class Clock(InsertionQueue):
    """Evict the first in the queue that was not hit since it was last passed."""

    def __init__(self, num_bits: int = 1) -> None:
        if not 1 <= num_bits <= 16:
            raise ConfigError(f"num_bits is {num_bits}; it must be 1 to 16")
        self.num_bits = num_bits
        self.most_hits = 2**num_bits - 1

    def victim(self, num_blocks: int) -> tuple[Span, int]:
        queue = self._queue
        for _ in range(self.most_hits + 1):  # after so many rounds no counter is left
            passed: Span | None = None  # the first that went to the back in this round
            while (span := queue.peek()) is not None and span is not passed:
                if span.ref_cnt:
                    queue.remove(span)
                    span.note = -span.note or None  # its release will insert it again
                elif span.note:
                    span.note -= 1
                    queue.remove(span)
                    queue.append(span)
                    passed = passed or span
                elif self._may_go(span):
                    return offer(span, num_blocks)
                else:
                    queue.set_aside(span)
        raise nothing_may_go()
