"""The reference manager's memory: what is given, refused, taken back and forgotten."""

from __future__ import annotations

import numpy as np
import pytest

from policies.reference import ReferenceBlockManager
from sim.errors import ConfigError
from sim.keys import TokenKeys
from sim.request import RequestStatus

BOTH_ORDERS = pytest.mark.parametrize("free_order", ["tail", "unhashed_first"])


def usable(num_blocks, block_size=4, **options):
    """A manager without a null block: all its blocks can be used, counted from 0."""
    return ReferenceBlockManager(num_blocks, block_size, null_block=False, **options)


def test_a_failed_allocation_changes_nothing(serving):
    """Case C2: 16 tokens do not fit 3 blocks: refused, and no count, order, hash or event moved."""
    events = []
    server = serving(usable(3, events=events.append))
    server.run(server.prompt(range(9)))
    before, seen = server.state(), len(events)
    assert server.admit(server.prompt(range(40, 56))) is None
    assert server.state() == before
    assert len(events) == seen
    assert server.manager.num_free_blocks == 3


@BOTH_ORDERS
def test_usage_returns_to_zero(serving, free_order):
    """Case C3: after each of 50 requests of 9 tokens: 8 blocks free, usage exactly 0."""
    rng = np.random.default_rng(3)
    server = serving(usable(8, free_order=free_order))
    manager = server.manager
    for _ in range(50):
        request = server.prompt(rng.integers(3, size=9).tolist())
        server.admit(request)
        assert manager.num_free_blocks + len(server.table(request)) == 8
        assert manager.usage == 3 / 8
        manager.check()
        manager.free(request)
        assert (manager.num_free_blocks, manager.usage) == (8, 0.0)
        assert sorted(server.queue()) == list(range(8))
        manager.check()


def test_freeing_twice_does_nothing(serving):
    """Case C1: 7 blocks stay 7; then 7 requests get 7 blocks and an eighth none."""
    server = serving(usable(7))
    request = server.prompt(range(3))
    server.admit(request)
    server.manager.free(request)
    server.manager.free(request)
    assert server.manager.num_free_blocks == 7
    requests = [server.prompt(range(n, n + 3)) for n in range(100, 180, 10)]
    assert [server.admit(r) for r in requests] == [0] * 7 + [None]
    assert sorted(server.table(r)[0] for r in requests[:7]) == list(range(7))


def test_a_shared_block_is_free_after_its_last_user(serving):
    """Case C1, second run: a block with two users counts as one, used or free."""
    server = serving(usable(7))
    one, two = server.prompt(range(5)), server.prompt(range(5))
    server.admit(one)
    server.admit(two)
    assert server.manager.blocks[0].ref_cnt == 2
    assert server.manager.num_free_blocks == 4
    server.manager.free(one)
    assert server.manager.num_free_blocks == 5
    server.manager.free(two)
    assert server.manager.num_free_blocks == 7


def test_freeing_who_never_had_blocks_is_a_no_op(serving):
    """Fact sheet 5: free of a request without blocks changes nothing."""
    server = serving(usable(3))
    before = server.state()
    server.manager.free(server.prompt(range(3)))
    assert server.state() == before


def test_hits_in_the_free_queue_count_as_needed(serving):
    """Case C5, easy mistake 4: 2 new blocks and 2 idle hits are 4, and 3 are free: refused."""
    server = serving(usable(5))
    server.run(server.prompt(range(9)))
    other = server.prompt(range(50, 58))
    server.admit(other)
    blocked = server.prompt([*range(8), *range(60, 68)])
    assert server.manager.get_computed_blocks(blocked).num_tokens == 8
    assert server.manager.num_free_blocks == 3
    before = server.state()
    assert server.admit(blocked) is None
    assert server.state() == before
    server.manager.free(other)
    assert server.admit(blocked) == 8


def test_an_evicted_block_loses_its_hash(serving):
    """Case C6: B takes both of A's blocks: A hits 0 and no block or map entry names A."""
    server = serving(usable(2))
    server.run(server.prompt(range(5)))
    server.run(server.prompt(range(50, 58)))
    assert server.look_up(range(5)) == 0
    a_key = TokenKeys(range(5), 4)[0]
    manager = server.manager
    assert all(block.block_hash != a_key for block in manager.blocks)
    assert {b.block_hash for b in manager.blocks} == set(manager.cached)
    assert manager.num_evicted_blocks == 1


def test_growing_adds_the_difference(serving):
    """Case C7: from 100 to 200 tokens at block size 16: 7 blocks, then 6 more."""
    server = serving(usable(20, 16))
    request = server.prompt(range(200))
    server.admit(request, 100)
    assert len(server.table(request)) == 7
    allocation = server.manager.allocate_slots(request, 100)
    assert allocation.num_new_blocks == len(allocation.spans) == 6
    assert len(server.table(request)) == 13


def test_growing_evicts_only_the_difference(serving):
    """Case J16 in blocks: a = 3 idle, b = 3 in use of 10; b grows to 7 for nothing, to 8 for one.

    In a cache of sized objects the last step evicts all of a; here it is a's last block.
    """
    server = serving(usable(10, 1))
    server.run(server.prompt(range(3)))
    b = server.prompt(range(50, 58))
    server.admit(b, 3)
    for num_tokens, num_evicted in ((4, 0), (1, 1)):
        assert server.manager.allocate_slots(b, num_tokens).num_new_blocks == num_tokens
        b.num_computed_tokens += num_tokens
        assert server.manager.num_evicted_blocks == num_evicted
    assert server.look_up(range(4)) == 2


