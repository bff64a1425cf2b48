"""The null manager: blocks are counted and nothing is ever reused.

The baseline of every comparison, a test double, and the whole contract in its smallest form.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator

from policies.pool import check_pool
from sim.cache import NO_HIT, Allocation, BlockManager, BlockState, Hit, Span
from sim.request import Request


class UncachedBlockManager(BlockManager):
    """No prefix cache: every token is computed, and a block is either in use or blank.

    *num_blocks*: blocks in the pool; with *null_block* one of them is never used, as in vLLM.
    """

    enable_caching = False

    def __init__(self, num_blocks: int, block_size: int = 16, *, null_block: bool = True) -> None:
        check_pool(num_blocks, block_size, null_block)
        self.num_blocks = num_blocks - null_block
        self.block_size = block_size
        self._tables: dict[int | str, int] = {}  # blocks of each request
        self._num_free = self.num_blocks

    def get_computed_blocks(self, request: Request) -> Hit:
        return NO_HIT

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
        num_owned = self._tables.get(request.request_id, 0)
        num_tokens = request.num_computed_tokens + num_new_tokens + num_lookahead_tokens
        num_new = max(0, -(-num_tokens // self.block_size) - num_owned)
        num_needed = num_new + reserved_blocks
        if full_sequence_must_fit:
            num_needed = max(num_needed, -(-request.num_tokens // self.block_size) - num_owned)
        if num_needed > self._num_free:
            return None
        self._tables[request.request_id] = num_owned + num_new
        self._num_free -= num_new
        return Allocation(num_new, ())

    def cache_blocks(self, request: Request, num_tokens: int) -> None:
        pass

    def free(self, request: Request, *, now: float = 0.0) -> None:
        self._num_free += self._tables.pop(request.request_id, 0)

    def reset_prefix_cache(self) -> bool:
        return not self._tables

    @property
    def num_free_blocks(self) -> int:
        return self._num_free

    @property
    def num_cached_blocks(self) -> int:
        return 0

    def free_blocks(self) -> Iterator[BlockState]:
        return iter([BlockState(None, 0, None)] * self._num_free)

    def table(self, request_id: int | str) -> list[BlockState]:
        return [BlockState(None, 1, None)] * self._tables.get(request_id, 0)

    def num_stored_blocks(self, request_id: int | str) -> int | None:
        return None

    def copies(self, key: Hashable) -> list[BlockState]:
        return []

    def cut(self, span: Span, num_blocks: int) -> Span:
        raise AssertionError("there are no spans")

    def check(self) -> None:
        assert sum(self._tables.values()) + self._num_free == self.num_blocks, (
            "blocks do not add up"
        )
