"""Hyperbolic and Random: what chance decides, and what it does not."""

from __future__ import annotations

from collections import Counter

import pytest

from policies.hyperbolic import Hyperbolic
from policies.random_choice import Random
from policies.reference import ReferenceBlockManager
from sim.errors import ConfigError
from sim.keys import SegmentKeys
from sim.request import Request


def server_of(serving, policy, capacity):
    return serving(ReferenceBlockManager(capacity, 1, eviction=policy, null_block=False))


def test_hyperbolic_evicts_the_smallest_value(serving):
    """Capacity 3, A A A A B C: at D's miss the values are A 4/6, B 1/2, C 1/1: B goes.

    64 draws of 3 blocks miss one of them with probability 3 * (2/3)^64 < 1e-10.
    """
    server = server_of(serving, Hyperbolic(), 3)
    assert server.hits("AAAABC") == [2, 3, 4]
    server.hits("D")
    assert server.holds("ABCD") == "ACD"


def test_hyperbolic_forgives_the_young(serving):
    """... unlike LFU: after D to G, A with 4 uses in 11 accesses is worth less than the newest.

    E (8th access): A 4/7, C 1/2, D 1/1: C goes. F: A 4/8 = D 1/2, the first drawn. So within a few
    accesses A goes, though every other block was used once.
    """
    server = server_of(serving, Hyperbolic(), 3)
    server.hits("AAAABCDEFGHIJ")
    assert server.holds("A") == ""


@pytest.mark.parametrize("make", [Hyperbolic, Random])
def test_the_seed_decides(serving, make):
    """The same seed gives the same victims, another seed others."""

    def content(seed):
        server = server_of(serving, make(seed=seed), 100)
        for key in range(300):
            server.use_key(key)
        keys = [state.key for state in server.manager.free_blocks()]
        return tuple(sorted(keys))

    assert content(1) == content(1)
    assert content(1) != content(2)


def test_random_is_uniform(serving):
    """Of 4 blocks each is the first victim in a quarter of 400 seeds (100 +- 4 * 8.7)."""
    counts: Counter[str] = Counter()
    for seed in range(400):
        server = server_of(serving, Random(seed=seed), 4)
        server.hits("ABCDE")
        (gone,) = set("ABCD") - set(server.holds("ABCD"))
        counts[gone] += 1
    assert set(counts) == set("ABCD")
    assert all(count == pytest.approx(100, abs=35) for count in counts.values())


@pytest.mark.parametrize("make", [Hyperbolic, Random])
def test_leaves_only(make):
    """A prompt of 50 blocks is evicted from its end, however the dice fall: no orphans."""
    for seed in range(20):
        manager = ReferenceBlockManager(
            60, 1, eviction=make(seed=seed), null_block=False, victims="leaf"
        )
        for n, (key, num_blocks) in enumerate(((1, 50), (2, 30))):
            request = Request(n, SegmentKeys([key], [num_blocks], 1), num_blocks, 1)
            manager.serve(request, num_blocks)
        left = sorted(s.key & 255 for s in manager.free_blocks() if s.key and s.key >> 24 == 1)
        assert left == list(range(30))
        assert manager.num_orphaned_blocks == 0


def test_among_all_blocks_random_makes_orphans():
    """The same among all blocks: nearly the whole prompt is out of reach."""
    manager = ReferenceBlockManager(60, 1, eviction=Random(), null_block=False)
    for n, (key, num_blocks) in enumerate(((1, 50), (2, 30))):
        request = Request(n, SegmentKeys([key], [num_blocks], 1), num_blocks, 1)
        manager.serve(request, num_blocks)
    assert manager.num_orphaned_blocks > 15


def test_the_sample_is_checked():
    """One line with the value and the rule."""
    with pytest.raises(ConfigError, match="num_samples is 0; it must be at least 1"):
        Hyperbolic(num_samples=0)
