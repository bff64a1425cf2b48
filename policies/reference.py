"""The specification, literally: vLLM v1's prefix-caching KV-cache manager, block by block.

Read it beside the specification or vLLM's `v1/core/{block_pool,kv_cache_manager}.py`. It is the
oracle for every faster manager and the one that has block ids. Parameters choose between vLLM
versions: `free_order` and `null_block` (docs/fidelity.md).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator
from operator import attrgetter
from typing import cast

from policies.block import BlockHashMap, KVCacheBlock
from policies.free_queue import FreeQueue
from policies.lru import LRU
from policies.offers import wrong_offer
from policies.pool import FreeOrder, Victims, check_no_leaves, check_pool, stored_event
from sim.cache import NO_HIT, Allocation, BlockManager, BlockState, EvictionPolicy, Hit, Span
from sim.events import AllBlocksCleared, BlockRemoved, EventSink
from sim.request import Request, RequestStatus

MOST_BLOCKS = 2**24
"""In a pool: their objects take 2.7 GB and a quarter of a minute to make."""


class ReferenceBlockManager(BlockManager):
    """vLLM's block manager for one full-attention group, exact in every block id.

    *num_blocks*: blocks in the pool, at most 2**24, as each is an object of some 160 bytes; with
    *null_block*, block 0 is one of them and is never used.
    *free_order*: where a freed block without a hash goes: "tail" like any other (the
    specification; vLLM <= 0.23) or "unhashed_first" to the front (vLLM >= 0.24).
    *victims*: which unused blocks may be evicted: "block" any of them (vLLM), "leaf" only those
    that no cached block continues, as in systems that keep a tree (SGLang, TensorRT-LLM).
    *watermark*: share of blocks that an admission must leave free while other requests run.
    *use_eagle*: drop the last block of every hit, as EAGLE and MTP drafting need.
    *max_model_len*: no slots are needed beyond this many tokens of a request.
    *events*: called with every KV event.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int = 16,
        *,
        eviction: EvictionPolicy | None = None,
        free_order: FreeOrder = "tail",
        null_block: bool = True,
        enable_caching: bool = True,
        watermark: float = 0.0,
        use_eagle: bool = False,
        max_model_len: int | None = None,
        victims: Victims = "block",
        events: EventSink | None = None,
    ) -> None:
        most, else_use = MOST_BLOCKS, "; for more use the manager vllm"
        check_pool(
            num_blocks, block_size, null_block, free_order, watermark, victims, most, else_use
        )
        self.num_blocks = num_blocks - null_block
        self.block_size = block_size
        self.free_order = free_order
        self.enable_caching = enable_caching
        self.use_eagle = use_eagle
        self.max_model_len = max_model_len
        self.watermark_blocks = int(watermark * num_blocks)
        self.leaf_only = victims == "leaf"
        self.events = events
        self.num_evicted_blocks = 0

        self.blocks = [KVCacheBlock(i) for i in range(num_blocks)]
        self.cached = BlockHashMap()
        self._num_children: Counter[Hashable] = Counter()  # leaf mode: cached contents that follow
        self.tables: dict[int | str, list[KVCacheBlock]] = {}
        self.num_cached: dict[int | str, int] = {}  # leading blocks of a table that were stored
        self.blank = FreeQueue()  # free blocks without content that the policy does not order
        self._num_blank = 0
        for block in self.blocks[1:] if null_block else self.blocks:
            self._append_blank(block)
        self.policy = eviction or LRU()
        self.policy.bind(self)
        self._num_held = 0  # free blocks that the policy orders
        self._num_idle_cached = 0
        self._emptied: set[KVCacheBlock] = set()  # lost their content while in use

    # Reusing

    def get_computed_blocks(self, request: Request) -> Hit:
        if not self.enable_caching or request.skip_reading_prefix_cache:
            return NO_HIT
        keys, find = request.keys, self.cached.get
        blocks: list[KVCacheBlock] = []
        for i in range((request.num_tokens - 1) // self.block_size):
            block = find(keys[i])
            if block is None:
                break
            blocks.append(block)
        if self.use_eagle and blocks:
            blocks.pop()
        return Hit(len(blocks) * self.block_size, blocks)

    # Giving

    def allocate_slots(
        self,
        request: Request,
        num_new_tokens: int,
        hit: Hit = NO_HIT,
        *,
        now: float = 0.0,
        num_lookahead_tokens: int = 0,
        full_sequence_must_fit: bool = False,
        has_scheduled_reqs: bool = True,
        reserved_blocks: int = 0,
        delay_cache_blocks: bool = False,
    ) -> Allocation | None:
        if num_new_tokens < 0 or (num_new_tokens == 0 and not hit.num_tokens):
            raise ValueError(f"num_new_tokens is {num_new_tokens}; it must be at least 1")
        table = self.tables.get(request.request_id, [])
        hits = cast("list[KVCacheBlock]", hit.spans)
        num_tokens = request.num_computed_tokens + hit.num_tokens + num_new_tokens

        num_new_blocks, num_idle_hits = self._need(num_tokens + num_lookahead_tokens, table, hits)
        num_free = self.num_free_blocks - self._watermark(request, has_scheduled_reqs)
        if full_sequence_must_fit:
            whole, _ = self._need(request.num_tokens, table, hits)
            if whole + num_idle_hits > num_free:
                return None
        if num_new_blocks + num_idle_hits > num_free - reserved_blocks:
            return None

        self.tables[request.request_id] = table
        if hits:
            self._touch(hits, request, now)
            table.extend(hits)
            self.num_cached[request.request_id] = len(table)
        if num_new_blocks and self.enable_caching:
            start = self.num_cached.get(request.request_id, 0)
            stop = min(num_tokens, request.num_prompt_tokens) // self.block_size
            if stop > start:
                self.policy.miss(request, start, stop)
        new_blocks = [self._pop_free_block() for _ in range(num_new_blocks)]
        table.extend(new_blocks)
        if not delay_cache_blocks:
            self.cache_blocks(request, min(num_tokens, request.num_tokens))
        return Allocation(num_new_blocks, new_blocks)

    def _need(
        self, num_tokens: int, table: list[KVCacheBlock], hits: list[KVCacheBlock]
    ) -> tuple[int, int]:
        """Blocks to take for *num_tokens* tokens, and hits that would leave the free blocks."""
        if self.max_model_len is not None:
            num_tokens = min(num_tokens, self.max_model_len)
        num_blocks = -(-num_tokens // self.block_size)
        num_new_blocks = max(0, num_blocks - len(table) - len(hits))
        return num_new_blocks, sum(block.ref_cnt == 0 for block in hits)

    def _watermark(self, request: Request, has_scheduled_reqs: bool) -> int:
        """Blocks to leave free: only for a request that waits while others run."""
        waits = request.status in (RequestStatus.WAITING, RequestStatus.PREEMPTED)
        return self.watermark_blocks if waits and has_scheduled_reqs else 0

    def _touch(self, hits: list[KVCacheBlock], request: Request, now: float) -> None:
        """Mark the hits as used, before anything is evicted for the same request."""
        for block in hits:
            self.policy.hit(block, request, now)
            if block.ref_cnt == 0:
                self._num_held -= 1
                self._num_idle_cached -= 1
            block.ref_cnt += 1

    def _pop_free_block(self) -> KVCacheBlock:
        """The next free block, emptied: this is the only place where content is evicted."""
        if self._num_blank:
            block = cast("KVCacheBlock", self.blank.popleft())
            self._num_blank -= 1
        else:
            span, num_blocks = self.policy.victim(1)
            if span.ref_cnt > 0 or num_blocks != 1:
                raise wrong_offer(self.policy, span, num_blocks, 1)
            block = cast("KVCacheBlock", span)
            block.num_blocks = 0
            self.policy.evicted(block, 1)
            block.num_blocks = 1
            self._num_held -= 1
            if block.block_hash is not None:
                self.num_evicted_blocks += 1
                self._num_idle_cached -= 1
                self._unhash(block)
        block.ref_cnt = 1
        return block

    def _unhash(self, block: KVCacheBlock) -> None:
        block_hash = block.block_hash
        copies_left = self._take_from_map(block)
        if self.events:
            self.events(BlockRemoved(block_hash, copies_left, block.block_id))

    def _take_from_map(self, block: KVCacheBlock) -> int:
        """Make *block* unfindable; how many other copies are left."""
        copies_left = self.cached.remove(block)
        block.block_hash = None
        if self.leaf_only and not copies_left:
            self._num_children[block.parent_hash] -= 1
            if not self._num_children[block.parent_hash]:
                self._unlock(block.parent_hash)
        return copies_left

    def _unlock(self, block_hash: Hashable) -> None:
        """Tell the policy that the blocks with this content may be evicted now."""
        for block in self.cached.copies(block_hash):
            if block.ref_cnt == 0:
                self.policy.unlocked(block)

    def cache_blocks(self, request: Request, num_tokens: int) -> None:
        if not self.enable_caching:
            return
        table = self.tables.get(request.request_id, [])
        keys = request.keys
        start = self.num_cached.get(request.request_id, 0)
        stop = min(num_tokens // self.block_size, len(table), len(keys))
        if stop <= start:
            return
        for i in range(start, stop):
            block = table[i]
            block.block_hash = keys[i]
            block.parent_hash = keys[i - 1] if i else None
            block.start = i
            if self.leaf_only:
                if self.cached.get(block.block_hash) is None:
                    self._num_children[block.parent_hash] += 1
                elif self._num_children[block.block_hash]:
                    self._unlock(block.block_hash)  # from now on another copy stays
            self.cached.insert(block)
        self.num_cached[request.request_id] = stop
        if self.events:
            self.events(stored_event(request, start, stop, self.block_size))

    def may_evict(self, span: Span) -> bool:
        block_hash = cast("KVCacheBlock", span).block_hash
        if block_hash is None or not self._num_children[block_hash]:
            return True
        return len(self.cached.copies(block_hash)) > 1

    # Taking back

    def free(self, request: Request, *, now: float = 0.0) -> None:
        unhashed: list[KVCacheBlock] = []
        for block in reversed(self.tables.pop(request.request_id, [])):
            block.ref_cnt -= 1
            if block.ref_cnt:
                continue
            if block.block_hash is None and self._blanks_first:
                if block in self._emptied:
                    self._forget_emptied(block, request, now)
                unhashed.append(block)
            else:
                self.policy.release(block, request, now)
                self._num_held += 1
                self._num_idle_cached += block.block_hash is not None
        for block in reversed(unhashed):
            self.blank.prepend(block)
            self._num_blank += 1
        self.num_cached.pop(request.request_id, None)

    def _forget_emptied(self, block: KVCacheBlock, request: Request, now: float) -> None:
        """Tell the policy, which may know *block* from before, that it is gone."""
        self._emptied.remove(block)
        self.policy.release(block, request, now)
        self.policy.forget(block)

    def _append_blank(self, block: KVCacheBlock) -> None:
        self.blank.append(block)
        self._num_blank += 1

    @property
    def _blanks_first(self) -> bool:
        return self.free_order == "unhashed_first" or not self.policy.ranks_unhashed

    def evict_blocks(self, block_ids: Iterable[int]) -> None:
        """Make these blocks unfindable where they are, in use or not; none is freed.

        ConfigError in leaf mode.
        """
        check_no_leaves(self)
        for block_id in block_ids:
            if not 0 <= block_id < len(self.blocks):
                raise ValueError(f"block {block_id}; ids are 0 to {len(self.blocks) - 1}")
            block = self.blocks[block_id]
            if block.block_hash is None:
                continue
            self._unhash(block)
            if block.ref_cnt:
                if self._blanks_first:
                    self._emptied.add(block)
            else:
                self._num_idle_cached -= 1
                if not self.policy.ranks_unhashed:
                    self.policy.forget(block)
                    self._num_held -= 1
                    self._append_blank(block)

    def reset_prefix_cache(self) -> bool:
        if self.num_free_blocks != self.num_blocks:
            return False
        while self._num_held:  # the order of eviction stays the order of the queue
            block = cast("KVCacheBlock", self.policy.victim(1)[0])
            self.policy.forget(block)
            self._num_held -= 1
            if self.leaf_only and block.block_hash is not None:
                self._take_from_map(block)
            self._append_blank(block)
        for block in self.blocks:
            block.block_hash = None
        self._num_idle_cached = 0
        self.cached.clear()
        self._num_children.clear()
        if self.events:
            self.events(AllBlocksCleared())
        return True

    # Books

    @property
    def num_free_blocks(self) -> int:
        return self._num_blank + self._num_held

    @property
    def num_cached_blocks(self) -> int:
        return self._num_idle_cached

    @property
    def num_orphaned_blocks(self) -> int:
        """Free blocks whose content cannot be hit now, since some block before it is not cached."""
        is_rooted: dict[Hashable, bool] = {None: True}
        hashed = [block for block in self.blocks if block.block_hash is not None]
        hashed.sort(key=attrgetter("start"))
        for block in hashed:
            is_rooted[block.block_hash] = is_rooted.get(block.parent_hash, False)
        return sum(b.ref_cnt == 0 and not is_rooted[b.block_hash] for b in hashed)

    def free_blocks(self) -> Iterator[BlockState]:
        yield from map(_state, self.blank)
        yield from map(_state, cast("Iterable[Span]", self.policy))

    def table(self, request_id: int | str) -> list[BlockState]:
        return [_state(block) for block in self.tables.get(request_id, [])]

    def num_stored_blocks(self, request_id: int | str) -> int | None:
        return self.num_cached.get(request_id)

    def copies(self, key: Hashable) -> list[BlockState]:
        return [_state(block) for block in self.cached.copies(key)]

    def cut(self, span: Span, num_blocks: int) -> Span:
        raise AssertionError("a span of one block cannot be cut")

    def check(self) -> None:
        users: dict[int, int] = {}
        for table in self.tables.values():
            for block in table:
                users[block.block_id] = users.get(block.block_id, 0) + 1
        usable = self.blocks[len(self.blocks) - self.num_blocks :]
        for block in usable:
            assert block.ref_cnt == users.get(block.block_id, 0), f"{block}: wrong ref_cnt"
            if block.block_hash is not None:
                assert block in self.cached.copies(block.block_hash), f"{block}: not in the map"
        hashed = sum(block.block_hash is not None for block in usable)
        assert hashed == sum(len(self.cached.copies(key)) for key in self.cached), "stale hash"
        idle = [block for block in usable if block.ref_cnt == 0]
        assert len(idle) == self.num_free_blocks, "free and used blocks do not add up"
        cached = sum(block.block_hash is not None for block in idle)
        assert cached == self.num_cached_blocks, "cached and blank blocks do not add up"


def _state(span: Span) -> BlockState:
    block = cast("KVCacheBlock", span)
    return BlockState(block.block_hash, block.ref_cnt, block.block_id)
