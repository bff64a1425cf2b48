"""Random programs on the reference manager, checked after every operation.

The model is written from the rules alone: a list for the free queue, a table per request, and for
each slot what was computed into it, so that a wrong reuse shows as wrong content.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from policies.reference import ReferenceBlockManager
from sim.events import AllBlocksCleared, BlockRemoved, BlockStored
from sim.keys import TokenKeys
from sim.request import Request, RequestStatus

LETTERS = st.integers(0, 2)
PICK = st.integers(0, 1000)
PROMPTS = st.builds(  # few letters, long runs: prompts share prefixes of every length
    lambda letter, num_equal, tail: [letter] * num_equal + tail,
    st.integers(0, 1),
    st.integers(1, 9),
    st.lists(LETTERS, max_size=3),
)
SALTS = st.sampled_from([None, None, None, "s"])


@dataclass
class Served:
    """A request and what the model knows of it."""

    request: Request
    tokens: list[int]
    salt: str | None
    table: list[int]

    def content(self, position):
        """What a slot holds for this token: the token and all before it, and the salt."""
        return self.salt, tuple(self.tokens[: position + 1])


class ReferenceMachine(RuleBasedStateMachine):
    """Arrivals, chunks, drafts, gates, ends, preemptions, resets and evictions in small pools."""

    @initialize(
        num_blocks=st.integers(3, 14),
        block_size=st.sampled_from([1, 2, 2, 3]),
        free_order=st.sampled_from(["tail", "unhashed_first"]),
        null_block=st.booleans(),
        enable_caching=st.sampled_from([True, True, True, False]),
        watermark=st.sampled_from([0.0, 0.0, 0.3]),
        use_eagle=st.sampled_from([False, False, True]),
    )
    def build(self, num_blocks, block_size, **options):
        self.options, self.block_size = options, block_size
        self.manager = ReferenceBlockManager(num_blocks, block_size, events=self.listen, **options)
        self.watermark_blocks = int(options["watermark"] * num_blocks)
        self.usable = range(options["null_block"], num_blocks)
        self.queue = list(self.usable)
        self.copies = Counter()  # what events say is findable
        self.num_events = 0
        self.removed = []
        self.slots = {}  # (block id, offset) -> content
        self.served = {}
        self.num_arrived = 0

    def listen(self, event):
        self.num_events += 1
        match event:
            case BlockStored():
                self.copies.update(event.block_hashes)
            case BlockRemoved():
                self.copies[event.block_hash] -= 1
                assert self.copies[event.block_hash] == event.copies_left
                self.removed.append(event.block_id)
            case AllBlocksCleared():
                self.copies.clear()

    # What can happen

    @precondition(lambda self: len(self.served) < 4)
    @rule(tokens=PROMPTS, salt=SALTS)
    def arrive(self, tokens, salt):
        keys = TokenKeys(tokens, self.block_size, salt=salt)
        request = Request(self.num_arrived, keys, len(tokens), max_tokens=100)
        self.served[self.num_arrived] = Served(request, list(tokens), salt, [])
        self.num_arrived += 1

    @rule(tokens=PROMPTS, salt=SALTS, ends=st.sampled_from([True, True, False]))
    def serve(self, tokens, salt, ends):
        """A whole prompt at once; it may end in the same breath."""
        self.arrive(tokens, salt)
        last = len(self.served) - 1
        self.schedule(last, 100, 0, 0, False, False, False)
        if ends:
            self.finish(last)

    @precondition(lambda self: self.served)
    @rule(
        pick=PICK,
        chunk=st.integers(1, 14),
        lookahead=st.sampled_from([0, 0, 1, 4]),
        reserved=st.sampled_from([0, 0, 2]),
        whole=st.booleans(),
        others_run=st.booleans(),
        delay=st.sampled_from([False, False, True]),
    )
    def schedule(self, pick, chunk, lookahead, reserved, whole, others_run, delay):
        served = self.pick(pick)
        request, manager = served.request, self.manager
        waits = not served.table
        hit = self.look_up(served) if waits else None
        hits = [block.block_id for block in hit.spans] if hit else []
        computed = request.num_computed_tokens + len(hits) * self.block_size
        chunk = min(chunk, request.num_tokens - computed)
        if chunk == 0:
            return

        def need(num_tokens):
            return max(0, -(-num_tokens // self.block_size) - len(served.table) - len(hits))

        num_new = need(computed + chunk + lookahead)
        idle_hits = sum(block_id in self.queue for block_id in hits)
        free = len(self.queue) - (self.watermark_blocks if waits and others_run else 0)
        fits = num_new + idle_hits <= free - reserved
        if whole:
            fits = fits and need(request.num_tokens) + idle_hits <= free

        before = self.snapshot()
        allocation = manager.allocate_slots(
            request,
            chunk,
            *([hit] if hit else []),
            num_lookahead_tokens=lookahead,
            full_sequence_must_fit=whole,
            has_scheduled_reqs=others_run,
            reserved_blocks=reserved,
            delay_cache_blocks=delay,
        )
        assert (allocation is not None) == fits
        if allocation is None:
            assert self.snapshot() == before
            return
        request.status = RequestStatus.RUNNING
        queue = [block_id for block_id in self.queue if block_id not in hits]
        new, self.queue = queue[:num_new], queue[num_new:]
        assert [block.block_id for block in allocation.spans] == new
        assert allocation.num_new_blocks == num_new
        served.table += hits + new
        request.num_computed_tokens = computed + chunk
        self.compute(served, computed, chunk)
        if not delay and self.options["enable_caching"]:
            stored = manager.num_stored_blocks(request.request_id)
            assert (stored or 0) == request.num_computed_tokens // self.block_size

    @precondition(lambda self: self.served)
    @rule(pick=PICK)
    def report_computed(self, pick):
        """The delayed blocks of a request become findable; nothing else changes."""
        served = self.pick(pick)
        self.manager.cache_blocks(served.request, served.request.num_computed_tokens)

    @precondition(lambda self: self.served)
    @rule(pick=PICK, tokens=st.lists(LETTERS, min_size=1, max_size=3))
    def sample(self, pick, tokens):
        served = self.pick(pick)
        request = served.request
        if served.table and request.num_computed_tokens == request.num_tokens:
            served.tokens += tokens
            request.keys.append(tokens)
            request.num_output_tokens += len(tokens)

    @precondition(lambda self: self.served)
    @rule(pick=PICK)
    def finish(self, pick):
        served = self.pick(pick)
        self.give_back(served)
        del self.served[served.request.request_id]

    @precondition(lambda self: self.served)
    @rule(pick=PICK)
    def preempt(self, pick):
        served = self.pick(pick)
        self.give_back(served)
        served.request.num_computed_tokens = 0
        served.request.status = RequestStatus.PREEMPTED

    @precondition(lambda self: self.num_arrived % 5 == 4)
    @rule()
    def reset(self):
        in_use = len(self.queue) < len(self.usable)
        before = self.snapshot()
        assert self.manager.reset_prefix_cache() is not in_use
        if in_use:
            assert self.snapshot() == before

    @precondition(lambda self: self.num_arrived % 3 == 1)
    @rule(block_ids=st.lists(st.integers(0, 13), min_size=1, max_size=3))
    def evict_by_id(self, block_ids):
        block_ids = [i for i in block_ids if i in self.usable]
        self.removed.clear()
        hashed = {i for i in block_ids if self.manager.blocks[i].block_hash is not None}
        self.manager.evict_blocks(block_ids)
        assert set(self.removed) == hashed
        assert all(self.manager.blocks[i].block_hash is None for i in block_ids)

    @precondition(lambda self: self.num_arrived % 5 == 3)
    @rule(letter=LETTERS)
    def ask_too_much(self, letter):
        """A prompt larger than the pool is refused and leaves no trace."""
        num_tokens = (len(self.usable) + 1) * self.block_size
        keys = TokenKeys([letter] * num_tokens, self.block_size)
        request = Request("too large", keys, num_tokens, max_tokens=1)
        before = self.snapshot()
        hit = self.manager.get_computed_blocks(request)
        num_new = num_tokens - hit.num_tokens
        assert self.manager.allocate_slots(request, num_new, hit) is None
        assert self.snapshot() == before

    # What the model does

    def pick(self, pick):
        return list(self.served.values())[pick % len(self.served)]

    def look_up(self, served):
        """The hit: pure, repeatable, as long as the events allow, and right in its content."""
        before = self.snapshot()
        hit = self.manager.get_computed_blocks(served.request)
        assert hit == self.manager.get_computed_blocks(served.request)
        assert self.snapshot() == before
        num_blocks = 0
        while (
            num_blocks < (len(served.tokens) - 1) // self.block_size
            and self.copies[served.request.keys[num_blocks]] > 0
        ):
            num_blocks += 1
        num_blocks -= self.options["use_eagle"] and num_blocks > 0
        assert hit.num_tokens == num_blocks * self.block_size
        oldest = [self.manager.copies(served.request.keys[i])[0] for i in range(num_blocks)]
        assert [block.block_id for block in hit.spans] == [copy.block_id for copy in oldest]
        return hit

    def compute(self, served, start, num_tokens):
        for position in range(start, start + num_tokens):
            block_id = served.table[position // self.block_size]
            assert self.manager.blocks[block_id].ref_cnt == 1, "a shared block is written"
            self.slots[block_id, position % self.block_size] = served.content(position)

    def give_back(self, served):
        """Free: deepest first to the tail, or the unhashed ones to the front."""
        hashed_before = {i: self.manager.blocks[i].block_hash is not None for i in served.table}
        table, served.table = served.table, []
        self.manager.free(served.request)
        in_use = {i for other in self.served.values() for i in other.table}
        released = [i for i in reversed(table) if i not in in_use]
        front = []
        if self.options["free_order"] == "unhashed_first":
            front = [i for i in released if not hashed_before[i]]
        self.queue = front + self.queue + [i for i in released if i not in front]

    def snapshot(self):
        """All that an operation may change."""
        manager = self.manager
        return (
            [(b.block_id, b.ref_cnt, b.block_hash, b.num_blocks) for b in manager.blocks],
            [block.block_id for block in manager.free_blocks()],
            {key: [b.block_id for b in manager.copies(key)] for key in manager.cached},
            {name: [b.block_id for b in table] for name, table in manager.tables.items()},
            dict(manager.num_cached),
            (manager.num_free_blocks, manager.num_cached_blocks, manager.num_evicted_blocks),
            self.num_events,
        )

    # What must hold

    @invariant()
    def the_books_balance(self):
        self.manager.check()

    @invariant()
    def every_block_is_free_or_in_use(self):
        users = Counter(i for served in self.served.values() for i in served.table)
        assert [block.block_id for block in self.manager.free_blocks()] == self.queue
        assert sorted([*self.queue, *users]) == list(self.usable)
        for block in self.manager.blocks:
            assert block.ref_cnt == users[block.block_id]
        assert self.manager.num_free_blocks == len(self.queue)
        assert self.manager.usage == 1.0 - len(self.queue) / len(self.usable)

    @invariant()
    def tables_are_as_given(self):
        for name, served in self.served.items():
            assert [block.block_id for block in self.manager.table(name)] == served.table

    @invariant()
    def nothing_in_use_was_overwritten(self):
        for served in self.served.values():
            for position in range(served.request.num_computed_tokens):
                slot = served.table[position // self.block_size], position % self.block_size
                assert self.slots[slot] == served.content(position)

    @invariant()
    def events_tell_what_is_findable(self):
        hashes = Counter(b.block_hash for b in self.manager.blocks if b.block_hash is not None)
        assert +self.copies == hashes
        for key, num_copies in hashes.items():
            assert len(self.manager.copies(key)) == num_copies
        idle = sum(self.manager.blocks[i].block_hash is not None for i in self.queue)
        assert self.manager.num_cached_blocks == idle

    def teardown(self):
        for served in list(self.served.values()):
            self.give_back(served)
        if hasattr(self, "manager"):
            assert self.manager.usage == 0.0
            assert self.manager.reset_prefix_cache()
            self.manager.check()


TestReferenceManager = pytest.mark.slow(ReferenceMachine.TestCase)
TestReferenceManager.settings = settings(
    max_examples=120, stateful_step_count=50, deadline=None, derandomize=True, database=None
)
