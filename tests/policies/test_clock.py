"""CLOCK by hand."""

from __future__ import annotations

import pytest

from policies.clock import Clock
from policies.reference import ReferenceBlockManager
from sim.errors import ConfigError


@pytest.fixture
def cache(serving):
    """`cache(policy, capacity)`: keys are used one at a time, as in the textbooks."""
    return lambda policy, capacity: serving(
        ReferenceBlockManager(capacity, 1, eviction=policy, null_block=False)
    )


def test_second_chance(cache):
    """Capacity 3, A B C A D: A has a mark, goes behind C unmarked; B goes. E: C goes. F: A goes."""
    server = cache(Clock(), 3)
    assert server.hits("ABCAD") == [4]
    assert server.holds("ABCD") == "ACD"
    server.hits("E")
    assert server.holds("ACDE") == "ADE"
    server.hits("F")
    assert server.holds("ADEF") == "DEF"


def test_the_counter_has_bits(cache):
    """Four hits on A: with 1 bit it survives one round, with 2 bits (at most 3) it survives three.

    Capacity 2, A A A A A, then new keys one by one. Every new key but one per round of the hand is
    evicted by the next; A pays 1 each time the hand comes to it.
    """

    def num_survived(num_bits):
        server = cache(Clock(num_bits), 2)
        server.hits("AAAAA")
        for n, key in enumerate("BCDEFGHIJ"):
            server.hits(key)
            if not server.holds("A"):
                return n
        raise AssertionError("A stays for ever")

    assert num_survived(1) < num_survived(2)
    assert [num_survived(bits) for bits in (1, 2)] == [2, 4]


@pytest.mark.parametrize("num_bits", [0, 17])
def test_the_number_of_bits_is_checked(num_bits):
    """One line with the value and the rule."""
    with pytest.raises(ConfigError, match=rf"num_bits is {num_bits}; it must be 1 to 16"):
        Clock(num_bits)
