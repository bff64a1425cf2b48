"""SIEVE by hand."""

from __future__ import annotations

import pytest

from policies.fifo import FIFO
from policies.lru import LRU
from policies.reference import ReferenceBlockManager
from policies.sieve import Sieve


@pytest.fixture
def cache(serving):
    """`cache(policy, capacity)`: keys are used one at a time, as in the textbooks."""
    return lambda policy, capacity: serving(
        ReferenceBlockManager(capacity, 1, eviction=policy, null_block=False)
    )


def test_sieve_with_all_marks_set(cache):
    """Case J3: A B C A B C D with 3: hits 4, 5, 6; the hand unmarks A, B, C, wraps and takes A."""
    server = cache(Sieve(), 3)
    assert server.hits("ABCABCD") == [4, 5, 6]
    assert server.holds("ABCD") == "BCD"
    assert server.manager.num_evicted_blocks == 1


@pytest.mark.parametrize(("n", "num_accesses"), [(30, 110), (1000, 5445)])
def test_sieve_can_be_bad(cache, n, num_accesses):
    """Case J5: for i = 10, 12, .. < N: i - 10 .. i - 2, then i, then i + 1; capacity 10.

    SIEVE hits 21 times however long it goes on: it keeps old blocks for ever. LRU hits 72 of the
    first 110 accesses, FIFO 68. In the end SIEVE holds, newest first, 999 998 10 8 7 6 5 4 3 2, of
    which 10 to 4 have a mark.
    """
    trace = [k for i in range(10, n, 2) for k in (*range(i - 10, i - 1), i, i + 1)]
    assert len(trace) == num_accesses
    policy = Sieve()
    server = cache(policy, 10)
    assert sum(server.use_key(key) for key in trace) == 21
    if n == 30:
        for other, hits in ((LRU(), 72), (FIFO(), 68)):
            again = cache(other, 10)
            assert sum(again.use_key(key) for key in trace) == hits
    else:
        newest_first = list(policy)[::-1]
        assert [block.key(0) >> 24 for block in newest_first] == [999, 998, 10, 8, 7, 6, 5, 4, 3, 2]
        assert [block.note.is_marked for block in newest_first] == [False] * 2 + [True] * 6 + [
            False
        ] * 2


def test_the_hand_stays_where_it_was(cache):
    """The NSDI paper's point: capacity 3, A B C, B marked, D, E, F.

    D: the hand takes A and stands at B. E: B is unmarked, C goes, the hand stands at D. F: D goes,
    although B, unmarked, is older: the hand has not come round yet.
    """
    server = cache(Sieve(), 3)
    server.hits("ABCB")
    for key, content in (("D", "BCD"), ("E", "BDE"), ("F", "BEF")):
        server.hits(key)
        assert server.holds("ABCDEF") == content


def test_hits_before_the_first_release_count(serving):
    """Two requests compute and share a prompt at once: when both have ended it has a mark.

    Pool of 3 blocks of 1 token. X computes 1 2; Y = 1 2 3 hits both while X runs. After both end
    the queue is [3, 2, 1], and 2 and 1 have a mark.
    """
    policy = Sieve()
    server = serving(ReferenceBlockManager(3, 1, eviction=policy, null_block=False))
    x, y = server.prompt([1, 2]), server.prompt([1, 2, 3])
    assert server.admit(x) == 0
    assert server.admit(y) == 2
    server.manager.free(x)
    server.manager.free(y)
    assert [block.note.is_marked for block in policy] == [False, True, True]
