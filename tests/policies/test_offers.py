"""A policy that offers a wrong victim is stopped at once, under every manager."""

from __future__ import annotations

import pytest

from policies.lru import LRU
from policies.radix import RadixBlockManager
from policies.reference import ReferenceBlockManager
from policies.vllm import VLLMBlockManager
from sim.checks.letters import Letters
from sim.errors import KvsimError
from sim.request import Request


class Nothing(LRU):
    def victim(self, num_blocks):
        return super().victim(num_blocks)[0], 0


class TooMany(LRU):
    def victim(self, num_blocks):
        return super().victim(num_blocks)[0], num_blocks + 1_000


class InUse(LRU):
    def hit(self, span, request, now):
        super().hit(span, request, now)
        self.used = span

    def victim(self, num_blocks):
        return self.used, 1


@pytest.mark.parametrize("manager", [ReferenceBlockManager, VLLMBlockManager, RadixBlockManager])
@pytest.mark.parametrize(
    ("policy", "seen"),
    [(Nothing, "offered 0 blocks"), (TooMany, r"offered 10\d\d blocks"), (InUse, "1 requests use")],
)
def test_a_wrong_offer_is_an_error(manager, policy, seen):
    """One line with the policy's name, what it offered and the rule; nothing hangs."""
    pool = manager(8, 1, eviction=policy(), null_block=False)
    pool.serve(Request(0, Letters("abcd", 1), 4, 1), 4)
    pool.serve(Request(1, Letters("xyz", 1), 3, 1), 3)
    user = Request(2, Letters("abe", 1), 3, 1)
    hit = pool.get_computed_blocks(user)
    pool.allocate_slots(user, 1, hit)
    user.num_computed_tokens = 3
    rule = rf"{policy.__qualname__}: victim\(\d+\) .*{seen}.*; it must be 1 to \d+ of a span"
    with pytest.raises(KvsimError, match=rule):
        pool.serve(Request(3, Letters("uvwst", 1), 5, 1), 5)
