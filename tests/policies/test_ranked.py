"""Policies that are only a sort key: ties, leaves, memory, and the cases of the field."""

from __future__ import annotations

import pytest

from policies.filo import FILO
from policies.length_aware import LengthAware
from policies.lfu import LFU
from policies.lfuda import LFUDA
from policies.lru import LRU
from policies.lru_k import LRUK
from policies.mru import MRU
from policies.ranked import SPARE_ENTRIES, Ranked
from policies.reference import ReferenceBlockManager
from policies.vllm import VLLMBlockManager

MANAGERS = (ReferenceBlockManager, VLLMBlockManager)


class Equal(Ranked):
    """Everything has the same rank: only the ties decide."""

    def rank(self, span, request, now):
        return 0


class Shallow(Ranked):
    """The shallowest block first: the order that breaks prefixes."""

    max_span = 1

    def rank(self, span, request, now):
        return span.start


def pool(manager, num_blocks, policy, block_size=1, **options):
    return manager(num_blocks, block_size, eviction=policy, null_block=False, **options)


@pytest.mark.parametrize("manager", MANAGERS)
def test_a_finished_chain_is_evicted_tail_first(manager, serving):
    """Case B1: equal ranks go by release, so of one prompt the deepest block goes first."""
    serve = serving(pool(manager, 3, Equal()))
    serve.run(serve.prompt([1, 2, 3]))
    serve.run(serve.prompt([9]))
    assert serve.look_up([1, 2, 3, 4]) == 2


@pytest.mark.parametrize("manager", MANAGERS)
def test_equal_ranks_are_lru(manager, serving):
    """Case B7: trace A B A C A in a cache of 2 hits at 3 and 5; recency moves on hits."""
    assert serving(pool(manager, 2, Equal())).hits("ABACA") == [3, 5]


@pytest.mark.parametrize("manager", MANAGERS)
@pytest.mark.parametrize("policy", [Equal, LFU, LFUDA, LRUK, MRU, FILO, LengthAware, LRU])
def test_an_infinite_cache_still_misses_first_uses(manager, policy, serving):
    """Case A9: 4 hits of 8, whatever the policy, and nothing is evicted."""
    serve = serving(pool(manager, 20, policy()))
    assert serve.hits("abacbada") == [3, 5, 6, 8]
    assert serve.manager.num_evicted_blocks == 0


@pytest.mark.parametrize("manager", MANAGERS)
def test_lfu_breaks_ties_by_recency(manager, serving):
    """Case J14: D evicts C, whose second use is the oldest; never more than 3 blocks."""
    serve = serving(pool(manager, 3, LFU()))
    assert serve.hits("ABCCBADA") == [4, 5, 6, 8]
    serve = serving(pool(manager, 3, LFU()))
    assert serve.hits("ABABCDEC") == [3, 4]
    assert serve.holds("ABCDE") == "ABC"


@pytest.mark.parametrize("manager", MANAGERS)
def test_lfu_forgets_at_eviction(manager, serving):
    """A was used 3 times, was evicted, and comes back as new: D takes its place, not B's."""
    serve = serving(pool(manager, 2, LFU()))
    serve.hits("AAA" + "BBBB" + "C")  # C takes the place of A
    assert serve.holds("ABC") == "BC"
    serve.hits("A")  # and A that of C
    serve.hits("AD")  # A has 2 uses, not 5: D takes its place
    assert serve.holds("ABD") == "BD"


@pytest.mark.parametrize("manager", MANAGERS)
def test_aging_lets_old_merit_fade(manager, serving):
    """A has 3 uses; with a clock three new blocks are enough to be rid of it, without one none."""
    serve = serving(pool(manager, 2, LFUDA()))
    serve.hits("AAABCDEF")  # ranks: A 3; B 1, C 2, D 3: A is older than D and goes for E
    assert serve.holds("ABCDEF") == "EF"
    serve = serving(pool(manager, 2, LFU()))
    serve.hits("AAABCDEF")
    assert serve.holds("ABCDEF") == "AF"


