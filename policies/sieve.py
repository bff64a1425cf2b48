"""SIEVE: a hand that removes what was not hit, in a queue that hits do not reorder.

A hit marks a block. The hand walks from the oldest block to the newest, takes marks away, evicts
the first block without a mark and stays there; new blocks enter at the new end, so they are soon
sifted. No parameters. Source: Zhang et al., "SIEVE is simpler than LRU: an efficient turn-key
eviction algorithm for web caches", NSDI 2024; libCacheSim's Sieve, to which it is equal on requests
of one block.

Differs from the paper: the hand passes over blocks in use, which keep their mark and place, and,
with leaves only, over what may not go yet. If the hand never comes round, SIEVE and LFU evict the
same (always the oldest that was never hit), as on several LLM traces.
"""

from __future__ import annotations

from policies.insertion_queue import InsertionQueue, nothing_may_go, offer
from sim.cache import Pool, Span


class Sieve(InsertionQueue):
    """Evict the next block behind the hand that was not hit since the hand last passed it."""

    most_hits = 1

    def bind(self, pool: Pool) -> None:
        super().bind(pool)
        self._hand = self._end  # the end: start again with the oldest

    def victim(self, num_blocks: int) -> tuple[Span, int]:
        span = self._hand
        for _ in range(3):  # what is left of this round, one that takes marks away, one without
            while span is not self._end:
                if not span.ref_cnt:
                    if span.note:
                        span.note = 0
                    elif self._may_go(span):
                        self._hand = span
                        return offer(span, num_blocks)
                span = span.next_free
            span = self._end.next_free
        raise nothing_may_go()

    def forget(self, span: Span) -> None:
        if span is self._hand:
            self._hand = span.next_free
        super().forget(span)
