"""SLRU by hand: libCacheSim's segments, and SGLang's two levels."""

from __future__ import annotations

import pytest

from policies.reference import ReferenceBlockManager
from policies.slru import SLRU
from policies.slru_sglang import ProtectedLRU
from policies.vllm import VLLMBlockManager
from sim.errors import ConfigError
from sim.keys import SegmentKeys
from sim.request import Request


def letters(queue):
    return "".join(chr(span.key(0) >> 24) for span in queue)


def test_promotion_and_demotion(serving):
    """Two segments of 2. A B fill the lower one, C D the upper one (where there is room).

    A is hit: it moves up behind D and pushes C down behind B. E evicts the least recent of the
    lower segment, B, and takes its seat.
    """
    policy = SLRU(num_segments=2)
    server = serving(ReferenceBlockManager(4, 1, eviction=policy, null_block=False))
    server.hits("ABCD")
    assert [letters(segment) for segment in policy._segments] == ["AB", "CD"]
    server.hits("A")
    assert [letters(segment) for segment in policy._segments] == ["BC", "DA"]
    server.hits("E")
    assert [letters(segment) for segment in policy._segments] == ["CE", "DA"]


def test_demotion_goes_down_segment_by_segment(serving):
    """Four segments of 1: A B C D from the bottom. B is hit and changes places with C: A C B D.

    A is hit: it pushes C down, A C change places. E evicts the lowest, C.
    """
    policy = SLRU()
    server = serving(ReferenceBlockManager(4, 1, eviction=policy, null_block=False))
    server.hits("ABCDB")
    assert [letters(segment) for segment in policy._segments] == ["A", "C", "B", "D"]
    server.hits("A")
    assert [letters(segment) for segment in policy._segments] == ["C", "A", "B", "D"]
    server.hits("E")
    assert server.holds("ABCDE") == "ABDE"


def test_a_span_is_cut_at_the_edge_of_a_segment():
    """Two segments of 4 blocks: a prompt of 6 puts its deepest 4 into the lower one, 2 above."""
    policy = SLRU(num_segments=2)
    manager = VLLMBlockManager(8, 1, eviction=policy, null_block=False)
    request = Request(0, SegmentKeys([1], [6], 1), 6, 1)
    manager.serve(request, 6)
    places = [[(s.start, s.num_blocks) for s in segment] for segment in policy._segments]
    assert places == [[(2, 4)], [(0, 2)]]
    manager.check()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_segments": 0}, "num_segments is 0; it must be at least 1"),
        ({"shares": [1, 0]}, r"shares is \[1, 0\]; they must be positive numbers"),
    ],
)
def test_arguments_are_checked(arguments, message):
    """One line with the value and the rule."""
    with pytest.raises(ConfigError, match=message):
        SLRU(**arguments)


def test_shares():
    """1:4, as in W-TinyLFU, of 10 blocks: 2 and 8."""
    policy = SLRU(shares=[1, 4])
    ReferenceBlockManager(10, 1, eviction=policy, null_block=False)
    assert policy._most == [2, 8]


def test_sglangs_two_levels(serving):
    """Capacity 3, A A B C D: A was used twice and is protected, B is the LRU block of the others.

    With everything protected (A A B B C C), D evicts A, the least recent.
    """
    server = serving(ReferenceBlockManager(3, 1, eviction=ProtectedLRU(), null_block=False))
    server.hits("AABCD")
    assert server.holds("ABCD") == "ACD"
    server = serving(ReferenceBlockManager(3, 1, eviction=ProtectedLRU(), null_block=False))
    server.hits("AABBCCD")
    assert server.holds("ABCD") == "BCD"


def test_the_threshold_is_checked():
    """One line with the value and the rule."""
    with pytest.raises(ConfigError, match="protected_threshold is 0; it must be at least 1"):
        ProtectedLRU(protected_threshold=0)
