"""vLLM v1's block manager by spans: the decisions of `policies.reference`, much cheaper.

All blocks of a prompt that were used by the same requests share one history. Such a run is kept
as one `Copy` in a prefix tree, so a request costs as many operations as its path has branch points
(3 to 6 on real traces), not as many as it has blocks (hundreds). This is exact: a differential
test compares hits, refusals, free counts, the order of eviction and the cached content with the
block-by-block manager after every operation (tests/policies/test_vllm.py).

    root -- [0..3] --+-- [4..9]       a node: a run of content; the blocks of one prompt are a path
                     +-- [4..6] ...   a copy: the memory that holds a node's content, or several

Block ids do not exist here; blocks without content are only counted.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from typing import Any, ClassVar, cast

from policies.lru import LRU
from policies.offers import wrong_offer
from policies.pool import FreeOrder, Victims, check_no_leaves, check_pool, stored_event
from policies.prefix_tree import Copy, Node, PrefixTree, Unhashed
from policies.reference import ReferenceBlockManager
from policies.span_books import SpanBooks
from policies.table import Table, parts_of
from sim.cache import NO_HIT, Allocation, BlockManager, EvictionPolicy, Hit, Span
from sim.events import AllBlocksCleared, BlockRemoved, EventSink
from sim.keys import BlockKeys
from sim.request import Request, RequestStatus


class VLLMBlockManager(SpanBooks):
    """vLLM's block manager for one full-attention group, without block ids.

    Parameters are those of `ReferenceBlockManager`, and so are the decisions. For a policy that
    needs single blocks (`max_span = 1`) it is that manager, which is faster than spans of one.
    """

    grows_blindly: ClassVar[bool] = True

    def __new__(cls, *arguments: Any, **named: Any) -> BlockManager:  # type: ignore[misc]
        eviction: EvictionPolicy | None = named.get("eviction")
        if eviction and eviction.max_span == 1:
            return ReferenceBlockManager(*arguments, **named)
        return super().__new__(cls)

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
        check_pool(num_blocks, block_size, null_block, free_order, watermark, victims)
        self.num_blocks = num_blocks - null_block
        self.block_size = block_size
        self.enable_caching = enable_caching
        self.use_eagle = use_eagle
        self.max_model_len = max_model_len
        self.watermark_blocks = int(watermark * num_blocks)
        self.leaf_only = victims == "leaf"
        self.free_order = free_order
        self.events = events
        self.num_evicted_blocks = 0

        self.policy = eviction or LRU()
        self.policy.bind(self)
        self._orders_unhashed = free_order == "tail" and self.policy.ranks_unhashed
        self._tell_miss = self.policy.miss if self.policy.hears_misses else None
        self._is_plain = enable_caching and not (use_eagle or max_model_len or self.leaf_only)
        self._tree = PrefixTree(self.policy)
        self._tables: dict[int | str, Table] = {}
        self._num_blank = self.num_blocks
        self._num_held = 0
        self._num_unhashed_held = 0

    # Reusing

    def get_computed_blocks(self, request: Request) -> Hit:
        if not self.enable_caching or request.skip_reading_prefix_cache:
            return NO_HIT
        keys = request.keys
        stop = (request.num_prompt_tokens + request.num_output_tokens - 1) // self.block_size
        spans: list[Span] = []
        position, children = 0, self._tree.root.children
        while position < stop and children:
            node = children.get(keys[position])
            if node is None or not node.copies:
                break
            spans.append(node.copies[0])
            end = position + node.num_blocks
            num_equal = keys.common(node.keys, position, end if end < stop else stop)
            position += num_equal
            if position < end:
                break
            children = node.children
        if self.use_eagle and spans:
            position -= 1
            if spans[-1].start == position:
                spans.pop()
        return Hit(position * self.block_size, spans) if spans else NO_HIT

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
        num_hit_tokens, hits = hit
        if num_new_tokens <= 0 and (num_new_tokens or not num_hit_tokens):
            raise ValueError(f"num_new_tokens is {num_new_tokens}; it must be at least 1")
        table = self._tables.get(request.request_id)
        num_owned = num_hits = num_hit_tokens // self.block_size
        if table:
            num_owned += table.num_stored + table.num_unhashed
        num_tokens = request.num_computed_tokens + num_hit_tokens + num_new_tokens
        num_new = self._num_missing(num_tokens + num_lookahead_tokens, num_owned)

        num_needed = num_new + reserved_blocks
        if full_sequence_must_fit:
            num_needed = max(num_needed, self._num_missing(request.num_tokens, num_owned))
        if self.watermark_blocks and has_scheduled_reqs and _waits(request):
            num_needed += self.watermark_blocks
        num_free = self._num_blank + self._num_held
        if num_needed + num_hits > num_free and num_needed + _num_idle(hit, num_hits) > num_free:
            return None

        if not table:
            table = self._tables[request.request_id] = Table(self._tree.root)
        if num_hits:
            self._touch(table, hits, num_hits, request, now)
        if num_new:
            if self._tell_miss and self.enable_caching:
                known = min(num_tokens, request.num_prompt_tokens) // self.block_size
                if known > table.num_stored:
                    self._tell_miss(request, table.num_stored, known)
            self._take(num_new)
            table.num_unhashed += num_new
        if self.enable_caching and not delay_cache_blocks:
            num_known = request.num_prompt_tokens + request.num_output_tokens
            stop = (num_tokens if num_tokens < num_known else num_known) // self.block_size
            if stop > table.num_stored:
                self._store(table, request, stop)
        return Allocation(num_new, ())

    def _num_missing(self, num_tokens: int, num_owned: int) -> int:
        """Blocks to take so that *num_tokens* tokens have slots."""
        if self.max_model_len is not None and num_tokens > self.max_model_len:
            num_tokens = self.max_model_len
        num_missing = -(-num_tokens // self.block_size) - num_owned
        return num_missing if num_missing > 0 else 0

    def _touch(
        self, table: Table, spans: Sequence[Span], num_hits: int, request: Request, now: float
    ) -> None:
        """Mark the hits as used; a span of which only a part is hit is cut first."""
        policy_hit, held = self.policy.hit, table.spans
        num_left = num_hits
        span: Copy
        for span in spans:  # type: ignore[assignment]
            if span.num_blocks > num_left:
                span = self._tree.split(span.node, num_left).copies[0]  # type: ignore[arg-type]
            num_left -= span.num_blocks
            policy_hit(span, request, now)
            if not span.ref_cnt:
                self._num_held -= span.num_blocks
            span.ref_cnt += 1
            span.is_new = False
            held.append(span)
        table.tip = span.node  # type: ignore[assignment]
        table.num_stored += num_hits

    def _take(self, num_blocks: int) -> None:
        """Take free blocks: those without content first, then what the policy gives up."""
        num_blank = self._num_blank
        if num_blocks <= num_blank:
            self._num_blank = num_blank - num_blocks
            return
        self._num_blank = 0
        num_blocks -= num_blank
        self._num_held -= num_blocks
        victim, evicted = self.policy.victim, self.policy.evicted
        while num_blocks:
            span, num_evicted = victim(num_blocks)
            num_blocks -= num_evicted
            num_left = span.num_blocks - num_evicted
            if num_evicted < 1 or num_left < 0 or num_blocks < 0 or span.ref_cnt > 0:
                raise wrong_offer(self.policy, span, num_evicted, num_blocks + num_evicted)
            node: Node | None = span.node  # type: ignore[attr-defined]
            if node is None:
                span.num_blocks = num_left
                self._num_unhashed_held -= num_evicted
            else:
                self.num_evicted_blocks += num_evicted
                if num_left and not node.children and len(node.copies) == 1:
                    span.num_blocks = node.num_blocks = num_left  # it shrinks where it is
                else:
                    self._tree.remove(span, node, num_left)  # type: ignore[arg-type]
                if self.events:
                    self._report(span, node, num_evicted)
            evicted(span, num_evicted)

    def _report(self, span: Span, node: Node, num_evicted: int) -> None:
        """Send the events of the blocks that *span* has just lost."""
        assert self.events is not None
        copies_left = len(node.copies) - (span.num_blocks > 0)
        first = span.start + span.num_blocks
        for i in range(first + num_evicted - 1, first - 1, -1):
            self.events(BlockRemoved(node.keys[i], copies_left, None))

    def cut(self, span: Span, num_blocks: int) -> Span:
        node = cast("Node", cast("Copy", span).node)
        place = node.copies.index(cast("Copy", span))
        return self._tree.split(node, span.num_blocks - num_blocks).copies[place]

    def may_evict(self, span: Span) -> bool:
        node: Node | None = span.node  # type: ignore[attr-defined]
        return node is None or not node.children or len(node.copies) > 1

    def grow(self, requests: Collection[Request], *, now: float = 0.0) -> None:
        self._take(len(requests))
        tables = self._tables
        for request in requests:
            tables[request.request_id].num_unhashed += 1

    def cache_blocks(self, request: Request, num_tokens: int) -> None:
        table = self._tables.get(request.request_id)
        if table and self.enable_caching:
            stop = min(num_tokens // self.block_size, table.num_stored + table.num_unhashed)
            stop = min(stop, len(request.keys))
            if stop > table.num_stored:
                self._store(table, request, stop)

    def _store(self, table: Table, request: Request, stop: int) -> None:
        """Make the request's blocks before *stop* findable: copies in the tree."""
        start, keys = table.num_stored, request.keys
        table.num_unhashed -= stop - start
        table.num_stored = stop
        if self.events:
            self.events(stored_event(request, start, stop, self.block_size))
        spans = table.spans
        if spans and spans[-1].is_new and self._extend(table.tip, spans[-1], keys, stop - start):
            return
        tip = self._tree.tip(keys, start) if table.tip.is_cut_off else table.tip
        table.tip = self._tree.insert(tip, spans, keys, start, stop)

    def _extend(self, tip: Node, last: Copy, keys: BlockKeys, num_blocks: int) -> bool:
        """Lengthen a request's last span in place, if it alone has ever used it."""
        if tip.keys is not keys or tip.children or tip.copies != [last]:
            return False
        tip.num_blocks += num_blocks
        last.num_blocks += num_blocks
        return True

    # Taking back

    def free(self, request: Request, *, now: float = 0.0) -> None:
        table = self._tables.pop(request.request_id, None)
        if table is None:
            return
        release = self.policy.release
        if table.num_unhashed:
            self._free_unhashed(Unhashed(table.num_unhashed), request, now)
        for span in table.parts():
            span.is_new = False
            if span.ref_cnt > 1:
                span.ref_cnt -= 1
                continue
            span.ref_cnt = 0
            span.above = None
            if span.node:
                self._num_held += span.num_blocks  # before the policy may cut it
                release(span, request, now)
            else:
                if not self._orders_unhashed:  # the policy may know it from before
                    release(span, request, now)
                    self.policy.forget(span)
                self._free_unhashed(span, request, now)

    def _free_unhashed(self, span: Span, request: Request, now: float) -> None:
        if self._orders_unhashed:
            self.policy.release(span, request, now)
            self._num_held += span.num_blocks
            self._num_unhashed_held += span.num_blocks
        else:
            self._num_blank += span.num_blocks

    def evict_content(self, key: Hashable, nth_copy: int) -> None:
        """Make one block unfindable where it is, in use or not; it is not freed.

        The block is named by its content and the age of the copy (0 is the oldest), since there
        are no block ids; it costs a search through the tree. ConfigError in leaf mode.
        """
        check_no_leaves(self)
        node, i = self._tree.find(key)
        if i + 1 < node.num_blocks:
            node = self._tree.split(node, i + 1)
        if i:
            self._tree.split(node, i)
        copy = node.copies.pop(nth_copy)
        copy.node = None
        self._tree.prune(node)
        if self.events:
            self.events(BlockRemoved(key, len(node.copies), None))
        if copy.ref_cnt == 0:
            if self.policy.ranks_unhashed:
                self._num_unhashed_held += 1
            else:
                self.policy.forget(copy)
                self._num_held -= 1
                self._num_blank += 1

    # All at once

    def serve(self, request: Request, num_tokens: int, *, now: float = 0.0) -> int | None:
        block_size = self.block_size
        num_blocks = -(-num_tokens // block_size)
        if self._tables or self.events or not self._is_plain:
            return super().serve(request, num_tokens, now=now)
        if num_blocks > self.num_blocks:  # alone, it finds every block free
            return None
        stop = (request.num_prompt_tokens - 1) // block_size
        node, spans, missed = self._walk(request, stop, now)
        num_hits = node.start + node.num_blocks
        self._num_held -= num_hits
        if self._tell_miss and request.num_prompt_tokens // block_size > num_hits:
            self._tell_miss(request, num_hits, request.num_prompt_tokens // block_size)
        self._take(num_blocks - num_hits)
        num_full = num_tokens // block_size
        if num_full > num_hits:
            self._tree.insert(node, spans, request.keys, num_hits, num_full, missed)
        if num_blocks > num_full:
            self._free_unhashed(Unhashed(1), request, now)
        release = self.policy.release
        for i in range(len(spans) - 1, -1, -1):
            # To evict part of a second copy, or to release, cuts the copy in use too.
            for span in parts_of(spans, i) if spans[i].above else (spans[i],):
                span.is_new = False
                span.ref_cnt = 0
                span.above = None
                release(span, request, now)
        self._num_held += num_full
        return num_hits * block_size

    def _walk(self, request: Request, stop: int, now: float) -> tuple[Node, list[Copy], Hashable]:
        """Use what is cached of the first *stop* blocks.

        The node where it ends, the spans used, and the key of the block that was missed, if any.
        """
        keys, hit, node = request.keys, self.policy.hit, self._tree.root
        spans: list[Copy] = []
        position = 0
        if request.skip_reading_prefix_cache:
            return node, spans, None
        while position < stop:
            key = keys[position]
            child = node.children.get(key)
            if child is None or not child.copies:
                return node, spans, key
            end = position + child.num_blocks
            num_equal = keys.common(child.keys, position, end if end < stop else stop)
            position += num_equal
            if position < end:
                child = self._tree.split(child, num_equal)
            node = child
            span = node.copies[0]
            hit(span, request, now)
            span.ref_cnt = 1
            spans.append(span)
            if position < end:
                break
        return node, spans, None

    def reset_prefix_cache(self) -> bool:
        if self._num_blank + self._num_held != self.num_blocks:
            return False
        while self._num_held:
            span, _ = self.policy.victim(self._num_held)
            self.policy.forget(span)
            self._num_held -= span.num_blocks
            if self.leaf_only and span.node:  # type: ignore[attr-defined]
                self._tree.remove(span, span.node, 0)  # type: ignore[arg-type, attr-defined]
        self._num_blank = self.num_blocks
        self._num_unhashed_held = 0
        self._tree.root.children.clear()
        if self.events:
            self.events(AllBlocksCleared())
        return True


def _waits(request: Request) -> bool:
    return request.status in (RequestStatus.WAITING, RequestStatus.PREEMPTED)


def _num_idle(hit: Hit, num_hits: int) -> int:
    """Blocks of the hit that no request is using: they would leave the free blocks."""
    num_idle = 0
    for span in hit.spans:
        if span.ref_cnt == 0:
            num_idle += min(span.num_blocks, num_hits)
        num_hits -= span.num_blocks
    return num_idle
