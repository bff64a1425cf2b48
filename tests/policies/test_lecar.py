"""LeCaR by hand, and its coin."""

from __future__ import annotations

from itertools import pairwise
from math import exp

import numpy as np
import pytest

from policies.lecar import LeCaR
from policies.reference import ReferenceBlockManager
from sim.errors import ConfigError


def server_of(serving, capacity, **arguments):
    policy = LeCaR(**arguments)
    return serving(ReferenceBlockManager(capacity, 1, eviction=policy, null_block=False)), policy


def test_an_expert_that_was_wrong_loses_weight(serving):
    """Capacity 2, A A B C A, the coin shows LRU: C evicts A (LFU would take B).

    A was evicted after 3 uses and is missed with the 5th: t = 2, r = 0.005^(2 / 2). The odds of LRU
    to LFU, 1 before, are exp(-0.45 * 0.005).
    """
    server, policy = server_of(serving, 2, history=1.0)
    policy._side, policy._run = 0, 100
    server.hits("AABC")
    assert server.holds("ABC") == "BC"
    assert policy.weight == 0.5
    server.hits("A")
    odds = policy.weight / (1 - policy.weight)
    assert odds == pytest.approx(exp(-0.45 * 0.005))


def test_the_other_expert(serving):
    """The same with LFU: C evicts B, which A survives; when B is missed, LRU gains."""
    server, policy = server_of(serving, 2, history=1.0)
    policy._side, policy._run = 1, 100
    server.hits("AABC")
    assert server.holds("ABC") == "AC"
    server.hits("B")
    odds = policy.weight / (1 - policy.weight)
    assert odds == pytest.approx(exp(0.45 * 0.005))


def test_nobody_is_to_blame_if_both_agree(serving):
    """A B C: LRU and LFU both evict A; it leaves no ghost, and its return changes nothing."""
    server, policy = server_of(serving, 2)
    server.hits("ABCA")
    assert policy.weight == 0.5
    assert all(ghosts.num_blocks == 0 for ghosts in policy._ghosts)


def test_the_coin_is_fair():
    """Tossed in runs, LRU's side shows with probability w = 0.8, and so it does after itself.

    Of 40,000 tosses 32,000 show LRU, give or take 4 standard deviations of 80.
    """
    policy = LeCaR(lru_weight=0.8)
    ReferenceBlockManager(4, 1, eviction=policy, null_block=False)
    shown: list[int] = []
    while len(shown) < 40_001:
        policy._toss()
        shown += [policy._side] * policy._run
    del shown[40_001:]
    assert shown[:-1].count(0) == pytest.approx(32_000, abs=320)
    after_lru = [b for a, b in pairwise(shown) if a == 0]
    assert after_lru.count(0) / len(after_lru) == pytest.approx(0.8, abs=0.01)


def test_the_seed_decides(serving):
    """The same seed gives the same victims, another seed others."""

    def content(seed):
        server, _ = server_of(serving, 20, seed=seed)
        keys = np.random.default_rng(7).zipf(1.3, size=2000)
        return [server.use_key(int(key)) for key in keys]

    assert content(1) == content(1)
    assert content(1) != content(2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"learning_rate": -1.0}, "learning_rate is -1.0; it must be at least 0"),
        ({"lru_weight": 1.0}, "lru_weight is 1.0; it must be between 0 and 1"),
        ({"history": -1.0}, "history is -1.0; it must be at least 0"),
    ],
)
def test_arguments_are_checked(arguments, message):
    """One line with the value and the rule."""
    with pytest.raises(ConfigError, match=message):
        LeCaR(**arguments)
