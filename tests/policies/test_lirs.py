"""LIRS by hand."""

from __future__ import annotations

import pytest

from policies.lirs import LIRS
from policies.reference import ReferenceBlockManager
from sim.errors import ConfigError


@pytest.fixture
def lirs():
    """Room for 2 LIR blocks and 1 HIR block."""
    return LIRS(hir_ratio=0.34)


@pytest.fixture
def server(serving, lirs):
    return serving(ReferenceBlockManager(3, 1, eviction=lirs, null_block=False))


def stack(policy):
    """S, oldest first: capitals are LIR, ghosts are in brackets."""
    text = ""
    for entry in policy._stack:
        letter = chr(entry.name >> 24)
        letter = letter if entry.is_lir else letter.lower()
        text += letter if entry.block is not None else f"({letter})"
    return text


def queue(policy):
    return "".join(chr(span.key(0) >> 24) for span in policy._queue)


def test_lir_and_hir(server, lirs):
    """A B become LIR, C D E HIR: each new one evicts the HIR block before it, which stays in S."""
    server.hits("ABCDE")
    assert server.holds("ABCDE") == "ABE"
    assert (stack(lirs), queue(lirs)) == ("AB(c)(d)e", "E")


def test_a_ghost_in_the_stack_becomes_lir(server, lirs):
    """... then D: it was used after A, so it becomes LIR; A becomes HIR, and E was evicted for D.

    A leaves the stack and waits in Q, with nothing of it left in S.
    """
    server.hits("ABCDED")
    assert server.holds("ABCDE") == "ABD"
    assert (stack(lirs), queue(lirs)) == ("B(c)(e)D", "A")


def test_a_resident_hir_block_in_the_stack_becomes_lir(server, lirs):
    """A B C C: C is hit while it is in S, younger than A: they change roles. D then evicts A."""
    assert server.hits("ABCC") == [4]
    assert (stack(lirs), queue(lirs)) == ("BC", "A")
    server.hits("D")
    assert server.holds("ABCD") == "BCD"


def test_pruning(server, lirs):
    """A B C A: A moves to the top; B is the oldest and LIR. B too: now HIR block c is the oldest,
    and it leaves S, though it stays cached. Used again, it is HIR still."""
    server.hits("ABCAB")
    assert (stack(lirs), queue(lirs)) == ("AB", "C")
    assert server.hits("C") == [1]
    assert (stack(lirs), queue(lirs)) == ("ABc", "C")


def test_the_stack_is_limited(server, lirs):
    """S holds at most 6 blocks: after A B and 20 scanned keys the oldest ghosts are gone."""
    server.hits("AB" + "CDEFGHIJKLMNOPQRSTUV")
    assert stack(lirs) == "AB(s)(t)(u)v"
    assert len(lirs._ghosts) == 3


def test_a_loop_that_does_not_fit(serving):
    """A loop over 5 keys with room for 4 (3 LIR): LRU never hits, LIRS always hits its 3."""
    server = serving(ReferenceBlockManager(4, 1, eviction=LIRS(), null_block=False))
    assert server.hits("ABCDE" * 4) == [6, 7, 8, 11, 12, 13, 16, 17, 18]


def test_the_share_is_checked():
    """One line with the value and the rule."""
    with pytest.raises(ConfigError, match="hir_ratio is 0; it must be between 0 and 1"):
        LIRS(hir_ratio=0)
