"""What can be seen of a `VLLMBlockManager`: counts, tables, copies, and whether they add up."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import cast

from policies.prefix_tree import Node, PrefixTree
from policies.table import Table
from sim.cache import BlockManager, BlockState, EvictionPolicy, Span
from sim.keys import BlockKeys


class SpanBooks(BlockManager):
    """The part of the manager that only looks; block ids do not exist."""

    policy: EvictionPolicy
    _tree: PrefixTree
    _tables: dict[int | str, Table]
    _num_blank: int  # free blocks that the policy does not order
    _num_held: int  # free blocks that it does
    _num_unhashed_held: int  # those among them that have no content

    @property
    def num_free_blocks(self) -> int:
        return self._num_blank + self._num_held

    @property
    def num_cached_blocks(self) -> int:
        return self._num_held - self._num_unhashed_held

    @property
    def num_orphaned_blocks(self) -> int:
        """Free blocks whose content cannot be hit now, since some block before it is not cached."""
        return self._tree.num_orphaned_blocks()

    def free_blocks(self) -> Iterator[BlockState]:
        for _ in range(self._num_blank):
            yield BlockState(None, 0, None)
        for span in cast("Iterator[Span]", iter(self.policy)):  # type: ignore[call-overload]
            for i in range(span.num_blocks - 1, -1, -1):
                yield BlockState(span.key(i), 0, None)

    def table(self, request_id: int | str) -> list[BlockState]:
        table = self._tables.get(request_id)
        if table is None:
            return []
        parts = reversed(list(table.parts()))
        blocks = [
            BlockState(part.key(i), part.ref_cnt, None)
            for part in parts
            for i in range(part.num_blocks)
        ]
        return blocks + [BlockState(None, 1, None)] * table.num_unhashed

    def num_stored_blocks(self, request_id: int | str) -> int | None:
        table = self._tables.get(request_id)
        return (table.num_stored or None) if table else None

    def _num_cached(self, keys: BlockKeys, stop: int) -> int:
        position = num_cached = 0
        children = self._tree.root.children
        while position < stop and children:
            node = children.get(keys[position])
            if node is None:
                break
            end = position + node.num_blocks
            num_equal = keys.common(node.keys, position, min(end, stop))
            num_cached += num_equal if node.copies else 0
            position += num_equal
            if position < end:
                break
            children = node.children
        return num_cached

    def copies(self, key: Hashable) -> list[BlockState]:
        try:
            node, _ = self._tree.find(key)
        except KeyError:
            return []
        return [BlockState(key, copy.ref_cnt, None) for copy in node.copies]

    def check(self) -> None:
        users: dict[int, int] = {}
        num_used = 0
        for table in self._tables.values():
            num_used += table.num_unhashed
            parts = list(table.parts())
            assert sum(part.num_blocks for part in parts) == table.num_stored, "a table has a gap"
            for part in parts:
                users[id(part)] = users.get(id(part), 0) + 1
                if part.node is None:
                    num_used += 1 if users[id(part)] == 1 else 0
        num_cached = 0
        for node in self._tree:
            assert node.num_blocks > 0, "an empty node"
            assert node.copies or node.children, "a ghost without descendants"
            parent = cast("Node", node.parent)
            assert parent.children[node.first_key] is node, "a child under a wrong key"
            assert parent.start + parent.num_blocks == node.start, "a gap between nodes"
            for copy in node.copies:
                assert copy.num_blocks == node.num_blocks, "a copy of a part of its node"
                assert copy.ref_cnt == users.get(id(copy), 0), "wrong ref_cnt"
                if copy.ref_cnt:
                    num_used += copy.num_blocks
                else:
                    num_cached += copy.num_blocks
        assert num_cached == self.num_cached_blocks, "cached blocks do not add up"
        assert num_used + self.num_free_blocks == self.num_blocks, "blocks do not add up"