@pytest.mark.parametrize("manager", MANAGERS)
def test_lru_k_looks_at_the_second_last_use(manager, serving):
    """B was used last but once; A twice: B goes. With a history B is known when it comes back."""
    serve = serving(pool(manager, 2, LRUK()))
    serve.hits("AABC")
    assert serve.holds("ABC") == "AC"
    serve.hits("B")  # C has one use and goes; this is B's second, remembered
    assert serve.holds("ABC") == "AB"
    serve.hits("D")  # the second-last uses are A's first and B's first: A's is older
    assert serve.holds("ABD") == "BD"
    serve = serving(pool(manager, 2, LRUK(history=0)))
    serve.hits("AABCBD")  # nothing is remembered: B has one use and goes
    assert serve.holds("ABD") == "AD"


@pytest.mark.parametrize("manager", MANAGERS)
def test_mru_and_filo_give_up_the_newest(manager, serving):
    """C takes the place of what was used last (MRU) or inserted last (FILO)."""
    serve = serving(pool(manager, 2, MRU()))
    serve.hits("ABAC")
    assert serve.holds("ABC") == "BC"
    serve = serving(pool(manager, 2, FILO()))
    serve.hits("ABAC")
    assert serve.holds("ABC") == "AC"


@pytest.mark.parametrize("manager", MANAGERS)
def test_length_aware_gives_up_late_blocks(manager, serving):
    """Of blocks used once the last in a prompt goes first, though another is older; or stays."""
    for keep_late, left in ((False, (2, 1)), (True, (3, 0))):
        serve = serving(pool(manager, 4, LengthAware(keep_late)))
        serve.run(serve.prompt([1]))
        serve.run(serve.prompt([2, 3, 4]))
        serve.run(serve.prompt([5]))
        assert (serve.look_up([2, 3, 4, 9]), serve.look_up([1, 9])) == left


@pytest.mark.parametrize("manager", MANAGERS)
def test_in_leaf_mode_a_prefix_stays_usable(manager, serving):
    """A rank that prefers shallow blocks must wait until they are leaves; then it counts."""
    serve = serving(pool(manager, 6, Shallow(), victims="leaf"))
    serve.run(serve.prompt([1, 2, 3]))
    serve.run(serve.prompt([4, 5, 6]))
    serve.run(serve.prompt([7]))  # the leaves are 3 and 6, of equal rank: 3 is older
    assert (serve.look_up([1, 2, 3, 0]), serve.look_up([4, 5, 6, 0])) == (2, 3)
    serve.run(serve.prompt([8]))  # leaves: 7 at depth 0, 2 at depth 1, 6
    serve.run(serve.prompt([8, 9]))
    assert (serve.look_up([1, 2, 0]), serve.look_up([4, 5, 6, 0])) == (1, 3)
    serve = serving(pool(manager, 3, Shallow()))
    serve.run(serve.prompt([1, 2, 3]))
    serve.run(serve.prompt([7]))
    assert serve.look_up([1, 2, 3, 0]) == 0  # without the rule the first block is lost


def test_the_heap_does_not_grow_with_the_run(serving):
    """10,000 hits without an eviction leave a heap of the size of the pool, not of the run."""
    policy = LFU()
    serve = serving(pool(VLLMBlockManager, 8, policy))
    serve.hits("ABCD" * 2500)
    assert len(policy._heap) <= 2 * 4 + SPARE_ENTRIES + 1


def test_the_note_is_gone_with_the_content(serving):
    """A block slot that gets new content starts without the facts of the old."""
    manager = pool(ReferenceBlockManager, 1, LFU())
    serve = serving(manager)
    serve.hits("AAAB")
    assert [block.note for block in manager.blocks] == [None]
    manager.reset_prefix_cache()
    assert not manager.policy._entries
