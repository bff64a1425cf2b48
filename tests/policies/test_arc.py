"""ARC by hand: the paper's and vLLM's."""

from __future__ import annotations

import pytest

from policies.arc import ARC
from policies.reference import ReferenceBlockManager
from policies.vllm import VLLMBlockManager
from sim.errors import ConfigError
from sim.keys import SegmentKeys
from sim.request import Request

MANAGERS = [ReferenceBlockManager, VLLMBlockManager]


def letters(queue):
    return "".join(chr(span.key(0) >> 24) for span in queue)


def ghosts(list_of_ghosts, among):
    """Those of the letters *among* that a ghost list holds."""
    found = []
    for letter in among:
        keys = SegmentKeys([ord(letter)], [1], 1)
        if list_of_ghosts.find(keys, 0, 1):
            found.append(letter)
    return "".join(found)


@pytest.mark.parametrize("manager", MANAGERS)
def test_p_moves_on_ghost_hits(serving, manager):
    """Case J9: A A B C B A with 2: one hit, p is 0 0 0 0 1 0; T1 is empty, T2 = B A, B1 = C.

    C evicts B from T1 (|T1| = 1 > p = 0). B is in B1: p = 1, so T1 = C may stay and A goes from T2
    to B2. A is in B2: p = 0, C goes to B1.
    """
    policy = ARC()
    server = serving(manager(2, 1, eviction=policy, null_block=False))
    hits, ps = [], []
    for letter in "AABCBA":
        hits.append(server.use_key(ord(letter)))
        ps.append(policy.p)
    assert hits == [False, True, False, False, False, False]
    assert ps == [0, 0, 0, 0, 1, 0]
    assert (letters(policy._t1), letters(policy._t2)) == ("", "BA")
    assert (ghosts(policy._b1, "ABC"), ghosts(policy._b2, "ABC")) == ("C", "")


@pytest.mark.parametrize("manager", MANAGERS)
def test_vllms_arc_sends_what_returns_to_t1(serving, manager):
    """The same with vLLM's rules: a ghost hit enters T1, and T1 gives if it is int(p) long.

    C evicts B. B is in B1: p = 1; T1 = C is 1 long, so C goes. A is in neither: it hits.
    """
    policy = ARC(variant="vllm")
    server = serving(manager(2, 1, eviction=policy, null_block=False))
    assert server.hits("AABCBA") == [2, 6]
    assert (letters(policy._t1), letters(policy._t2)) == ("B", "A")
    assert ghosts(policy._b1, "ABC") == "C"
    assert policy.p == 1


@pytest.mark.parametrize("manager", MANAGERS)
def test_scan_resistance(serving, manager):
    """What was used twice survives a scan: A A B B, then C to H once each, capacity 4."""
    server = serving(manager(4, 1, eviction=ARC(), null_block=False))
    assert server.hits("AABBCDEFGH") == [2, 4]
    assert server.holds("ABCDEFGH") == "ABGH"


@pytest.mark.parametrize("manager", MANAGERS)
def test_the_other_list_is_used_when_one_is_empty(serving, manager):
    """Case I5: all blocks are in T2 although p is 0: T2 gives one, its least recent."""
    server = serving(manager(2, 1, eviction=ARC(), null_block=False))
    assert server.hits("AABBC") == [2, 4]
    assert server.holds("ABC") == "BC"


@pytest.mark.parametrize("manager", MANAGERS)
def test_the_blocks_of_one_request_move_p_together(manager):
    """8 blocks; all prompts have 4: R and R again (T2), P (T1), Q evicts P (B1), and P again.

    It misses 4 blocks of B1: p = 4 * max(1, 0 / 4) = 4. T1 = Q is 4 long, so R goes from T2 to B2.
    """
    policy = ARC()
    server = manager(8, 1, eviction=policy, null_block=False)
    for n, key in enumerate("RRPQP"):  # a 5th block, so that all 4 can be hit
        request = Request(n, SegmentKeys([ord(key)], [5], 1), 5, 1)
        hit = server.get_computed_blocks(request)
        server.allocate_slots(request, 4 - hit.num_tokens, hit)
        server.free(request)
    assert policy.p == 4
    assert (policy._t1.num_blocks, policy._t2.num_blocks) == (4, 4)
    assert (ghosts(policy._b1, "PQR"), ghosts(policy._b2, "PQR")) == ("", "R")
    server.check()


def test_the_variant_is_checked():
    """One line with the value and the choices."""
    with pytest.raises(ConfigError, match="variant is 'car'; it must be paper or vllm"):
        ARC(variant="car")
