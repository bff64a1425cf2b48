"""The span manager decides exactly as the block-by-block manager does."""

from __future__ import annotations

from itertools import product

import pytest

from policies.lru import LRU
from policies.prefix_tree import Copy, PrefixTree
from policies.reference import ReferenceBlockManager
from policies.vllm import VLLMBlockManager
from sim.checks.twins import Twins

OPTIONS = [
    {"free_order": order, "null_block": null, **extra}
    for (order, null), extra in product(
        product(("tail", "unhashed_first"), (True, False)),
        ({}, {"watermark": 0.2}, {"use_eagle": True}),
    )
]


def twins(seed: int, **options) -> Twins:
    return Twins(
        lambda n, size: ReferenceBlockManager(n, size, eviction=LRU(), **options),
        lambda n, size: VLLMBlockManager(n, size, eviction=LRU(), **options),
        seed,
    )


def run_programs(num_programs: int) -> None:
    for seed in range(num_programs):
        twins(seed).run(60)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(12))
def test_same_decisions_in_random_programs(part):
    """3,000 programs: hits, refusals, free counts, eviction order, tables and events are equal."""
    for seed in range(part * 250, (part + 1) * 250):
        twins(seed, **OPTIONS[seed % len(OPTIONS)]).run(60)


def test_same_decisions_without_caching():
    """With caching off both only count blocks."""
    for seed in range(40):
        twins(seed, enable_caching=False).run(40)


@pytest.mark.parametrize(
    ("owner", "method", "broken"),
    [
        (PrefixTree, "prune", lambda self, node: None),
        (VLLMBlockManager, "_free_unhashed", lambda self, span, request, now: None),
    ],
)
def test_a_broken_manager_is_noticed(monkeypatch, owner, method, broken):
    """The comparison can fail: a manager that forgets a duty is found out."""
    monkeypatch.setattr(owner, method, broken)
    with pytest.raises(AssertionError):
        run_programs(100)


def test_a_policy_that_forgets_a_cut_is_noticed(monkeypatch):
    """A policy that loses the upper part of a cut span breaks the books."""
    monkeypatch.setattr(LRU, "split", lambda self, upper, lower: None)
    with pytest.raises((AssertionError, AttributeError, IndexError)):
        run_programs(100)


def test_a_policy_for_single_blocks_gets_spans_of_one_block():
    """`max_span = 1`: every copy holds one block, and the decisions are the same."""

    class Single(LRU):
        max_span = 1

        def release(self, span, request, now):
            assert not isinstance(span, Copy) or span.num_blocks == 1
            super().release(span, request, now)

    for seed in range(60):
        Twins(
            lambda n, size: ReferenceBlockManager(n, size, eviction=LRU()),
            lambda n, size: VLLMBlockManager(n, size, eviction=Single()),
            seed,
        ).run(60)
