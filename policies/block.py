"""What vLLM's block pool is made of: a block of KV memory, and the map from content to blocks."""

from __future__ import annotations

from collections.abc import Hashable, Iterator

from sim.cache import Span


class KVCacheBlock(Span):
    """One slot of KV memory; `prev_free` and `next_free` link it into a free queue (see `Span`)."""

    __slots__ = ("block_hash", "block_id", "parent_hash")

    def __init__(self, block_id: int) -> None:
        super().__init__(num_blocks=1)
        self.block_id = block_id
        self.block_hash: Hashable | None = None  # set when the block is full, reset on eviction
        self.parent_hash: Hashable | None = None  # of the block before it, None at the start

    def key(self, i: int) -> Hashable | None:
        return self.block_hash

    def __repr__(self) -> str:
        return f"KVCacheBlock({self.block_id}, hash={self.block_hash}, ref_cnt={self.ref_cnt})"


class BlockHashMap:
    """Block hash -> the blocks that hold this content, oldest first.

    Nothing is de-duplicated: two requests that compute the same content keep two copies. A single
    block is stored bare, since nearly every hash has just one.
    """

    def __init__(self) -> None:
        self._blocks: dict[Hashable, KVCacheBlock | dict[int, KVCacheBlock]] = {}

    def get(self, block_hash: Hashable) -> KVCacheBlock | None:
        """The oldest copy, or None."""
        found = self._blocks.get(block_hash)
        return next(iter(found.values())) if isinstance(found, dict) else found

    def copies(self, block_hash: Hashable) -> list[KVCacheBlock]:
        """All copies, oldest first."""
        found = self._blocks.get(block_hash)
        if found is None:
            return []
        return list(found.values()) if isinstance(found, dict) else [found]

    def insert(self, block: KVCacheBlock) -> None:
        """Make *block* findable under its hash, behind older copies."""
        found = self._blocks.setdefault(block.block_hash, block)
        if isinstance(found, dict):
            found[block.block_id] = block
        elif found is not block:
            self._blocks[block.block_hash] = {found.block_id: found, block.block_id: block}

    def remove(self, block: KVCacheBlock) -> int:
        """Make *block* unfindable; how many other copies are left."""
        found = self._blocks[block.block_hash]
        if isinstance(found, dict):
            del found[block.block_id]
            if found:
                return len(found)
        del self._blocks[block.block_hash]
        return 0

    def clear(self) -> None:
        """Forget everything."""
        self._blocks.clear()

    def __iter__(self) -> Iterator[Hashable]:
        return iter(self._blocks)