def test_the_last_output_of_a_full_pool_needs_no_block(serving):
    """Case G2, the manager's part: 16 tokens fill 4 blocks; a 17th token has no room."""
    server = serving(usable(4))
    assert server.run(server.prompt(range(16), num_outputs=1)) == 0
    request = server.prompt(range(50, 66), num_outputs=2)
    assert server.admit(request) == 0
    assert not server.decode(request)


def test_the_whole_sequence_gate_and_reserved_blocks(serving):
    """A first chunk that fits is refused if the whole prompt does not, or blocks are reserved."""
    server = serving(usable(4))
    gates = {"full_sequence_must_fit": True}
    assert server.admit(server.prompt(range(17)), 4, **gates) is None
    assert server.admit(server.prompt(range(9)), 8, reserved_blocks=3) is None
    assert server.admit(server.prompt(range(9)), 8, reserved_blocks=2) == 0
    assert server.admit(server.prompt(range(50, 59)), 8, **gates) is None
    assert server.admit(server.prompt(range(50, 59)), 8) == 0


def test_the_whole_sequence_gate_counts_idle_hits(serving):
    """3 free blocks, 2 of them hits: a chunk needs 1 + 2 and fits, the prompt 2 + 2 does not."""
    server = serving(usable(5))
    server.run(server.prompt(range(9)))
    server.admit(server.prompt(range(50, 58)))
    prompt = [*range(8), *range(60, 68)]
    assert server.admit(server.prompt(prompt), 12, full_sequence_must_fit=True) is None
    assert server.admit(server.prompt(prompt), 12) == 8


def test_the_watermark_counts_the_null_block(serving):
    """Easy mistake 15: int(0.2 * 10) is 2 blocks of 9 usable ones; int(0.2 * 9) would be 1.

    It binds who waits while others run, and nobody else.
    """
    server = serving(ReferenceBlockManager(10, 4, watermark=0.2))
    assert server.admit(server.prompt(range(32))) is None
    assert server.admit(server.prompt(range(28))) == 0
    assert server.manager.num_free_blocks == 2
    running = server.prompt(range(50, 54))
    assert server.admit(running) is None
    running.status = RequestStatus.RUNNING
    assert server.admit(running) == 0
    assert server.admit(server.prompt(range(60, 64)), has_scheduled_reqs=False) == 0


def test_blocks_are_findable_when_allocated(serving):
    """Easy mistake 5: chunks of 6 of 14 tokens store 1, then 3 blocks; preemption leaves them."""
    server = serving(usable(8))
    request = server.prompt(range(14))
    server.admit(request, 6)
    assert server.look_up(range(14)) == 4
    server.manager.allocate_slots(request, 6)
    assert server.look_up(range(14)) == 12
    server.manager.free(request)
    assert server.look_up(range(14)) == 12


def test_delayed_blocks_are_findable_when_reported(serving):
    """With *delay_cache_blocks* nothing hits before `cache_blocks` says what is computed."""
    server = serving(usable(8))
    request = server.prompt(range(14))
    server.admit(request, delay_cache_blocks=True)
    assert server.look_up(range(14)) == 0
    server.manager.cache_blocks(request, 9)
    assert server.look_up(range(14)) == 8
    server.manager.cache_blocks(request, 5)
    assert server.look_up(range(14)) == 8


def test_draft_tokens_are_not_stored(serving):
    """Fact sheet 4: slots beyond the known tokens are given, their blocks have no hash."""
    server = serving(usable(8))
    request = server.prompt(range(6), num_outputs=8)
    server.admit(request)
    request.num_output_tokens = 1
    server.manager.allocate_slots(request, 3)  # one sampled token and two drafts: 9 tokens
    assert len(server.table(request)) == 3
    assert server.manager.num_stored_blocks(request.request_id) == 1


def test_no_slots_beyond_the_models_length(serving):
    """*max_model_len* 10: three blocks are enough, lookahead or not."""
    server = serving(usable(8, max_model_len=10))
    request = server.prompt(range(10))
    server.admit(request, num_lookahead_tokens=8)
    assert len(server.table(request)) == 3


def test_usage_leaves_out_the_null_block(serving):
    """Easy mistake 14, case L6: 5 blocks, one null: usage 0.0 idle, 1.0 with 16 tokens."""
    server = serving(ReferenceBlockManager(5, 4))
    assert server.manager.usage == 0.0
    request = server.prompt(range(16))
    server.admit(request)
    assert server.table(request) == [1, 2, 3, 4]
    assert server.manager.usage == 1.0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 4), "num_blocks is 0; it must be at least 2"),
        ((1, 4), "num_blocks is 1; it must be at least 2"),
        ((10, 0), "block_size is 0 tokens; it must be at least 1"),
    ],
)
def test_a_pool_that_holds_nothing_is_refused(arguments, message):
    """The error says the value and the least that works; one block needs no null block."""
    with pytest.raises(ConfigError, match=message):
        ReferenceBlockManager(*arguments)
    assert usable(1).num_blocks == 1


def test_asking_for_no_tokens_is_a_bug_of_the_caller(serving):
    """Fact sheet 4: nothing to schedule and nothing to adopt is an error, and changes nothing."""
    server = serving(usable(4))
    before = server.state()
    with pytest.raises(ValueError, match="num_new_tokens is 0"):
        server.manager.allocate_slots(server.prompt(range(5)), 0)
    assert server.state() == before
