"""2Q by hand."""

from __future__ import annotations

import pytest

from policies.reference import ReferenceBlockManager
from policies.two_q import TwoQ
from sim.errors import ConfigError


@pytest.fixture
def server(serving):
    """Capacity 4, Kin 1, Kout 2: the defaults."""
    return serving(ReferenceBlockManager(4, 1, eviction=TwoQ(), null_block=False))


def test_a_hit_in_a1in_changes_nothing(server):
    """Case J11: A A B C D E A F A hits 2 and 9.

    E evicts A, the front of A1in in spite of its hit; A returns through A1out into Am (evicting B),
    F evicts C from A1in, which is still longer than Kin, and A hits. Promotion on the first hit
    would hit 2, 7 and 9.
    """
    assert server.hits("AABCDEAFA") == [2, 9]
    assert server.holds("ABCDEF") == "ADEF"


def test_am_is_evicted_only_when_a1in_is_short(server):
    """After A1in = [F], Am = [A, D, C] (A least recent): G evicts A, since A1in has Kin blocks."""
    server.hits("ABCDE")  # A goes; A1in = B C D E, A1out = A
    server.hits("A")  # Am = A; B goes
    server.hits("B")  # Am = A B; C goes
    server.hits("C")  # Am = A B C; D goes; A1in = E
    assert server.holds("ABCDE") == "ABCE"
    server.hits("G")
    assert server.holds("ABCEG") == "BCEG"


def test_a1out_is_short(server):
    """Kout 2: after A B C D E F G the ghosts are B and C; A is too old and enters A1in again."""
    server.hits("ABCDEFG")
    assert server.manager.num_evicted_blocks == 3
    server.hits("HA")  # ghosts: C D when A is looked up; H and A are both new
    server.hits("IJKL")
    assert server.holds("A") == ""


def test_no_ghosts_at_all(serving):
    """Kout 0: nothing that was evicted is known, also not what was evicted last."""
    server = serving(ReferenceBlockManager(4, 1, eviction=TwoQ(out_ratio=0.0), null_block=False))
    server.hits("ABCDEA")  # E evicts A, A evicts B: A is new
    server.hits("WXYZ")
    assert server.holds("A") == ""


@pytest.mark.parametrize(("served", "held"), [("ABCDEFA", "A"), ("ABCDEFGA", "")])
def test_an_eviction_does_not_forget_what_it_makes_room_for(server, served, held):
    """Kout 2, and A is the oldest of two ghosts when A returns: found, though C becomes a ghost.

    After one more eviction A is the oldest of three: it enters A1in, and four others push it out.
    """
    server.hits(served)
    server.hits("WXYZ")
    assert server.holds("A") == held


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"in_ratio": 0.0}, "in_ratio is 0.0; it must be between 0 and 1"),
        ({"out_ratio": -1.0}, "out_ratio is -1.0; it must be at least 0"),
    ],
)
def test_arguments_are_checked(arguments, message):
    """One line with the value and the rule."""
    with pytest.raises(ConfigError, match=message):
        TwoQ(**arguments)
