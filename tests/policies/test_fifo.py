"""FIFO by hand, and what all queues in the order of insertion share."""

from __future__ import annotations

import pytest

from policies.clock import Clock
from policies.fifo import FIFO
from policies.lru import LRU
from policies.reference import ReferenceBlockManager
from policies.sieve import Sieve
from policies.vllm import VLLMBlockManager
from sim.keys import SegmentKeys
from sim.request import Request


@pytest.fixture
def cache(serving):
    """`cache(policy, capacity)`: keys are used one at a time, as in the textbooks."""
    return lambda policy, capacity: serving(
        ReferenceBlockManager(capacity, 1, eviction=policy, null_block=False)
    )


def test_fifo_does_not_move_on_hits(cache):
    """Case B7: of A B A C A with 2 blocks FIFO hits 3 only: C evicts A although A was just hit."""
    assert cache(FIFO(), 2).hits("ABACA") == [3]
    assert cache(LRU(), 2).hits("ABACA") == [3, 5]


def test_a_released_block_keeps_its_place(cache):
    """Capacity 3: A B C, B and A again, then D evicts A, E evicts B: the order of insertion."""
    server = cache(FIFO(), 3)
    server.hits("ABCBA")
    server.hits("D")
    assert server.holds("ABCD") == "BCD"
    server.hits("E")
    assert server.holds("ABCDE") == "CDE"


def test_a_prompt_is_in_the_queue_from_its_end():
    """Two prompts of 4 blocks: all of the first go before the second, the deepest block first."""
    manager = VLLMBlockManager(10, 1, eviction=FIFO(), null_block=False)
    for n, key in enumerate((1, 2)):
        request = Request(n, SegmentKeys([key], [4], 1), 4, 1)
        manager.allocate_slots(request, 4)
        manager.free(request)
    keys = [state.key for state in manager.free_blocks() if state.key is not None]
    assert keys == [key << 24 | i for key in (1, 2) for i in (3, 2, 1, 0)]


@pytest.mark.parametrize("policy", [FIFO, Clock, Sieve])
@pytest.mark.parametrize("manager", [ReferenceBlockManager, VLLMBlockManager])
def test_a_block_in_use_is_passed_over_and_keeps_its_place(serving, manager, policy):
    """Capacity 3: A B C; X uses A again and runs. D evicts B, E evicts C. X ends: F evicts A.

    CLOCK: A goes behind C when D comes, with its mark, and behind D when E comes: F evicts D.
    """
    server = serving(manager(3, 1, eviction=policy(), null_block=False))
    server.hits("ABC")
    running = Request("x", SegmentKeys([ord("A")], [2], 1), 2, 1)
    assert server.admit(running, 1) == 1
    for key, content in (("D", "ACD"), ("E", "ADE")):
        server.hits(key)
        assert server.holds("ABCDE") == content
    server.manager.free(running)
    server.hits("F")
    assert server.holds("ABCDEF") == {FIFO: "DEF", Clock: "AEF", Sieve: "AEF"}[policy]
    server.manager.check()
