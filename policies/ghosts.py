"""Ghosts: the memory of what was evicted lately, by content, in runs of blocks.

A run of evicted blocks is one entry, however long it is. The entries hang in a prefix tree, so that
what a prompt has among them is found by a walk with as many steps as there are branch points on its
path; the order in which they are forgotten is a queue, the deepest block of a run first. A prompt
evicted block by block from its start is one entry a block: there the next push begins where the
last one ended, instead of at the root.

    root -- [0..7] --+-- [8..40] *     * remembered; [0..7] is not: it only leads to what is
                     +-- [8..11] *

Content is remembered at most once; what is evicted again counts as new. Published algorithms look
content up before they evict something to make room for it, managers here tell a policy of the
insertion, so after that: policies keep one ghost more than their limit (`with_spare`) and find the
same, if one block is evicted for one. What a request of many blocks misses may be forgotten before
it is looked up, pushed out by what was evicted to make room for all of it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any, NamedTuple, cast

from policies.free_queue import FreeQueue
from sim.cache import Pool, Span
from sim.keys import BlockKeys

LONG_WALK = 8  # steps from the root, after which it pays to look for a shorter way
SPARE_ENDS = 64


class Run(NamedTuple):
    """The blocks *start* to *stop* - 1 of some prompt, and what was noted at their eviction."""

    start: int
    stop: int
    note: Any


class Ghost(Span):
    """A node of the tree; *note* is the policy's, `is_listed` says whether it is remembered."""

    __slots__ = ("children", "first_key", "is_listed", "keys", "parent")

    def __init__(self, parent: Ghost | None, keys: BlockKeys, start: int, num_blocks: int) -> None:
        super().__init__(num_blocks, start)
        self.parent = parent
        self.keys = keys  # any chain that leads through this node
        self.first_key: Hashable = keys[start] if num_blocks else None
        self.children: dict[Hashable, Ghost] = {}
        self.is_listed = False


