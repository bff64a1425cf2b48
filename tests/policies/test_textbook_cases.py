"""Policies on flat traces (every request one block): the textbook's answers.

A request of two tokens in blocks of one token has one block that can be hit: its last token is
always computed again and leaves a second block, of nobody else's content, that is handed out first.
"""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from policies.arc import ARC
from policies.lfu import LFU
from policies.lru import LRU
from policies.s3fifo import S3FIFO
from policies.sieve import Sieve
from policies.two_q import TwoQ
from policies.vllm import VLLMBlockManager
from sim.cache import EvictionPolicy
from sim.events import BlockRemoved
from sim.keys import POSITION_BITS, SegmentKeys
from sim.request import Request


class Flat:
    """A cache of *capacity* keys under a policy; each access is a request of its own."""

    def __init__(self, policy: EvictionPolicy, capacity: int) -> None:
        # One block more than keys: it holds the token behind the key while a request runs.
        self.manager = VLLMBlockManager(
            capacity + 1, 1, eviction=policy, free_order="unhashed_first", null_block=False
        )
        self.capacity = capacity
        self.victims: list[int] = []
        self.manager.events = self._note
        self.num_accesses = 0

    def _note(self, event: object) -> None:
        if isinstance(event, BlockRemoved):
            self.victims.append(int(event.block_hash) >> POSITION_BITS)

    def access(self, key: int) -> bool:
        """Whether *key* was there."""
        self.num_accesses += 1
        keys = SegmentKeys([key, -self.num_accesses], [1, 3], 1)
        request = Request(self.num_accesses, keys, 2, 1, arrival_time=float(self.num_accesses))
        hit = self.manager.get_computed_blocks(request)
        # The prompt's second token is allocated, never stored.
        given = self.manager.allocate_slots(
            request, 2 - hit.num_tokens, hit, now=request.arrival_time, delay_cache_blocks=True
        )
        assert given is not None
        self.manager.cache_blocks(request, 1)
        self.manager.free(request, now=request.arrival_time)
        assert self.manager.num_cached_blocks <= self.capacity
        return hit.num_tokens == 1

    def hits(self, trace: Iterable[int | str]) -> list[int]:
        """The positions, counted from 1, of the accesses that hit."""
        keys = [ord(key) if isinstance(key, str) else key for key in trace]
        return [i for i, key in enumerate(keys, 1) if self.access(key)]

    def content(self) -> set[str]:
        free = [block.key for block in self.manager.free_blocks() if block.key is not None]
        return {chr(int(key) >> POSITION_BITS) for key in free}  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("policy", "capacity", "trace", "hits", "content"),
    [
        pytest.param(LRU(), 2, "ABACA", [3, 5], "CA", id="B7: LRU moves on hits"),
        pytest.param(LRU(), 3, "AABACBDE", [2, 4, 6], "BDE", id="J17: a short sequence"),
        pytest.param(Sieve(), 3, "ABCABCD", [4, 5, 6], "BCD", id="J3: all bits set"),
        pytest.param(LFU(), 3, "ABCCBADA", [4, 5, 6, 8], "ABD", id="J14a: ties by recency"),
        pytest.param(LFU(), 3, "ABABCDEC", [3, 4], "ABC", id="J14b: the size limit"),
        pytest.param(ARC(), 2, "AABCBA", [2], "AB", id="J9: p moves on ghost hits"),
        pytest.param(
            TwoQ(0.25, 0.5), 4, "AABCDEAFA", [2, 9], None, id="J11: a hit in A1in changes nothing"
        ),
        pytest.param(
            S3FIFO(0.25, 0.75, 1, False), 4, "ABCDEAFGHIA", [11], None, id="J6: ghost to main"
        ),
    ],
)
def test_hits_and_content(policy, capacity, trace, hits, content):
    """Cases B7, J3, J6, J9, J11, J14, J17: the hits, and what is left at the end."""
    cache = Flat(policy, capacity)
    assert cache.hits(trace) == hits
    if content is not None:
        assert cache.content() == set(content)


def test_sieve_can_keep_old_entries_for_ever():
    """Case J5: 21 hits of 110 accesses with N = 30 and of 5,445 with N = 1000; LRU has 72."""
    for last, num_accesses in ((30, 110), (1000, 5445)):
        trace = [key for i in range(10, last, 2) for key in (*range(i - 10, i - 1), i, i + 1)]
        assert len(trace) == num_accesses
        assert len(Flat(Sieve(), 10).hits(trace)) == 21
    assert len(Flat(LRU(), 10).hits(trace[:110])) == 72


def test_s3fifo_with_everything_promoted_gives_exactly_one_victim():
    """Case J8: 8 hits; E evicts exactly one block and the size stays 4."""
    cache = Flat(S3FIFO(0.25, 0.75, 2, False), 4)
    assert len(cache.hits("AAABBBCCCDDDE")) == 8
    assert len(cache.victims) == 1
    assert len(cache.content()) == 4
    assert "E" in cache.content()
