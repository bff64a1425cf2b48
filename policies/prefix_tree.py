"""The prefix tree of `policies.vllm`: what is cached, in runs that share one history."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import ClassVar, cast

from sim.cache import EvictionPolicy, Span
from sim.keys import BlockKeys


class Node:
    """A run of content in the prefix tree: blocks *start* to *start* + *num_blocks* - 1 of a chain.

    A node without copies stays as long as it has descendants with copies (a ghost): those are
    orphans until the ghost's content is computed again.
    """

    __slots__ = ("children", "copies", "first_key", "keys", "num_blocks", "parent", "start")

    def __init__(
        self, parent: Node | None, keys: BlockKeys, start: int, num_blocks: int, first_key: Hashable
    ) -> None:
        self.parent = parent
        self.keys = keys  # any chain that leads through this node
        self.start = start
        self.num_blocks = num_blocks
        self.first_key = first_key
        self.children: dict[Hashable, Node] = {}
        self.copies: list[Copy] = []  # oldest first: a lookup finds the first

    @property
    def is_cut_off(self) -> bool:
        """Whether the node has left the tree."""
        return self.parent is None and self.num_blocks > 0


class Copy(Span):
    """Memory that holds the whole content of one node.

    *above*: if the copy was cut while in use, the part just before it. A request that held the copy
    before the cut holds both parts and finds the other one here.
    *is_new*: no request has reused or released it yet, so its policy does not know it.
    *node* is None once the content was taken away by `evict_content`.
    """

    __slots__ = ("above", "is_new", "node")

    def __init__(self, node: Node, num_blocks: int, start: int, ref_cnt: int) -> None:
        self.node: Node | None = node
        self.num_blocks = num_blocks
        self.start = start
        self.ref_cnt = ref_cnt
        self.note = None
        self.above: Copy | None = None
        self.is_new = True

    def key(self, i: int) -> Hashable | None:
        return self.node.keys[self.start + i] if self.node else None


class Unhashed(Span):
    """Free blocks without content, where the policy orders them too (`free_order="tail"`)."""

    __slots__ = ()

    node: ClassVar[None] = None

    def key(self, i: int) -> Hashable | None:
        return None


class PrefixTree:
    """Nodes below a root that holds nothing; *policy* hears of every cut of a span it knows."""

    def __init__(self, policy: EvictionPolicy) -> None:
        self.root = Node(None, cast("BlockKeys", ()), 0, 0, None)
        self._policy = policy
        self._leaf_only = policy.pool.leaf_only

    def split(self, node: Node, num_upper: int) -> Node:
        """Cut *node* and its copies; the first *num_upper* blocks become a new node above it."""
        parent, start, keys = cast("Node", node.parent), node.start, node.keys
        upper = Node(parent, keys, start, num_upper, node.first_key)
        parent.children[node.first_key] = upper
        node.parent = upper
        node.start = start = start + num_upper
        node.num_blocks -= num_upper
        node.first_key = keys[start]
        upper.children[node.first_key] = node
        for lower in node.copies:
            part = Copy(upper, num_upper, lower.start, lower.ref_cnt)
            upper.copies.append(part)
            part.note, part.is_new = lower.note, lower.is_new
            if lower.ref_cnt:
                part.above, lower.above = lower.above, part
            lower.start = start
            lower.num_blocks = node.num_blocks
            if not lower.is_new:
                self._policy.split(part, lower)
        return upper

    def insert(
        self,
        node: Node,
        spans: list[Copy],
        keys: BlockKeys,
        start: int,
        stop: int,
        key: Hashable = None,
    ) -> Node:
        """Add a copy of the blocks *start* to *stop* - 1 below *node*; the node where it ends.

        What the tree has of them already gets another copy. *spans* gains the new ones. *key*:
        that of block *start*, if the caller knows it.
        """
        leaf_only = self._leaf_only
        while start < stop:
            if key is None:
                key = keys[start]
            child = node.children.get(key)
            if child is None:
                num_blocks = stop - start
                child = node.children[key] = Node(node, keys, start, num_blocks, key)
            else:
                num_blocks = keys.common(child.keys, start, min(start + child.num_blocks, stop))
                if num_blocks < child.num_blocks:
                    child = self.split(child, num_blocks)
            if leaf_only and child.children:
                self._unlock(child)  # from now on another copy stays
            copy = Copy(child, num_blocks, start, ref_cnt=1)
            child.copies.append(copy)
            spans.append(copy)
            start += num_blocks
            node, key = child, None
        return node

    def tip(self, keys: BlockKeys, stop: int) -> Node:
        """The node at which the first *stop* blocks end; what the tree lacks becomes ghosts."""
        node, start = self.root, 0
        while start < stop:
            key = keys[start]
            child = node.children.get(key)
            if child is None:
                child = node.children[key] = Node(node, keys, start, stop - start, key)
            else:
                end = min(start + child.num_blocks, stop)
                num_blocks = keys.common(child.keys, start, end)
                if num_blocks < child.num_blocks:
                    child = self.split(child, num_blocks)
            start += child.num_blocks
            node = child
        return node

    def remove(self, copy: Copy, node: Node, num_left: int) -> None:
        """Take an unused copy out of the tree, but for its first *num_left* blocks."""
        if num_left:
            self.split(node, num_left)
        copy.num_blocks = 0
        copies = node.copies
        copies.remove(copy)
        if not copies and not node.children:
            self.prune(node)

    def prune(self, node: Node) -> None:
        """Drop *node* and its ancestors as far as they have neither copies nor descendants."""
        while not node.copies and not node.children and node.parent:
            parent = node.parent
            del parent.children[node.first_key]
            if self._leaf_only and not parent.children:
                self._unlock(parent)
            node.parent = None
            node = parent

    def _unlock(self, node: Node) -> None:
        """Tell the policy that the unused copies of *node* may be evicted now."""
        for copy in node.copies:
            if copy.ref_cnt == 0:
                self._policy.unlocked(copy)

    # Looking around

    def __iter__(self) -> Iterator[Node]:
        """Every node below the root, parents first."""
        stack = list(self.root.children.values())
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())

    def find(self, key: Hashable) -> tuple[Node, int]:
        """The node that holds the block with this key, and the block's place in it."""
        for node in self:
            for i in range(node.num_blocks):
                if node.keys[node.start + i] == key:
                    return node, i
        raise KeyError(key)

    def num_orphaned_blocks(self) -> int:
        """Unused blocks below a ghost: they cannot be hit until it is computed again."""
        num_orphaned = 0
        stack = [(node, False) for node in self.root.children.values()]
        while stack:
            node, is_orphan = stack.pop()
            if is_orphan:
                num_orphaned += node.num_blocks * sum(copy.ref_cnt == 0 for copy in node.copies)
            below = is_orphan or not node.copies
            stack.extend((child, below) for child in node.children.values())
        return num_orphaned
