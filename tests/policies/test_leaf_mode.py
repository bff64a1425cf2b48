"""Leaf mode: no block is evicted while longer cached content hangs on it."""

from __future__ import annotations

import pytest

from policies.lru import LRU
from policies.reference import ReferenceBlockManager
from policies.vllm import VLLMBlockManager
from sim.cache import EvictionPolicy
from sim.checks.twins import Twins
from sim.engine import Engine
from sim.errors import ConfigError
from sim.keys import SegmentKeys
from sim.latency import Constant
from sim.request import Request

MANAGERS = (ReferenceBlockManager, VLLMBlockManager)


class RootFirst(EvictionPolicy):
    """Of what may go, the block that is the earliest in its prompt: it makes many orphans."""

    lists_in_order = False
    max_span = 1

    def bind(self, pool):
        super().bind(pool)
        self.spans = []

    def release(self, span, request, now):
        self.spans.append(span)

    def hit(self, span, request, now):
        if span.ref_cnt == 0:
            self.spans.remove(span)

    def split(self, upper, lower):
        if lower.ref_cnt == 0:
            self.spans.append(upper)

    def victim(self, num_blocks):
        allowed = [s for s in self.spans if not self.pool.leaf_only or self.pool.may_evict(s)]
        return min(allowed, key=lambda span: (span.start, repr(span.key(0)))), 1

    def evicted(self, span, num_blocks):
        if span.num_blocks == 0:
            self.spans.remove(span)

    def forget(self, span):
        self.spans.remove(span)

    def __iter__(self):
        return iter(self.spans)


class CountingTwins(Twins):
    """Twins that also agree on their orphans."""

    most_orphans = 0

    def _compare(self):
        super()._compare()
        self._both(lambda manager: manager.num_orphaned_blocks)
        self.most_orphans = max(self.most_orphans, self.managers[0].num_orphaned_blocks)


def run(seed, policy, one, other):
    """A program on the reference with options *one* and the span manager with options *other*."""
    order = {"free_order": ("tail", "unhashed_first")[seed % 2], "null_block": seed % 3 > 0}
    twins = CountingTwins(
        lambda n, size: ReferenceBlockManager(n, size, eviction=policy(), **order, **one),
        lambda n, size: VLLMBlockManager(n, size, eviction=policy(), **order, **other),
        seed,
    )
    twins.run(60)
    return twins.most_orphans


@pytest.mark.parametrize(("one", "other"), [("block", "leaf"), ("leaf", "block"), ("leaf", "leaf")])
def test_lru_is_the_same_in_both_modes(one, other):
    """LRU never orphans a block, so leaf mode changes none of its decisions."""
    for seed in range(40):
        assert run(seed, LRU, {"victims": one}, {"victims": other}) == 0


def test_leaf_mode_leaves_no_orphans():
    """A policy that evicts roots first makes orphans in block mode, and none in leaf mode."""
    orphans = [run(seed, RootFirst, {}, {}) for seed in range(40)]
    assert sum(orphans) > 40
    leaf = {"victims": "leaf"}
    assert [run(seed, RootFirst, leaf, leaf) for seed in range(40)] == [0] * 40


@pytest.mark.parametrize("manager_class", MANAGERS)
def test_which_spans_may_go(serving, manager_class):
    """A parent may go once its child has gone, or while another copy of it is there."""
    manager = manager_class(8, 2, eviction=RootFirst(), null_block=False, victims="leaf")
    serve = serving(manager)
    serve.run(serve.prompt([1, 2, 3, 4, 5]))  # blocks 12, 1234 and one without content
    spans = sorted((s for s in manager.policy.spans if s.key(0)), key=lambda span: span.start)
    assert [manager.may_evict(span) for span in spans] == [False, True]
    again = serve.prompt([1, 2])  # the last token is never hit: its block is computed again
    serve.admit(again)
    assert [manager.may_evict(span) for span in spans] == [True, True]
    manager.free(again)


@pytest.mark.parametrize("manager_class", MANAGERS)
def test_orphans_are_counted(serving, manager_class):
    """Roots first, 4 blocks cached: 1 has gone, 3 cannot be hit; then the parent comes back."""
    manager = manager_class(5, 1, eviction=RootFirst(), null_block=False)
    serve = serving(manager)
    serve.run(serve.prompt([1, 2, 3, 4]))
    assert manager.num_orphaned_blocks == 0
    other = serve.prompt([9, 9])
    serve.admit(other)
    assert (manager.num_cached_blocks, manager.num_orphaned_blocks) == (3, 3)
    assert serve.look_up([1, 2, 3, 4, 5]) == 0
    manager.free(other)
    back = serve.prompt([1])
    serve.admit(back)  # takes the place of another root
    assert (serve.look_up([1, 2, 3, 4, 5]), manager.num_orphaned_blocks) == (4, 1)


@pytest.mark.parametrize("manager_class", MANAGERS)
def test_a_reset_empties_a_leaf_mode_cache(serving, manager_class):
    """All is forgotten, deepest first, and the manager works on."""
    manager = manager_class(9, 2, victims="leaf")
    serve = serving(manager)
    for _ in range(3):
        serve.run(serve.prompt([1, 2, 3, 4, 5, 6, 7]))
        serve.run(serve.prompt([1, 2, 3, 4, 8, 9]))
        assert manager.reset_prefix_cache()
        assert (manager.num_cached_blocks, manager.num_free_blocks) == (0, 8)
        assert serve.look_up([1, 2, 3]) == 0
        manager.check()


def test_runs_report_their_orphans():
    """`num_orphaned_blocks` is among the totals of a run."""
    requests = [Request(i, SegmentKeys([i], [12], 2), 10, 2, float(i)) for i in range(3)]
    for options, is_orphaned in (({}, True), ({"victims": "leaf"}, False)):
        manager = VLLMBlockManager(11, 2, eviction=RootFirst(), **options)
        totals = Engine(manager, latency=Constant(0.1)).run(requests).totals
        assert (totals["num_orphaned_blocks"] > 0) == is_orphaned


@pytest.mark.parametrize("manager_class", MANAGERS)
def test_an_unknown_mode_is_refused(manager_class):
    """A ConfigError says which modes there are."""
    with pytest.raises(ConfigError, match="victims is 'leaves'; it must be block or leaf"):
        manager_class(8, victims="leaves")
