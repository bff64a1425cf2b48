"""The reference manager's KV events, and what resets and evictions by id change."""

from __future__ import annotations

from collections import Counter

import pytest

from policies.reference import ReferenceBlockManager
from sim.events import AllBlocksCleared, BlockRemoved, BlockStored
from sim.keys import TokenKeys

BOTH_ORDERS = pytest.mark.parametrize("free_order", ["tail", "unhashed_first"])


class Listener:
    """A router's index, fed by KV events: how many copies of a block each worker holds."""

    def __init__(self):
        self.copies = {}

    def sink(self, worker):
        """The event sink of one worker's manager."""
        self.copies[worker] = Counter()
        return lambda event: self.take(worker, event)

    def take(self, worker, event):
        copies = self.copies[worker]
        match event:
            case BlockStored():
                parent = event.parent_block_hash
                assert parent is None or copies[parent], "the parent was never reported"
                copies.update(event.block_hashes)
            case BlockRemoved():
                copies[event.block_hash] -= 1
                assert copies[event.block_hash] == event.copies_left
            case AllBlocksCleared():
                copies.clear()

    def holders(self, block_hash):
        return [worker for worker, copies in self.copies.items() if copies[block_hash]]


def keys_of(tokens, block_size):
    keys = TokenKeys(tokens, block_size)
    return [keys[i] for i in range(len(keys))]


@BOTH_ORDERS
def test_two_copies_of_one_content(serving, free_order):
    """Case D1, easy mistake 6: a recomputed last block is a second copy; a lookup needs any.

    8 tokens twice: free order 4 5 2 3 1. Three new blocks take 4, 5 and 2, one of the two copies
    of the second block: one event, one copy left, and 9 tokens still hit 8.
    """
    events = []
    server = serving(ReferenceBlockManager(6, 4, free_order=free_order, events=events.append))
    for _ in range(2):
        server.run(server.prompt(range(8)))
    key = keys_of(range(8), 4)[1]
    assert [block.block_id for block in server.manager.copies(key)] == [2, 3]
    hit = server.manager.get_computed_blocks(server.prompt(range(9)))
    assert [block.block_id for block in hit.spans] == [1, 2]  # the oldest copy
    assert server.queue() == [4, 5, 2, 3, 1]

    events.clear()
    other = server.prompt(range(50, 61))
    server.admit(other)
    assert server.table(other) == [4, 5, 2]
    removed = [event for event in events if isinstance(event, BlockRemoved)]
    assert removed == [BlockRemoved(key, copies_left=1, block_id=2)]
    assert server.look_up(range(9)) == 8


def test_events_name_reported_parents_in_order(serving):
    """Case D3: stored 12, stored 1234 after 12, removed 1234, stored 1299 after 12; b hits 2."""
    events = []
    manager = ReferenceBlockManager(3, 2, null_block=False, events=events.append)
    server = serving(manager)
    assert server.run(server.prompt([1, 2, 3, 4, 5])) == 0
    assert server.run(server.prompt([1, 2, 9, 9, 8])) == 2
    b12, b1234 = keys_of([1, 2, 3, 4], 2)
    _, b1299 = keys_of([1, 2, 9, 9], 2)
    assert events == [
        BlockStored((b12, b1234), None, (1, 2, 3, 4), 2, (None, None)),
        BlockRemoved(b1234, copies_left=0, block_id=1),
        BlockStored((b1299,), b12, (9, 9), 2, (None,)),
    ]


def test_a_chunk_is_reported_with_the_parent_of_its_first_block(serving):
    """Each allocation that fills blocks is one event; freeing and hitting are none."""
    events = []
    server = serving(ReferenceBlockManager(9, 4, events=events.append))
    request = server.prompt(range(14), salt="s")
    server.admit(request, 6)
    server.manager.allocate_slots(request, 1)
    server.manager.allocate_slots(request, 7)
    keys = [request.keys[i] for i in range(3)]
    assert [(e.block_hashes, e.parent_block_hash, e.extra_keys) for e in events] == [
        ((keys[0],), None, ((("cache_salt", "s"),),)),
        ((keys[1], keys[2]), keys[0], (None, None)),
    ]
    server.manager.free(request)
    server.look_up(range(14), salt="s")
    assert len(events) == 2