class Ghosts:
    """Evicted content, oldest first; `num_blocks` says how much of it is remembered."""

    def __init__(self) -> None:
        self.num_blocks = 0
        self._root = Ghost(None, cast("BlockKeys", ()), 0, 0)
        self._queue = FreeQueue()
        self._ends: dict[Hashable, Ghost] = {}  # of pushes: last key, and a node that ended there

    def push(self, keys: BlockKeys, start: int, stop: int, note: Any = None) -> None:
        """Remember the blocks *start* to *stop* - 1 of *keys*; the deepest will go first."""
        nodes, num_steps = self._path(keys, start, stop)
        for ghost in reversed(nodes):
            self._unlist(ghost)
            ghost.note = note
            self._list(ghost)
            self._join(ghost)
        if num_steps >= LONG_WALK:
            self._note_end(keys, stop, nodes[0])

    def find(self, keys: BlockKeys, start: int, stop: int) -> list[Run]:
        """What is remembered of the blocks *start* to *stop* - 1 of *keys*, from the shallowest."""
        return [Run(low, high, ghost.note) for ghost, low, high in self._found(keys, start, stop)]

    def take(self, keys: BlockKeys, start: int, stop: int) -> list[Run]:
        """The same, and it is remembered no more; neighbours with the same note are one run."""
        runs: list[Run] = []
        for ghost, low, high in reversed(self._found(keys, start, stop)):
            if runs and runs[-1].start == high and runs[-1].note == ghost.note:
                runs[-1] = runs[-1]._replace(start=low)
            else:
                runs.append(Run(low, high, ghost.note))
            if high < ghost.start + ghost.num_blocks:
                ghost = self._split(ghost, high - ghost.start)
            if low > ghost.start:
                self._split(ghost, low - ghost.start)
            self._unlist(ghost)
            self._prune(ghost)
        runs.reverse()
        return runs

    def trim(self, num_blocks: int) -> None:
        """Forget the oldest but *num_blocks*."""
        while self.num_blocks > max(0, num_blocks):
            ghost = cast("Ghost", self._queue.first)
            num_left = ghost.num_blocks - (self.num_blocks - max(0, num_blocks))
            if num_left > 0 and not ghost.children:  # it shrinks where it is
                self.num_blocks -= ghost.num_blocks - num_left
                ghost.num_blocks = num_left
                continue
            if num_left > 0:
                self._split(ghost, num_left)
            self._unlist(ghost)
            self._prune(ghost)

    # The tree

    def _found(self, keys: BlockKeys, start: int, stop: int) -> list[tuple[Ghost, int, int]]:
        """The ghosts that hold some of these blocks, and which blocks."""
        found: list[tuple[Ghost, int, int]] = []
        children, position = self._root.children, 0
        while position < stop and children:
            ghost = children.get(keys[position])
            if ghost is None:
                break
            end = position + ghost.num_blocks
            num_equal = keys.common(ghost.keys, position, end if end < stop else stop)
            low, position = max(start, position), position + num_equal
            if ghost.is_listed and low < position:
                found.append((ghost, low, position))
            if position < end:
                break
            children = ghost.children
        return found

    def _path(self, keys: BlockKeys, start: int, stop: int) -> tuple[list[Ghost], int]:
        """Nodes for exactly the blocks *start* to *stop* - 1; what the tree lacks is added.

        And in how many steps they were found.
        """
        nodes: list[Ghost] = []
        node, position, num_steps = self._root, 0, 0
        while position < stop:
            num_steps += 1
            if num_steps == LONG_WALK and position < start:
                near = self._end_before(keys, start)
                if near:
                    node, position = near, start
            bound = start if position < start else stop
            child = node.children.get(keys[position])
            if child is None:
                child = Ghost(node, keys, position, bound - position)
                node.children[child.first_key] = child
            else:
                end = min(position + child.num_blocks, bound)
                num_equal = keys.common(child.keys, position, end)
                if num_equal < child.num_blocks:
                    child = self._split(child, num_equal)
            if position >= start:
                nodes.append(child)
            position += child.num_blocks
            node = child
        return nodes, num_steps

    def _note_end(self, keys: BlockKeys, stop: int, ghost: Ghost) -> None:
        """*ghost* ends with block *stop* - 1, as far as it was not split."""
        if len(self._ends) > self.num_blocks + SPARE_ENDS:
            self._ends.clear()  # only hints: the next walks find them again
        self._ends[keys[stop - 1]] = ghost

    def _end_before(self, keys: BlockKeys, start: int) -> Ghost | None:
        """The node that ends where block *start* begins, if a push ended there and it is known."""
        ghost = self._ends.pop(keys[start - 1], None)
        if ghost is None or ghost.start + ghost.num_blocks != start or ghost.parent is None:
            return None
        is_there = ghost.parent.children.get(ghost.first_key) is ghost
        return ghost if is_there else None

    def _split(self, ghost: Ghost, num_upper: int) -> Ghost:
        """Cut *ghost*; its first *num_upper* blocks become a new node above it."""
        parent = cast("Ghost", ghost.parent)
        upper = Ghost(parent, ghost.keys, ghost.start, num_upper)
        parent.children[upper.first_key] = upper
        ghost.parent = upper
        ghost.start += num_upper
        ghost.num_blocks -= num_upper
        ghost.first_key = ghost.keys[ghost.start]
        upper.children[ghost.first_key] = ghost
        upper.note, upper.is_listed = ghost.note, ghost.is_listed
        if ghost.is_listed:
            self._queue.insert_after(upper, ghost)
        return upper

    def _list(self, ghost: Ghost) -> None:
        ghost.is_listed = True
        self._queue.append(ghost)
        self.num_blocks += ghost.num_blocks

    def _unlist(self, ghost: Ghost) -> None:
        if ghost.is_listed:
            ghost.is_listed = False
            self._queue.remove(ghost)
            self.num_blocks -= ghost.num_blocks

    def _prune(self, ghost: Ghost) -> None:
        """Drop *ghost* and its ancestors as far as nothing that is remembered hangs on them."""
        while not ghost.is_listed and not ghost.children and ghost.parent is not None:
            del ghost.parent.children[ghost.first_key]
            ghost = ghost.parent
        if not ghost.is_listed and ghost.parent is not None:
            self._join(ghost)
            if not ghost.parent.is_listed and ghost.parent.parent is not None:
                self._join(ghost.parent)

    def _join(self, ghost: Ghost) -> None:
        """Make one node of *ghost* and the only one below it, if they were alike and neighbours."""
        if len(ghost.children) != 1:
            return
        (below,) = ghost.children.values()
        if ghost.is_listed != below.is_listed:
            return
        if ghost.is_listed:
            if below.next_free is not ghost or below.note != ghost.note:
                return
            self._queue.remove(below)
        ghost.keys = below.keys
        ghost.num_blocks += below.num_blocks
        ghost.children = below.children
        for child in ghost.children.values():
            child.parent = ghost


def cut_by(pool: Pool, span: Span, runs: list[Run]) -> Iterator[tuple[Span, Run | None]]:
    """*span* in pieces, the deepest first: those that are in one of *runs*, and the rest."""
    for run in reversed(runs):
        end = span.start + span.num_blocks
        if run.stop < end:
            upper = pool.cut(span, end - run.stop)
            yield span, None
            span = upper
        if run.start <= span.start:
            yield span, run
            return
        upper = pool.cut(span, run.stop - run.start)
        yield span, run
        span = upper
    yield span, None


def with_spare(num_blocks: int) -> int:
    """How many ghosts to keep so that *num_blocks* are left when one of them is looked up.

    One more, for the eviction that makes room comes before the look-up; none for none.
    """
    return num_blocks + 1 if num_blocks else 0
