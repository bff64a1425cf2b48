"""W-TinyLFU by hand."""

from __future__ import annotations

import pytest

from policies.reference import ReferenceBlockManager
from policies.wtinylfu import WTinyLFU
from sim.errors import ConfigError


def server_of(serving, capacity, **arguments):
    policy = WTinyLFU(**arguments)
    server = serving(ReferenceBlockManager(capacity, 1, eviction=policy, null_block=False))
    return server, policy


def segments(policy):
    return ["".join(chr(s.key(0) >> 24) for s in segment) for segment in policy._segments]


def test_a_scan_is_not_let_in(serving):
    """Capacity 4, window 1, main 3 (1 + 2). A A B B C C, then D: the first three move to main.

    Main is filled from the window, A first into the lower segment, B and C into the upper one,
    which has room. E: D was used once, A twice: D goes. So does each of F, G, H.
    """
    server, policy = server_of(serving, 4, window_ratio=0.25, protected_ratio=0.7)
    assert server.hits("AABBCCD") == [2, 4, 6]
    assert segments(policy) == ["ABCD", "", ""]
    server.hits("E")
    assert segments(policy) == ["E", "A", "BC"]
    server.hits("FGH")
    assert server.holds("ABCDEFGH") == "ABCH"


def test_who_is_used_more_often_gets_in(serving):
    """... X is used three times while it is in the window; the next key evicts A, not X."""
    server, policy = server_of(serving, 4, window_ratio=0.25, protected_ratio=0.7)
    server.hits("AABBCCDE")
    server.hits("XXX")
    server.hits("Y")
    assert segments(policy) == ["Y", "X", "BC"]


def test_counts_outlive_the_block(serving):
    """Z is evicted from the window again and again, and has more uses than A at its third visit."""
    server, _ = server_of(serving, 4, window_ratio=0.25, protected_ratio=0.7)
    server.hits("AABBCCDE")
    server.hits("ZFZGZ")
    assert server.holds("AZ") == "AZ"
    server.hits("H")
    assert server.holds("AZ") == "Z"


def test_promotion_in_the_main_cache(serving):
    """A hit in the lower segment moves up; the upper one's least recent block comes down."""
    server, policy = server_of(serving, 4, window_ratio=0.25, protected_ratio=0.7)
    server.hits("AABBCCDE")
    server.hits("A")
    assert segments(policy) == ["E", "B", "CA"]


def test_counts_are_halved(serving):
    """Sample 2 * 4: at the 8th use all counts are halved, and those that become 0 are dropped."""
    server, policy = server_of(serving, 4, window_ratio=0.25, sample_factor=2)
    server.hits("AAAABCD")
    assert sorted(policy._counts.values()) == [1, 1, 1, 4]
    server.hits("D")
    assert sorted(policy._counts.values()) == [1, 2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"window_ratio": 0.0}, "window_ratio is 0.0; it must be between 0 and 1"),
        ({"protected_ratio": 1.0}, "protected_ratio is 1.0; it must be between 0 and 1"),
        ({"sample_factor": 0}, "sample_factor is 0; it must be above 0"),
    ],
)
def test_arguments_are_checked(arguments, message):
    """One line with the value and the rule."""
    with pytest.raises(ConfigError, match=message):
        WTinyLFU(**arguments)