def test_cleared_empties_the_listener(serving):
    """Case D5: two workers hold x; after worker 1's reset only 2 does, and 1 may report y."""
    index = Listener()
    one, two = (
        serving(ReferenceBlockManager(9, 4, events=index.sink(worker))) for worker in (1, 2)
    )
    for server in (one, two):
        server.run(server.prompt(range(5)))
    (x,), (y,) = keys_of(range(4), 4), keys_of(range(50, 54), 4)
    assert index.holders(x) == [1, 2]
    assert one.manager.reset_prefix_cache()
    assert index.holders(x) == [2]
    one.run(one.prompt(range(50, 55)))
    assert index.holders(y) == [1]


@BOTH_ORDERS
def test_a_listener_knows_what_is_cached(serving, free_order):
    """Events alone give each content's copies, however often blocks were evicted and reused."""
    index = Listener()
    manager = ReferenceBlockManager(12, 2, free_order=free_order, events=index.sink(1))
    server = serving(manager)
    for n in range(60):
        server.run(server.prompt([n % 3, 0, n % 4, n % 5, n % 2, 1, 1], num_outputs=n % 4 + 1))
        expected = {key: len(manager.copies(key)) for key in manager.cached}
        assert +index.copies[1] == expected
    assert manager.num_evicted_blocks > 60


def test_reset_while_a_request_runs(serving):
    """Case C10: refused without a change while B runs; then everything goes, one event, True."""
    events = []
    server = serving(ReferenceBlockManager(10, 4, events=events.append))
    server.run(server.prompt(range(9)))
    running = server.prompt(range(50, 59), num_outputs=5)
    server.admit(running)
    before = server.state()
    assert server.manager.reset_prefix_cache() is False
    assert server.state() == before
    assert server.look_up(range(9)) == 8

    server.manager.free(running)
    events.clear()
    assert server.manager.reset_prefix_cache() is True
    assert server.look_up(range(9)) == 0
    assert [type(event).__name__ for event in events] == ["AllBlocksCleared"]
    assert list(server.manager.cached) == []
    assert server.manager.num_free_blocks == 9


@BOTH_ORDERS
def test_reset_keeps_the_order_of_the_queue(serving, free_order):
    """Easy mistake 16: after a reset the blocks are handed out in the order they had before."""
    server = serving(ReferenceBlockManager(7, 4, free_order=free_order))
    for start in (0, 50):
        server.run(server.prompt(range(start, start + 6)))
    before = server.queue()
    assert before != sorted(before)
    assert server.manager.reset_prefix_cache()
    assert server.queue() == before
    request = server.prompt(range(70, 94))
    server.admit(request)
    assert server.table(request) == before


@BOTH_ORDERS
def test_evicting_by_id_moves_nothing(serving, free_order):
    """Fact sheet 5: `evict_blocks` takes hashes, of used blocks too; nobody moves or is freed."""
    events = []
    server = serving(ReferenceBlockManager(10, 4, free_order=free_order, events=events.append))
    server.run(server.prompt(range(9)))  # 1 2 cached, 3 partial
    running = server.prompt(range(50, 59))
    server.admit(running)
    before, used = server.queue(), server.table(running)
    events.clear()
    server.manager.evict_blocks([2, 3, used[0]])
    assert server.queue() == before
    assert server.table(running) == used
    assert server.look_up(range(9)) == 4
    assert server.look_up(range(50, 59)) == 0
    assert [e.block_id for e in events if isinstance(e, BlockRemoved)] == [2, used[0]]
    server.manager.check()
