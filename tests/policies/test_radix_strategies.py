"""The heap of leaves: as long as the pool asks for, and in order however often it is rebuilt."""

from __future__ import annotations

import numpy as np
import pytest

from policies import radix_strategies
from policies.radix import RadixBlockManager
from policies.radix_strategies import RANKS, SPARE_ENTRIES, LeafHeap
from sim.keys import SegmentKeys
from sim.replay import replay
from sim.request import Request

NUM_BLOCKS = 40


def serve(strategy, contents):
    """Prompts of one block, one after the other: which of them hit, and the policy."""
    policy, hits = LeafHeap(strategy), []
    prompts = (Request(i, SegmentKeys([n], [2], 1), 2, 1) for i, n in enumerate(contents))
    replay(RadixBlockManager(NUM_BLOCKS, 1, eviction=policy), prompts, hits=hits)
    return hits, policy


@pytest.mark.parametrize("strategy", RANKS)
def test_the_heap_does_not_grow_with_the_run(strategy):
    """Of 5,000 requests every other is for one content; the rest is new, or the same five."""
    for num_contents in (5, 5000):
        contents = [-1 if i % 2 else i % num_contents for i in range(5000)]
        _, policy = serve(strategy, contents)
        assert len(policy._heap) <= 2 * NUM_BLOCKS + SPARE_ENTRIES


@pytest.mark.parametrize("strategy", RANKS)
def test_rebuilding_changes_no_decision(strategy, monkeypatch):
    """Rebuilt all the time or never: the same hits, of which there are some but not all."""
    contents = np.random.default_rng(0).zipf(1.2, 2000) % 200
    found = []
    for num_spare in (0, 10**6):
        monkeypatch.setattr(radix_strategies, "SPARE_ENTRIES", num_spare)
        found.append(serve(strategy, contents.tolist())[0])
    assert found[0] == found[1]
    assert 0 < sum(map(bool, found[0])) < 2000
