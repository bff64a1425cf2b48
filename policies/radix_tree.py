"""A compressed prefix tree: runs of blocks under their first keys, and what SGLang notes of each.

    root -- [0..3] --+-- [4..9]       a node is a run of blocks; the path from the root to a node
                     +-- [4..6]       is the prompt up to that node's end

Every content occurs once. Source: SGLang `srt/mem_cache/radix_cache.py`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import cast

from sim.cache import Span
from sim.keys import BlockKeys


class RadixNode(Span):
    """A run of cached blocks; `ref_cnt` is SGLang's `lock_ref`: requests whose path it is on.

    *last_access*, *created*: numbers of events, not times: only their order matters. *hit_count*:
    insertions that led through the node. *priority*: the highest of them, larger is kept longer.
    *is_new*: not released yet, so the eviction policy does not know it.
    """

    __slots__ = (
        "children",
        "created",
        "first_key",
        "hit_count",
        "is_new",
        "keys",
        "last_access",
        "parent",
        "priority",
    )

    def __init__(
        self, parent: RadixNode | None, keys: BlockKeys, start: int, num_blocks: int, event: int
    ) -> None:
        super().__init__(num_blocks, start)
        self.parent = parent
        self.keys = keys  # any chain that leads through this node
        self.first_key: Hashable = keys[start] if num_blocks else None
        self.children: dict[Hashable, RadixNode] = {}
        self.created = self.last_access = event
        self.hit_count = 0
        self.priority: float = 0
        self.is_new = True

    def key(self, i: int) -> Hashable:
        return self.keys[self.start + i]

    def path(self) -> Iterator[RadixNode]:
        """The node and its ancestors without the root, the deepest first.

        A node may be cut as soon as it was given.
        """
        node = self
        while (above := node.parent) is not None:
            yield node
            node = above


class RadixTree:
    """All that is cached, once; *event* counts matches and insertions."""

    def __init__(self) -> None:
        self.event = 0
        self.root = RadixNode(None, cast("BlockKeys", ()), 0, 0, 0)
        self.root.ref_cnt = 1  # never evicted

    def next_event(self) -> int:
        """A number larger than all before."""
        self.event += 1
        return self.event

    def walk(self, keys: BlockKeys, node: RadixNode, stop: int) -> Iterator[tuple[RadixNode, int]]:
        """Each node below *node* that *keys* lead through up to block *stop* - 1.

        With it comes how many of its blocks are equal; if not all are, it is the last.
        """
        position = node.start + node.num_blocks
        while position < stop:
            child = node.children.get(keys[position])
            if child is None:
                return
            end = min(position + child.num_blocks, stop)
            num_equal = keys.common(child.keys, position, end)
            yield child, num_equal
            position += num_equal
            if position < child.start + child.num_blocks:
                return
            node = child

    def add(self, parent: RadixNode, keys: BlockKeys, num_blocks: int) -> RadixNode:
        """A new leaf below *parent*."""
        start = parent.start + parent.num_blocks
        leaf = RadixNode(parent, keys, start, num_blocks, self.event)
        parent.children[leaf.first_key] = leaf
        return leaf

    def split(self, node: RadixNode, num_upper: int) -> RadixNode:
        """Cut *node*: its first *num_upper* blocks become a new node above it, which is returned.

        The upper node has the same users, hit count and priority; it counts as created now.
        """
        parent = cast("RadixNode", node.parent)
        upper = RadixNode(parent, node.keys, node.start, num_upper, self.event)
        upper.ref_cnt, upper.is_new = node.ref_cnt, node.is_new
        upper.hit_count, upper.priority = node.hit_count, node.priority
        parent.children[upper.first_key] = upper
        node.parent = upper
        node.start += num_upper
        node.num_blocks -= num_upper
        node.first_key = node.keys[node.start]
        upper.children[node.first_key] = node
        return upper

    def remove(self, leaf: RadixNode) -> None:
        """Take a leaf out; it still knows its parent."""
        del cast("RadixNode", leaf.parent).children[leaf.first_key]

    def __iter__(self) -> Iterator[RadixNode]:
        """Every node below the root, parents first."""
        stack = list(self.root.children.values())
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())
