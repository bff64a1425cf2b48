"""What managers tell policies beyond release and hit: misses, and what becomes evictable."""

from __future__ import annotations

import pytest

from policies.lru import LRU
from policies.radix import RadixBlockManager
from policies.ranked import Ranked
from policies.reference import ReferenceBlockManager
from policies.vllm import VLLMBlockManager
from sim.keys import SegmentKeys
from sim.request import Request

VLLMS = [ReferenceBlockManager, VLLMBlockManager]


class Listener(LRU):
    def __init__(self):
        self.misses = []

    def miss(self, request, start, stop):
        self.misses.append((request.request_id, start, stop))


def prompt(number, *segments):
    """A request whose prompt has these (segment id, tokens)."""
    ids, ends, end = [], [], 0
    for segment, length in segments:
        end += length
        ids.append(segment)
        ends.append(end)
    return Request(number, SegmentKeys(ids, ends, 2), end, 1)


def admit(manager, request, num_tokens):
    hit = manager.get_computed_blocks(request)
    given = manager.allocate_slots(request, num_tokens - hit.num_tokens, hit)
    assert given is not None
    request.num_computed_tokens = num_tokens
    manager.cache_blocks(request, num_tokens)


@pytest.mark.parametrize("manager", [*VLLMS, RadixBlockManager])
def test_every_full_block_that_is_missed_is_told_once(manager):
    """Blocks of 2 tokens; 7 tokens come as 4 and 3, then another prompt shares the first 4."""
    listener = Listener()
    server = manager(20, 2, eviction=listener, null_block=False)
    first = prompt(1, (7, 4), (8, 3))
    admit(server, first, 4)
    server.allocate_slots(first, 3)
    first.num_computed_tokens = 7
    server.cache_blocks(first, 7)
    server.free(first)
    assert listener.misses == [(1, 0, 2), (1, 2, 3)]
    second = prompt(2, (7, 4), (9, 4))
    admit(server, second, 8)
    server.free(second)
    assert listener.misses[2:] == [(2, 2, 4)]


@pytest.mark.parametrize("manager", VLLMS)
def test_a_request_that_runs_alone_is_told_the_same(manager):
    listener = Listener()
    server = manager(20, 2, eviction=listener, null_block=False)
    server.serve(prompt(1, (7, 4), (8, 3)), 7)
    server.serve(prompt(2, (7, 4), (9, 4)), 8)
    assert listener.misses == [(1, 0, 3), (2, 2, 4)]


class FirstBlockFirst(Ranked):
    """The first block of a prompt goes before all others, if it may."""

    max_span = 1

    def rank(self, span, request, now):
        return min(span.start, 1)


@pytest.mark.parametrize("manager", VLLMS)
def test_a_second_copy_unlocks_the_first(manager):
    """5 blocks of 2 tokens. A has two full blocks; its first may not go, as the second hangs on it.

    Then a request that does not read the cache stores the first once more: now it may.
    """
    server = manager(5, 2, eviction=FirstBlockFirst(), null_block=False, victims="leaf")
    server.serve(prompt("A", (1, 2), (2, 2)), 4)
    server.serve(prompt("B", (3, 2)), 2)
    fillers = [prompt(f"filler {i}", (4 + i, 1)) for i in range(3)]  # one token each: no content
    for filler in fillers:  # the third one evicts B: A's first block is looked at and passed over
        admit(server, filler, 1)
    assert [block.key for block in server.free_blocks()] == [key(1, 0), key(2, 1)]
    server.free(fillers[0])
    fillers[0].num_computed_tokens = 0
    again = prompt("again", (1, 2))
    again.skip_reading_prefix_cache = True
    admit(server, again, 2)
    assert len(server.copies(key(1, 0))) == 2
    admit(server, fillers[0], 1)
    assert [block.key for block in server.free_blocks()] == [key(2, 1)]


def key(segment, block):
    return SegmentKeys([segment], [100], 2)[block]
